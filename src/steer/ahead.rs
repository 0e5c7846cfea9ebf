//! How far a thread is ahead of the GPU: what it has launched and is not done, by what launches cost.

use std::cell::Cell;

use super::lane::Lane;
use crate::abi::cuda::CUcontext;

/// A thread's own, in its [`Lane`]. Times are nanoseconds.
#[derive(Default)]
pub struct Ahead {
    /// What it had under way when it last looked at its marks, and has launched since.
    sum: Cell<u64>,
    /// The first mark that was not done then, and since when it is the first.
    front: Cell<u64>,
    since: Cell<u64>,
    /// It has waited for that mark for too long. Plus one; 0: none.
    given_up: Cell<u64>,
}

impl Ahead {
    pub fn forget(&self) {
        self.sum.set(0);
        self.given_up.set(0);
    }
}

impl Lane {
    /// Whether so much more may be under way without looking at any mark.
    #[inline]
    pub fn has_room(&self, cost: u64, room: u64) -> bool {
        let sum = self.ahead.sum.get() + cost;
        if sum <= room {
            self.ahead.sum.set(sum);
        }
        sum <= room
    }

    /// Looks at the marks. `None`: so much more may be under way. Otherwise, when to look again. `awake`: where no more than this is
    /// left of what is under way, it may in any case.
    pub fn too_far(&self, context: CUcontext, cost: u64, room: u64, awake: u64, now: u64) -> Option<u64> {
        let own = &self.ahead;
        let (done, mut rest) = self.under_way(context);
        // What is not marked now will not be.
        let first = rest.next();
        let front = if first.is_some() { done } else { u64::MAX };
        if own.front.replace(front) != front {
            own.since.set(now);
        }
        // Of the first, the GPU has done what there was time for.
        let left = first.map_or(0, |first| {
            first.saturating_sub(now.saturating_sub(own.since.get())) + rest.sum::<u64>() + self.weight.get()
        });
        let most = room.saturating_sub(cost).max(awake.min(room / 2));
        if left <= most {
            own.sum.set(left + cost);
            return None;
        }
        Some(left - most)
    }

    /// Whether it has waited for too long for what is first now.
    pub fn has_given_up(&self) -> bool {
        self.ahead.given_up.get() != 0 && self.ahead.given_up.get() == self.ahead.front.get().wrapping_add(1)
    }

    /// What is under way does not get done.
    pub fn gives_up(&self) {
        self.ahead.given_up.set(self.ahead.front.get().wrapping_add(1));
    }
}
