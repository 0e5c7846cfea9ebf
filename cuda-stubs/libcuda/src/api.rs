//! The C edge: how an entry point is made, and how it takes arguments.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use sim_world::surface::{self, COUNTERS};

use crate::abi::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_UNKNOWN, CUDA_SUCCESS, CUresult};

/// How a call ends: well, or with the driver's code.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

/// What stream handle 0 means to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultStream {
    Legacy,
    PerThread,
}

/// Makes entry points: `export fn NAME(arguments) { body }`, the body ending in an [`Outcome`]; or, for one that comes in
/// two stream modes, `export fn NAME | NAME_ptsz(mode; arguments) { body }`, where `mode` names the [`DefaultStream`].
macro_rules! api {
    () => {};
    ($(#[$meta:meta])* export fn $name:ident ( $($arg:ident : $ty:ty),* $(,)? ) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::abi::CUresult {
            const INDEX: usize = sim_world::surface::driver_index(stringify!($name));
            $crate::api::enter(INDEX, || -> $crate::api::Outcome { $body })
        }
        api!($($rest)*);
    };
    ($(#[$meta:meta])* export fn $name:ident | $other:ident ( $mode:ident; $($arg:ident : $ty:ty),* $(,)? ) $body:block $($rest:tt)*) => {
        $(#[$meta])*
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::abi::CUresult {
            const INDEX: usize = sim_world::surface::driver_index(stringify!($name));
            #[allow(unused_variables)]
            let $mode = $crate::api::DefaultStream::Legacy;
            $crate::api::enter(INDEX, || -> $crate::api::Outcome { $body })
        }
        $(#[$meta])*
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $other($($arg: $ty),*) -> $crate::abi::CUresult {
            const INDEX: usize = sim_world::surface::driver_index(stringify!($other));
            #[allow(unused_variables)]
            let $mode = $crate::api::DefaultStream::PerThread;
            $crate::api::enter(INDEX, || -> $crate::api::Outcome { $body })
        }
        api!($($rest)*);
    };
}

/// Counts until the process has a slot in the world; see [`count_into`].
static EARLY: [AtomicU64; COUNTERS] = [const { AtomicU64::new(0) }; COUNTERS];
static COUNTS: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
/// What a call costs besides, ns: `RATION_SIM_CALL_NS`.
pub(crate) static CALL_COST: AtomicU64 = AtomicU64::new(0);

/// Counts one call; returns how many there were before.
fn count(index: usize) -> u64 {
    // SeqCst, here and in `count_into`: either this call's early count is there when `count_into` collects, or the second
    // look at COUNTS sees the slot and collects it here. A weaker order would let both miss it.
    let slot = |counts: *mut AtomicU64| {
        // SAFETY: `count_into` stored the start of an array of COUNTERS that is never unmapped, and every index is below that.
        unsafe { counts.as_ref().map(|_| &*counts.add(index)) }
    };
    if let Some(counter) = slot(COUNTS.load(Ordering::Relaxed)) {
        return counter.fetch_add(1, Ordering::Relaxed);
    }
    let before = EARLY[index].fetch_add(1, Ordering::SeqCst);
    if let Some(counter) = slot(COUNTS.load(Ordering::SeqCst)) {
        counter.fetch_add(EARLY[index].swap(0, Ordering::SeqCst), Ordering::Relaxed);
    }
    before
}

/// From now on calls are counted in the process's slot, those made so far included. `None`: in no slot and from nothing (a
/// forked child; what its parent called is its parent's).
pub(crate) fn count_into(calls: Option<&'static [AtomicU64; COUNTERS]>) {
    let Some(calls) = calls else {
        COUNTS.store(std::ptr::null_mut(), Ordering::SeqCst);
        EARLY.iter().for_each(|count| count.store(0, Ordering::Relaxed));
        return;
    };
    COUNTS.store(std::ptr::from_ref(calls).cast_mut().cast(), Ordering::SeqCst);
    for (to, from) in calls.iter().zip(&EARLY) {
        to.fetch_add(from.swap(0, Ordering::SeqCst), Ordering::Relaxed);
    }
}

/// Runs an entry point's body: counted, and with no panic ever reaching the caller.
#[inline]
pub(crate) fn enter(index: usize, body: impl FnOnce() -> Outcome) -> CUresult {
    let before = count(index);
    if let Some(code) = sim_world::fault::of_call(index, before) {
        return code;
    }
    let cost = CALL_COST.load(Ordering::Relaxed);
    if cost != 0 {
        spend(cost);
    }
    match sim_world::shield::call(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(body))) {
        Ok(Ok(())) => CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            eprintln!(
                "ration-sim: {} failed inside the simulated driver; this is a fault of the simulation",
                surface::counted_symbol(index)
            );
            CUDA_ERROR_UNKNOWN
        }
    }
}

/// Keeps the core busy for so long, as a call into the real driver would.
pub(crate) fn spend(ns: u64) {
    let until = sim_world::monotonic() + ns;
    while sim_world::monotonic() < until {
        std::hint::spin_loop();
    }
}

/// For the generated stubs.
pub(crate) const fn index(name: &str) -> usize {
    surface::driver_index(name)
}

/// Says once per symbol that it is not modelled.
pub(crate) fn not_modelled(index: usize, name: &str) -> CUresult {
    if count(index) == 0 {
        eprintln!("ration-sim: {name} is not modelled by the simulated GPU: CUDA_ERROR_NOT_SUPPORTED");
    }
    CUDA_ERROR_NOT_SUPPORTED
}

/// Says once per place that something inside a modelled call is not.
macro_rules! unmodelled {
    ($($what:tt)*) => {{
        static SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        if !SAID.swap(true, std::sync::atomic::Ordering::Relaxed) {
            eprintln!("ration-sim: {} is not modelled by the simulated GPU: CUDA_ERROR_NOT_SUPPORTED", format_args!($($what)*));
        }
        $crate::abi::CUDA_ERROR_NOT_SUPPORTED
    }};
}
pub(crate) use unmodelled;

/// A pointer argument through which the call answers. Null is `CUDA_ERROR_INVALID_VALUE`, or skipped by `maybe`.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// For calls that another entry point makes.
    pub(crate) fn from_ptr(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the answer.
    pub(crate) fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the C API's contract is that a non-null answer pointer can be written; unaligned because C callers of the
        // 32-bit forms pass what they have.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the answer if the caller wants it.
    pub(crate) fn maybe(self, value: T) {
        if !self.0.is_null() {
            let _ = self.set(value);
        }
    }

    /// Fails unless there is somewhere to write; for calls that must not act before they know.
    pub(crate) fn required(self) -> Outcome {
        if self.0.is_null() { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(()) }
    }

    /// What is there now, for in-out arguments.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0).get()
    }

    /// Writes the `index`th of an array the caller promised to be long enough.
    pub(crate) fn set_at(self, index: usize, value: T) {
        // SAFETY: the C API's contract is that the array has the length the caller passed, which the call site checks.
        unsafe { self.0.add(index).write_unaligned(value) };
    }
}

/// A pointer argument that the call reads. Null is `CUDA_ERROR_INVALID_VALUE`, or `None` by `maybe`.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// A pointer that came inside of another argument.
    pub(crate) fn at(pointer: *const T) -> In<T> {
        In(pointer)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        self.maybe().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// The value, if there is one.
    pub(crate) fn maybe(self) -> Option<T>
    where
        T: Copy,
    {
        // SAFETY: the C API's contract is that a non-null pointer argument points to a value of its type.
        (!self.0.is_null()).then(|| unsafe { self.0.read_unaligned() })
    }

    /// An array of `len`, copied. Null is an empty array if `len` is 0.
    pub(crate) fn array(self, len: usize) -> Outcome<Vec<T>>
    where
        T: Copy,
    {
        if self.0.is_null() && len != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the C API's contract is that the array has the length the caller passed with it.
        Ok((0..len).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }
}

impl In<c_char> {
    /// A C string.
    pub(crate) fn text(self) -> Outcome<&'static CStr> {
        if self.0.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: the C API's contract is a zero-terminated string that outlives the call; no caller here keeps it longer.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}
