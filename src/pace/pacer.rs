//! The pacer: a thread of this process that looks after its pace while the program does other things.
//!
//! It sees when the GPU has done what was launched, so that a turn goes to others as soon as it is not used; it sees who else
//! uses the GPU, and makes launches ask when they have to; and it hears of changed limits, and of a changed quota file. It starts with the first launch in
//! a slice, sleeps most of the time, records nothing into any stream, and is gone when the process is.
//!
//! A fork leaves it behind, and the child's first launch starts another. At `exit` it stops before the driver's own
//! destructors run.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::Pace;
use crate::abi::cuda::CUcontext;
use crate::driver::calls;
use crate::ledger::{self, Slice};
use crate::steer::Counts;
use crate::sys;

/// While launches come, it looks after so long who else is there.
const BUSY: u64 = 10_000_000;
/// While none come.
const IDLE: u64 = 50_000_000;

static STARTED: AtomicBool = AtomicBool::new(false);
/// The process is about to end.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Whether it is in the driver.
static INSIDE: AtomicBool = AtomicBool::new(false);
/// While it sleeps for long, to be woken: [`SLEEPS`] or [`DOZES`].
static ASLEEP: AtomicU32 = AtomicU32::new(0);
const SLEEPS: u32 = 1;
/// Because nothing is launched.
const DOZES: u32 = 2;

/// Starts it, unless it runs.
#[inline]
pub fn start() {
    if !STARTED.load(Ordering::Relaxed) && !STARTED.swap(true, Ordering::AcqRel) {
        let _errno = sys::Errno::kept();
        // Whatever was registered before, by the driver too, runs after this.
        // SAFETY: a function of the right type, in a library that is never unloaded.
        unsafe { libc::atexit(at_exit) };
        // SAFETY: it needs nothing.
        if unsafe { ration_region::start_thread(run, null_mut()) } != 0 {
            crate::log::warn!("there is no thread for us: turns on the GPU are given back late");
        }
    }
}

/// There is something to look after.
#[inline]
pub fn wake() {
    if ASLEEP.swap(0, Ordering::SeqCst) != 0 {
        let _errno = sys::Errno::kept();
        ration_region::futex_wake(&ASLEEP);
    }
}

/// Something is launched, after a while in which nothing was, it may be: others are to know soon.
#[inline]
pub fn wake_if_idle() {
    if ASLEEP.load(Ordering::Relaxed) == DOZES {
        wake();
    }
}

/// In a forked child: there is none.
pub fn forget_the_parent() {
    STARTED.store(false, Ordering::Relaxed);
    INSIDE.store(false, Ordering::Relaxed);
    ASLEEP.store(0, Ordering::Relaxed);
}

/// At `exit`: nobody is in the driver any more when its destructors run.
extern "C" fn at_exit() {
    STOPPED.store(true, Ordering::SeqCst);
    let mut now = sys::nanoseconds();
    let end = now + 50_000_000;
    while INSIDE.load(Ordering::SeqCst) && now < end {
        sys::sleep_until(now + 100_000, now);
        now = sys::nanoseconds();
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    // SAFETY: the name ends in NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"ration-pace".as_ptr()) };
    ledger::rescue::watch_this_thread();
    calls::never_break_captures();
    let (mut company_at, mut sleeps) = (0, SLEEPS);
    let mut counts = Counts::new();
    let mut used: Option<&'static Slice> = None;
    while !STOPPED.load(Ordering::SeqCst) {
        let now = sys::nanoseconds();
        // The counters do not say on which GPU: one on which a launch was looked at takes them all.
        let touched = ledger::all().find(|slice| slice.pace.touched.load(Ordering::Relaxed));
        used = touched.or(used);
        let looks_around = now >= company_at || sleeps == DOZES && touched.is_some();
        let launched = if looks_around { counts.more() } else { [0; 3] };
        let mut is_busy = launched != [0; 3] || touched.is_some();
        let (mut until, mut ringing): (u64, Option<(&'static Slice, u32)>) = (u64::MAX, None);
        for slice in ledger::all() {
            let bell = slice.compute().bell();
            if looks_around {
                let is_used = used.is_some_and(|used| std::ptr::eq(used, slice));
                is_busy |= slice.pace.look_around(slice, if is_used { launched } else { [0; 3] }, now);
            }
            INSIDE.store(true, Ordering::SeqCst);
            if !STOPPED.load(Ordering::SeqCst) {
                let (at, rings) = slice.pace.tick(slice, now);
                until = until.min(at);
                ringing = ringing.or(rings.then_some((slice, bell)));
            }
            INSIDE.store(false, Ordering::SeqCst);
        }
        if looks_around {
            INSIDE.store(true, Ordering::SeqCst);
            if !STOPPED.load(Ordering::SeqCst) {
                ledger::quota::follow(now);
            }
            INSIDE.store(false, Ordering::SeqCst);
            let length;
            (length, sleeps) = if is_busy || until != u64::MAX { (BUSY, SLEEPS) } else { (IDLE, DOZES) };
            company_at = now + length;
        }
        let until = until.min(company_at);
        match ringing {
            // On several GPUs, the bell of one is heard; at the others it is looked at after a millisecond.
            Some((slice, bell)) => slice.compute().wait_for_bell(bell, until, now),
            None => {
                ASLEEP.store(sleeps, Ordering::SeqCst);
                let length = Duration::from_nanos(until.saturating_sub(now).min(900_000_000));
                ration_region::futex_wait(&ASLEEP, sleeps, Some(length));
                ASLEEP.store(0, Ordering::SeqCst);
            }
        }
    }
    null_mut()
}

impl Pace {
    /// Sees who else uses the GPU, and whether launches have to ask. Says whether a launch is held up, or work is under way: then
    /// the next look is not to be late, though nothing is launched.
    fn look_around(&self, slice: &Slice, [kernels, graphs, copies]: [u64; 3], now: u64) -> bool {
        // From now on, at the latest, whatever is launched is held up by words that mean something.
        slice.has_a_place();
        let compute = slice.compute();
        let launches = kernels + graphs + copies;
        let is_used = self.touched.swap(false, Ordering::Relaxed) || launches > 0;
        let (left, is_asked) = self.state.with(|state| {
            state.meter(&compute, launches, now);
            if !is_used {
                state.rest();
            }
            (state.left(now), state.asking > 0)
        });
        compute.launched(kernels, graphs, left);
        if is_used {
            compute.is_active(now);
        }
        let (in_company, flight) = if self.takes_turns { compute.company(now) } else { (false, None) };
        let was_in_company = self.in_company.swap(in_company, Ordering::Relaxed);
        self.set_bound(flight);
        // The next launch is looked at, even if none has to ask.
        let is_as_before = was_in_company == in_company && compute.limit().is_whole() && is_used;
        if !self.state.with(|state| state.wish.glances.may_skip(is_as_before)) {
            self.gate();
        }
        left > 0 || is_asked
    }

    fn tick(&self, slice: &Slice, now: u64) -> (u64, bool) {
        let compute = slice.compute();
        self.state.with(|state| {
            let contexts = state.late.iter().chain(&state.stretch).map(|stretch| stretch.context);
            let Some(context) =
                contexts.chain([state.probes.context(), state.samples.context()]).find(|context| *context != 0)
            else {
                return (u64::MAX, false);
            };
            with_context(context as CUcontext, || state.tick(self, &compute, now))
        })
    }
}

/// With a context of the program's, which lives: whoever destroys one says so first, and waits for us.
fn with_context<T>(context: CUcontext, work: impl FnOnce() -> T) -> T {
    // SAFETY: a context that has not been destroyed.
    let is_set = unsafe { calls::cuCtxPushCurrent_v2(context) } == crate::abi::cuda::CUDA_SUCCESS;
    let result = work();
    if is_set {
        let mut popped: CUcontext = null_mut();
        // SAFETY: a place to write to; it was pushed above.
        unsafe { calls::cuCtxPopCurrent_v2(&raw mut popped) };
    }
    result
}
