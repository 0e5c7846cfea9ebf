//! Memory that is about to be taken.

use std::sync::atomic::Ordering;

use ration_region::Member;

use super::Slice;
use crate::ledger::{self, Changing, book};
use crate::thread::Thread;

/// Bytes that are reserved, until the driver has answered.
#[must_use]
pub struct Hold {
    slice: &'static Slice,
    /// Where they are.
    member: &'static Member,
    bytes: u64,
    /// How many contexts were gone when it began.
    gone: u64,
}

impl Hold {
    /// They were taken out of what is left there.
    pub fn new(slice: &'static Slice, member: &'static Member, bytes: u64) -> Hold {
        if let Some(thread) = Thread::attached() {
            thread.under_way.reserves(slice, bytes);
        }
        Hold { slice, member, bytes, gone: book::gone() }
    }

    /// How many contexts were gone when it began.
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// It ends, by this thread, which began it.
    fn ends(&self) {
        if let Some(thread) = Thread::attached() {
            thread.under_way.has_answer(self.slice, self.bytes);
        }
    }

    /// It is no more, and nothing goes back.
    fn forget(self) {
        self.ends();
        std::mem::forget(self);
    }

    /// Where this process is counted now; and whether the reservation is there. One from before it had to go elsewhere is not.
    fn place(&self) -> (&'static Member, bool) {
        let now = self.slice.member();
        (now, std::ptr::eq(now, self.member))
    }

    /// The driver took so many of them; the rest goes back. What it took more than was foreseen is counted too.
    pub fn keep(self, bytes: u64) {
        self.slice.counted.fetch_add(bytes, Ordering::AcqRel);
        let (member, is_there) = self.place();
        if !is_there {
            member.charge(bytes);
            member.remember_most();
        } else if bytes > self.bytes {
            member.charge(bytes - self.bytes);
            member.remember_most();
        } else if bytes < self.bytes {
            member.refund(self.bytes - bytes);
        }
        self.forget();
    }

    /// The same for what NVML does not count as this process's.
    pub fn keep_beside(self, bytes: u64) {
        let kept = bytes.min(self.bytes);
        self.slice.beside.fetch_add(kept, Ordering::AcqRel);
        let (member, is_there) = self.place();
        if is_there {
            member.refund(self.bytes - kept);
        } else {
            member.charge(kept);
            member.remember_most();
        }
        member.holds_beside(kept);
        self.forget();
    }

    /// Learns what the driver took for something that no call tells the size of, and gives the rest back. Until that can be
    /// learned, the reservation stands for it.
    pub fn learn(self, changing: &Changing) {
        self.slice.is_to_be_learned();
        for _ in 0..100 {
            self.slice.learn_within(changing);
            if self.slice.stale.load(Ordering::Acquire) == 0 {
                // The whole reservation goes back, now that what was taken is counted.
                let slice = self.slice;
                drop(self);
                return slice.member().remember_most();
            }
            // SAFETY: gives the processor to another thread; no arguments.
            unsafe { libc::sched_yield() };
        }
        // In this order: who has learned meanwhile has not seen these.
        self.slice.may_have_taken(self.bytes);
        ledger::has_missed();
        if let (member, false) = self.place() {
            member.charge(self.bytes);
        }
        self.forget();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.ends();
        self.member.refund(self.bytes);
    }
}
