//! Limits and shares where channels cannot be driven: launches wait in their calls. The decisions are those of `channels.rs`, and
//! the bars are wider: what was launched before goes on running, up to 2 ms of it.

use std::fmt::Write as _;

#[path = "caps/container.rs"]
mod container;
#[path = "channels/steered.rs"]
mod steered;
mod support;

use container::Session;
use steered::{Did, Steered, milliseconds};
use support::tries::until_good;
use support::{compile, report};

/// What it takes until costs are known and leases go round.
const WARM: u64 = 700;
const WINDOW: u64 = 1500;
/// How far from its share or its limit a container may be, in points: 2 ms of a lease of 30 are 6%.
const NEAR: f64 = 5.0;

#[test]
fn limit_holds_by_launches() {
    let mut text = String::new();
    for (shape, kernel_us, limit) in
        [("queue", "500", 25.0), ("queue", "5000", 50.0), ("sync", "500", 50.0), ("graph", "100", 75.0)]
    {
        let attempt = || {
            let steered = Steered::new(compile("compute_work"));
            let settings = [("RATION_COMPUTE_LIMIT", format!("{limit}%"))];
            let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
            let session = steered.by_launches("tests/limited", &settings, &[shape, kernel_us, "30"]);
            milliseconds(WARM);
            steered.over(&[&session], WINDOW)
        };
        let is_good = |did: &Did| (did.shares[0] - limit).abs() <= NEAR && did.switches[0] == 0;
        let Some(did) = until_good(attempt, is_good) else { continue };
        let _ = writeln!(text, "{shape:<6} {kernel_us} us, limit {limit}%: {:.2}%", did.shares[0]);
        assert!(is_good(&did), "{text}");
    }
    report("launches-limit", &text);
}

/// Each of them could queue half a second of work before the first look.
#[test]
fn threads_that_start_together_are_held_from_the_first() {
    let attempt = || {
        let steered = Steered::new(compile("compute_work"));
        let session = steered.by_launches("tests/limited", &[("RATION_COMPUTE_LIMIT", "20%")], &["rush", "1000", "30"]);
        steered.over(&[&session], 1_000).shares[0]
    };
    let is_good = |got: &f64| *got <= 20.0 + NEAR;
    let Some(got) = until_good(attempt, is_good) else { return };
    assert!(is_good(&got), "of 20%, in the first second: {got:.1}%");
}

/// Two containers: what each asks for, what runs in it, and whether its channels are driven.
fn shares_hold(name: &str, both: [(f64, &str, bool); 2]) {
    let attempt = || {
        let steered = Steered::new(compile("compute_work"));
        let mut number = 0;
        let sessions: [Session; 2] = both.map(|(request, shape, by_channels)| {
            number += 1;
            let (name, request) = (format!("tests/shared-{number}"), format!("{request}%"));
            let (settings, args) = ([("RATION_COMPUTE_REQUEST", request.as_str())], [shape, "500", "60"]);
            if by_channels {
                steered.start(&name, &settings, &args)
            } else {
                steered.by_launches(&name, &settings, &args)
            }
        });
        milliseconds(WARM);
        steered.over(&sessions.each_ref(), WINDOW)
    };
    let is_good = |did: &Did| {
        let are_near = did.shares.iter().zip(&both).all(|(got, (wanted, ..))| (got - wanted).abs() <= NEAR);
        are_near && did.shares.iter().sum::<f64>() >= 92.0
    };
    let Some(did) = until_good(attempt, is_good) else { return };
    let text = format!("{name}: {:.1?}, asked for {:?}\n", did.shares, both.map(|(request, ..)| request));
    report(&format!("launches-{name}"), &text);
    assert!(is_good(&did), "{text}");
    assert!(
        did.switches.iter().zip(&both).all(|(switches, (.., by_channels))| (*switches > 0) == *by_channels),
        "{did:?}"
    );
}

#[test]
fn deep_queues_share_by_launches() {
    shares_hold("deep-25-75", [(25.0, "queue", false), (75.0, "queue", false)]);
}

#[test]
fn sync_each_has_its_half_by_launches() {
    shares_hold("sync-deep", [(50.0, "sync", false), (50.0, "queue", false)]);
}

#[test]
fn containers_of_both_kinds_take_leases_from_each_other() {
    shares_hold("mixed", [(25.0, "queue", false), (75.0, "queue", true)]);
    shares_hold("mixed-other", [(25.0, "queue", true), (75.0, "queue", false)]);
}

fn requests(beside: bool) -> (f64, f64) {
    Steered::new(compile("compute_work")).requests(beside, WARM, Steered::by_launches)
}

#[test]
fn latency_container_waits_for_little_by_launches() {
    let attempt = || (requests(false), requests(true));
    // What is under way, up to a kernel and a fifth of a millisecond, is in front of a request of 2.6 ms.
    let is_good = |((alone, _), (beside, had)): &((f64, f64), (f64, f64))| *beside <= 1.75 * alone && *had > 60.0;
    let Some(got) = until_good(attempt, is_good) else { return };
    let ((alone, _), (beside, had)) = got;
    let text = format!("requests of {alone:.0} us alone take {beside:.0} us beside one that has {had:.1}%\n");
    report("launches-latency", &text);
    assert!(is_good(&got), "{text}");
}
