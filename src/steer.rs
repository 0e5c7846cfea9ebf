//! Holds the process to its container's share of the GPU's time, by the GPU's own scheduler.
//!
//! Launches are counted, and held up only at a limit. A thread of ours, the [`controller`], looks at what the GPU has done of them, and
//! drives the process's [`channels`](crate::channels): it gives them slices, takes them off the GPU while the container is at
//! its limit or another container holds a lease, and puts them back. Where channels cannot be driven, launches wait in their calls
//! while off. docs/design/compute.md says how and why.
//!
//! - [`work`], [`costs`]: which kind of launch it is, and what that costs;
//! - [`lane`]: what each thread has launched, and what of it is done; [`latch`]: holds its stream;
//! - [`batch`]: keeps launches back beside others, so that they go together;
//! - [`ration_steer`]: what is to be done about it;
//! - [`switch`]: what takes the process off the GPU: its channels, or its launches ([`gate`], [`ahead`]).

mod ahead;
mod batch;
mod controller;
mod costs;
mod counts;
mod gate;
mod lane;
mod latch;
mod mark;
mod switch;
mod work;

use std::sync::atomic::{AtomicBool, Ordering};

pub use counts::Counts;
pub use gate::Gate;
pub use lane::Lane;
pub use work::Work;

use crate::abi::cuda::{CUDA_SUCCESS, CUcontext, CUevent};
use crate::driver::{Stream, calls};
use crate::ledger::{self, Slice};
use crate::thread::{Guarded, Thread};
use crate::{log, sys};
use ration_steer::State;
use switch::{ByChannels, Here};

/// Whether channels are not to be driven: `RATION_SWITCH=launches`.
fn is_by_launches() -> bool {
    match sys::setting(c"RATION_SWITCH").as_ref().map(|value| value.to_bytes()) {
        Some(b"launches") => true,
        None | Some(b"channels" | b"") => false,
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            log::warn!("RATION_SWITCH is '{other}', and should be 'channels' or 'launches': channels are driven");
            false
        }
    }
}

/// Whether launches are counted, on any GPU.
static ANY_COUNTED: AtomicBool = AtomicBool::new(false);

/// Whether launches are counted, on any GPU.
#[inline]
pub fn is_any_counted() -> bool {
    ANY_COUNTED.load(Ordering::Relaxed)
}

/// A process's steering on one GPU.
pub struct Steer {
    /// Launches are counted: there is a limit, or there are neighbours.
    counts: AtomicBool,
    /// Something was launched since the controller last looked.
    touched: AtomicBool,
    /// Others make room as soon as it launches something: it is a `latency` container.
    is_awaited: AtomicBool,
    /// Launches are what is switched, and not channels.
    by_launches: AtomicBool,
    /// Channels are, and off by a limit: launches wait, too.
    is_at_limit: AtomicBool,
    gate: Gate,
    state: Guarded<State>,
}

impl Steer {
    /// Of a process that has launched nothing. The first launch is counted in any case.
    pub fn new() -> Steer {
        ANY_COUNTED.store(true, Ordering::Relaxed);
        Steer {
            counts: AtomicBool::new(true),
            touched: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            by_launches: AtomicBool::new(is_by_launches()),
            is_at_limit: AtomicBool::new(false),
            gate: Gate::new(),
            state: Guarded::new(State::new()),
        }
    }

    /// Whether launches are counted.
    #[inline]
    pub fn is_counted(&self) -> bool {
        self.counts.load(Ordering::Relaxed)
    }

    /// Whether they are from now on.
    fn counts(&self, is: bool) {
        self.counts.store(is, Ordering::Relaxed);
        let any = is || ledger::all().any(|slice| slice.steer.is_counted());
        ANY_COUNTED.store(any, Ordering::Relaxed);
    }

    /// A launch goes, and is counted.
    pub fn launch<T>(
        &self,
        slice: &Slice,
        context: CUcontext,
        stream: Stream,
        work: Work,
        driver: impl FnOnce() -> T,
    ) -> T {
        self.touched.store(true, Ordering::Relaxed);
        controller::start();
        if !self.counts.load(Ordering::Relaxed) || !stream.can_be_marked() {
            return driver();
        }
        let Some(lane) = Lane::of_this_thread() else { return driver() };
        let entry = costs::of(work);
        let is_at_limit = self.is_at_limit.load(Ordering::Relaxed);
        if self.by_launches.load(Ordering::Relaxed) {
            self.gate.pass(lane, context, entry.ahead());
        } else if is_at_limit {
            self.gate.pass_held(lane);
        }
        let (result, first) = lane.launching(|| {
            let is_new = entry.is_new();
            // What is queued while off goes together in any case.
            if !is_at_limit {
                batch::before_launch(lane, is_new, stream, context);
            }
            let measured = entry.launched() && lane.before_measured(is_new, stream, context, slice.device);
            let result = driver();
            (result, lane.launched(entry, measured, stream, context, slice.device))
        });
        if let Some(now) = first.filter(|_| self.is_awaited.load(Ordering::Relaxed)) {
            slice.compute().is_at_work(now);
        }
        result
    }

    /// Where channels are driven: whether launches wait, too, because they are off by a limit.
    fn holds(&self, is: bool) {
        self.is_at_limit.store(is, Ordering::Relaxed);
        self.gate.holds(is);
    }

    /// Whether its channels are off.
    fn is_frozen(&self) -> bool {
        !self.by_launches.load(Ordering::Relaxed) && self.state.with(|state| state.is_off())
    }

    /// The process on the slice's GPU.
    fn here(&self, slice: &Slice) -> Here<'_> {
        Here { steer: self, channels: ByChannels(slice.device) }
    }

    /// Whatever was decided, on.
    fn put_on(&self, slice: &Slice) {
        self.state.with(|state| state.put_on(&self.here(slice), &slice.compute_as_entitled()));
    }
}

/// From now on slices are looked after, whether anything is launched or not.
pub fn begin() {
    controller::start();
}

/// A context may be about to go: the driver waits for its work, so the process is on the GPU until [`after_leaving`].
pub fn before_leaving(context: CUcontext) {
    if let Some(thread) = Thread::attached() {
        thread.under_way.leaving.store(true, Ordering::SeqCst);
    }
    for slice in ledger::all() {
        slice.steer.put_on(slice);
    }
    controller::without_looking(|| lane::all().for_each(|lane| lane.forget_context(context)));
}

/// It is gone, or stayed.
pub fn after_leaving() {
    if let Some(thread) = Thread::attached() {
        thread.under_way.leaving.store(false, Ordering::SeqCst);
    }
}

/// Whether a context is about to go.
fn is_leaving() -> bool {
    Thread::all().any(|thread| thread.under_way.leaving.load(Ordering::SeqCst))
}

/// This thread waits for the GPU, and is done with that.
fn waits(is: bool) {
    if let Some(thread) = Thread::attached() {
        let waits = &thread.under_way.waits;
        let now = waits.load(Ordering::Relaxed);
        waits.store(if is { now + 1 } else { now.saturating_sub(1) }, Ordering::Relaxed);
    }
}

/// The program has waited for the GPU.
pub fn after_wait() {
    waits(false);
    if let Some(lane) = Lane::of_this_thread() {
        lane.after_wait();
    }
    batch::after_wait();
}

/// The program is about to wait for the GPU; [`after_wait`] follows.
pub fn before_wait() {
    waits(true);
    if let Some(lane) = Lane::of_this_thread() {
        lane.before_wait();
    }
    batch::before_wait();
}

/// Whether an event of the program's is done, where launches are kept back: then nobody waits for it.
pub fn is_done(event: CUevent) -> bool {
    // SAFETY: an event that the program is about to wait for.
    batch::is_on() && calls::without_breaking_captures(|| unsafe { calls::cuEventQuery(event) }) == CUDA_SUCCESS
}

/// The program has asked for the end of something, and it is not done.
pub fn is_not_done() {
    batch::is_not_done();
}

/// Something is about to be asked of the driver that waits for streams.
#[inline]
pub fn before_asking() {
    batch::go_now();
}

/// A stream records a graph from now on, or goes away.
pub fn forget_stream(stream: Stream) {
    batch::go_now();
    lane::all().for_each(|lane| lane.forget_stream(stream));
}

/// In a forked child: it has launched nothing, and no channels.
pub fn forget_the_parent() {
    controller::forget_the_parent();
    batch::forget_the_parent();
    lane::all().for_each(Lane::forget_the_parent);
}
