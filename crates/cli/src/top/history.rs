//! What containers have had of late: what is counted now, less what was counted a while ago.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

use crate::look::{Container, Report};

/// Long enough to see what is going on just now, and to see what it comes to.
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(10);

/// What a container has had of late. What is null is not known: it has not been looked at for long enough, or it counts nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Of the GPU's time, in percent, over a second; of others' containers, what they say.
    pub got_1s_percent: Option<f64>,
    pub got_10s_percent: Option<f64>,
    /// How much of the last second its limit has kept it off the GPU.
    pub throttled_percent: Option<f64>,
    /// How much of the last second it has waited for others' leases.
    pub waited_percent: Option<f64>,
    /// Requests for memory that did not fit, in the last ten seconds.
    pub refused_10s: Option<u64>,
}

/// What tells containers apart: the GPU, the directory, the name.
type Key = (String, String, String);

#[derive(Debug, Clone, Copy, PartialEq)]
struct Counted {
    gpu: f64,
    throttled: f64,
    waited: f64,
    refused: u64,
}

#[derive(Debug)]
struct Look {
    at: Duration,
    counted: HashMap<Key, Counted>,
}

/// The looks of the last seconds.
#[derive(Debug, Default)]
pub struct History {
    looks: VecDeque<Look>,
    /// The number by which a container is told from others as long as it is there.
    marks: HashMap<Key, usize>,
}

impl History {
    /// Remembers a look. `at`: since any moment, the same for all.
    pub fn add(&mut self, at: Duration, report: &Report) {
        let all = || report.gpus.iter().flat_map(|gpu| gpu.containers.iter().map(|it| (key(&gpu.uuid, it), it)));
        let counted = all().filter_map(|(key, it)| Some((key, counted(it)?))).collect();
        self.looks.push_back(Look { at, counted });
        // One that is too old is kept, for whoever looks less often than that.
        while self.looks.len() > 2 && self.looks[1].at + with_slack(LONG) < at {
            self.looks.pop_front();
        }
        let now: Vec<Key> = all().map(|(key, _)| key).collect();
        self.marks.retain(|key, _| now.contains(key));
        for key in now {
            if !self.marks.contains_key(&key) {
                let free = (0..).find(|mark| !self.marks.values().any(|taken| taken == mark));
                self.marks.insert(key, free.unwrap_or_default());
            }
        }
    }

    /// A number that a container keeps as long as it is there, and that nobody else has meanwhile.
    pub fn mark(&self, gpu: &str, container: &Container) -> usize {
        self.marks.get(&key(gpu, container)).copied().unwrap_or_default()
    }

    /// What a container of the last look has had.
    pub fn rates(&self, gpu: &str, container: &Container) -> Rates {
        if !container.is_full {
            return Rates { got_1s_percent: container.usage_percent, ..Rates::default() };
        }
        let key = key(gpu, container);
        let (short, long) = (self.over(&key, SHORT), self.over(&key, LONG));
        // A container alone, with no limit, counts nothing, and neither does an idle one: it says which of both it is.
        let says = container.usage_percent.is_some();
        let part = |now: f64, before: f64, over: Duration| {
            let rate = (now - before) / over.as_secs_f64();
            (rate >= 0.0).then(|| rate.min(1.0) * 100.0)
        };
        let got = |past: &Option<(Duration, Counted, Counted)>| {
            let (over, before, now) = past.as_ref()?;
            part(now.gpu, before.gpu, *over).filter(|rate| says || *rate > 0.0)
        };
        Rates {
            got_1s_percent: got(&short),
            got_10s_percent: got(&long),
            throttled_percent: short.and_then(|(over, before, now)| part(now.throttled, before.throttled, over)),
            waited_percent: short.and_then(|(over, before, now)| part(now.waited, before.waited, over)),
            refused_10s: self.oldest(&key).and_then(|(before, now)| now.refused.checked_sub(before.refused)),
        }
    }

    /// What was counted so long ago, and now; from one look to the next where they are further apart. `None`: not looked at for half
    /// of that time.
    fn over(&self, key: &Key, window: Duration) -> Option<(Duration, Counted, Counted)> {
        let (last, earlier) = self.split()?;
        let now = last.counted.get(key)?;
        let age = |look: &Look| last.at.saturating_sub(look.at);
        let recent =
            earlier.iter().copied().find(|look| age(look) <= with_slack(window) && look.counted.contains_key(key));
        let look = recent.or(earlier.last().copied().filter(|look| age(look) > with_slack(window)))?;
        let before = look.counted.get(key)?;
        (age(look) >= window / 2).then_some((age(look), *before, *now))
    }

    /// What was counted at the first look that is remembered and not too old, and now.
    fn oldest(&self, key: &Key) -> Option<(Counted, Counted)> {
        let (last, earlier) = self.split()?;
        let now = last.counted.get(key)?;
        let before = earlier.iter().filter(|look| last.at.saturating_sub(look.at) <= with_slack(LONG));
        before.filter_map(|look| look.counted.get(key)).next().map(|before| (*before, *now))
    }

    fn split(&self) -> Option<(&Look, Vec<&Look>)> {
        let last = self.looks.back()?;
        Some((last, self.looks.iter().take(self.looks.len() - 1).collect()))
    }
}

/// Looks come a little late.
fn with_slack(window: Duration) -> Duration {
    window + window / 4
}

fn key(gpu: &str, container: &Container) -> Key {
    (gpu.to_owned(), container.directory.clone(), container.name.clone())
}

fn counted(container: &Container) -> Option<Counted> {
    Some(Counted {
        gpu: container.gpu_seconds?,
        throttled: container.throttled_seconds?,
        waited: container.waited_seconds?,
        refused: container.refused?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::report;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// After so many milliseconds, with so many seconds of GPU time.
    fn look(history: &mut History, ms: u64, gpu: f64, refused: u64) -> Rates {
        let mut report = report();
        let container = &mut report.gpus[0].containers[0];
        (container.gpu_seconds, container.refused) = (Some(gpu), Some(refused));
        history.add(at(ms), &report);
        history.rates(&report.gpus[0].uuid, &report.gpus[0].containers[0])
    }

    #[test]
    fn shares_are_of_the_last_second_and_of_the_last_ten() {
        let mut history = History::default();
        assert_eq!(look(&mut history, 0, 5.0, 2), Rates::default(), "one look says nothing");
        let rates = look(&mut history, 1000, 5.3, 2);
        assert_eq!((rates.got_1s_percent.map(f64::round), rates.got_10s_percent), (Some(30.0), None));
        assert_eq!((rates.throttled_percent, rates.refused_10s), (Some(0.0), Some(0)));
        for second in 2..=10 {
            look(&mut history, second * 1000, 5.3, 2);
        }
        let rates = look(&mut history, 11_000, 5.8, 5);
        assert_eq!(rates.got_1s_percent.map(f64::round), Some(50.0));
        assert_eq!((rates.got_10s_percent.map(f64::round), rates.refused_10s), (Some(7.0), Some(3)), "0.8 s in 11");
        let rates = look(&mut history, 41_000, 20.8, 5);
        assert_eq!(rates.got_1s_percent.map(f64::round), Some(50.0), "from one look to the next");
        assert_eq!(rates.refused_10s, None, "nothing is known of ten seconds");
        assert!(history.looks.len() <= 3, "{}", history.looks.len());
    }

    #[test]
    fn what_makes_no_sense_is_not_shown() {
        let mut history = History::default();
        look(&mut history, 0, 5.0, 2);
        let rates = look(&mut history, 1000, 1.0, 0);
        assert_eq!((rates.got_1s_percent, rates.refused_10s), (None, None), "another container of that name");
        assert_eq!(look(&mut history, 2000, 1e9, 0).got_1s_percent, Some(100.0));
        let mut silent = report();
        (silent.gpus[0].containers[0].gpu_seconds, silent.gpus[0].containers[0].usage_percent) = (Some(1e9), None);
        history.add(at(3000), &silent);
        let rates = history.rates(&silent.gpus[0].uuid, &silent.gpus[0].containers[0]);
        assert_eq!(rates.got_1s_percent, None, "it counts nothing");
        let other = &silent.gpus[0].containers[1];
        assert_eq!(history.rates(&silent.gpus[0].uuid, other), Rates::default());
    }

    #[test]
    fn a_mark_stays_and_is_nobody_elses() {
        let mut history = History::default();
        let mut all = report();
        history.add(at(0), &all);
        let uuid = all.gpus[0].uuid.clone();
        let marks = |history: &History, report: &Report| {
            report.gpus[0].containers.iter().map(|it| history.mark(&uuid, it)).collect::<Vec<_>>()
        };
        assert_eq!(marks(&history, &all), [0, 1]);
        all.gpus[0].containers.remove(0);
        history.add(at(1), &all);
        assert_eq!(marks(&history, &all), [1]);
        let all = report();
        history.add(at(2), &all);
        assert_eq!(marks(&history, &all), [0, 1]);
    }
}
