//! `dlsym` and `dlvsym`.
//!
//! The real ones answer `RTLD_NEXT` and `RTLD_DEFAULT` by their caller's return address. A wrapper that called them would
//! be that caller, and break every other library that interposes functions. So ours have no frame: they ask [`decide`]
//! what to do, and then either return its answer or *jump* to the real function, which sees the original caller.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::panic::catch_unwind;
use std::ptr::{fn_addr_eq, null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::elf::{self, Standing};
use crate::{driver, process, table};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The functions behind ours, which are libc's unless another library interposes them too.
static NEXT_DLSYM: AtomicPtr<()> = AtomicPtr::new(null_mut());
static NEXT_DLVSYM: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Finds the functions behind ours. They are there before any program can call us: we need libc ourselves, and libdl, which
/// has them before glibc 2.34.
fn find_next(word: &AtomicPtr<()>, name: &CStr) -> *const () {
    let mut next = word.load(Ordering::Acquire);
    if next.is_null() {
        next = elf::function_behind_us(name).unwrap_or(null()).cast_mut();
        word.store(next, Ordering::Release);
    }
    next.cast_const()
}

fn next_dlsym() -> Dlsym {
    // SAFETY: a function behind us that is called dlsym has dlsym's type.
    unsafe { transmute::<*const (), Dlsym>(find_next(&NEXT_DLSYM, c"dlsym")) }
}

fn next_dlvsym() -> Dlvsym {
    // SAFETY: as above.
    unsafe { transmute::<*const (), Dlvsym>(find_next(&NEXT_DLVSYM, c"dlvsym")) }
}

/// libc's own function, past any library that interposes it.
fn libcs(word: &AtomicPtr<()>, name: &CStr) -> *const () {
    let mut real = word.load(Ordering::Acquire).cast_const();
    if real.is_null() {
        let find = |soname| elf::loaded_as(soname).and_then(|object| object.function(name));
        real = find(c"libc.so.6").or_else(|| find(c"libdl.so.2")).unwrap_or(null());
        word.store(real.cast_mut(), Ordering::Release);
    }
    real
}

fn libc_dlsym() -> Dlsym {
    static REAL: AtomicPtr<()> = AtomicPtr::new(null_mut());
    // SAFETY: libc's function of this name has this type.
    unsafe { transmute::<*const (), Dlsym>(libcs(&REAL, c"dlsym")) }
}

fn libc_dlvsym() -> Dlvsym {
    static REAL: AtomicPtr<()> = AtomicPtr::new(null_mut());
    // SAFETY: as above.
    unsafe { transmute::<*const (), Dlvsym>(libcs(&REAL, c"dlvsym")) }
}

/// What comes behind us under a name, in the scope in which the program's own references are resolved.
pub fn next_behind_us(name: &CStr) -> Option<*const ()> {
    // SAFETY: a look-up by name; the caller that it goes by is this function, which is in our library.
    let found = unsafe { libc_dlsym()(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const().cast())
}

/// What [`decide`] wants done. Returned in two registers.
#[repr(C)]
struct Decision {
    /// What the caller gets, where `jump` is null.
    answer: *const (),
    /// The function to go on to, with the caller's own arguments and return address.
    jump: *const (),
}

/// What comes behind a look-up function of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
enum Behind {
    /// Whoever is next in the order of loading. The exported functions.
    Next,
    /// libc. Those given to a library that asked for libc's by their version, and would have got past any other.
    Libc,
}

/// A look-up: the arguments, and the address that it will return to.
struct LookUp {
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
    behind: Behind,
}

impl LookUp {
    fn dlsym(&self) -> Dlsym {
        if self.behind == Behind::Libc { libc_dlsym() } else { next_dlsym() }
    }

    fn dlvsym(&self) -> Dlvsym {
        if self.behind == Behind::Libc { libc_dlvsym() } else { next_dlvsym() }
    }

    /// The function behind ours.
    fn next(&self) -> *const () {
        if self.version.is_null() { self.dlsym() as *const () } else { self.dlvsym() as *const () }
    }

    /// Asks the function behind ours. Only for handles that mean the same whoever asks.
    fn ask(&self, handle: *mut c_void) -> *const () {
        // SAFETY: the arguments are the caller's own.
        let found = unsafe {
            if self.version.is_null() {
                self.dlsym()(handle, self.name)
            } else {
                self.dlvsym()(handle, self.name, self.version)
            }
        };
        found.cast_const().cast()
    }

    fn decide(&self) -> Decision {
        let as_ever = Decision { answer: null(), jump: self.next() };
        if self.name.is_null() {
            return as_ever;
        }
        // SAFETY: a name is a string that ends in NUL; the real dlsym would read it too.
        let name = unsafe { CStr::from_ptr(self.name) };
        let answer = |answer| Decision { answer, jump: null() };
        if let Some(ours) = self.for_ourselves(name) {
            return answer(ours);
        }
        let Some(id) = table::find(name) else { return as_ever };
        if process::stands_aside() {
            return as_ever;
        }
        if !fn_addr_eq(self.dlsym(), libc_dlsym()) {
            return answer(self.through_another(id));
        }
        match self.handle {
            // Everything in front of us, then us.
            libc::RTLD_DEFAULT if self.version.is_null() => {
                if driver::is_there(id, Some(self.caller)) {
                    as_ever
                } else {
                    answer(self.nothing())
                }
            }
            // Our exports have no version, so a look-up with one goes past them.
            libc::RTLD_DEFAULT => match driver::original_if_loaded(id) {
                Some(original) if self.ask(libc::RTLD_DEFAULT) == original => answer(driver::door(id)),
                _ => as_ever,
            },
            libc::RTLD_NEXT => {
                let original = driver::original_if_loaded(id);
                match (elf::standing(self.caller, name, original.unwrap_or(null())), original) {
                    (Standing::InFront, _) if driver::is_there(id, None) => as_ever,
                    (Standing::InFront, _) => answer(self.nothing()),
                    (Standing::Behind, Some(_)) if driver::is_there(id, Some(self.caller)) => {
                        answer(self.without_error(driver::door(id)))
                    }
                    (Standing::Behind | Standing::BehindWithOthers, _) => as_ever,
                }
            }
            handle => answer(self.in_a_library(id, handle)),
        }
    }

    /// A library in front of us that interposes `dlsym` looks for the one behind it, usually by glibc's version of it, which
    /// ours does not have. It is to find ours all the same.
    fn for_ourselves(&self, name: &CStr) -> Option<*const ()> {
        if self.version.is_null() || self.handle != libc::RTLD_NEXT {
            return None;
        }
        let ours = match name.to_bytes() {
            b"dlsym" => dlsym_before_libc as *const (),
            b"dlvsym" => dlvsym_before_libc as *const (),
            _ => return None,
        };
        matches!(elf::standing(self.caller, name, null()), Standing::InFront).then_some(ours)
    }

    /// A look-up in a library and what that needs.
    fn in_a_library(&self, id: usize, handle: *mut c_void) -> *const () {
        let found = self.ask(handle);
        if found == table::ROWS[id].export.0 {
            // The whole program was searched and we were found first. Would anything have been found without us?
            return if driver::is_there(id, None) { self.without_error(found) } else { self.nothing() };
        }
        if !found.is_null() && Some(found) == driver::original_if_loaded(id) {
            return driver::door(id);
        }
        found
    }

    /// A look-up when a library behind us interposes `dlsym` too. What it answers for a function of the driver's is one of
    /// its own, or whatever it wishes; ours then hands on to that.
    fn through_another(&self, id: usize) -> *const () {
        let found = self.in_a_library(id, self.handle);
        let row = &table::ROWS[id];
        if found.is_null() || found == row.export.0 || found == row.handed.0 {
            return found;
        }
        if self.handle == libc::RTLD_DEFAULT || self.handle == libc::RTLD_NEXT {
            // It exports what it answers: then our export hands on to it already.
            if driver::next(id) == Some(found) {
                return row.export.0;
            }
        } else {
            // SAFETY: libc's dlsym; the arguments are the caller's own.
            let plain = unsafe { libc_dlsym()(self.handle, self.name) };
            if plain.cast_const().cast() == found {
                // Asked for by its own handle: none of our business.
                return found;
            }
        }
        if driver::original_if_loaded(id).is_none() {
            return found;
        }
        driver::set_answered(id, found);
        driver::door(id)
    }

    /// An answer, with nothing left for `dlerror` of what was tried on the way to it.
    fn without_error(&self, answer: *const ()) -> *const () {
        // SAFETY: takes this thread's error; the look-up that the program is making would have replaced it.
        unsafe { libc::dlerror() };
        answer
    }

    /// No such symbol: what `dlsym` answers, with `dlerror` set as it would be.
    fn nothing(&self) -> *const () {
        self.ask(libc::RTLD_NEXT)
    }
}

/// An error of ours must not become the program's: then the look-up goes on as if we were not here.
extern "C" fn decide(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
    behind: Behind,
) -> Decision {
    let look_up = LookUp { handle, name, version, caller, behind };
    catch_unwind(|| look_up.decide()).unwrap_or_else(|_| Decision { answer: null(), jump: look_up.next() })
}

/// A `dlsym`: keeps the arguments over the call to [`decide`], with the stack aligned for it, and returns or jumps. The
/// `.cfi` lines let debuggers walk through.
macro_rules! dlsym {
    ($(#[$meta:meta])* $name:ident, $behind:expr) => {
        $(#[$meta])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(handle: *mut c_void, name: *const c_char) -> *mut c_void {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "xor edx, edx",
                "mov rcx, qword ptr [rsp + 16]",
                "mov r8d, {behind}",
                "sub rsp, 8",
                ".cfi_adjust_cfa_offset 8",
                "call {decide}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test rdx, rdx",
                "jz 2f",
                "jmp rdx",
                "2: ret",
                ".cfi_endproc",
                behind = const $behind as usize,
                decide = sym decide,
            )
        }
    };
}

/// A `dlvsym`: the same with three arguments.
macro_rules! dlvsym {
    ($(#[$meta:meta])* $name:ident, $behind:expr) => {
        $(#[$meta])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(
            handle: *mut c_void,
            name: *const c_char,
            version: *const c_char,
        ) -> *mut c_void {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rcx, qword ptr [rsp + 24]",
                "mov r8d, {behind}",
                "call {decide}",
                "mov r8, rdx",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "test r8, r8",
                "jz 2f",
                "jmp r8",
                "2: ret",
                ".cfi_endproc",
                behind = const $behind as usize,
                decide = sym decide,
            )
        }
    };
}

dlsym! {
    /// Stands in front of libc's.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlsym, Behind::Next
}
dlvsym! {
    /// Stands in front of libc's.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlvsym, Behind::Next
}
dlsym!(dlsym_before_libc, Behind::Libc);
dlvsym!(dlvsym_before_libc, Behind::Libc);
