//! The atomic words that the region is made of: the processor's; or, under `--cfg loom`, those of a model that tries every
//! order in which threads may come; or, in other tests, words that let a thread be killed at any access.
//!
//! Every access to a shared word is sequentially consistent, so there is one order of them all that every process agrees on,
//! and the arguments in [`crate::ledger`] are about that order. None of them is on a launch path.

#[cfg(all(loom, test))]
pub use loom::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(not(test))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(all(test, not(loom)))]
pub use mortal::{AtomicU32, AtomicU64};

pub use std::sync::atomic::Ordering::SeqCst;

/// Between a write and a read of other words, where both must take part in the one order.
///
/// Costs nothing and does nothing but in a model: loom takes a sequentially consistent load for an acquiring one, and knows
/// the one order by its fences alone.
#[inline(always)]
pub fn in_order() {
    #[cfg(all(loom, test))]
    loom::sync::atomic::fence(SeqCst);
}

/// Lets somebody else go first, for the `n`th time in a row: a moment at first, then a turn of the processor.
pub fn let_others_go(n: u32) {
    #[cfg(all(loom, test))]
    {
        let _ = n;
        loom::thread::yield_now();
    }
    #[cfg(not(all(loom, test)))]
    if n < 6 {
        for _ in 0..1 << n {
            std::hint::spin_loop();
        }
    } else {
        // SAFETY: gives the processor to another thread; no arguments.
        unsafe { libc::sched_yield() };
    }
}

/// Words like the processor's, at each access to which a test may let the thread die.
#[cfg(all(test, not(loom)))]
pub mod mortal {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    thread_local! {
        /// How many accesses this thread has left; `None`: as many as it likes.
        static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// What a thread that was killed unwinds with.
    pub struct Killed;

    /// Runs `f` in this thread and kills it before its access number `accesses`, counted from 0. `None`: it was killed.
    pub fn kill_after<T>(accesses: u64, f: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(Some(accesses));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        LEFT.set(None);
        match outcome {
            Ok(value) => Some(value),
            Err(reason) if reason.is::<Killed>() => None,
            Err(reason) => std::panic::resume_unwind(reason),
        }
    }

    fn access() {
        match LEFT.get() {
            None => {}
            Some(0) => {
                LEFT.set(None);
                std::panic::resume_unwind(Box::new(Killed));
            }
            Some(left) => LEFT.set(Some(left - 1)),
        }
    }

    macro_rules! mortal {
        ($name:ident, $plain:ident, $value:ty) => {
            #[doc = concat!("A `", stringify!($plain), "`.")]
            #[repr(transparent)]
            #[derive(Debug)]
            pub struct $name(std::sync::atomic::$plain);

            #[allow(dead_code, reason = "each of the two is used for what it is used for")]
            impl $name {
                pub const fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$plain::new(value))
                }
                pub fn load(&self, order: Ordering) -> $value {
                    access();
                    self.0.load(order)
                }
                pub fn store(&self, value: $value, order: Ordering) {
                    access();
                    self.0.store(value, order);
                }
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    access();
                    self.0.swap(value, order)
                }
                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    access();
                    self.0.fetch_add(value, order)
                }
                pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    access();
                    self.0.fetch_or(value, order)
                }
                pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    access();
                    self.0.fetch_and(value, order)
                }
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    access();
                    self.0.compare_exchange(old, new, order, failed)
                }
                pub fn compare_exchange_weak(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    access();
                    self.0.compare_exchange_weak(old, new, order, failed)
                }
            }
        };
    }

    mortal!(AtomicU32, AtomicU32, u32);
    mortal!(AtomicU64, AtomicU64, u64);
}
