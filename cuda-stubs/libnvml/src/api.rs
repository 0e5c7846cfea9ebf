//! The C edge: how an entry point is made, and how it takes arguments.

use std::ffi::{CStr, c_char, c_uint};

use crate::abi::*;
use crate::library;

/// How a call ends: well, or with NVML's code.
pub(crate) type Outcome<T = ()> = Result<T, nvmlReturn_t>;

/// Makes entry points, each counted in the record and with no panic ever reaching the caller.
///
/// - `export fn NAME(lib: Library; arguments) { body }`: `NVML_ERROR_UNINITIALIZED` before `nvmlInit`, then the body,
///   which has the [`Library`](crate::library::Library) as `lib` and ends in an [`Outcome`].
/// - `export fn NAME(gpu: Gpu; arguments) { body }`: besides, the first C argument is a device handle, and the body has
///   its [`Gpu`](crate::gpu::Gpu) as `gpu`.
/// - `export fn NAME(; arguments) { body }`: answered at any time.
/// - `A | B (…)`: two names for the same.
///
/// The arguments are held against the prototype in include/nvml_abi.h by the compiler; `unlisted export fn` is for
/// exports that NVIDIA's header does not declare.
macro_rules! nvml {
    () => {};
    ($(#[$meta:meta])* export fn $name:ident $(| $other:ident)+ ( $($inner:tt)* ) $body:block $($rest:tt)*) => {
        nvml! { $(#[$meta])* export fn $name($($inner)*) $body }
        nvml!(@others { $($other)+ } { $(#[$meta])* } ($($inner)*) $body);
        nvml!($($rest)*);
    };
    (@others { $($other:ident)+ } $metas:tt $inner:tt $body:block) => {
        $(nvml!(@other $other $metas $inner $body);)+
    };
    (@other $other:ident { $(#[$meta:meta])* } ($($inner:tt)*) $body:block) => {
        nvml! { $(#[$meta])* export fn $other($($inner)*) $body }
    };
    ($(#[$meta:meta])* unlisted export fn $name:ident ( $($inner:tt)* ) $body:block $($rest:tt)*) => {
        nvml!(@entry $(#[$meta])* $name ($($inner)*) $body);
        nvml!($($rest)*);
    };
    ($(#[$meta:meta])* export fn $name:ident ( $($inner:tt)* ) $body:block $($rest:tt)*) => {
        nvml!(@entry $(#[$meta])* $name ($($inner)*) $body);
        nvml!(@prototype $name ($($inner)*));
        nvml!($($rest)*);
    };
    (@entry $(#[$meta:meta])* $name:ident ($gpu:ident : Gpu $(; $($arg:ident : $ty:ty),* $(,)?)?) $body:block) => {
        nvml!(@function $(#[$meta])* $name (device: $crate::api::Handle, $($($arg: $ty),*)?) {
            #[allow(unused_variables)]
            let $gpu = $crate::library::current()?.gpu(device)?;
            $body
        });
    };
    (@entry $(#[$meta:meta])* $name:ident ($lib:ident : Library $(; $($arg:ident : $ty:ty),* $(,)?)?) $body:block) => {
        nvml!(@function $(#[$meta])* $name ($($($arg: $ty),*)?) {
            #[allow(unused_variables)]
            let $lib = $crate::library::current()?;
            $body
        });
    };
    (@entry $(#[$meta:meta])* $name:ident ($(; $($arg:ident : $ty:ty),* $(,)?)?) $body:block) => {
        nvml!(@function $(#[$meta])* $name ($($($arg: $ty),*)?) $body);
    };
    (@function $(#[$meta:meta])* $name:ident ($($arg:ident : $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        #[allow(non_snake_case, clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::abi::nvmlReturn_t {
            const INDEX: usize = sim_world::surface::nvml_index(stringify!($name));
            $crate::api::enter(INDEX, || -> $crate::api::Outcome { $body })
        }
    };
    (@prototype $name:ident ($gpu:ident : Gpu $(; $($arg:ident : $ty:ty),* $(,)?)?)) => {
        const _: unsafe extern "C" fn($crate::abi::nvmlDevice_t, $($(<$ty as $crate::api::Abi>::C),*)?)
            -> $crate::abi::nvmlReturn_t = $crate::abi::$name;
    };
    (@prototype $name:ident ($($lib:ident : Library)? $(; $($arg:ident : $ty:ty),* $(,)?)?)) => {
        const _: unsafe extern "C" fn($($(<$ty as $crate::api::Abi>::C),*)?)
            -> $crate::abi::nvmlReturn_t = $crate::abi::$name;
    };
}

/// Runs an exported entry point's body, counted.
pub(crate) fn enter(index: usize, body: impl FnOnce() -> Outcome) -> nvmlReturn_t {
    contain(sim_world::surface::counted_symbol(index), || {
        let before = library::count(index);
        sim_world::fault::of_call(index, before).map_or_else(body, Err)
    })
}

/// Runs an entry point's body, keeping panics in.
pub(crate) fn contain(name: &str, body: impl FnOnce() -> Outcome) -> nvmlReturn_t {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => NVML_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            eprintln!("ration-sim: {name} failed inside the simulated NVML; this is a fault of the simulation");
            NVML_ERROR_UNKNOWN
        }
    }
}

/// The C type of an argument, for the comparison with the header.
pub(crate) trait Abi {
    /// As bindgen writes it.
    type C;
}

macro_rules! abi_as_is {
    ($($ty:ty),*) => { $(impl Abi for $ty { type C = $ty; })* };
}
abi_as_is!(u32, i32, u64, nvmlEventSet_t);

/// A device handle, as callers hold it: see [`library::Library::gpu`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Handle(pub nvmlDevice_t);

impl Abi for Handle {
    type C = nvmlDevice_t;
}

/// A pointer argument through which the call answers. Null is `NVML_ERROR_INVALID_ARGUMENT`.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}
impl<T> Abi for Out<T> {
    type C = *mut T;
}

impl<T> Out<T> {
    /// A pointer that is a member of a caller's struct: it must be what NVML's contract says of that member.
    pub(crate) unsafe fn member(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the answer.
    pub(crate) fn set(self, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: NVML's contract is that a non-null answer pointer can be written as what its prototype says.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes only the first `len` bytes: callers compiled against an older NVML have no room for more.
    pub(crate) fn set_first(self, len: usize, value: &T) -> Outcome {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let len = len.min(size_of::<T>());
        // SAFETY: both sides have `len` bytes: `value` by the line above, the caller's memory by NVML's contract for
        // the symbol that it called; ours is not theirs, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), self.0.cast(), len) };
        Ok(())
    }

    /// What is there now, for in-out arguments. Only for plain C data.
    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: NVML's contract is that an in-out argument points to a value of its type, and any bits are one of
        // C's.
        Ok(unsafe { self.0.read() })
    }

    /// For structs that begin with their version: fills one in if the caller's is `version`.
    pub(crate) fn versioned(self, version: c_uint, fill: impl FnOnce(&mut T) -> Outcome) -> Outcome {
        if self.version()? != version {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        // SAFETY: it is not null (`version` looked), and a caller who names the version has made a struct of its size,
        // which is its own until we return; any bits are a value of a C struct.
        fill(unsafe { &mut *self.0 })
    }

    /// The version that a versioned struct begins with.
    pub(crate) fn version(self) -> Outcome<c_uint> {
        const { assert!(size_of::<T>() >= size_of::<c_uint>()) };
        Out(self.0.cast::<c_uint>()).get()
    }

    /// Answers with a list: `count` is the room in it, and then how many there are.
    pub(crate) fn list(self, count: Out<c_uint>, items: &[T]) -> Outcome
    where
        T: Copy,
    {
        let mut number = count.get()?;
        let outcome = self.fit(&mut number, items);
        count.set(number)?;
        outcome
    }

    /// The same, where room for some and no array at all is an error even if there are none.
    pub(crate) fn list_somewhere(self, count: Out<c_uint>, items: &[T]) -> Outcome
    where
        T: Copy,
    {
        if self.is_null() && count.get()? != 0 { Err(NVML_ERROR_INVALID_ARGUMENT) } else { self.list(count, items) }
    }

    /// As [`Out::list`], where the count is a member of a struct.
    pub(crate) fn fit(self, count: &mut c_uint, items: &[T]) -> Outcome
    where
        T: Copy,
    {
        let room = std::mem::replace(count, items.len() as c_uint) as usize;
        if room < items.len() { Err(NVML_ERROR_INSUFFICIENT_SIZE) } else { self.array(items) }
    }

    /// Writes as many as there are into an array whose length the caller of this checked.
    pub(crate) fn array(self, items: &[T]) -> Outcome
    where
        T: Copy,
    {
        for (index, item) in items.iter().enumerate() {
            if self.0.is_null() {
                return Err(NVML_ERROR_INVALID_ARGUMENT);
            }
            // SAFETY: NVML's contract is that the array has the length passed with it, which was checked against ours.
            unsafe { self.0.add(index).write(*item) };
        }
        Ok(())
    }

    /// The `index`th of an array of `len` that the caller gave us.
    pub(crate) fn at(self, index: usize, len: usize) -> Outcome<Out<T>> {
        if self.0.is_null() || index >= len {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: inside the array, by NVML's contract for `len` and the check above.
        Ok(Out(unsafe { self.0.add(index) }))
    }
}

impl Out<c_char> {
    /// Writes a text and its terminator into a buffer of `length`.
    pub(crate) fn text(self, length: c_uint, text: &str) -> Outcome {
        if self.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        if text.len() >= length as usize {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        let terminated: Vec<c_char> = text.bytes().chain([0]).map(|byte| byte as c_char).collect();
        self.array(&terminated)
    }
}

/// A text as C has it in a struct: zero-terminated, the rest zero, cut to fit.
pub(crate) fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    chars
}

/// A pointer argument that the call reads. Null is `NVML_ERROR_INVALID_ARGUMENT`.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Abi for In<T> {
    type C = *const T;
}

impl<T: Copy> In<T> {
    /// The value.
    pub(crate) fn get(&self) -> Outcome<T> {
        Out(self.0.cast_mut()).get()
    }
}

impl In<c_char> {
    /// A C string, if it is text.
    pub(crate) fn text(&self) -> Outcome<&str> {
        if self.0.is_null() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: NVML's contract is a zero-terminated string that outlives the call, as `self` does not.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| NVML_ERROR_INVALID_ARGUMENT)
    }
}
