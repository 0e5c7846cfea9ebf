//! What is to be seen of a container while its program runs, and what has to be put right there.
//!
//! A thread reads the container's regions now and then: copies, so that nothing which is done to the files can harm anybody, and no
//! process in there notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::change;
use crate::runs::Run;
use crate::text;

/// So often. Each look reads some hundred kilobytes.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What was seen on one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnGpu {
    gpu: [u8; 16],
    peak: u64,
    /// The cap then: it may have been changed.
    cap: Option<u64>,
    now: Counted,
    /// What was counted before this run, of which the container had others.
    before: Counted,
}

/// What a container counts. Times are nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counted {
    gpu_time: u64,
    throttled: u64,
    refused: u64,
    /// The most that was held.
    peak: u64,
}

impl Counted {
    /// What has come since.
    fn since(&self, before: &Counted) -> Counted {
        // Where it is less, it was begun anew.
        let less = |now: u64, before: u64| if now >= before { now - before } else { now };
        Counted {
            gpu_time: less(self.gpu_time, before.gpu_time),
            throttled: less(self.throttled, before.throttled),
            refused: less(self.refused, before.refused),
            peak: self.peak,
        }
    }
}

/// What was seen of a container.
#[derive(Debug, Default)]
pub struct Seen(Vec<OnGpu>);

impl Seen {
    /// Looks once more.
    fn look(&mut self, run: &mut Run, is_first: bool) {
        run.look_again();
        let regions = change::regions(run);
        change::tell(run, &regions);
        for (seen, copy) in &regions {
            let Some(view) = copy.containers().find(|it| it.name.as_bytes() == run.name.as_bytes()) else { continue };
            let compute = view.compute();
            let counted = Counted {
                gpu_time: compute.gpu_time,
                throttled: compute.throttled,
                refused: view.refused,
                peak: view.peak,
            };
            let at = self.0.iter().position(|it| it.gpu == seen.gpu).unwrap_or_else(|| {
                let before = if is_first { counted } else { Counted::default() };
                self.0.push(OnGpu { gpu: seen.gpu, before, ..OnGpu::default() });
                self.0.len() - 1
            });
            let all = copy.total();
            let used = view.used();
            let on = &mut self.0[at];
            on.now = counted;
            // What others held before this run is not what it held. The most of all time is, if it has grown since.
            let held = if counted.peak != on.before.peak { used.max(counted.peak) } else { used };
            if !is_first && held > on.peak {
                (on.peak, on.cap) = (held, view.cap.filter(|cap| *cap < all));
            }
        }
    }

    /// In one line.
    pub fn said(&self) -> String {
        let used: Vec<&OnGpu> = self.0.iter().filter(|it| it.peak > 0 || it.now != it.before).collect();
        match used[..] {
            [] => "it was not seen to use a GPU".into(),
            [only] => only.said(),
            _ => used.iter().map(|it| format!("{}: {}", text::gpu(&it.gpu), it.said())).collect::<Vec<_>>().join("; "),
        }
    }
}

impl OnGpu {
    fn said(&self) -> String {
        let counted = self.now.since(&self.before);
        let cap = self.cap.map_or_else(String::new, |cap| format!(" of {}", text::memory(cap)));
        format!(
            "peak {}{cap}, {} of GPU time, throttled for {}, {} refused",
            text::memory(self.peak),
            text::seconds(counted.gpu_time),
            text::seconds(counted.throttled),
            text::count(counted.refused, "allocation")
        )
    }
}

/// Somebody who is about to look on.
pub struct Watch {
    run: Run,
    seen: Seen,
}

impl Watch {
    /// Before the program begins.
    pub fn begin(run: &Run) -> Watch {
        let (mut run, mut seen) = (run.clone(), Seen::default());
        seen.look(&mut run, true);
        Watch { run, seen }
    }

    /// It has.
    pub fn start(self) -> Watching {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let Watch { mut run, mut seen } = self;
        let thread = std::thread::spawn(move || {
            loop {
                let is_last = told.load(Ordering::SeqCst);
                seen.look(&mut run, false);
                if is_last {
                    return seen;
                }
                std::thread::park_timeout(BETWEEN_LOOKS);
            }
        });
        Watching { is_over, thread }
    }
}

/// Somebody who looks on.
pub struct Watching {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Watching {
    /// The program has ended: a last look, and what was seen.
    pub fn end(self) -> Seen {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(gpu: u8, cap: Option<u64>) -> OnGpu {
        let now = Counted { gpu_time: 12_340_000_000, throttled: 400_000_000, refused: 3, peak: 3 << 30 };
        OnGpu { gpu: [gpu; 16], cap, peak: 3 << 30, now, before: Counted::default() }
    }

    #[test]
    fn what_was_used_is_one_line() {
        assert_eq!(Seen::default().said(), "it was not seen to use a GPU");
        let line = "peak 3.0 GiB of 8.0 GiB, 12.3 s of GPU time, throttled for 0.4 s, 3 allocations refused";
        assert_eq!(Seen(vec![on(1, Some(8 << 30))]).said(), line);
        let two = Seen(vec![on(1, None), on(0xab, None)]).said();
        assert!(two.starts_with("GPU-01010101: peak 3.0 GiB, ") && two.contains("; GPU-abababab: "), "{two}");
        assert!(!two.contains('\n'));
    }

    #[test]
    fn what_others_had_before_is_not_this_runs() {
        let before = Counted { gpu_time: 5, throttled: 1, refused: 2, peak: 1 };
        let since = Counted { gpu_time: 7, throttled: 1, refused: 1, peak: 3 }.since(&before);
        assert_eq!(since, Counted { gpu_time: 2, throttled: 0, refused: 1, peak: 3 });
    }
}
