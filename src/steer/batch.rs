//! Keeps back the launches of a program that does not fill the GPU, beside others that do, so that they go together.
//!
//! Whenever such a program launches something, the GPU changes to it and back, and each time that takes as long as a hundred of its
//! kernels. A stream that waits for a word costs nobody anything. So each thread's stream is held by its [`latch`], and
//! opened all at once: when a thread of the program waits for the GPU, and before that, at the time from which on the work takes
//! until then. When that will be is told by how it went before. Nothing is kept for longer than [`BATCH`], nor where launches
//! have ended, whatever the program waits for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ration_policy::steer::Together;
use ration_policy::tuning::{BATCH, KEPT, LATCHED};

use super::{Lane, lane, latch};
use crate::abi::cuda::CUcontext;
use crate::driver::Stream;
use crate::{left, sys};

/// Launches are kept back: no less than this lies between two times at which they go, plus one. 0: they are not.
static APART: AtomicU64 = AtomicU64::new(0);
/// What is let go runs so long after that.
static LATE: AtomicU64 = AtomicU64::new(0);
/// Once some went, the others follow as they come.
static FLOWS: AtomicBool = AtomicBool::new(false);
/// When the first was launched after the last wait; 0: none was. And what was launched in all by then, by cost.
static ASKED: AtomicU64 = AtomicU64::new(0);
static ASKED_TOTAL: AtomicU64 = AtomicU64::new(0);
/// How long it usually takes from there until the program waits, and how much work that is.
static HOST: AtomicU64 = AtomicU64::new(0);
static WORK: AtomicU64 = AtomicU64::new(0);
/// When launches go, and from when on they are kept again.
static GOES: AtomicU64 = AtomicU64::new(u64::MAX);
static KEEPS: AtomicU64 = AtomicU64::new(0);
/// How often the program has waited; after how many times launches went, and when.
static WAITS: AtomicU64 = AtomicU64::new(1);
static WENT_AFTER: AtomicU64 = AtomicU64::new(0);
static WENT: AtomicU64 = AtomicU64::new(0);
/// How many launches there were when the program last asked whether something is done.
static POLLED: AtomicU64 = AtomicU64::new(0);
/// The watcher's: since when something is kept back, as far as it knows; how many launches there were when it last looked at that,
/// and when.
static SINCE: AtomicU64 = AtomicU64::new(0);
static SENT: AtomicU64 = AtomicU64::new(0);
static LOOKED: AtomicU64 = AtomicU64::new(0);

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

fn moves(word: &AtomicU64, value: u64) {
    let was = get(word);
    set(word, if was == 0 { value } else { (7 * was + value) / 8 });
}

/// Launches are kept back from now on, and go together; `None`: they are not. Whether they are.
pub fn keeps(together: Option<Together>) -> bool {
    let together = together.filter(|_| latch::is_usable());
    set(&LATE, together.map_or(0, |it| it.late));
    FLOWS.store(together.is_some_and(|it| it.flows), Ordering::Relaxed);
    let was = APART.swap(together.map_or(0, |it| it.apart + 1), Ordering::Relaxed);
    if was != 0 && together.is_none() {
        go(sys::nanoseconds());
    }
    together.is_some()
}

/// Whether launches are kept back.
#[inline]
pub fn is_on() -> bool {
    get(&APART) != 0
}

/// What is kept back goes.
pub fn go(now: u64) {
    lane::all().for_each(|lane| lane.latch().release());
    set(&SINCE, 0);
    if WENT_AFTER.swap(get(&WAITS), Ordering::Relaxed) != get(&WAITS) {
        set(&WENT, now);
    }
}

/// The same, where something is about to wait for streams.
#[inline]
pub fn go_now() {
    if is_on() {
        go(sys::nanoseconds());
    }
}

/// Whether what is kept back may go: for the first time after a wait, no sooner than it should.
fn may_go(now: u64) -> bool {
    get(&WENT_AFTER) == get(&WAITS) || now + 1 >= get(&WENT) + get(&APART)
}

/// A launch is about to go. `is_new`: it may wait for streams.
#[inline]
pub fn before_launch(lane: &Lane, is_new: bool, stream: Stream, context: CUcontext) {
    if is_on() {
        keep(lane, is_new, stream, context);
    }
}

fn keep(lane: &Lane, is_new: bool, stream: Stream, context: CUcontext) {
    let now = sys::nanoseconds();
    if get(&ASKED) == 0 {
        set(&ASKED, now);
        set(&ASKED_TOTAL, lane::all().map(Lane::total).sum());
        let (host, work) = (get(&HOST), get(&WORK) + get(&LATE));
        set(&GOES, if host == 0 { u64::MAX } else { now + host.saturating_sub(work) });
        set(&KEEPS, now.saturating_add(host + host / 2));
    }
    let is_first = get(&WENT_AFTER) != get(&WAITS);
    let goes = now >= get(&GOES);
    let flows = goes && !is_first && now < get(&KEEPS) && FLOWS.load(Ordering::Relaxed);
    let kept = lane.keeps_one_more();
    let is_much = kept.is_some_and(|(count, since)| count > KEPT || now >= since + BATCH);
    if is_new || is_much || goes && is_first && may_go(now) {
        go(now);
    } else if !flows && kept.is_none() && lane.latch().keep(stream, context) {
        lane.keeps_from(now);
        // It may have ended meanwhile.
        if !is_on() {
            go(now);
        }
    }
}

/// The program is about to wait for the GPU.
pub fn before_wait() {
    if !is_on() {
        return;
    }
    let (now, asked) = (sys::nanoseconds(), ASKED.swap(0, Ordering::Relaxed));
    if asked != 0 {
        moves(&HOST, now.saturating_sub(asked));
        let total: u64 = lane::all().map(Lane::total).sum();
        moves(&WORK, total.saturating_sub(get(&ASKED_TOTAL)));
    }
    if may_go(now) {
        go(now);
    }
}

/// It has waited.
pub fn after_wait() {
    if is_on() {
        WAITS.fetch_add(1, Ordering::Relaxed);
    }
}

/// The program has asked for the end of something, and it is not done. Allocators do that too, but launches lie between.
pub fn is_not_done() {
    if is_on() {
        let (now, sent) = (sys::nanoseconds(), lane::all().map(Lane::sent).sum());
        if POLLED.swap(sent, Ordering::Relaxed) == sent && may_go(now) {
            go(now);
        }
    }
}

/// By the watcher: opens what is due. When to look again, where launches are kept back.
pub fn look(now: u64) -> Option<u64> {
    let (apart, is_kept) = (get(&APART), lane::all().any(|lane| lane.latch().keeps()));
    // Seen first now, or some time ago.
    let since = if is_kept && get(&SINCE) != 0 { get(&SINCE) } else { now };
    set(&SINCE, if is_kept { since } else { 0 });
    if apart == 0 {
        // Whoever was about to keep something when that ended.
        if is_kept {
            go(now);
        }
        return None;
    }
    let is_asked = left::any_waits();
    let mut goes = is_kept && (is_asked && may_go(now) || now >= since + BATCH);
    if now >= get(&LOOKED) + LATCHED {
        set(&LOOKED, now);
        let sent = lane::all().map(Lane::sent).sum();
        let is_still = SENT.swap(sent, Ordering::Relaxed) == sent;
        goes |= is_kept && is_still;
        // A launch that waits in the driver for a stream that is held: `CUDA_LAUNCH_BLOCKING`, for example.
        if is_kept && is_still && !is_asked && lane::all().any(Lane::is_launching) {
            latch::was_stuck();
        }
    }
    if goes {
        go(now);
    }
    let soon = get(&WENT) + apart;
    Some(if soon > now { soon.min(now + LATCHED) } else { now + LATCHED })
}

/// In a forked child: nothing is.
pub fn forget_the_parent() {
    set(&APART, 0);
    set(&ASKED, 0);
}
