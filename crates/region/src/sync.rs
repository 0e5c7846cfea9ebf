//! The atomic words that the region is made of: the processor's; or, under `--cfg loom`, those of a model that tries every
//! order in which threads may come; or, in other tests, words that let a thread be killed at any access.
//!
//! Every access to a shared word is sequentially consistent, so there is one order of them all that every process agrees on,
//! and the arguments in [`crate::ledger`] are about that order. None of them is on a launch path.

#[cfg(all(loom, test))]
pub use modelled::{AtomicU32, AtomicU64};
#[cfg(not(test))]
pub use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(all(test, not(loom)))]
pub use mortal::{AtomicU32, AtomicU64};

pub use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Lets somebody else go first, for the `n`th time in a row: a moment at first, then a turn of the processor, then long enough
/// for a thread of any priority to get one.
pub fn pause(n: u32) {
    #[cfg(all(loom, test))]
    {
        // Loom would try for ever how two threads wait for a third one without letting it go on. From here on, it is fair.
        if n > 1 {
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
    #[cfg(not(all(loom, test)))]
    match n {
        0..6 => (0..1 << n).for_each(|_| std::hint::spin_loop()),
        // SAFETY: gives the processor to another thread; no arguments.
        6..20 => drop(unsafe { libc::sched_yield() }),
        20..100 => crate::sys::sleep(Duration::from_micros(50)),
        _ => crate::sys::sleep(Duration::from_micros(500)),
    }
}

/// How long somebody has been waiting. In a model no time passes.
pub struct Patience {
    pauses: u32,
    #[cfg(not(all(loom, test)))]
    clock: Option<crate::sys::Clock>,
}

impl Patience {
    /// From now on.
    pub fn new() -> Patience {
        Patience {
            pauses: 0,
            #[cfg(not(all(loom, test)))]
            clock: None,
        }
    }

    /// Lets others go on.
    pub fn pause(&mut self) {
        // Most need not wait, and those do not look at the clock.
        #[cfg(not(all(loom, test)))]
        self.clock.get_or_insert_with(crate::sys::Clock::start);
        pause(self.pauses);
        self.pauses += 1;
    }

    /// The time since the first pause.
    pub fn passed(&self) -> Duration {
        #[cfg(not(all(loom, test)))]
        let passed = self.clock.as_ref().map_or(Duration::ZERO, crate::sys::Clock::passed);
        #[cfg(all(loom, test))]
        let passed = Duration::ZERO;
        passed
    }
}

/// Loom's words, but in the one order that sequential consistency promises.
///
/// Loom takes a sequentially consistent load or store for an acquiring or releasing one, and so would try what cannot happen.
/// It also leaves out orders that can: that a thread looks at a word before a write to it is missed if the writer has
/// looked at it in between. Both is put right by making every access one that reads and writes: those have one order,
/// and loom tries each of them before and after every other.
#[cfg(all(loom, test))]
mod modelled {
    use std::sync::atomic::Ordering;

    macro_rules! modelled {
        ($name:ident, $value:ty) => {
            #[doc = concat!("A `", stringify!($name), "`.")]
            #[derive(Debug)]
            pub struct $name(loom::sync::atomic::$name);

            #[allow(dead_code, reason = "each of the two is used for what it is used for")]
            impl $name {
                pub fn new(value: $value) -> $name {
                    $name(loom::sync::atomic::$name::new(value))
                }
                pub fn load(&self, order: Ordering) -> $value {
                    self.0.fetch_or(0, order)
                }
                pub fn store(&self, value: $value, order: Ordering) {
                    self.0.swap(value, order);
                }
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    self.0.swap(value, order)
                }
                pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_add(value, order)
                }
                pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_max(value, order)
                }
                pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_or(value, order)
                }
                pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                    self.0.fetch_and(value, order)
                }
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    self.0.compare_exchange(old, new, order, failed)
                }
                pub fn compare_exchange_weak(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    self.0.compare_exchange(old, new, order, failed)
                }
            }
        };
    }

    modelled!(AtomicU32, u32);
    modelled!(AtomicU64, u64);
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
                pub fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                    access();
                    self.0.fetch_max(value, order)
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
