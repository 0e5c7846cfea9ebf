//! What came out of trying a slice, judged.

use super::check::Check;
use super::slice::{CAP, LIMIT, SOME, Seen, Unseen, first_words};
use crate::text;

/// How far from the limit a share may be, in points: a second is short, and a burst of what became due before is in it.
const NEAR: f64 = 6.0;
/// With a limit, no more of the speed without than this, in points above the limit; from the next on nothing holds it.
const FAST: f64 = 15.0;
const UNHELD: f64 = 35.0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_NOT_PERMITTED`.
const NOT_PERMITTED: i32 = 800;

/// Whether a cap holds. `cap`: what is to be told; `None`: a quota file says, and others may use it.
pub fn memory(told: Result<(u64, i32, i32, String), Unseen>, cap: Option<u64>) -> Option<Check> {
    const REPORT: &str = "See `library` and `driver`; if those are in order, this is a bug: please report it with `ration doctor --json`";
    let (total, over, under, errors) = match told {
        Ok(told) => told,
        Err(unseen) => return failed("memory-cap", unseen),
    };
    let size = text::memory(total);
    if cap.is_some_and(|cap| cap != total) {
        return Some(Check::problem(
            "memory-cap",
            format!(
                "a program with a cap of {} was told that it has {size}{}",
                text::memory(CAP),
                first_words(&errors)
            ),
            REPORT,
        ));
    }
    Some(match (over, under) {
        (0, _) => Check::problem("memory-cap", format!("a program with a cap of {size} was given more"), REPORT),
        (OUT_OF_MEMORY, 0) => Check::ok(
            "memory-cap",
            format!("a program with a cap of {size} was refused what is over it, and given {}", text::memory(SOME)),
        ),
        (OUT_OF_MEMORY, OUT_OF_MEMORY) => Check::warning(
            "memory-cap",
            format!(
                "a program with a cap of {size} was refused what is over it, and {} below it, too",
                text::memory(SOME)
            ),
            "The GPU is full, or the cap is used up: see nvidia-smi and `ration status`",
        ),
        (over, under) => Check::warning(
            "memory-cap",
            format!(
                "the driver answered {over} to what is over a cap of {size}, and {under} to {}",
                text::memory(SOME)
            ),
            "See what the kernel says: dmesg | grep -i nvrm",
        ),
    })
}

/// What to say of a slice that could not be tried; nothing, if somebody wants us to end.
fn failed(check: &'static str, unseen: Unseen) -> Option<Check> {
    Some(match unseen {
        Unseen::Interrupted => return None,
        Unseen::Failed(why) => Check::problem(
            check,
            format!("it could not be tried: {why}"),
            "A program in a slice would fare the same. Try it without the library: LD_PRELOAD= and a CUDA program",
        ),
        Unseen::Refused(call, OUT_OF_MEMORY, _) => Check::warning(
            check,
            format!("it could not be tried: {call} found no memory for a context"),
            "The GPU is full, or the cap is used up: see nvidia-smi and `ration status`, and ask again when there is room",
        ),
        Unseen::Refused(call, NOT_PERMITTED, errors) => Check::problem(
            check,
            format!("the library refuses GPU work: {call} answered {NOT_PERMITTED}{}", first_words(&errors)),
            "See `settings` and `region`",
        ),
        Unseen::Refused(call, code, errors) => Check::problem(
            check,
            format!("it could not be tried: {call} answered {code}{}", first_words(&errors)),
            "See what the kernel says: dmesg | grep -i nvrm",
        ),
    })
}

/// Whether a limit of GPU time holds. `bare`: kernels a second without one, where that says something. `limit`: in per cent; `None`: a
/// quota file says, and others may use it.
pub fn compute(seen: &Result<Seen, Unseen>, bare: Option<f64>, is_own: bool) -> Option<Check> {
    let seen = match seen {
        Ok(seen) => seen,
        Err(Unseen::Interrupted) => return None,
        Err(Unseen::Failed(why)) => return failed("compute", Unseen::Failed(why.clone())),
        Err(Unseen::Refused(call, code, errors)) => {
            return failed("compute", Unseen::Refused(call.clone(), *code, errors.clone()));
        }
    };
    if !is_own {
        return Some(Check::ok(
            "compute",
            format!(
                "a program had {:.0}% of the GPU's time; how much it may have is said by the quota file, and shared with this \
                 container's other programs",
                seen.share
            ),
        ));
    }
    let speed = bare.filter(|bare| *bare > 0.0).map(|bare| 100.0 * seen.speed / bare);
    let and_speed = speed.map_or_else(String::new, |speed| format!(", and {speed:.0}% of its speed without"));
    let found = format!("a program with a limit of {LIMIT}% had {:.1}% of the GPU's time{and_speed}", seen.share);
    let is_fast = |points: f64| speed.is_some_and(|speed| speed > LIMIT + points);
    if seen.share > LIMIT + UNHELD || is_fast(UNHELD) {
        return Some(Check::problem(
            "compute",
            found,
            "It was not held: see `library`. If that is in order, this is a bug: please report it with `ration doctor --json`",
        ));
    }
    Some(match (seen.share - LIMIT).abs() <= NEAR && !is_fast(FAST) {
        true => Check::ok("compute", found),
        false => Check::warning(
            "compute",
            found,
            "Ask again when the GPU and the processors have nothing else to do: beside others a second says little. See `clock` and `channels`",
        ),
    })
}

/// How a program is taken off the GPU.
pub fn channels(seen: &Seen) -> Check {
    let why = seen.errors.lines().find_map(|line| line.split_once("cannot be driven: ")?.1.split(';').next());
    match (seen.by_channels, why) {
        (Some(true), _) if seen.switches > 0 => Check::ok(
            "channels",
            format!(
                "driven: a program is taken off the GPU and put back by the GPU's own scheduler; a switch took {} ms ({} of them)",
                text::ms(seen.each.as_secs_f64() * 1e3),
                seen.switches
            ),
        ),
        (Some(true), _) => Check::ok("channels", "driven; nothing had to be taken off the GPU meanwhile"),
        (None, _) => {
            Check::warning("channels", "nothing tells how programs are taken off the GPU: none was", "See `compute`")
        }
        (Some(false), None) if std::env::var_os("RATION_SWITCH").is_some_and(|it| it == "launches") => Check::warning(
            "channels",
            "not driven, as RATION_SWITCH=launches says: launches are held in their calls instead",
            "Remove that variable, unless it is there for a reason: shares are looser so",
        ),
        (Some(false), why) => {
            let why = why.unwrap_or("the library did not say why");
            Check::warning(
                "channels",
                format!(
                    "they cannot be driven: {}; launches are held in their calls instead, and shares are looser",
                    text::safe(why, 120)
                ),
                remedy(why),
            )
        }
    }
}

/// What helps, by the library's own words.
fn remedy(why: &str) -> &'static str {
    if why.contains("MPS") {
        return "See `mps`: without it, the channels are the program's own";
    }
    if why.contains("refuses") {
        return "This driver does not let programs do it. Limits hold all the same; a kernel that runs is not interrupted. docs/compute.md says \
                what to expect";
    }
    if why.contains("no channels were seen") {
        return "If another library stands in front of libration.so in LD_PRELOAD, put it behind. Limits hold all the same; a kernel that runs is \
                not interrupted. docs/compute.md says what to expect";
    }
    "Limits hold all the same; a kernel that runs is not interrupted. docs/compute.md says what to expect"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::check::Status;
    use super::*;

    fn told(total: u64, over: i32, under: i32) -> Option<Check> {
        memory(Ok((total, over, under, String::new())), Some(CAP))
    }

    #[test]
    fn a_cap_holds_if_both_answers_are_right() {
        for (total, over, under, status) in [
            (CAP, 2, 0, Status::Ok),
            (CAP, 0, 0, Status::Problem),
            (140 << 30, 2, 0, Status::Problem),
            (CAP, 2, 2, Status::Warning),
            (CAP, 999, 999, Status::Warning),
        ] {
            let check = told(total, over, under).expect("a check");
            assert_eq!(check.status, status, "{check:?}");
        }
        let refused =
            |code| memory(Err(Unseen::Refused("cuCtxCreate".into(), code, "ration: why\n".into())), Some(CAP));
        assert_eq!(refused(2).map(|it| it.status), Some(Status::Warning), "a full GPU is nobody's fault");
        let check = refused(800).expect("a check");
        assert!(check.status == Status::Problem && check.found.contains("(ration: why)"), "{check:?}");
        assert_eq!(memory(Err(Unseen::Interrupted), Some(CAP)), None);
    }

    fn seen(share: f64, speed: f64) -> Result<Seen, Unseen> {
        Ok(Seen { share, speed, ..Seen::default() })
    }

    #[test]
    fn a_limit_holds_by_two_accounts() {
        for (share, speed, bare, status) in [
            (30.0, 300.0, Some(1000.0), Status::Ok),
            (33.0, 300.0, None, Status::Ok),
            (12.0, 300.0, Some(1000.0), Status::Warning),
            (30.0, 500.0, Some(1000.0), Status::Warning),
            // The library says so, and the GPU does not.
            (30.0, 950.0, Some(1000.0), Status::Problem),
            (96.0, 950.0, None, Status::Problem),
        ] {
            let check = compute(&seen(share, speed), bare, true).expect("a check");
            assert_eq!(check.status, status, "{check:?}");
        }
        assert_eq!(compute(&seen(96.0, 1.0), None, false).map(|it| it.status), Some(Status::Ok), "the file may say so");
        assert!(compute(&Err(Unseen::Interrupted), None, true).is_none());
    }

    #[test]
    fn how_it_is_switched_is_said_with_the_reason() {
        let driven =
            Seen { by_channels: Some(true), switches: 40, each: Duration::from_micros(450), ..Seen::default() };
        let check = channels(&driven);
        assert!(check.status == Status::Ok && check.found.ends_with("took 0.45 ms (40 of them)"), "{check:?}");
        let errors = "ration: channels of GPU 0 cannot be driven: the kernel module refuses; launches are held in their calls instead\n";
        let held = Seen { by_channels: Some(false), errors: errors.into(), ..Seen::default() };
        let check = channels(&held);
        assert!(
            check.status == Status::Warning && check.found.contains("the kernel module refuses; launches"),
            "{check:?}"
        );
        assert!(check.remedy.is_some_and(|it| it.contains("docs/compute.md")));
        assert_eq!(channels(&Seen::default()).status, Status::Warning);
    }
}
