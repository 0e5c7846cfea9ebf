//! `dlsym` and `dlvsym`.
//!
//! The real ones answer `RTLD_NEXT` and `RTLD_DEFAULT` by their caller's return address. A wrapper that called them would
//! be that caller, and break every other library that interposes functions. So ours have no frame: they ask [`decide`]
//! what to do, and then either return its answer or *jump* to the real function, which sees the original caller.

use std::ffi::{CStr, c_char, c_void};
use std::mem::transmute;
use std::panic::catch_unwind;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::elf::{self, Standing};
use crate::driver;
use crate::table;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The functions behind ours, which are libc's unless another library interposes them too.
static NEXT_DLSYM: AtomicPtr<()> = AtomicPtr::new(null_mut());
static NEXT_DLVSYM: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Finds the functions behind ours. They are there before any program can call us: we need libc ourselves.
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

/// What comes behind us under a name, in the scope in which the program's own references are resolved.
pub fn next_behind_us(name: &CStr) -> Option<*const ()> {
    // SAFETY: a look-up by name; the caller that it goes by is this function, which is in our library.
    let found = unsafe { next_dlsym()(libc::RTLD_NEXT, name.as_ptr()) };
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

/// A look-up: the arguments, and the address that it will return to.
struct LookUp {
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
}

impl LookUp {
    fn next(&self) -> *const () {
        if self.version.is_null() { next_dlsym() as *const () } else { next_dlvsym() as *const () }
    }

    /// Asks the function behind ours. Only for handles that mean the same whoever asks.
    fn ask(&self, handle: *mut c_void) -> *const () {
        // SAFETY: the arguments are the caller's own.
        let found = unsafe {
            if self.version.is_null() {
                next_dlsym()(handle, self.name)
            } else {
                next_dlvsym()(handle, self.name, self.version)
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
        let Some(id) = table::find(unsafe { CStr::from_ptr(self.name) }) else { return as_ever };
        let answer = |answer| Decision { answer, jump: null() };
        match self.handle {
            // Everything in front of us, then us.
            libc::RTLD_DEFAULT => {
                if driver::is_there(id) {
                    as_ever
                } else {
                    answer(self.nothing())
                }
            }
            libc::RTLD_NEXT => {
                let original = driver::original_if_loaded(id);
                match (elf::standing(self.caller, table::ROWS[id].symbol, original.unwrap_or(null())), original) {
                    (Standing::InFront, _) if driver::is_there(id) => as_ever,
                    (Standing::InFront, _) => answer(self.nothing()),
                    (Standing::Behind, Some(_)) => answer(driver::door(id)),
                    (Standing::Behind, None) | (Standing::BehindWithOthers, _) => as_ever,
                }
            }
            handle => answer(self.in_a_library(id, handle)),
        }
    }

    /// A look-up in a library and what that needs.
    fn in_a_library(&self, id: usize, handle: *mut c_void) -> *const () {
        let found = self.ask(handle);
        if found.is_null() {
            return found;
        }
        if found == table::ROWS[id].export.0 {
            // The whole program was searched and we were found first. Would anything have been found without us?
            return if driver::is_there(id) { found } else { self.nothing() };
        }
        let original = driver::original_if_loaded(id);
        if Some(found) == original {
            return driver::door(id);
        }
        // Another library's. If it stands in for the driver's function of a library that has it, so do we for it; if it
        // was asked for by its own handle, it is none of our business.
        if original.is_some() && dlsym_of_libc_finds(handle, self.name) == original {
            driver::set_answered(id, found);
            return driver::door(id);
        }
        found
    }

    /// No such symbol: what `dlsym` answers, with `dlerror` set as it would be.
    fn nothing(&self) -> *const () {
        self.ask(libc::RTLD_NEXT)
    }
}

/// What libc's own `dlsym` finds, past any library that interposes it.
fn dlsym_of_libc_finds(handle: *mut c_void, name: *const c_char) -> Option<*const ()> {
    static REAL: AtomicPtr<()> = AtomicPtr::new(null_mut());
    let mut real = REAL.load(Ordering::Acquire).cast_const();
    if real.is_null() {
        // In libc since 2.34, in libdl before.
        let find = |soname| elf::loaded_as(soname).and_then(|object| object.function(c"dlsym"));
        real = find(c"libc.so.6").or_else(|| find(c"libdl.so.2"))?;
        REAL.store(real.cast_mut(), Ordering::Release);
    }
    // SAFETY: libc's dlsym; the arguments are the caller's own.
    let found = unsafe { transmute::<*const (), Dlsym>(real)(handle, name) };
    (!found.is_null()).then_some(found.cast_const().cast())
}

/// An error of ours must not become the program's: then the look-up goes on as if we were not here.
extern "C" fn decide(handle: *mut c_void, name: *const c_char, version: *const c_char, caller: usize) -> Decision {
    let look_up = LookUp { handle, name, version, caller };
    catch_unwind(|| look_up.decide()).unwrap_or_else(|_| Decision { answer: null(), jump: look_up.next() })
}

/// Stands in front of libc's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // The arguments are kept over the call, and the stack is aligned for it. The .cfi lines let debuggers walk through.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "xor edx, edx",
        "mov rcx, qword ptr [rsp + 16]",
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
        decide = sym decide,
    )
}

/// Stands in front of libc's.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "mov rcx, qword ptr [rsp + 24]",
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
        decide = sym decide,
    )
}
