//! What a killed process held is there for the others of its container as soon as the driver has let go of it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{GIB, Regions, Session, inside, left_behind};
use sim_world::World;
use support::tries::until_good;
use support::{Machine, report};

/// Whether the cap is judged; without, it is only seen that nothing crashes or hangs.
const ENFORCED: bool = true;

const ROUNDS: usize = 12;
const CAP: u64 = 4 * GIB;
const LONGEST: Duration = Duration::from_millis(100);

fn holds_nothing(world: &World, pid: u32) -> bool {
    let record = world.record();
    record.processes.iter().filter(|p| p.alive && p.pid == u64::from(pid)).all(|p| p.gpus.is_empty())
}

fn say(session: &mut Session, order: &str) -> String {
    session.tell(order);
    next(session)
}

fn next(session: &mut Session) -> String {
    session.line().unwrap_or_else(|error| panic!("{error}")).unwrap_or_else(|| panic!("it ended: {}", session.said()))
}

/// How long one that waits for memory waits after the driver has released what another held, killed with it in hand.
fn waits(enforced: bool) -> Vec<Duration> {
    let program = container::program("hold");
    let (machine, regions) = (Machine::new(), Regions::new());
    let settings = [("RATION_MEMORY", CAP.to_string())];
    let start = || {
        let mut command = inside(&machine, &regions, "tests/death", &settings, &program);
        let mut session = Session::start(&mut command, Duration::from_secs(20));
        session.until("ready").unwrap_or_else(|error| panic!("{error}"));
        session
    };
    let mut living = start();
    let world = machine.world();
    let mut waits = Vec::new();
    for round in 0..ROUNDS {
        let mut dying = start();
        assert_eq!(say(&mut dying, &format!("take {}", 2 * GIB)), "had", "round {round}");
        // Now there is room for one of these beside two contexts, not for two.
        let answer = say(&mut living, &format!("wait {}", 2 * GIB));
        if answer != "had" || enforced {
            assert_eq!(answer, "refused 2", "round {round}");
            std::thread::sleep(Duration::from_millis(20)); // it tries, and is refused, some more
            dying.child.kill().expect("a child can be killed");
            while !holds_nothing(&world, dying.child.id()) {
                std::thread::sleep(Duration::from_micros(100));
            }
            let released = Instant::now();
            assert_eq!(next(&mut living), "had", "round {round}");
            waits.push(released.elapsed());
        }
        drop(dying);
        assert_eq!(say(&mut living, "give"), "gave");
    }
    living.tell("");
    drop(living);
    left_behind(&world).expect("nothing is left");
    waits.sort_unstable();
    waits
}

#[test]
fn memory_of_the_dead_is_there_for_the_living_within_100_ms() {
    let enforced = ENFORCED || std::env::var("CAPS_ENFORCE").is_ok_and(|value| value == "all");
    let are_short = |waits: &Vec<Duration>| waits.iter().all(|wait| *wait <= LONGEST);
    let Some(waits) = until_good(|| waits(enforced), are_short) else { return };
    let mut text = format!("{} processes killed with 2 GiB in hand, beside one that waits for them\n", waits.len());
    if let (Some(median), Some(longest)) = (waits.get(waits.len() / 2), waits.last()) {
        let _ =
            writeln!(text, "from the driver's release to the other's allocation: median {median:?}, most {longest:?}");
    } else {
        let _ = writeln!(text, "not enforced yet");
    }
    report("caps-death", &text);
    assert!(!enforced || waits.len() == ROUNDS);
    assert!(are_short(&waits), "{waits:?}");
}
