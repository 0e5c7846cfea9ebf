//! Memory that crosses processes, under a cap: who pays for it, and that nobody can put it where nobody does. The judge is the
//! simulated driver's record, as the device counts; what the driver does with such memory is as it was measured on an H200.

#[path = "caps/actors.rs"]
mod actors;
#[path = "caps/container.rs"]
mod container;
#[path = "caps/kept.rs"]
mod kept;
mod support;

use actors::{Actor, CAP, Case, ONE, Stage, Verdict, Wrong, check, is_full, mib, near};
use container::{GIB, MIB};

/// Cases that do not hold yet: played and told, and failing none. Whoever mends one takes it out.
const OPEN: &[&str] = &[
    // In the queue of a socket, a dma-buf is in no process that could be looked into.
    "parked in dma-bufs on their way",
];

const STEP: u64 = 64 * MIB;
const CONTEXT: u64 = 518 * MIB;
/// Rounds of something that ordinary programs do over and over: more than would fit if any of it stuck.
const ROUNDS: usize = 24;
/// What a round takes. So many rounds of it are more than twice the cap.
const PIECE: u64 = 512 * MIB;

fn limited(stage: &Stage, container: &str) -> Result<Actor, Wrong> {
    let mut actor = stage.actor(container, &[("RATION_MEMORY", "4GiB")])?;
    actor.must("use 0")?;
    Ok(actor)
}

fn taken(stage: &Stage) -> u64 {
    stage.taken()[0]
}

/// Fills what is left of a container's cap, and empties it again. `others`: what of the GPU is not this container's.
fn fills_the_rest(stage: &Stage, actor: &mut Actor, others: u64) -> Verdict {
    let (code, _) = actor.ask(&format!("fill alloc {STEP} {} 0 0", 3 * CAP))?;
    check(code == 2, || format!("filling the rest -> {code}"))?;
    is_full("all together", taken(stage) - others, CAP, STEP)?;
    actor.must("empty").map(drop)
}

fn free(actor: &mut Actor) -> Result<u64, Wrong> {
    Ok(actor.numbers("info")?[0])
}

// ------------------------------------------------------------------------------------- the driver, as it was measured

/// Nobody under a shim: device and processes at each step, in MiB, on an H200 with driver 580.159.04, less the contexts.
fn as_measured(stage: &Stage) -> Verdict {
    let (mut a, mut b, mut c) = (stage.stranger()?, stage.stranger()?, stage.stranger()?);
    for actor in [&mut a, &mut b, &mut c] {
        actor.must("use 0")?;
    }
    let looks = |what: &str, actors: [&Actor; 3], expected: [u64; 4]| -> Verdict {
        let figures = actors.map(|actor| stage.figure(actor, 0).saturating_sub(CONTEXT) / MIB);
        let seen = [(taken(stage) - 3 * CONTEXT) / MIB, figures[0], figures[1], figures[2]];
        check(seen == expected, || format!("{what}: {seen:?}, measured {expected:?}"))
    };
    let gib = |actor: &mut Actor, order: &str| actor.must(&order.replace("GIB", &GIB.to_string()));
    let (to_b, to_c) = (stage.place("b"), stage.place("c"));
    b.must(&format!("listen {to_b}"))?;
    c.must(&format!("listen {to_c}"))?;

    // A handle, as a descriptor.
    gib(&mut a, "create p GIB 0")?;
    a.all(&["export p", "release p"])?;
    looks("released, descriptor open", [&a, &b, &c], [1024, 0, 0, 0])?;
    a.must("close p")?;
    looks("closed", [&a, &b, &c], [0, 0, 0, 0])?;
    gib(&mut a, "create p GIB 0")?;
    a.all(&["export p", &format!("send p {to_b}"), &format!("send p {to_c}"), "close p"])?;
    for actor in [&mut b, &mut c] {
        actor.must("receive p")?;
        gib(actor, "import p GIB")?;
        actor.must("close p")?;
    }
    looks("imported by two", [&a, &b, &c], [1024, 1024, 0, 0])?;
    a.must("release p")?;
    looks("its maker let go: the last to come has it", [&a, &b, &c], [1024, 0, 0, 1024])?;
    c.must("release p")?;
    looks("so did that", [&a, &b, &c], [1024, 0, 1024, 0])?;
    b.must("release p")?;
    looks("so did all", [&a, &b, &c], [0, 0, 0, 0])?;

    // By an IPC handle.
    gib(&mut a, "alloc m GIB")?;
    let handle = a.must("ipc m")?.remove(0);
    b.must(&format!("open m {handle}"))?;
    looks("opened", [&a, &b, &c], [1024, 1024, 0, 0])?;
    a.must("free m")?;
    looks("freed by its maker", [&a, &b, &c], [1024, 0, 1024, 0])?;
    b.must("shut m")?;
    looks("and closed", [&a, &b, &c], [0, 0, 0, 0])?;

    // A dma-buf.
    gib(&mut a, "alloc m GIB")?;
    a.all(&["dma-buf m", "free m"])?;
    looks("freed, dma-buf open", [&a, &b, &c], [1024, 0, 0, 0])?;
    a.must("close m")?;
    looks("dma-buf closed", [&a, &b, &c], [0, 0, 0, 0])?;

    // A pool: what was exported of it is kept by whoever has the pool, and is in nobody's figure.
    a.all(&["pool q 0", "export-pool q", &format!("send q {to_b}"), "close q"])?;
    b.all(&["receive q", "import-pool q", "close q"])?;
    gib(&mut a, "from-pool x q GIB 0")?;
    a.all(&["free-async x 0", "trim q"])?;
    looks("freed and trimmed", [&a, &b, &c], [0, 0, 0, 0])?;
    gib(&mut a, "from-pool x q GIB 0")?;
    let data = a.must("export-pointer x")?.remove(0);
    b.must(&format!("import-pointer x q {data}"))?;
    looks("exported and imported", [&a, &b, &c], [1024, 1024, 0, 0])?;
    a.all(&["free-async x 0", "trim q"])?;
    looks("freed and trimmed by its maker", [&a, &b, &c], [1024, 0, 0, 0])?;
    b.all(&["free-async x 0", "destroy q"])?;
    looks("the other has destroyed its pool", [&a, &b, &c], [1024, 0, 0, 0])?;
    a.must("destroy q")?;
    looks("both have", [&a, &b, &c], [0, 0, 0, 0])?;
    for actor in [a, b, c] {
        actor.end()?;
    }
    Ok(())
}

// ------------------------------------------------------------------------------------------------- by an IPC handle

/// Whoever opens pays nothing, whoever closes gets nothing: the rest of the cap can be had all the while.
fn ipc_in_one_container(stage: &Stage) -> Verdict {
    let (mut owner, mut opener) = (limited(stage, "one")?, limited(stage, "one")?);
    owner.must(&format!("alloc m {GIB}"))?;
    let before = free(&mut opener)?;
    let handle = owner.must("ipc m")?.remove(0);
    opener.all(&[&format!("open m {handle}"), "write m 7"])?;
    near("free after opening", free(&mut opener)?, before, 0)?;
    check(owner.must("read m")? == ["7"], || "not the same memory".to_owned())?;
    fills_the_rest(stage, &mut opener, 0)?;
    fills_the_rest(stage, &mut owner, 0)?;
    opener.must("shut m")?;
    near("free after closing", free(&mut opener)?, before, 0)?;
    fills_the_rest(stage, &mut opener, 0)?;
    owner.must("free m")?;
    near("free after freeing", free(&mut opener)?, before + GIB, 0)?;
    owner.end()?;
    opener.end()
}

/// The same between containers: it is held against the one that made it alone.
fn ipc_between_containers(stage: &Stage) -> Verdict {
    let (mut owner, mut opener) = (limited(stage, "one")?, limited(stage, "two")?);
    owner.must(&format!("alloc m {GIB}"))?;
    let handle = owner.must("ipc m")?.remove(0);
    let (before, mine) = (free(&mut opener)?, stage.figure(&owner, 0));
    opener.all(&[&format!("open m {handle}"), "write m 7"])?;
    near("free after opening", free(&mut opener)?, before, 0)?;
    fills_the_rest(stage, &mut opener, mine)?;
    fills_the_rest(stage, &mut owner, CONTEXT)?;
    opener.must("shut m")?;
    near("free after closing", free(&mut opener)?, before, 0)?;
    owner.end()?;
    opener.end()
}

/// An owner that frees what another still has open, over and over.
fn ipc_freed_while_open(stage: &Stage) -> Verdict {
    let (mut owner, mut opener) = (limited(stage, "one")?, limited(stage, "one")?);
    let mut opened = 0;
    loop {
        let (code, _) = owner.ask(&format!("alloc m {PIECE}"))?;
        if code != 0 || opened as u64 * PIECE > 2 * CAP {
            check(code == 2, || format!("{opened} of {} are open, and there is still more to be had", mib(PIECE)))?;
            break;
        }
        let handle = owner.must("ipc m")?.remove(0);
        opener.must(&format!("open m{opened} {handle}"))?;
        owner.must("free m")?;
        opened += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    is_full("the device", taken(stage), CAP, PIECE)?;
    for at in 0..opened {
        opener.must(&format!("shut m{at}"))?;
    }
    fills_the_rest(stage, &mut owner, 0)?;
    owner.end()?;
    opener.end()
}

/// Owners that are killed while another has their memory open.
fn ipc_owners_killed(stage: &Stage) -> Verdict {
    let mut opener = limited(stage, "one")?;
    let mut opened = 0;
    while opened as u64 * GIB < 2 * CAP {
        let mut owner = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
        // A context may not fit any more.
        if owner.ask("use 0")?.0 != 0 || owner.ask(&format!("alloc m {GIB}"))?.0 != 0 {
            break;
        }
        let handle = owner.must("ipc m")?.remove(0);
        opener.must(&format!("open m{opened} {handle}"))?;
        stage.wait_for_the_end_of(owner.kill());
        opened += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    check((2..=3).contains(&opened), || format!("{opened} of 1 GiB were had of 4 GiB"))?;
    fills_the_rest(stage, &mut opener, 0)?;
    for at in 0..opened {
        opener.must(&format!("shut m{at}"))?;
    }
    fills_the_rest(stage, &mut opener, 0)?;
    opener.end()
}

/// An owner in another container is killed: what is left is in the opener's figure, and so held against its container.
fn ipc_inherited_from_another_container(stage: &Stage) -> Verdict {
    let (mut owner, mut opener) = (limited(stage, "one")?, limited(stage, "two")?);
    owner.must(&format!("alloc m {GIB}"))?;
    let handle = owner.must("ipc m")?.remove(0);
    opener.must(&format!("open m {handle}"))?;
    stage.wait_for_the_end_of(owner.kill());
    fills_the_rest(stage, &mut opener, 0)?;
    opener.must("shut m")?;
    fills_the_rest(stage, &mut opener, 0)?;
    opener.end()
}

// ------------------------------------------------------------------------------------------- handles as descriptors

/// Importing costs nothing, and letting go of an import gives nothing back.
fn descriptor_imported(stage: &Stage, containers: [&str; 2]) -> Verdict {
    let (mut owner, mut importer) = (limited(stage, containers[0])?, limited(stage, containers[1])?);
    let same = containers[0] == containers[1];
    importer.must(&format!("listen {}", stage.place("importer")))?;
    owner.all(&[&format!("create p {GIB} 0"), "map p 0", "write p 7", "export p"])?;
    owner.all(&[&format!("send p {}", stage.place("importer")), "close p"])?;
    let before = free(&mut importer)?;
    importer.all(&["receive p", &format!("import p {GIB}"), "close p", "map p 0"])?;
    check(importer.must("read p")? == ["7"], || "not the same memory".to_owned())?;
    near("free after importing", free(&mut importer)?, before, 0)?;
    fills_the_rest(stage, &mut importer, if same { 0 } else { stage.figure(&owner, 0) })?;
    importer.all(&["unmap p", "release p"])?;
    near("free after releasing", free(&mut importer)?, before, 0)?;
    fills_the_rest(stage, &mut owner, if same { 0 } else { CONTEXT })?;
    owner.all(&["unmap p", "release p"])?;
    fills_the_rest(stage, &mut owner, if same { 0 } else { CONTEXT })?;
    owner.end()?;
    importer.end()
}

/// Memory whose handle is released lives on by its descriptor: three times the cap are not to be had so. When the descriptors
/// are closed, all of it is there again.
fn parked(stage: &Stage, way: &str) -> Verdict {
    let mut actor = limited(stage, "one")?;
    for round in 0..2 {
        let (code, said) = actor.ask(&format!("park {way} {STEP} {} 0", 3 * CAP / STEP))?;
        check(code == 2, || format!("round {round}: -> {code}, after {} bytes", said[0]))?;
        is_full(&format!("round {round}"), taken(stage), CAP, STEP)?;
        near("free while parked", free(&mut actor)?, CAP - taken(stage), 2 * MIB)?;
        actor.must("unpark")?;
        fills_the_rest(stage, &mut actor, 0)?;
    }
    actor.end()
}

/// The descriptors go to a process that does not use the GPU, and each of those who made the memory ends.
fn parked_by_the_dead(stage: &Stage) -> Verdict {
    let mut keeper = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
    keeper.must(&format!("listen {}", stage.place("keeper")))?;
    let mut living = limited(stage, "one")?;
    let mut kept = 0;
    while kept as u64 * GIB < 2 * CAP {
        let mut maker = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
        if maker.ask("use 0")?.0 != 0 || maker.ask(&format!("create p {GIB} 0"))?.0 != 0 {
            break;
        }
        maker.all(&["export p", &format!("send p {}", stage.place("keeper"))])?;
        keeper.must(&format!("receive p{kept}"))?;
        if kept % 2 == 0 {
            maker.end()?;
        } else {
            stage.wait_for_the_end_of(maker.kill());
        }
        kept += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    check((2..=3).contains(&kept), || format!("{kept} of 1 GiB were had of 4 GiB"))?;
    fills_the_rest(stage, &mut living, 0)?;
    for at in 0..kept {
        keeper.must(&format!("close p{at}"))?;
    }
    fills_the_rest(stage, &mut living, 0)?;
    keeper.end()?;
    living.end()
}

/// An importer outlives those who made the memory.
fn imported_from_the_dead(stage: &Stage) -> Verdict {
    let mut importer = limited(stage, "one")?;
    importer.must(&format!("listen {}", stage.place("importer")))?;
    let mut had = 0;
    while had as u64 * GIB < 2 * CAP {
        let mut maker = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
        if maker.ask("use 0")?.0 != 0 || maker.ask(&format!("create p {GIB} 0"))?.0 != 0 {
            break;
        }
        maker.all(&["export p", &format!("send p {}", stage.place("importer"))])?;
        importer.all(&[&format!("receive p{had}"), &format!("import p{had} {GIB}"), &format!("close p{had}")])?;
        stage.wait_for_the_end_of(maker.kill());
        had += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    check((2..=3).contains(&had), || format!("{had} of 1 GiB were had of 4 GiB"))?;
    fills_the_rest(stage, &mut importer, 0)?;
    for at in 0..had {
        importer.must(&format!("release p{at}"))?;
    }
    fills_the_rest(stage, &mut importer, 0)?;
    importer.end()
}

/// A process that makes memory, hands it to another, and lets go: the other has it, does nothing, and it is counted.
fn handed_over(stage: &Stage) -> Verdict {
    let (mut maker, mut importer) = (limited(stage, "one")?, limited(stage, "one")?);
    importer.must(&format!("listen {}", stage.place("importer")))?;
    let mut had = 0;
    while maker.ask(&format!("create p {PIECE} 0"))?.0 == 0 {
        check(had as u64 * PIECE <= 2 * CAP, || format!("{} were had", mib(had as u64 * PIECE)))?;
        maker.all(&["export p", &format!("send p {}", stage.place("importer")), "close p"])?;
        importer.all(&[&format!("receive p{had}"), &format!("import p{had} {PIECE}"), &format!("close p{had}")])?;
        maker.must("release p")?;
        had += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    is_full("the device", taken(stage), CAP, PIECE)?;
    for at in 0..had {
        importer.must(&format!("release p{at}"))?;
    }
    fills_the_rest(stage, &mut maker, 0)?;
    maker.end()?;
    importer.end()
}

/// What ordinary programs do with descriptors, over and over: nothing of it may stick.
fn ordinary_sharing(stage: &Stage, order: [&[&str]; 5]) -> Verdict {
    let (mut maker, mut importer) = (limited(stage, "one")?, limited(stage, "one")?);
    importer.must(&format!("listen {}", stage.place("importer")))?;
    let before = free(&mut maker)?;
    let fit = |orders: &[&str]| -> Vec<String> {
        let place = stage.place("importer");
        orders.iter().map(|o| o.replace("BYTES", &PIECE.to_string()).replace("THERE", &place)).collect()
    };
    for round in 0..ROUNDS {
        for (at, orders) in order.iter().enumerate() {
            let actor = if at % 2 == 0 { &mut maker } else { &mut importer };
            for order in fit(orders) {
                actor.must(&order).map_err(|why| format!("round {round}: {why}"))?;
            }
        }
        near(&format!("round {round}: free"), free(&mut maker)?, before, 2 * MIB)?;
    }
    fills_the_rest(stage, &mut maker, 0)?;
    maker.end()?;
    importer.end()
}

/// Segments that grow: the descriptor stays open beside the handle for as long as that lives.
const SEGMENTS: [&[&str]; 5] = [
    &["create p BYTES 0", "map p 0", "export p", "send p THERE"],
    &["receive p", "import p BYTES", "close p", "map p 0", "write p 1"],
    &["read p"],
    &["unmap p", "release p"],
    &["unmap p", "close p", "release p"],
];
/// Buffers of a collective: the descriptor is closed as soon as it was sent; the importer is the last to let go.
const COLLECTIVE: [&[&str]; 5] = [
    &["create p BYTES 0", "map p 0", "export p", "send p THERE", "close p"],
    &["receive p", "import p BYTES", "close p", "map p 0", "release p"],
    &["unmap p", "release p"],
    &["write p 1", "unmap p"],
    &[],
];
/// The handle is released before the other has imported: only the descriptor, on its way, keeps the memory.
const ON_ITS_WAY: [&[&str]; 5] = [
    &["create p BYTES 0", "export p", "send p THERE", "release p", "close p"],
    &["receive p", "import p BYTES", "close p", "map p 0", "write p 1"],
    &[],
    &["unmap p", "release p"],
    &[],
];
/// Exported, and never sent.
const FOR_NOTHING: [&[&str]; 5] =
    [&["create p BYTES 0", "map p 0", "export p", "unmap p", "release p", "close p"], &[], &[], &[], &[]];
/// For a network card that has the memory registered while it lives.
const REGISTERED: [&[&str]; 5] = [&["alloc m BYTES", "dma-buf m", "close m", "free m"], &[], &[], &[], &[]];

/// The descriptor of plain memory goes to another process, and the memory is freed here: when the other has the descriptor, or
/// (`early`) when it is still on its way.
fn dma_buf_elsewhere(stage: &Stage, early: bool) -> Verdict {
    let mut maker = limited(stage, "one")?;
    let mut keeper = stage.actor("one", &[("RATION_MEMORY", "4GiB")])?;
    keeper.must(&format!("listen {}", stage.place("keeper")))?;
    let mut kept = 0;
    while maker.ask(&format!("alloc m {PIECE}"))?.0 == 0 {
        check(kept as u64 * PIECE <= 2 * CAP, || format!("{} were had", mib(kept as u64 * PIECE)))?;
        maker.all(&["dma-buf m", &format!("send m {}", stage.place("keeper")), "close m"])?;
        if early {
            maker.must("free m")?;
        }
        keeper.must(&format!("receive m{kept}"))?;
        if !early {
            maker.must("free m")?;
        }
        kept += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    for at in 0..kept {
        keeper.must(&format!("close m{at}"))?;
    }
    fills_the_rest(stage, &mut maker, 0)?;
    maker.end()?;
    keeper.end()
}

// ---------------------------------------------------------------------------------------------------------- pools

/// What was exported of a pool stays on the GPU when it is freed and trimmed.
fn pool_pointers_parked(stage: &Stage) -> Verdict {
    let mut actor = limited(stage, "one")?;
    actor.all(&["pool q 0", "export-pool q", "close q"])?;
    let mut had = 0;
    while actor.ask(&format!("from-pool x q {PIECE} 0"))?.0 == 0 {
        check(had * PIECE <= 2 * CAP, || format!("{} were had", mib(had * PIECE)))?;
        actor.all(&["export-pointer x", "free-async x 0", "trim q"])?;
        had += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    actor.must("destroy q")?;
    fills_the_rest(stage, &mut actor, 0)?;
    actor.end()
}

/// A pool with an open descriptor is destroyed, over and over.
fn pools_parked(stage: &Stage) -> Verdict {
    let mut actor = limited(stage, "one")?;
    let mut had = 0;
    loop {
        actor.must(&format!("pool q{had} 0"))?;
        if actor.ask(&format!("from-pool x q{had} {PIECE} 0"))?.0 != 0 {
            break;
        }
        check(had * PIECE <= 2 * CAP, || format!("{} were had", mib(had * PIECE)))?;
        let last = [
            format!("export-pool q{had}"),
            "export-pointer x".to_owned(),
            "free-async x 0".to_owned(),
            format!("destroy q{had}"),
        ];
        actor.all(&last.each_ref().map(String::as_str))?;
        had += 1;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
    }
    for at in 0..had {
        actor.must(&format!("close q{at}"))?;
    }
    fills_the_rest(stage, &mut actor, 0)?;
    actor.end()
}

/// A pool that another process uses as it is meant to be used: its memory is taken once and used again.
fn pool_used_as_meant(stage: &Stage) -> Verdict {
    let (mut maker, mut importer) = (limited(stage, "one")?, limited(stage, "one")?);
    importer.must(&format!("listen {}", stage.place("importer")))?;
    maker.all(&["pool q 0", "export-pool q", &format!("send q {}", stage.place("importer")), "close q"])?;
    importer.all(&["receive q", "import-pool q", "close q"])?;
    let before = free(&mut importer)?;
    for round in 0..ROUNDS {
        maker.must(&format!("from-pool x q {PIECE} 0")).map_err(|why| format!("round {round}: {why}"))?;
        let data = maker.must("export-pointer x")?.remove(0);
        importer.all(&[&format!("import-pointer x q {data}"), "write x 7", "free-async x 0"])?;
        // Before anybody waits, the next allocation in the same stream has it.
        maker.must(&format!("from-pool y q {PIECE} 0"))?;
        maker.all(&["free-async x 0", "free-async y 0"])?;
        check(taken(stage) <= CAP, || format!("{} over the cap", mib(taken(stage) - CAP)))?;
        if round % 4 == 3 {
            maker.must("destroy q")?;
            importer.must("destroy q")?;
            near("free when the pool is gone", free(&mut importer)?, before, 2 * MIB)?;
            maker.all(&["pool q 0", "export-pool q", &format!("send q {}", stage.place("importer")), "close q"])?;
            importer.all(&["receive q", "import-pool q", "close q"])?;
        }
    }
    maker.end()?;
    importer.end()
}

const CASES: &[Case] = &[
    Case { name: "the driver, as it was measured", machine: ONE, play: as_measured },
    Case { name: "IPC in one container", machine: ONE, play: ipc_in_one_container },
    Case { name: "IPC between containers", machine: ONE, play: ipc_between_containers },
    Case { name: "IPC, freed while open", machine: ONE, play: ipc_freed_while_open },
    Case { name: "IPC, owners killed", machine: ONE, play: ipc_owners_killed },
    Case { name: "IPC, inherited from another container", machine: ONE, play: ipc_inherited_from_another_container },
    Case { name: "imported in one container", machine: ONE, play: |stage| descriptor_imported(stage, ["one", "one"]) },
    Case {
        name: "imported in another container",
        machine: ONE,
        play: |stage| descriptor_imported(stage, ["one", "two"]),
    },
    Case { name: "parked in descriptors", machine: ONE, play: |stage| parked(stage, "plain") },
    Case { name: "parked in descriptors, once mapped", machine: ONE, play: |stage| parked(stage, "map") },
    Case { name: "parked in dma-bufs", machine: ONE, play: |stage| parked(stage, "dma-buf") },
    Case { name: "parked in dma-bufs of another process", machine: ONE, play: |stage| dma_buf_elsewhere(stage, false) },
    Case { name: "parked in dma-bufs on their way", machine: ONE, play: |stage| dma_buf_elsewhere(stage, true) },
    Case { name: "parked by the dead", machine: ONE, play: parked_by_the_dead },
    Case { name: "imported from the dead", machine: ONE, play: imported_from_the_dead },
    Case { name: "handed over", machine: ONE, play: handed_over },
    Case { name: "ordinary: segments that grow", machine: ONE, play: |stage| ordinary_sharing(stage, SEGMENTS) },
    Case { name: "ordinary: buffers of a collective", machine: ONE, play: |stage| ordinary_sharing(stage, COLLECTIVE) },
    Case { name: "ordinary: released on its way", machine: ONE, play: |stage| ordinary_sharing(stage, ON_ITS_WAY) },
    Case { name: "ordinary: exported for nothing", machine: ONE, play: |stage| ordinary_sharing(stage, FOR_NOTHING) },
    Case {
        name: "ordinary: registered with a network card",
        machine: ONE,
        play: |stage| ordinary_sharing(stage, REGISTERED),
    },
    Case { name: "pointers of a pool parked", machine: ONE, play: pool_pointers_parked },
    Case { name: "pools parked in descriptors", machine: ONE, play: pools_parked },
    Case { name: "a pool used as it is meant to be", machine: ONE, play: pool_used_as_meant },
];

#[test]
fn whoever_makes_memory_pays_for_it_wherever_it_goes() {
    actors::play("caps-sharing", CASES, OPEN);
    actors::play("caps-kept", kept::CASES, &[]);
}
