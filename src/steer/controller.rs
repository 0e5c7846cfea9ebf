//! The controller: a thread of this process that looks at what the GPU has done, and drives the channels.
//!
//! It starts with the first launch in a slice (with `cuInit`, where `RATION_STRICT` wants to know of a region that is lost), sleeps while there is nothing to steer, records nothing into any stream, and is
//! gone when the process is. A fork leaves it behind, and the child's first launch starts another. At `exit` it puts the
//! channels on and stops, before the driver's own destructors run.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use ration_policy::tuning::AWAITED;
use ration_steer::{Epoch, Seen};

use super::{Counts, Lane, batch, lane};
use crate::driver::calls;
use crate::ledger::{self, Slice};
use crate::thread::Guarded;
use crate::{left, log, sys};

static STARTED: AtomicBool = AtomicBool::new(false);
/// Launches wait no longer: it has looked, or there is nothing to wait for.
static READY: AtomicBool = AtomicBool::new(false);
/// The process is about to end.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Held while lanes are looked at, and by whoever takes their events away.
static LOOKING: Guarded<()> = Guarded::new(());
/// Whether it is in the driver.
static INSIDE: AtomicBool = AtomicBool::new(false);

/// Starts it, unless it runs.
#[inline]
pub fn start() {
    if !READY.load(Ordering::Acquire) {
        start_and_wait();
    }
}

/// A program may queue half a second of work in two milliseconds, in each of its threads. Before that it is to be known how it is held,
/// so all of them wait for the first look.
#[cold]
fn start_and_wait() {
    let _errno = sys::Errno::kept();
    if !STARTED.swap(true, Ordering::AcqRel) {
        // Whatever was registered before, by the driver too, runs after this.
        // SAFETY: a function of the right type, in a library that is never unloaded.
        unsafe { libc::atexit(at_exit) };
        // SAFETY: it needs nothing.
        if unsafe { ration_region::start_thread(run, null_mut()) } != 0 {
            log::warn!("there is no thread for us: limits and requests do not hold");
            READY.store(true, Ordering::Release);
        }
    }
    let mut now = sys::nanoseconds();
    let end = now + AWAITED;
    while !READY.load(Ordering::Acquire) && now < end {
        sys::sleep_until(now + AWAITED / 64, now);
        now = sys::nanoseconds();
    }
    READY.store(true, Ordering::Release);
}

/// In a forked child: there is none.
pub fn forget_the_parent() {
    STARTED.store(false, Ordering::Relaxed);
    READY.store(false, Ordering::Relaxed);
    INSIDE.store(false, Ordering::Relaxed);
    LOOKING.renew(());
}

/// Does something while nobody looks at lanes.
pub fn without_looking(work: impl FnOnce()) {
    LOOKING.with(|()| work());
}

/// At `exit`: everything on, and nobody in the driver any more when its destructors run.
extern "C" fn at_exit() {
    STOPPED.store(true, Ordering::SeqCst);
    batch::keeps(None);
    let mut now = sys::nanoseconds();
    let end = now + 50_000_000;
    while INSIDE.load(Ordering::SeqCst) && now < end {
        sys::sleep_until(now + 100_000, now);
        now = sys::nanoseconds();
    }
    if STARTED.load(Ordering::SeqCst) {
        for slice in ledger::all() {
            slice.steer.put_on(slice);
        }
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends in NUL. Timers of this thread are exact to a microsecond, not to fifty.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"ration".as_ptr());
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000);
    }
    ledger::rescue::watch_this_thread();
    calls::never_break_captures();
    let mut counts = Counts::new();
    while !STOPPED.load(Ordering::SeqCst) {
        INSIDE.store(true, Ordering::SeqCst);
        let looked =
            catch_unwind(AssertUnwindSafe(|| if STOPPED.load(Ordering::SeqCst) { None } else { look(&mut counts) }));
        let Ok(next) = looked else {
            // The program goes on without us: on the GPU, and nobody counts its launches.
            let _ = catch_unwind(give_up);
            READY.store(true, Ordering::Release);
            INSIDE.store(false, Ordering::SeqCst);
            return null_mut();
        };
        INSIDE.store(false, Ordering::SeqCst);
        READY.store(true, Ordering::Release);
        let now = sys::nanoseconds();
        match next {
            Some((slice, Some(lease), at)) => slice.compute().wait_for_lease(&lease, at, now),
            Some((_, None, at)) => sys::nap(at, now),
            None => sys::nap(now + 50_000_000, now),
        }
    }
    null_mut()
}

/// After a fault of ours.
fn give_up() {
    batch::keeps(None);
    for slice in ledger::all() {
        slice.steer.put_on(slice);
        slice.steer.counts(false);
    }
}

/// One look at everything. What to sleep on and until when.
fn look(counts: &mut Counts) -> Option<(&'static Slice, Option<ration_region::Lease>, u64)> {
    let steers = || ledger::all().map(|slice| (slice, &slice.steer));
    let mut blocked = left::any_waits();
    let sent = lane::all().map(Lane::sent).sum();
    let away = counts.polls(sent) || blocked || lane::all().any(Lane::is_launching);
    LOOKING.with(|()| {
        let is_waiting = blocked;
        let frozen =
            steers().filter(|(_, steer)| steer.is_frozen()).fold(0, |all, (slice, _)| all | 1 << (slice.device % 64));
        for lane in lane::all() {
            let of = |device| steers().find(|(slice, _)| slice.device == device);
            lane.look(
                frozen,
                |device| of(device).map_or_else(Epoch::default, |(_, steer)| steer.state.with(|state| state.epoch())),
                |done| {
                    if let Some((_, steer)) = of(done.device) {
                        steer.state.with(|state| state.did(done.work, done.launches));
                    }
                },
            );
            let is_stuck = lane.is_stuck();
            blocked |= is_stuck;
            if let Some((device, continuous, next)) = lane.pending_on()
                && let Some((_, steer)) = of(device)
            {
                steer.state.with(|state| state.is_pending(continuous, is_stuck || is_waiting, next));
            }
        }
        for (_, steer) in steers().filter(|(_, steer)| steer.gate.is_waited_at()) {
            steer.state.with(|state| state.is_waited_for());
        }
    });
    let now = sys::nanoseconds();
    ledger::quota::follow(now);
    // Who counts its launches knows of them.
    let is_passed = steers().any(|(_, steer)| !steer.is_counted());
    let more = if counts.are_due(now) || is_passed { counts.more() } else { [0; 3] };
    let launches = is_passed && more != [0; 3];
    // They do not say on which GPU: one on which a launch was counted of late takes them all.
    let used = steers().find(|(_, steer)| steer.touched.load(Ordering::Relaxed)).or_else(|| steers().next());
    if more != [0; 3]
        && let Some((slice, _)) = used
    {
        slice.compute().launched(more[0], more[1]);
    }
    let answer = lane::all().map(Lane::answer).max().map_or(0, |(_, answer)| answer);
    let (mut soonest, mut is_beside_others) = (None, false);
    for (slice, steer) in steers() {
        slice.has_a_place();
        slice.tells_others();
        let launches = steer.touched.swap(false, Ordering::Relaxed) || launches;
        let seen = Seen { launches, away, answer };
        let next = steer
            .state
            .with(|state| state.look(&steer.here(slice), &slice.compute_as_entitled(), &seen, sys::nanoseconds()));
        is_beside_others |= next.is_beside_others;
        if next.are_strange {
            say_that_others_are_strange(slice);
        }
        if soonest.as_ref().is_none_or(|(_, _, at)| next.at < *at) {
            soonest = Some((slice, next.lease, next.at));
        }
    }
    lane::is_beside_others(is_beside_others);
    soonest
}

/// Once: with whom shares do not hold.
#[cold]
fn say_that_others_are_strange(slice: &Slice) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warn!(
            "GPU {}: some containers use a library of another major version. Limits hold; between them and this one the GPU is \
             shared by plain time slicing",
            slice.device
        );
    }
}
