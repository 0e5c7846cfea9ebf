//! Several GPUs in one container: a cap for each, on the right one whatever it is called, by whichever context's hand memory is
//! taken of it. The judge is the simulated driver's record, GPU by GPU as the device counts.

use std::time::{Duration, Instant};

#[path = "caps/actors.rs"]
mod actors;
#[path = "caps/container.rs"]
mod container;
mod support;

use actors::{Case, Stage, TWO, Verdict, Wrong, check, is_full, mib, near};
use container::{GIB, MIB};

/// Cases that do not hold yet: played and told, and failing none. Whoever mends one takes it out.
const OPEN: &[&str] = &["managed memory touched by another GPU", "NVML alone, limits by number, before anybody"];

const STEP: u64 = 64 * MIB;
/// A context, and what else a program has before it takes anything.
const BASE: u64 = 518 * MIB;
const FIRST: &str = "GPU-72617469-6f6e-2d73-696d-000000000000";
const SECOND: &str = "GPU-72617469-6f6e-2d73-696d-000000000001";
/// Without a limit, so much is asked for.
const PLENTY: u64 = 6 * GIB;
const LONGEST: Duration = Duration::from_millis(100);

/// The slower GPU is first on the bus.
const UNEQUAL: &[(&str, &str)] =
    &[("RATION_SIM_GPUS", "2"), ("RATION_SIM_MEMORY", "16GiB"), ("RATION_SIM_SMS", "66,132")];

// ------------------------------------------------------------------------------------------- whose cap is which GPU's

/// What the program sees, in its order: which GPU of the machine's it is, and its cap.
type Seen = &'static [(usize, Option<u64>)];

/// Asks for three times of each cap, all GPUs at once, by one thread and by one for each; and looks at what is said of each.
fn fills(stage: &Stage, settings: &[(&str, &str)], seen: Seen) -> Verdict {
    for verb in ["spread", "at-once"] {
        let mut actor = stage.actor("tests/gpus", settings)?;
        let count = actor.numbers("count")?[0] as usize;
        check(count == seen.len(), || format!("{count} devices"))?;
        let limits: Vec<_> = seen.iter().map(|(_, cap)| cap.map_or(PLENTY, |cap| 3 * cap).to_string()).collect();
        let got = actor.numbers(&format!("{verb} {STEP} {}", limits.join(" ")))?;
        let taken = stage.taken();
        for (device, (gpu, cap)) in seen.iter().enumerate() {
            let (bytes, code) = (got[2 * device], got[2 * device + 1]);
            let what = format!("{verb}, device {device}");
            match cap {
                Some(cap) => {
                    check(code == 2, || format!("{what}: refused with {code}"))?;
                    is_full(&what, taken[*gpu], *cap, STEP)?;
                    says_the_slice(&mut actor, device, *gpu, *cap, taken[*gpu])?;
                }
                None => {
                    check(code == 0 && bytes == PLENTY, || format!("{what}: {} and {code}", mib(bytes)))?;
                    let (_, total) = free_and_total(&mut actor, device)?;
                    check(total > 15 * GIB, || format!("{what}: a total of {}", mib(total)))?;
                }
            }
        }
        // A small allocation and a kernel still work, on each.
        for device in 0..seen.len() {
            actor.all(&[&format!("use {device}"), "alloc small 4096", "free small", &format!("kernel {device}")])?;
        }
        actor.must("empty")?;
        actor.end()?;
    }
    Ok(())
}

fn free_and_total(actor: &mut actors::Actor, device: usize) -> Result<(u64, u64), Wrong> {
    actor.must(&format!("use {device}"))?;
    let told = actor.numbers("info")?;
    Ok((told[0], told[1]))
}

/// cuMemGetInfo, cuDeviceTotalMem and NVML, which has numbers of its own, all tell of this GPU's slice.
fn says_the_slice(actor: &mut actors::Actor, device: usize, gpu: usize, cap: u64, taken: u64) -> Verdict {
    let (free, total) = free_and_total(actor, device)?;
    near("cuMemGetInfo's total", total, cap, 0)?;
    near("cuMemGetInfo's free", free, cap - taken, 2 * MIB)?;
    near("cuDeviceTotalMem", actor.numbers(&format!("total {device}"))?[0], cap, 0)?;
    let uuid = actor.must(&format!("uuid {device}"))?.remove(0);
    for order in [format!("nvml-by-uuid {uuid}"), format!("nvml-by-index {gpu}")] {
        let told = actor.numbers(&order)?;
        near(&format!("`{order}`: total"), told[0], cap, 0)?;
        near(&format!("`{order}`: free"), told[1], cap - taken, 2 * MIB)?;
        near(&format!("`{order}`: used"), told[2], taken, 2 * MIB)?;
    }
    Ok(())
}

macro_rules! caps {
    ($name:literal, $machine:expr, [$($setting:expr),* $(,)?], [$($seen:expr),*]) => {
        Case {
            name: $name,
            machine: $machine,
            play: |stage| fills(stage, &[$($setting),*], &[$($seen),*]),
        }
    };
}

// ------------------------------------------------------------------------------------- by another device's context

/// Of managed memory the driver takes so much at a time.
const BATCH: u64 = 128 * MIB;

fn slack(way: &str) -> u64 {
    if way == "managed" { BATCH } else { 0 }
}

/// GPU 1 is limited: whatever other context is current, no way gets round that, or is held against another GPU.
fn by_another(stage: &Stage, way: &str, limits: &str) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", limits)])?;
    let (code, said) = actor.ask(&format!("fill {way} {STEP} {} 1 0", 6 * GIB))?;
    check(code == 2, || format!("-> {code}, after {} bytes", said[0]))?;
    let slack = slack(way);
    is_full(way, stage.taken()[1].saturating_sub(slack), 2 * GIB, STEP + slack)?;
    // Managed memory is charged where it was made as well.
    if limits.contains("0=") && way != "managed" {
        let (free, _) = free_and_total(&mut actor, 0)?;
        near("free of the other", free, 3 * GIB - stage.taken()[0], 2 * MIB)?;
    }
    actor.all(&["use 1", "alloc small 4096", "free small", "kernel 1", "empty"])?;
    let (free, _) = free_and_total(&mut actor, 1)?;
    near("free when all was given back", free, 2 * GIB - stage.taken()[1], 2 * MIB + slack)?;
    actor.end()
}

/// GPU 0 is limited and GPU 1 is not: what is taken of GPU 1 is not held against GPU 0.
fn unlimited_by_limited(stage: &Stage, way: &str) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "0=2GiB")])?;
    let got = actor.numbers(&format!("fill {way} {STEP} {} 1 0", 6 * GIB))?[0];
    check(got == 6 * GIB, || format!("only {} of a GPU without a limit", mib(got)))?;
    let (free, _) = free_and_total(&mut actor, 0)?;
    near("free of the limited one", free, 2 * GIB - stage.taken()[0], 2 * MIB)?;
    actor.must("empty")?;
    actor.end()
}

/// A graph's node says whose memory it takes.
fn graph_of_another(stage: &Stage) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "1=2GiB")])?;
    actor.all(&["use 1", "use 0"])?;
    actor.fails(&format!("graph large {} 1", 3 * GIB), 2)?;
    actor.must(&format!("graph fits {} 1", GIB))?;
    check(stage.taken()[1] <= 2 * GIB, || mib(stage.taken()[1]))?;
    actor.must("use 1")?;
    let (free, _) = free_and_total(&mut actor, 1)?;
    near("free", free, 2 * GIB - stage.taken()[1], 2 * MIB)?;
    actor.end()
}

/// A pool that the program made is the device's current one.
fn current_pool(stage: &Stage) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "0=3GiB,1=2GiB")])?;
    actor.all(&["use 0", "use 1", "pool mine 1", "current mine"])?;
    let (code, _) = actor.ask(&format!("fill async {STEP} {} 1 1", 6 * GIB))?;
    check(code == 2, || format!("-> {code}"))?;
    is_full("GPU 1", stage.taken()[1], 2 * GIB, STEP)?;
    actor.must("empty")?;
    // From the other device's context, too.
    let (code, _) = actor.ask(&format!("fill async {STEP} {} 1 0", 6 * GIB))?;
    check(code == 2, || format!("with another context: {code}"))?;
    is_full("GPU 1, with another context", stage.taken()[1], 2 * GIB, STEP)?;
    actor.all(&["empty", "use 1", "destroy mine"])?;
    let (free, _) = free_and_total(&mut actor, 1)?;
    near("free when the pool was destroyed", free, 2 * GIB - BASE, 2 * MIB)?;
    actor.end()
}

/// What one device's context took is given back by another's hand.
fn freed_by_another(stage: &Stage) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "2GiB")])?;
    for _ in 0..4 {
        actor.all(&["use 1", &format!("alloc a {GIB}"), "use 0", "free a"])?;
        actor.all(&[&format!("create p {GIB} 1"), "map p 0", "release p", "use 1", "unmap p"])?;
    }
    for device in 0..2 {
        let (free, _) = free_and_total(&mut actor, device)?;
        near("free", free, 2 * GIB - BASE, 2 * MIB)?;
    }
    actor.end()
}

/// A context that is reset takes its GPU's memory with it and leaves the other's.
fn reset_of_one(stage: &Stage) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "2GiB")])?;
    let take = format!("alloc a {GIB}");
    actor.all(&["use 0", &take, "use 1", &take, "reset 1"])?;
    let (free, _) = free_and_total(&mut actor, 0)?;
    near("free of the other", free, GIB - BASE, 2 * MIB)?;
    let (free, _) = free_and_total(&mut actor, 1)?;
    near("free of the one", free, 2 * GIB - stage.taken()[1], 2 * MIB)?;
    actor.end()
}

/// Peers reach each other's memory, by all ways, and pay for none of it.
fn peers(stage: &Stage) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "0=3GiB,1=2GiB")])?;
    let half = GIB / 2;
    actor.all(&["use 0", &format!("alloc a {half}"), "write a 42", "use 1", &format!("alloc b {half}")])?;
    actor.all(&["peer 0 1", "peer 1 0", "use 0", "copy a b 4096", "use 1"])?;
    check(actor.must("read b")? == ["42"], || "cuMemcpyPeer copied something else".to_owned())?;
    actor.all(&[&format!("create p {half} 0"), "map p 1", "write p 43"])?;
    check(actor.must("read p")? == ["43"], || "mapped from a peer".to_owned())?;
    actor.all(&["pool q 0", "access q 1", "use 0", &format!("from-pool c q {half} 0"), "write c 44", "use 1"])?;
    check(actor.must("read c")? == ["44"], || "a pool with access from a peer".to_owned())?;
    let taken = stage.taken();
    for (gpu, cap) in [(0, 3 * GIB), (1, 2 * GIB)] {
        let (free, _) = free_and_total(&mut actor, gpu)?;
        near(&format!("free of GPU {gpu}"), free, cap - taken[gpu], 2 * MIB)?;
    }
    actor.end()
}

/// Managed memory goes where it is told to: by a prefetch, by a kernel that touches it.
fn managed_moves(stage: &Stage, by: &str) -> Verdict {
    let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "0=6GiB,1=2GiB")])?;
    actor.all(&["use 1", "use 0", &format!("managed m {}", 4 * GIB), "prefer m 0"])?;
    let (code, _) = actor.ask(&format!("{by} m 1"))?;
    let taken = stage.taken()[1];
    check(taken <= 2 * GIB, || format!("GPU 1 has {}, and its limit is 2 GiB; `{by}` -> {code}", mib(taken)))?;
    actor.all(&["use 0", "free m", "use 1"])?;
    let (free, _) = free_and_total(&mut actor, 1)?;
    near("free when it was freed", free, 2 * GIB - BASE, 128 * MIB)?;
    actor.end()
}

// ---------------------------------------------------------------------------------------------- several processes

/// Two processes that number the GPUs differently meet on the right ones.
fn different_numbers(stage: &Stage) -> Verdict {
    let limits = format!("{FIRST}=3GiB,{SECOND}=2GiB");
    let both = [("RATION_MEMORY", limits.as_str())];
    let mut one = stage.actor("tests/gpus", &both)?;
    let mut other = stage.actor("tests/gpus", &[both[0], ("CUDA_VISIBLE_DEVICES", "1,0")])?;
    let mut third = stage.actor("tests/gpus", &[both[0], ("CUDA_VISIBLE_DEVICES", SECOND)])?;
    one.all(&["use 0", &format!("alloc a {GIB}"), "use 1"])?;
    third.must("use 0")?;
    other.must(&format!("spread {STEP} {} {}", 6 * GIB, 9 * GIB))?;
    let taken = stage.taken();
    is_full("GPU 0", taken[0], 3 * GIB, STEP)?;
    is_full("GPU 1", taken[1], 2 * GIB, STEP)?;
    third.fails(&format!("alloc a {STEP}"), 2)?;
    other.must("empty")?;
    third.must(&format!("alloc a {STEP}"))?;
    one.end()?;
    other.end()?;
    third.end()
}

/// A rank per GPU, each of which sees only its own as number 0: the same limit for each.
fn a_rank_for_each(stage: &Stage) -> Verdict {
    let rank = |visible: &'static str| {
        stage.actor("tests/gpus", &[("RATION_MEMORY", "2GiB"), ("CUDA_VISIBLE_DEVICES", visible)])
    };
    let (mut first, mut second) = (rank("0")?, rank("1")?);
    for actor in [&mut first, &mut second] {
        let (code, _) = actor.ask(&format!("fill alloc {STEP} {} 0 0", 6 * GIB))?;
        check(code == 2, || format!("-> {code}"))?;
    }
    for gpu in 0..2 {
        is_full(&format!("GPU {gpu}"), stage.taken()[gpu], 2 * GIB, STEP)?;
    }
    first.end()?;
    second.end()
}

/// NVML in a process that never touches CUDA, as `nvidia-smi` is: the slice of each, by NVML's numbers.
fn seen_by_nvml_alone(stage: &Stage, settings: &[(&str, &str)], caps: [Option<u64>; 2]) -> Verdict {
    let mut user = stage.actor("tests/gpus", settings)?;
    let mut watcher = stage.actor("tests/gpus", settings)?;
    let count = user.numbers("count")?[0];
    for device in 0..count {
        user.all(&[&format!("use {device}"), &format!("alloc a{device} {GIB}")])?;
    }
    let taken = stage.taken();
    for (gpu, cap) in caps.iter().enumerate() {
        let uuid = [FIRST, SECOND][gpu];
        for order in [format!("nvml-by-uuid {uuid}"), format!("nvml-by-index {gpu}")] {
            let told = watcher.numbers(&order)?;
            match cap {
                Some(cap) => {
                    near(&format!("`{order}`: total"), told[0], *cap, 0)?;
                    near(&format!("`{order}`: used"), told[2], taken[gpu], 2 * MIB)?;
                }
                None => check(told[0] == 16 * GIB, || format!("`{order}`: total {}", mib(told[0])))?,
            }
        }
    }
    user.end()?;
    watcher.end()
}

/// What a process held on both GPUs when it replaced itself is there again for what came in its place.
fn exec_over_both(stage: &Stage) -> Verdict {
    let settings = [("RATION_MEMORY", "0=3GiB,1=2GiB")];
    let mut beside = stage.actor("tests/gpus", &settings)?;
    let mut actor = stage.actor("tests/gpus", &settings)?;
    beside.all(&["use 0", &format!("alloc a {STEP}"), "use 1", &format!("alloc b {STEP}")])?;
    for _ in 0..3 {
        actor.all(&["use 0", &format!("alloc a {GIB}"), "use 1", &format!("alloc b {}", GIB / 2)])?;
        actor.exec()?;
    }
    actor.must(&format!("spread {STEP} {} {}", 9 * GIB, 6 * GIB))?;
    let taken = stage.taken();
    is_full("GPU 0", taken[0], 3 * GIB, STEP)?;
    is_full("GPU 1", taken[1], 2 * GIB, STEP)?;
    beside.end()?;
    actor.end()
}

/// What a killed process held on both GPUs is there for the container's others within 100 ms of the driver's letting go: to be
/// had, or (`told`) first of all to be told of, as programs ask how much they may take.
fn killed_over_both(stage: &Stage, told: bool) -> Verdict {
    let settings = [("RATION_MEMORY", "3GiB")];
    let mut living = stage.actor("tests/gpus", &settings)?;
    living.all(&["use 0", "use 1"])?;
    for round in 0..3 {
        let mut dying = stage.actor("tests/gpus", &settings)?;
        dying.all(&["use 0", &format!("alloc a {GIB}"), "use 1", &format!("alloc b {GIB}")])?;
        for device in 0..2 {
            living.must(&format!("use {device}"))?;
            living.fails(&format!("alloc c{device} {}", 3 * GIB / 2), 2)?;
        }
        stage.wait_for_the_end_of(dying.kill());
        let released = Instant::now();
        for device in 0..if told { 2 } else { 0 } {
            let (free, _) = free_and_total(&mut living, device)?;
            near(&format!("round {round}: free of GPU {device}"), free, 3 * GIB - stage.taken()[device], 2 * MIB)?;
        }
        for device in 0..2 {
            living.all(&[&format!("use {device}"), &format!("alloc c{device} {}", 3 * GIB / 2)])?;
        }
        check(released.elapsed() <= LONGEST, || format!("{:?}", released.elapsed()))?;
        living.all(&["free c0", "free c1"])?;
    }
    living.end()
}

const CASES: &[Case] = &[
    caps!(
        "a cap for each, by number",
        TWO,
        [("RATION_MEMORY", "0=2GiB,1=3GiB")],
        [(0, Some(2 * GIB)), (1, Some(3 * GIB))]
    ),
    caps!("one for all", TWO, [("RATION_MEMORY", "2GiB")], [(0, Some(2 * GIB)), (1, Some(2 * GIB))]),
    caps!(
        "one for all, with an exception",
        TWO,
        [("RATION_MEMORY", "3GiB,1=2GiB")],
        [(0, Some(3 * GIB)), (1, Some(2 * GIB))]
    ),
    caps!("one without a limit beside one with", TWO, [("RATION_MEMORY", "1=2GiB")], [(0, None), (1, Some(2 * GIB))]),
    caps!(
        "by UUID",
        TWO,
        [(
            "RATION_MEMORY",
            "GPU-72617469-6f6e-2d73-696d-000000000001=3GiB,GPU-72617469-6f6e-2d73-696d-000000000000=2GiB"
        )],
        [(0, Some(2 * GIB)), (1, Some(3 * GIB))]
    ),
    caps!(
        "by UUID, in another order",
        TWO,
        [("RATION_MEMORY", "GPU-72617469-6f6e-2d73-696d-000000000001=3GiB"), ("CUDA_VISIBLE_DEVICES", "1,0")],
        [(1, Some(3 * GIB)), (0, None)]
    ),
    caps!(
        "by number, in another order",
        TWO,
        [("RATION_MEMORY", "0=2GiB,1=3GiB"), ("CUDA_VISIBLE_DEVICES", "1,0")],
        [(1, Some(2 * GIB)), (0, Some(3 * GIB))]
    ),
    caps!(
        "by number, one hidden",
        TWO,
        [("RATION_MEMORY", "0=2GiB,1=3GiB"), ("CUDA_VISIBLE_DEVICES", "1")],
        [(1, Some(2 * GIB))]
    ),
    caps!(
        "seen by UUID, in another order",
        TWO,
        [
            ("RATION_MEMORY", "0=2GiB,1=3GiB"),
            (
                "CUDA_VISIBLE_DEVICES",
                "GPU-72617469-6f6e-2d73-696d-000000000001,GPU-72617469-6f6e-2d73-696d-000000000000"
            )
        ],
        [(1, Some(2 * GIB)), (0, Some(3 * GIB))]
    ),
    Case {
        name: "seen by the beginning of a UUID",
        machine: &[
            ("RATION_SIM_GPUS", "2"),
            ("RATION_SIM_MEMORY", "16GiB"),
            ("RATION_SIM_UUID", "GPU-11111111-0000-0000-0000-000000000000,GPU-22222222-0000-0000-0000-000000000000"),
        ],
        play: |stage| {
            let settings = [("RATION_MEMORY", "GPU-1111=2GiB,0=3GiB"), ("CUDA_VISIBLE_DEVICES", "GPU-2222,GPU-1111")];
            fills(stage, &settings, &[(1, Some(3 * GIB)), (0, Some(2 * GIB))])
        },
    },
    caps!(
        "the limited one hidden",
        TWO,
        [("RATION_MEMORY", "GPU-72617469-6f6e-2d73-696d-000000000000=2GiB"), ("CUDA_VISIBLE_DEVICES", "1")],
        [(1, None)]
    ),
    caps!("the fastest first", UNEQUAL, [("RATION_MEMORY", "0=2GiB,1=3GiB")], [(1, Some(2 * GIB)), (0, Some(3 * GIB))]),
    caps!(
        "in the order of the bus",
        UNEQUAL,
        [("RATION_MEMORY", "0=2GiB,1=3GiB"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")],
        [(0, Some(2 * GIB)), (1, Some(3 * GIB))]
    ),
    caps!(
        "by HAMi's names",
        TWO,
        [("CUDA_DEVICE_MEMORY_LIMIT_0", "2g"), ("CUDA_DEVICE_MEMORY_LIMIT_1", "3072m")],
        [(0, Some(2 * GIB)), (1, Some(3 * GIB))]
    ),
    Case {
        name: "a percentage of each one's own size",
        machine: &[("RATION_SIM_GPUS", "2"), ("RATION_SIM_MEMORY", "8GiB,16GiB")],
        play: |stage| {
            let mut actor = stage.actor("tests/gpus", &[("RATION_MEMORY", "25%")])?;
            actor.must(&format!("spread {STEP} {} {}", 6 * GIB, 12 * GIB))?;
            for (gpu, cap) in [2 * GIB, 4 * GIB].into_iter().enumerate() {
                let told = actor.numbers(&format!("total {gpu}"))?[0];
                near("the cap", told, cap, cap / 20)?;
                is_full(&format!("GPU {gpu}"), stage.taken()[gpu], told, STEP)?;
            }
            actor.end()
        },
    },
    Case {
        name: "create, of a limited GPU, by an unlimited one",
        machine: TWO,
        play: |stage| by_another(stage, "create", "1=2GiB"),
    },
    Case {
        name: "pool, of a limited GPU, by an unlimited one",
        machine: TWO,
        play: |stage| by_another(stage, "pool", "1=2GiB"),
    },
    Case {
        name: "default-pool, of a limited GPU, by an unlimited one",
        machine: TWO,
        play: |stage| by_another(stage, "default-pool", "1=2GiB"),
    },
    Case {
        name: "async, of a limited GPU, by an unlimited one",
        machine: TWO,
        play: |stage| by_another(stage, "async", "1=2GiB"),
    },
    Case {
        name: "managed, of a limited GPU, by an unlimited one",
        machine: TWO,
        play: |stage| by_another(stage, "managed", "1=2GiB"),
    },
    Case {
        name: "create, of a limited GPU, by another",
        machine: TWO,
        play: |stage| by_another(stage, "create", "0=3GiB,1=2GiB"),
    },
    Case {
        name: "pool, of a limited GPU, by another",
        machine: TWO,
        play: |stage| by_another(stage, "pool", "0=3GiB,1=2GiB"),
    },
    Case {
        name: "default-pool, of a limited GPU, by another",
        machine: TWO,
        play: |stage| by_another(stage, "default-pool", "0=3GiB,1=2GiB"),
    },
    Case {
        name: "async, of a limited GPU, by another",
        machine: TWO,
        play: |stage| by_another(stage, "async", "0=3GiB,1=2GiB"),
    },
    Case {
        name: "managed, of a limited GPU, by another",
        machine: TWO,
        play: |stage| by_another(stage, "managed", "0=3GiB,1=2GiB"),
    },
    Case {
        name: "create, of an unlimited GPU, by a limited one",
        machine: TWO,
        play: |stage| unlimited_by_limited(stage, "create"),
    },
    Case {
        name: "pool, of an unlimited GPU, by a limited one",
        machine: TWO,
        play: |stage| unlimited_by_limited(stage, "pool"),
    },
    Case {
        name: "default-pool, of an unlimited GPU, by a limited one",
        machine: TWO,
        play: |stage| unlimited_by_limited(stage, "default-pool"),
    },
    Case {
        name: "async, of an unlimited GPU, by a limited one",
        machine: TWO,
        play: |stage| unlimited_by_limited(stage, "async"),
    },
    Case { name: "a graph with memory of another GPU", machine: TWO, play: graph_of_another },
    Case { name: "a pool of the program's as the current one", machine: TWO, play: current_pool },
    Case { name: "freed in another GPU's context", machine: TWO, play: freed_by_another },
    Case { name: "a reset of one GPU's context", machine: TWO, play: reset_of_one },
    Case { name: "peers", machine: TWO, play: peers },
    Case {
        name: "managed memory prefetched to another GPU",
        machine: TWO,
        play: |stage| managed_moves(stage, "prefetch"),
    },
    Case { name: "managed memory touched by another GPU", machine: TWO, play: |stage| managed_moves(stage, "touch") },
    Case { name: "processes that number the GPUs differently", machine: TWO, play: different_numbers },
    Case { name: "a process for each GPU", machine: TWO, play: a_rank_for_each },
    Case {
        name: "NVML alone, limits by UUID",
        machine: TWO,
        play: |stage| {
            let limits = format!("{FIRST}=2GiB,{SECOND}=3GiB");
            seen_by_nvml_alone(stage, &[("RATION_MEMORY", &limits)], [Some(2 * GIB), Some(3 * GIB)])
        },
    },
    Case {
        name: "NVML alone, limits by number",
        machine: TWO,
        play: |stage| seen_by_nvml_alone(stage, &[("RATION_MEMORY", "0=2GiB,1=3GiB")], [Some(2 * GIB), Some(3 * GIB)]),
    },
    Case {
        name: "NVML alone, limits by number, in another order",
        machine: TWO,
        play: |stage| {
            let settings = [("RATION_MEMORY", "0=2GiB,1=3GiB"), ("CUDA_VISIBLE_DEVICES", "1,0")];
            seen_by_nvml_alone(stage, &settings, [Some(3 * GIB), Some(2 * GIB)])
        },
    },
    Case {
        name: "NVML alone, limits by number, before anybody",
        machine: TWO,
        play: |stage| {
            let mut watcher = stage.actor("tests/gpus", &[("RATION_MEMORY", "0=2GiB,1=3GiB")])?;
            for (gpu, cap) in [2 * GIB, 3 * GIB].into_iter().enumerate() {
                let told = watcher.numbers(&format!("nvml-by-index {gpu}"))?;
                near(&format!("total of GPU {gpu}"), told[0], cap, 0)?;
            }
            watcher.end()
        },
    },
    Case {
        name: "NVML alone, one hidden",
        machine: TWO,
        play: |stage| {
            let settings = [("RATION_MEMORY", "0=2GiB"), ("CUDA_VISIBLE_DEVICES", "1")];
            seen_by_nvml_alone(stage, &settings, [None, Some(2 * GIB)])
        },
    },
    Case { name: "exec over both GPUs", machine: TWO, play: exec_over_both },
    Case { name: "killed over both GPUs", machine: TWO, play: |stage| killed_over_both(stage, false) },
    Case { name: "killed over both GPUs, and told", machine: TWO, play: |stage| killed_over_both(stage, true) },
];

#[test]
fn every_gpu_has_a_cap_of_its_own() {
    actors::play("caps-gpus", CASES, OPEN);
}
