//! Whether what was promised held, in plain words that follow the figures.

use serde::Serialize;

use super::super::figures::Latency;
use super::{ComputeResults, ContainerResult};
use crate::text::{self, percent};

/// A share may be short of what is due by this part of the GPU's time, before it counts as short: a few seconds are
/// measured, of turns that are some ten milliseconds long.
pub const SHORT: f64 = 0.02;
/// One that has less than this part of what is due was not held to anything, however busy this machine is.
const FAR_SHORT: f64 = 0.75;
/// A request may take so many times as long as half of them take alone: half of them, and all but one in a hundred.
const SLOW: Latency = Latency { p50: 1.2, p99: 1.4 };
/// Half of them so many times as long, and they were not let through first. Those are times by programs' own clocks, and a
/// machine that is busy with other things adds to them.
const FAR_SLOW: f64 = 2.0;
/// The GPU should do as much as without ration, but for what cannot be measured in a few seconds...
const IDLE: f64 = 0.01;
/// ...and something is badly wrong with less than this part of it.
const FAR_IDLE: f64 = 0.8;

/// Whether something held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// As promised.
    Yes,
    /// Not quite, and this machine kept the containers from a CPU for so long that it may be why.
    Unclear,
    /// Not quite.
    Nearly,
    /// Not at all.
    Broken,
}

impl Held {
    /// `kept` as promised; `excused` by what this machine did meanwhile; `broken` whatever it did.
    fn from(kept: bool, excused: bool, broken: bool) -> Held {
        match (kept, broken, excused) {
            (true, _, _) => Held::Yes,
            (false, true, _) => Held::Broken,
            (false, false, true) => Held::Unclear,
            (false, false, false) => Held::Nearly,
        }
    }

    /// What a line about it begins with.
    pub fn mark(self) -> &'static str {
        match self {
            Held::Yes => "held:",
            Held::Unclear => "cannot tell:",
            Held::Nearly => "not quite:",
            Held::Broken => "NOT held:",
        }
    }
}

/// Something that was promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub held: Held,
    /// In a sentence or two.
    pub said: String,
}

/// Of each container that was promised something, and of the GPU as a whole.
pub fn verdicts(results: &ComputeResults) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = results.containers.iter().filter_map(|one| share(one, results)).collect();
    verdicts.extend(results.containers.iter().filter(|container| container.is_hurried()).filter_map(latency));
    verdicts.push(whole(results));
    verdicts
}

fn share(container: &ContainerResult, results: &ComputeResults) -> Option<Verdict> {
    let (request, due) = (container.request?, container.due?);
    let (name, had) = (&container.name, container.with.share);
    let held = Held::from(had >= due - SHORT, had >= due - SHORT - results.lost(), had < due * FAR_SHORT);
    let alone = container.alone.share;
    let mut asked = format!("{name} asked for {} of the GPU's time", percent(request));
    if due < request.min(alone) - 0.005 {
        asked += &format!(", and fills {} of it when alone, so {} is due", percent(alone), percent(due));
    } else if due < request - 0.005 {
        asked += &format!(" and has a use for {}", percent(due));
    }
    let got = match held {
        Held::Yes if had > due + SHORT => format!("it got that and what others left, {}", percent(had)),
        Held::Yes => format!("it got {}", percent(had)),
        Held::Unclear | Held::Nearly | Held::Broken => format!("it got only {}", percent(had)),
    };
    let excuse = excuse(held, results);
    let before = container.without.share;
    let without = match before >= due - SHORT {
        true => format!("Without ration it had {}.", percent(before)),
        false => format!("Without ration it had only {}.", percent(before)),
    };
    Some(Verdict { held, said: format!("{asked}; {got}.{excuse} {without}") })
}

fn latency(container: &ContainerResult) -> Option<Verdict> {
    let (alone, without, with) =
        (container.alone.latency_ms?, container.without.latency_ms?, container.with.latency_ms?);
    // By the median, both of them: the slowest of a few requests alone say more about this machine than about the GPU.
    let times = |latency: Latency| Latency { p50: latency.p50 / alone.p50, p99: latency.p99 / alone.p50 };
    let (slower, slower_without) = (times(with), times(without));
    // A request waited for a CPU for so long, in the mean; where one in a hundred waited for all of them, a hundred times that.
    let waited_ms = container.with.waited.unwrap_or(0.0) * 1e3 / container.with.rate.max(f64::MIN_POSITIVE);
    let excused = Latency { p50: with.p50 - waited_ms, p99: with.p99 - 100.0 * waited_ms };
    let is_fast = |slower: Latency| slower.p50 <= SLOW.p50 && slower.p99 <= SLOW.p99;
    let held = Held::from(is_fast(slower), is_fast(times(excused)), slower.p50 > FAR_SLOW);
    let aim = match held {
        Held::Yes => String::new(),
        Held::Unclear => format!(
            " {} and {} times are aimed at; but in the mean, {} ms of each request went by waiting for a CPU of this \
             machine.",
            SLOW.p50,
            SLOW.p99,
            text::ms(waited_ms)
        ),
        Held::Nearly | Held::Broken => {
            format!(" That is more than the {} and {} times that are aimed at.", SLOW.p50, SLOW.p99)
        }
    };
    let said = format!(
        "{} is to go first: half of its requests took {} ms or less, {:.2} times what they take alone, and all but one in a \
         hundred {} ms or less, {:.2} times.{aim} Without ration it was {:.2} and {:.2} times.",
        container.name,
        text::ms(with.p50),
        slower.p50,
        text::ms(with.p99),
        slower.p99,
        slower_without.p50,
        slower_without.p99,
    );
    Some(Verdict { held, said })
}

/// What sharing costs the GPU as a whole.
fn whole(results: &ComputeResults) -> Verdict {
    let best = results.best_alone().max(f64::MIN_POSITIVE);
    let [without, with] = [&results.without, &results.with].map(|gpu| gpu.useful / best);
    let held = Held::from(with >= without - IDLE, with >= without - IDLE - results.lost(), with < without * FAR_IDLE);
    let excuse = excuse(held, results);
    let said = format!(
        "Together they got {} of what the GPU does for one container; without ration, {}.{excuse}",
        percent(with),
        percent(without)
    );
    Verdict { held, said }
}

/// Why it cannot be told whether something held, where that is so.
fn excuse(held: Held, results: &ComputeResults) -> String {
    if held != Held::Unclear {
        return String::new();
    }
    let lost = percent(results.lost());
    format!(
        " But this machine kept a container from a CPU for {lost} of the time, and so much of the GPU's time can be lost by \
         that."
    )
}

#[cfg(test)]
mod tests {
    use super::super::staged;
    use super::*;

    fn judged(change: impl FnOnce(&mut ComputeResults)) -> Vec<Verdict> {
        let mut results = staged();
        change(&mut results);
        verdicts(&results)
    }

    #[test]
    fn words_follow_the_figures() {
        let verdicts = judged(|_| {});
        assert!(verdicts.iter().all(|verdict| verdict.held == Held::Yes), "{verdicts:#?}");
        let said: Vec<&str> = verdicts.iter().map(|verdict| &*verdict.said).collect();
        let expected = [
            "trainer asked for 50% of the GPU's time; it got that and what others left, 53%. Without ration it had 61%.",
            "notebook asked for 30% of the GPU's time, and fills 93% of it when alone, so 28% is due; it got that and \
             what others left, 32%. Without ration it had only 15%.",
            "inference asked for 20% of the GPU's time and has a use for 13%; it got 13%. Without ration it had 14%.",
            "inference is to go first: half of its requests took 2.98 ms or less, 1.12 times what they take alone, and all \
             but one in a hundred 3.51 ms or less, 1.32 times. Without ration it was 2.33 and 2.79 times.",
            "Together they got 98% of what the GPU does for one container; without ration, 88%.",
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn nothing_is_praised_that_did_not_happen() {
        let verdicts = judged(|results| {
            results.containers[0].with.share = 0.45;
            results.containers[1].with.share = 0.15;
            results.containers[2].with.latency_ms = Some(Latency { p50: 3.5, p99: 4.0 });
            results.with.useful = 0.85;
        });
        let held: Vec<Held> = verdicts.iter().map(|verdict| verdict.held).collect();
        assert_eq!(held, [Held::Nearly, Held::Broken, Held::Yes, Held::Nearly, Held::Nearly]);
        assert!(verdicts[0].said.contains("it got only 45%") && verdicts[1].said.contains("it got only 15%"));
        assert!(verdicts[3].said.contains("1.32 times what") && verdicts[3].said.contains("more than the 1.2 and 1.4"));
    }

    #[test]
    fn what_a_busy_machine_may_have_done_is_neither_praised_nor_blamed() {
        let short = |waited: f64| {
            judged(|results| {
                results.waited = Some(waited);
                results.containers[2].with.waited = Some(waited);
                results.containers[0].with.share = 0.44;
                results.containers[2].with.latency_ms = Some(Latency { p50: 3.0, p99: 5.2 });
                results.with.useful = 0.83;
            })
        };
        let held = |waited: f64| short(waited).iter().map(|verdict| verdict.held).collect::<Vec<_>>();
        assert_eq!(held(0.0), [Held::Nearly, Held::Yes, Held::Yes, Held::Nearly, Held::Nearly]);
        assert_eq!(held(0.06), [Held::Unclear, Held::Yes, Held::Yes, Held::Unclear, Held::Unclear]);
        let verdicts = short(0.06);
        assert!(verdicts[0].said.contains("it got only 44%. But this machine kept a container from a CPU for 6.0% of"));
        assert!(verdicts[3].said.contains("in the mean, 1.20 ms of each request"), "{}", verdicts[3].said);
        let far = judged(|results| {
            results.waited = Some(0.5);
            results.containers[0].with.share = 0.2;
            results.with.useful = 0.5;
        });
        assert_eq!([far[0].held, far[4].held], [Held::Broken, Held::Broken], "whatever the machine did");
    }

    #[test]
    fn what_is_far_off_is_broken() {
        let verdicts = judged(|results| {
            results.containers[2].with.share = 0.05;
            results.containers[2].with.latency_ms = Some(Latency { p50: 6.2, p99: 7.4 });
            results.with.useful = 0.5;
        });
        let held: Vec<Held> = verdicts.iter().map(|verdict| verdict.held).collect();
        assert_eq!(held, [Held::Yes, Held::Yes, Held::Broken, Held::Broken, Held::Broken]);
    }

    #[test]
    fn who_asks_for_nothing_is_promised_nothing() {
        let verdicts = judged(|results| {
            results.containers.iter_mut().for_each(|container| container.request = None);
            results.containers[2].priority = "normal";
        });
        assert_eq!(verdicts.len(), 1, "only the GPU as a whole: {verdicts:#?}");
    }
}
