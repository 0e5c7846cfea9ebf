"""What NVIDIA's own tool shows inside of a container whose program holds memory: the slice, as if it were the GPU."""

from __future__ import annotations

from gpu.bench import Bench, Case
from gpu.memory.container import capped, program
from gpu.memory.witness import MIB

CAP = 4 << 30
NEAR = 16  # MiB


def smi_inside(bench: Bench) -> None:
    smi = bench.machine.tool("nvidia-smi")
    if not smi:
        bench.skip("no nvidia-smi on this machine")
    command = [str(program(bench, "path")), "linear-64m"]
    with capped(bench, "smi", command, CAP, env={"CAP": str(CAP)}) as (session, eyes, _):
        env = {name: value for name, value in session.env.items() if name.startswith(("RATION_", "LD_"))}
        session.until("ready")
        session.tell()
        session.until("full")
        held = sum(eyes.held(session.pid).values()) // MIB
        query = ["--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits"]
        gpu = bench.run("query-gpu", [smi, *query], env=env, limit=60)
        apps = bench.run("query-apps", [smi, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"], env=env)
        table = bench.run("table", [smi], env=env, limit=60)
        session.tell()
        session.until("freed")
        session.tell()
        session.rest()
        pid = session.pid
    for run in (gpu, apps, table):
        if run.status != 0:
            bench.problem(f"nvidia-smi, {run.label}: {run.how()}: {run.last_words}")
            return
    total, used, free = (int(word) for word in gpu.out.splitlines()[0].split(","))
    bench.figures.update(total_mib=total, used_mib=used, free_mib=free, held_mib=held, apps=apps.out.splitlines())
    if total != CAP // MIB:
        bench.problem(f"nvidia-smi shows a GPU of {total} MiB, and the cap is {CAP // MIB}")
    if abs(used - held) > NEAR or abs(free - (total - held)) > NEAR:
        bench.problem(f"nvidia-smi shows {used} MiB used and {free} free; the program holds {held}")
    if [line.split(",")[0] for line in apps.out.splitlines()] != [str(pid)]:
        bench.problem(f"nvidia-smi lists {apps.out.splitlines()}, and process {pid} is the only one")
    bench.headline = f"{used} of {total} MiB used, as NVML says outside: {held}"


CASES = [Case("smi-inside", "nvidia-smi in a container shows the slice", smi_inside)]
