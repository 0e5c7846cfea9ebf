//! What cannot be learned at the moment at which it happens is learned as soon as it can be: nobody has to ask again for it.

use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{GIB, MIB, Regions, Session, inside, program};
use ration_region::Gpu;
use support::Machine;

/// What is told of a process may be so much more than it holds.
const NEAR: u64 = 8 * MIB;

#[test]
fn a_context_that_goes_while_another_thread_allocates_is_not_counted_for_ever() {
    const CALL_MS: u64 = 20;
    let call = (CALL_MS * 1_000_000).to_string();
    let (machine, regions) = (Machine::with(&[("RATION_SIM_CALL_NS", &call)]), Regions::new());
    let settings = [("RATION_MEMORY", (4 * GIB).to_string())];
    let mut command = inside(&machine, &regions, "tests/late", &settings, &program("late"));
    let mut session = Session::start(command.arg(CALL_MS.to_string()), Duration::from_secs(20));
    let world = machine.world();
    let gpu = world.settings().gpu[0];
    let gpu = Gpu { uuid: gpu.uuid, total: gpu.memory };
    let mut rounds = 0;
    let mut wrong = Vec::new();
    while let Some(line) = session.line().unwrap_or_else(|error| panic!("{error}")) {
        assert_eq!(line, "held");
        rounds += 1;
        let record = world.record();
        let process = record.processes.iter().find(|it| it.alive && it.pid == u64::from(session.child.id()));
        let held: u64 = process.map_or(0, |it| it.gpus.values().map(|gpu| gpu.figure_bytes).sum());
        let region = regions.all(&gpu).pop().expect("there is one");
        let counted = region.containers().next().expect("it is in it").used();
        if !(held..=held + NEAR).contains(&counted) {
            wrong.push(format!("round {rounds}: it holds {} MiB, and {} are counted", held / MIB, counted / MIB));
        }
        session.tell("");
    }
    assert_eq!(rounds, 24, "{}", session.said());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
