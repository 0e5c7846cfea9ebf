//! The switch by launches, where channels cannot be driven: while off, launches wait in their call.
//!
//! What was launched before goes on running. So no more is under way than a *room* of some 2 ms, by what launches are known to
//! cost, as long as there is a limit or somebody else is there; a launch that would go beyond waits in its call, too. Its thread
//! looks at its own marks meanwhile.
//!
//! A launch that goes through loads three words. One that waits always ends: by the thread's own clock, where the GPU or the
//! controller does not do what it waits for. Nothing that records a graph, waits or ends comes by here.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ration_policy::tuning::{
    AWAKE, DRAINED, ENDS, FRESH, LONGEST_OFF, LOOK, MARKED, ROOM, ROOM_ALONE, ROOM_LAST, SHORTEST_SLICE,
};
use ration_steer::{Fault, Switch};

use super::lane::Lane;
use super::waits;
use crate::abi::cuda::CUcontext;
use crate::thread::Thread;
use crate::{left, sys};

/// The states of a gate, in the low bits of its word; above them is a count of changes.
const STATE: u32 = 3;
const OPEN: u32 = 0;
/// Closed, and what was launched before is not done.
const DRAINS: u32 = 1;
const CLOSED: u32 = 2;

/// Where the launches of a process on one GPU wait.
pub struct Gate {
    /// Its state. Who waits sleeps on it.
    word: AtomicU32,
    /// What each thread may have under way, in nanoseconds.
    room: AtomicU64,
    /// What all of them may, together.
    length: AtomicU64,
    /// When the controller last looked, and since when it drains.
    looked: AtomicU64,
    since: AtomicU64,
    /// A launch has waited for too long since then.
    given_up: AtomicBool,
}

impl Gate {
    /// Open.
    pub const fn new() -> Gate {
        Gate {
            word: AtomicU32::new(OPEN),
            room: AtomicU64::new(ROOM),
            length: AtomicU64::new(ROOM),
            looked: AtomicU64::new(0),
            since: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
        }
    }

    /// Whether a thread waits here for others, or for the limit.
    pub fn is_waited_at(&self) -> bool {
        Thread::all().any(|thread| std::ptr::eq(thread.under_way.gate.load(Ordering::SeqCst), self))
    }

    /// The controller looks; so many threads have something under way, here and in the container's other processes. `is_free`:
    /// there is no limit, and nobody else. `ends`: when it will make way for others.
    pub fn is_looked_at(&self, threads: u32, is_free: bool, ends: u64, now: u64) {
        self.looked.store(now, Ordering::Relaxed);
        let length = match self.length.load(Ordering::Relaxed) {
            _ if is_free => ROOM_ALONE,
            length if now + ENDS > ends => length.min(ROOM_LAST),
            length => length,
        };
        let room = length / u64::from(threads.max(1));
        self.room.store(room.max(SHORTEST_SLICE / 2), Ordering::Relaxed);
    }

    /// A launch is about to go that counts for so much.
    #[inline]
    pub fn pass(&self, lane: &Lane, context: CUcontext, cost: u64) {
        let is_open = self.word.load(Ordering::Relaxed) & STATE == OPEN;
        if !is_open || !lane.has_room(cost, self.room.load(Ordering::Relaxed)) {
            self.wait(lane, context, cost);
        }
    }

    /// By the controller, where channels are driven: launches wait in their calls, too, or do not any more. Who is off by its limit
    /// has to be slower. What it queued meanwhile would run packed, with pauses in between that are too short for others, so that
    /// the same work would count for more than it did before. Who launches so fast that all of its pauses are too short goes on: what
    /// it queues costs less.
    pub fn holds(&self, is: bool) {
        self.set(if is { CLOSED } else { OPEN });
    }

    /// A launch is about to go while channels are driven.
    #[inline]
    pub fn pass_held(&self, lane: &Lane) {
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE != OPEN && !lane.may_be_packed() && !lane.queues(word, MARKED) {
            self.wait_until_open();
        }
    }

    /// Sleeps while its word is this, and for so long at most.
    fn sleep(&self, word: u32, length: u64) {
        let gate = Thread::attached().map(|thread| &thread.under_way.gate);
        gate.inspect(|gate| gate.store(std::ptr::from_ref(self).cast_mut(), Ordering::SeqCst));
        let length = std::time::Duration::from_nanos(length);
        left::away(|| ration_region::futex_wait(&self.word, word, Some(length)));
        gate.inspect(|gate| gate.store(null_mut(), Ordering::SeqCst));
    }

    #[cold]
    fn wait_until_open(&self) {
        let _errno = sys::Errno::kept();
        let began = sys::nanoseconds();
        waits(true);
        loop {
            let word = self.word.load(Ordering::Acquire);
            let now = sys::nanoseconds();
            let is_looked_at = now < self.looked.load(Ordering::Relaxed) + LONGEST_OFF;
            if word & STATE == OPEN || now > began + LONGEST_OFF && !is_looked_at {
                break;
            }
            self.sleep(word, FRESH);
        }
        waits(false);
    }

    #[cold]
    fn wait(&self, lane: &Lane, context: CUcontext, cost: u64) {
        let _errno = sys::Errno::kept();
        // What it waits for is to be seen when it is done.
        lane.before_wait();
        let began = sys::nanoseconds();
        let mut now = began;
        waits(true);
        loop {
            let word = self.word.load(Ordering::Acquire);
            let (is_open, is_closed) = (word & STATE == OPEN, word & STATE == CLOSED);
            let too_far = lane.too_far(context, cost, self.room.load(Ordering::Relaxed), AWAKE, now);
            if is_open && too_far.is_none() {
                break;
            }
            // What is under way may wait for what is to be launched. Once it has all been done, only the controller can be at fault.
            let has_given_up = if is_open { lane.has_given_up() } else { self.given_up.load(Ordering::Relaxed) };
            let longest = if has_given_up { LOOK.max(2 * cost) } else { LONGEST_OFF };
            let is_looked_at = now < self.looked.load(Ordering::Relaxed) + LONGEST_OFF;
            if now > began + longest && !(is_closed && is_looked_at) {
                lane.gives_up();
                self.given_up.store(!is_open, Ordering::Relaxed);
                break;
            }
            if is_open {
                left::away(|| sys::sleep_until(now + too_far.unwrap_or(0).clamp(20_000, 1_000_000), now));
            } else {
                self.sleep(word, longest.min(FRESH));
            }
            now = sys::nanoseconds();
        }
        waits(false);
    }

    fn set(&self, state: u32) {
        let word = self.word.load(Ordering::Relaxed);
        if word & STATE != state {
            // Only the controller and who lets a context go change it, one at a time.
            self.given_up.store(false, Ordering::Relaxed);
            self.word.store((word | STATE).wrapping_add(1) | state, Ordering::SeqCst);
            if state == OPEN && self.is_waited_at() {
                ration_region::futex_wake(&self.word);
            }
        }
    }
}

impl Switch for Gate {
    fn is_usable(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn put(&self, on: bool, under_way: bool) -> Result<Option<u64>, Fault> {
        let now = sys::nanoseconds();
        if on {
            self.set(OPEN);
            return Ok(Some(now));
        }
        if self.word.load(Ordering::Relaxed) & STATE == OPEN {
            self.since.store(now, Ordering::Relaxed);
            self.set(DRAINS);
            return Ok(None);
        }
        if under_way && now < self.since.load(Ordering::Relaxed) + DRAINED {
            return Ok(None);
        }
        self.set(CLOSED);
        Ok(Some(now))
    }

    fn set_slice(&self, length: u64) -> Result<(), Fault> {
        self.length.store(length.clamp(SHORTEST_SLICE, ROOM), Ordering::Relaxed);
        Ok(())
    }

    fn generation(&self) -> u64 {
        0
    }

    fn is_prompt(&self) -> bool {
        false
    }
}
