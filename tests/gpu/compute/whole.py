"""What is judged over all mixes of a run, after the last: what the library's thread took, and what its account says."""

from __future__ import annotations

from gpu.bench import Bench, Case
from gpu.compute import bars
from gpu.compute.judges import HOST, listed
from gpu.compute.lines import results
from gpu.compute.mixes import Result


def done(bench: Bench) -> list[Result]:
    found = [result for it in results.values() for result in it if "ration" in result.found]
    if not found:
        bench.skip("no mix was run before")
    return found


def run_threads(bench: Bench) -> None:
    """What the library's thread took in all mixes of this run; kernel time counts."""
    worst: dict[str, float] = {}
    rows = []
    for result in done(bench):
        took = [it.thread for it in result.found["ration"] if it.thread is not None]
        for problem in bars.threads(took, result.idle_thread):
            bench.problem(f"{result.mix.name}: {problem}")
        size = "alone" if len(took) < 2 else "two" if len(took) == 2 else "more"
        worst[size] = max([worst.get(size, 0.0), *took])
        worst["idle"] = max(worst.get("idle", 0.0), result.idle_thread)
        rows.append([result.mix.name, str(len(took)), listed(took), f"{result.idle_thread:.2f}"])
    bench.figures.update(columns=["mix", "containers", "% of a core", "the most idle"], rows=rows)
    bench.headline = "the most of a core: " + ", ".join(f"{size} {it:.2f}%" for size, it in worst.items())


def run_accounts(bench: Bench) -> None:
    """The account of GPU time in the region beside the witness's, window by window."""
    rows, worst, count = [], 0.0, 0
    for result in done(bench):
        for it, got in zip(result.mix.members, result.found["ration"], strict=True):
            for one in got.accounts:
                wrong = bars.account(one.account, one.gpu, one.kernel_us, HOST.slack)
                for problem in wrong:
                    bench.problem(f"{result.mix.name}, {it.load.name}: {problem}")
                figures = (f"{one.gpu:.2f}", f"{one.account:.2f}", f"{one.kernel_us:.1f}", "no" if wrong else "yes")
                rows.append([result.mix.name, it.load.name, *figures])
                worst, count = max(worst, abs(one.account - one.gpu)), count + 1
    if not count:
        bench.skip("no mix that is accounted was run before: one container alone, without a limit, is not")
    bench.figures.update(columns=["mix", "container", "GPU", "account", "µs a kernel", "held"], rows=rows)
    bench.headline = f"{count} windows, the furthest {worst:.2f} points from the witness"


CASES = [
    Case("accounts", "the library's account of GPU time, in all mixes of this run", run_accounts),
    Case("thread-cpu", "what the library's thread takes of a core, in all mixes of this run", run_threads),
]
