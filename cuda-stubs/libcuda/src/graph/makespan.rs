//! How long kernels take that may run side by side: list scheduling, on bare numbers.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use sim_world::channel::WHOLE;

/// A kernel of the list.
#[derive(Debug, Clone, Default)]
pub(crate) struct Job {
    pub duration: u64,
    /// Part of the GPU it fills, in thousandths.
    pub width: u16,
    /// Jobs, earlier in the list, that must be through before.
    pub after: Vec<usize>,
}

/// The list as one piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub duration: u64,
    /// The most that is filled at one time.
    pub width: u16,
}

/// Starts every job as soon as it may and fits, older ones first; a job that is too wide for the GPU runs alone.
pub(crate) fn span(jobs: &[Job]) -> Span {
    let mut waits: Vec<usize> = jobs.iter().map(|job| job.after.len()).collect();
    let mut dependents = vec![Vec::new(); jobs.len()];
    for (index, job) in jobs.iter().enumerate() {
        for before in &job.after {
            dependents[*before].push(index);
        }
    }
    let mut ready: BTreeSet<usize> = (0..jobs.len()).filter(|job| waits[*job] == 0).collect();
    let mut running: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let (mut now, mut used, mut widest) = (0u64, 0u16, 0u16);
    loop {
        let mut started = Vec::new();
        for job in &ready {
            if used >= WHOLE {
                break;
            }
            let width = jobs[*job].width.min(WHOLE);
            if used != 0 && used + width > WHOLE {
                continue;
            }
            used += width;
            widest = widest.max(used);
            started.push(*job);
        }
        for job in started {
            ready.remove(&job);
            running.push(Reverse((now.saturating_add(jobs[job].duration), job)));
        }
        let Some(Reverse((end, _))) = running.peek().copied() else { return Span { duration: now, width: widest } };
        now = end;
        while let Some(Reverse((end, job))) = running.peek().copied() {
            if end > now {
                break;
            }
            running.pop();
            used -= jobs[job].width.min(WHOLE);
            for next in &dependents[job] {
                waits[*next] -= 1;
                if waits[*next] == 0 {
                    ready.insert(*next);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(duration: u64, width: u16, after: &[usize]) -> Job {
        Job { duration, width, after: after.to_vec() }
    }

    #[test]
    fn a_chain_takes_its_sum() {
        let chain: Vec<Job> =
            (0..1000).map(|n: usize| job(5, 10, &n.checked_sub(1).into_iter().collect::<Vec<_>>())).collect();
        assert_eq!(span(&chain), Span { duration: 5000, width: 10 });
    }

    #[test]
    fn branches_overlap_while_they_fit() {
        let narrow = [job(5, 400, &[]), job(5, 400, &[]), job(5, 1000, &[0, 1])];
        assert_eq!(span(&narrow), Span { duration: 10, width: 1000 });
        let wide = [job(5, 600, &[]), job(5, 600, &[]), job(5, 1000, &[0, 1])];
        assert_eq!(span(&wide).duration, 15);
    }

    #[test]
    fn a_narrow_one_slips_in_beside_a_wide_one() {
        let jobs = [job(10, 700, &[]), job(10, 700, &[]), job(20, 300, &[])];
        assert_eq!(span(&jobs), Span { duration: 20, width: 1000 });
    }

    #[test]
    fn nothing_and_free_kernels_take_no_time() {
        assert_eq!(span(&[]), Span::default());
        assert_eq!(span(&[job(0, 1000, &[]), job(0, 1000, &[0])]).duration, 0);
        assert_eq!(span(&[job(3, 5000, &[]), job(3, 0, &[])]).duration, 6, "wider than the GPU is all of it");
    }

    #[test]
    fn the_span_is_between_its_bounds() {
        // A fixed sequence of pseudo-random graphs: never shorter than the longest chain, never longer than the sum.
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let jobs: Vec<Job> = (0..20usize)
                .map(|n| {
                    let after: BTreeSet<usize> =
                        (0..next(3)).filter(|_| n > 0).map(|_| next(n as u64) as usize).collect();
                    Job { duration: next(100), width: next(1100) as u16, after: after.into_iter().collect() }
                })
                .collect();
            let mut ends = vec![0; jobs.len()];
            for (index, job) in jobs.iter().enumerate() {
                ends[index] = job.duration + job.after.iter().map(|a| ends[*a]).max().unwrap_or(0);
            }
            let got = span(&jobs).duration;
            assert!(got >= ends.iter().copied().max().unwrap_or(0) && got <= jobs.iter().map(|j| j.duration).sum());
        }
    }
}
