//! Memory that is kept by somebody of whom those who made it know nothing: nobody counts it but by looking.

use super::actors::{Actor, CAP, Case, ONE, Stage, Verdict, Wrong, check, mib, near};
use super::container::{GIB, MIB};
use super::{PIECE, fills_the_rest, free, limited, taken};

fn within_the_cap(stage: &Stage) -> Verdict {
    check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))
}

/// Pools that their makers destroy, or die with, while another has them.
fn pools_of_others(stage: &Stage, killed: bool) -> Verdict {
    let mut importer = limited(stage, "one")?;
    importer.must(&format!("listen {}", stage.place("importer")))?;
    let (mut had, mut makers): (u64, Vec<Actor>) = (0, Vec::new());
    while had * GIB < 2 * CAP {
        let mut maker = match makers.pop() {
            Some(maker) => maker,
            None => stage.actor("one", &[("RATION_MEMORY", "4GiB")])?,
        };
        if maker.ask("use 0")?.0 != 0 {
            break;
        }
        maker.all(&["pool q 0", "export-pool q", &format!("send q {}", stage.place("importer")), "close q"])?;
        importer.all(&[&format!("receive q{had}"), &format!("import-pool q{had}"), &format!("close q{had}")])?;
        if maker.ask(&format!("from-pool x q {GIB} 0"))?.0 != 0 {
            importer.must(&format!("destroy q{had}"))?;
            break;
        }
        let data = maker.must("export-pointer x")?.remove(0);
        importer.must(&format!("import-pointer x{had} q{had} {data}"))?;
        had += 1;
        if killed {
            stage.wait_for_the_end_of(maker.kill());
        } else {
            maker.all(&["free-async x 0", "destroy q"])?;
            makers.push(maker);
        }
        within_the_cap(stage)?;
    }
    check((2..=3).contains(&had), || format!("{had} of 1 GiB were had of 4 GiB"))?;
    fills_the_rest(stage, &mut importer, 0)?;
    for at in 0..had {
        importer.all(&[&format!("free-async x{at} 0"), &format!("destroy q{at}")])?;
    }
    fills_the_rest(stage, &mut importer, 0)?;
    makers.into_iter().try_for_each(Actor::end)?;
    importer.end()
}

/// A process that is given memory has managed memory of its own, which no figure of the driver's has.
fn handed_to_one_with_managed_memory(stage: &Stage) -> Verdict {
    let (mut maker, mut importer) = (limited(stage, "one")?, limited(stage, "one")?);
    importer.all(&[&format!("listen {}", stage.place("importer")), &format!("managed g {GIB}"), "prefetch g 0"])?;
    let mut had = 0u64;
    while maker.ask(&format!("create p {PIECE} 0"))?.0 == 0 {
        check(had * PIECE <= 2 * CAP, || format!("{} were had", mib(had * PIECE)))?;
        maker.all(&["export p", &format!("send p {}", stage.place("importer")), "close p"])?;
        importer.all(&[&format!("receive p{had}"), &format!("import p{had} {PIECE}"), &format!("close p{had}")])?;
        maker.must("release p")?;
        had += 1;
        within_the_cap(stage)?;
    }
    check(had >= 2, || format!("only {} were had", mib(had * PIECE)))?;
    for at in 0..had {
        importer.must(&format!("release p{at}"))?;
    }
    importer.must("free g")?;
    fills_the_rest(stage, &mut maker, 0)?;
    maker.end()?;
    importer.end()
}

/// One makes memory, another has the descriptors, a third wants memory: the first does nothing, for long.
fn kept_for_an_idle_process(stage: &Stage) -> Verdict {
    let (mut maker, mut third) = (limited(stage, "one")?, limited(stage, "one")?);
    let mut keeper = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
    keeper.must(&format!("listen {}", stage.place("keeper")))?;
    let before = free(&mut third)?;
    for at in 0..4 {
        maker.all(&[&format!("create p {PIECE} 0"), "export p", &format!("send p {}", stage.place("keeper"))])?;
        keeper.must(&format!("receive p{at}"))?;
        maker.all(&["close p", "release p"])?;
    }
    near("free while all are open", free(&mut third)?, before - 4 * PIECE, 2 * MIB)?;
    fills_the_rest(stage, &mut third, 0)?;
    keeper.all(&["close p0", "close p1"])?;
    near("free when two are closed", free(&mut third)?, before - 2 * PIECE, 2 * MIB)?;
    fills_the_rest(stage, &mut third, 0)?;
    // What the others have corrected, it does not correct once more.
    near("by its maker", free(&mut maker)?, before - 2 * PIECE, 2 * MIB)?;
    fills_the_rest(stage, &mut maker, 0)?;
    keeper.all(&["close p2", "close p3"])?;
    near("free when all are closed", free(&mut third)?, before, 2 * MIB)?;
    fills_the_rest(stage, &mut maker, 0)?;
    maker.end()?;
    keeper.end()?;
    third.end()
}

/// All that used the GPU are gone when somebody comes again.
fn kept_for_the_dead_alone(stage: &Stage) -> Verdict {
    let mut keeper = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
    keeper.must(&format!("listen {}", stage.place("keeper")))?;
    let mut kept = 0u64;
    while kept * GIB < 2 * CAP {
        let mut maker = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
        if maker.ask("use 0")?.0 != 0 || maker.ask(&format!("create p {GIB} 0"))?.0 != 0 {
            break;
        }
        maker.all(&["export p", &format!("send p {}", stage.place("keeper"))])?;
        keeper.must(&format!("receive p{kept}"))?;
        stage.wait_for_the_end_of(maker.kill());
        kept += 1;
        within_the_cap(stage)?;
    }
    check(kept == 3, || format!("{kept} of 1 GiB were had of 4 GiB"))?;
    for at in 0..kept {
        keeper.must(&format!("close p{at}"))?;
    }
    fills_the_rest(stage, &mut limited(stage, "one")?, 0)?;
    keeper.end()
}

/// Small pieces share a block, and a dma-buf of one keeps the block when all of them are freed.
fn pieces_in_dma_bufs(stage: &Stage) -> Verdict {
    const ROUNDS: u64 = 200;
    let mut actor = limited(stage, "one")?;
    let before = free(&mut actor)?;
    let filler = format!("alloc f {}", before - 64 * MIB);
    actor.must(&filler)?;
    let mut kept = 0;
    while kept < ROUNDS && actor.ask(&format!("alloc a{kept} {MIB}"))?.0 == 0 {
        if actor.ask(&format!("alloc b {}", MIB / 2))?.0 != 0 {
            actor.must(&format!("free a{kept}"))?;
            break;
        }
        actor.all(&[&format!("dma-buf a{kept}"), &format!("free a{kept}"), "free b"])?;
        kept += 1;
        within_the_cap(stage)?;
    }
    check((8..=32).contains(&kept), || format!("{kept} blocks of 64 MiB were had"))?;
    for at in 0..kept {
        actor.must(&format!("close a{at}"))?;
    }
    actor.must("free f")?;
    near("free when all are closed", free(&mut actor)?, before, 0)?;
    actor.end()
}

/// A process with memory of others open, in every way, and that closes all: nothing sticks, to anybody.
fn nothing_sticks(stage: &Stage) -> Result<(), Wrong> {
    let (mut maker, mut importer) = (limited(stage, "one")?, limited(stage, "one")?);
    importer.must(&format!("listen {}", stage.place("importer")))?;
    let before = [free(&mut maker)?, free(&mut importer)?];
    for round in 0..8 {
        maker.must(&format!("alloc m {PIECE}"))?;
        let handle = maker.must("ipc m")?.remove(0);
        importer.must(&format!("open m {handle}"))?;
        maker.all(&[
            &format!("create p {PIECE} 0"),
            "export p",
            &format!("send p {}", stage.place("importer")),
            "close p",
        ])?;
        importer.all(&["receive p", &format!("import p {PIECE}"), "close p"])?;
        // It becomes the importer's, and is given back by it.
        if round % 2 == 0 {
            maker.all(&["free m", "release p"])?;
            near(&format!("round {round}: free"), free(&mut maker)?, before[0] - 2 * PIECE, 2 * MIB)?;
            importer.all(&["shut m", "release p"])?;
        } else {
            importer.all(&["shut m", "release p"])?;
            maker.all(&["free m", "release p"])?;
        }
        near(&format!("round {round}: free by the maker"), free(&mut maker)?, before[0], 0)?;
        near(&format!("round {round}: free by the importer"), free(&mut importer)?, before[1], 0)?;
    }
    maker.end()?;
    importer.end()
}

/// Two processes with the same number, each in a PID namespace of its own: one's figure is not taken for the other's.
fn numbers_that_are_the_same(stage: &Stage) -> Verdict {
    const SETTINGS: &[(&str, &str)] = &[("RATION_MEMORY", "4GiB")];
    let (Some(one), Some(other)) = (stage.actor_apart("one", SETTINGS), stage.actor_apart("one", SETTINGS)) else {
        println!("not tested: no PID namespaces for this user here");
        return Ok(());
    };
    let (mut one, mut other) = (one?, other?);
    one.must("use 0")?;
    other.must("use 0")?;
    let before = [free(&mut one)?, free(&mut other)?];
    for _ in 0..2 {
        fills_the_rest(stage, &mut one, 0)?;
        near("free when the one has emptied it", free(&mut one)?, before[0], 2 * MIB)?;
        fills_the_rest(stage, &mut other, 0)?;
        near("free when the other has emptied it", free(&mut other)?, before[1], 2 * MIB)?;
    }
    // What is shared and freed has everybody look at the others.
    one.must(&format!("alloc m {PIECE}"))?;
    let handle = one.must("ipc m")?.remove(0);
    other.must(&format!("open m {handle}"))?;
    near("free with a piece shared", free(&mut other)?, before[1] - PIECE, 2 * MIB)?;
    other.must("shut m")?;
    one.must("free m")?;
    near("free for the one", free(&mut one)?, before[0], 2 * MIB)?;
    near("free for the other", free(&mut other)?, before[1], 2 * MIB)?;
    one.end()?;
    other.end()
}

pub const CASES: &[Case] = &[
    Case { name: "pools destroyed by their makers", machine: ONE, play: |stage| pools_of_others(stage, false) },
    Case { name: "pools of killed makers", machine: ONE, play: |stage| pools_of_others(stage, true) },
    Case { name: "handed to one with managed memory", machine: ONE, play: handed_to_one_with_managed_memory },
    Case { name: "kept for an idle process", machine: ONE, play: kept_for_an_idle_process },
    Case { name: "kept for the dead alone", machine: ONE, play: kept_for_the_dead_alone },
    Case { name: "pieces of blocks in dma-bufs", machine: ONE, play: pieces_in_dma_bufs },
    Case { name: "numbers that are the same", machine: ONE, play: numbers_that_are_the_same },
    Case { name: "nothing sticks", machine: ONE, play: nothing_sticks },
];
