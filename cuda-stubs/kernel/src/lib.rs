//! NVIDIA's kernel module, for programs on the simulated GPU: a library to preload, behind all that want to see requests go by.
//!
//! The simulated `libcuda.so.1` makes its channels by `ioctl` on a descriptor that stands for `/dev/nvidiactl`, as the real one
//! does. This library's `ioctl` answers those requests and hands all others on. Without it they fail, and libcuda does
//! without channels: contexts then run with the slice that all have, and cannot be taken off.

#![allow(missing_docs)] // a library of one symbol

mod module;
mod objects;

use std::ffi::{c_int, c_ulong, c_void};

use objects::FileId;
use sim_world::rm;

/// A copy of a request's parameters, which lie in the caller's memory.
fn params(address: u64, size: u32) -> Vec<u8> {
    // As much as any structure that is looked at has.
    let (at, size) = (address as usize as *const u8, (size as usize).min(4096));
    if at.is_null() || size == 0 {
        return Vec::new();
    }
    // SAFETY: whoever makes the request promises `size` bytes there, and does not change them during the call.
    unsafe { std::slice::from_raw_parts(at, size) }.to_vec()
}

/// The identity of a descriptor that stands for `/dev/nvidiactl`; `None` for all others.
fn node(fd: c_int) -> Option<FileId> {
    let name = std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).ok()?;
    let expected = format!("/memfd:{}", rm::NODE.to_str().ok()?);
    if !name.to_str()?.starts_with(&expected) {
        return None;
    }
    // SAFETY: zeroes are a valid `stat`, which fstat fills.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) != 0 {
            return None;
        }
        stat
    };
    Some((stat.st_dev, stat.st_ino))
}

/// Answers a request of the driver's; `None` if it is none.
///
/// # Safety
/// `at` points to what the request code says.
unsafe fn answer(fd: c_int, request: u64, at: *mut c_void) -> Option<()> {
    const ALLOC: u64 = rm::request(rm::ALLOC, size_of::<rm::Alloc>());
    const SHORT_ALLOC: u64 = rm::request(rm::ALLOC, size_of::<rm::ShortAlloc>());
    const CONTROL: u64 = rm::request(rm::CONTROL, size_of::<rm::Control>());
    const FREE: u64 = rm::request(rm::FREE, size_of::<rm::Free>());
    if at.is_null() || !matches!(request, ALLOC | SHORT_ALLOC | CONTROL | FREE) {
        return None;
    }
    let file = node(fd)?;
    let status = |outcome: Result<(), u32>| outcome.err().unwrap_or(rm::OK);
    match request {
        ALLOC => {
            // SAFETY: the request code says that this is the structure; the caller lends it for the call.
            let asked = unsafe { &mut *at.cast::<rm::Alloc>() };
            let params = params(asked.params, asked.params_size);
            asked.status = status(module::allocate(file, asked, &params).map(|handle| asked.object = handle));
        }
        SHORT_ALLOC => {
            // SAFETY: as above.
            let short = unsafe { &mut *at.cast::<rm::ShortAlloc>() };
            let rm::ShortAlloc { client, parent, object, class, .. } = *short;
            let asked = rm::Alloc { client, parent, object, class, ..rm::Alloc::default() };
            let params = params(short.params, short.params_size);
            short.status = status(module::allocate(file, &asked, &params).map(|handle| short.object = handle));
        }
        CONTROL => {
            // SAFETY: as above.
            let asked = unsafe { &mut *at.cast::<rm::Control>() };
            let params = params(asked.params, asked.params_size);
            asked.status = status(module::control(file, asked, &params));
        }
        _ => {
            // SAFETY: as above.
            let asked = unsafe { &mut *at.cast::<rm::Free>() };
            asked.status = status(module::free(file, asked));
        }
    }
    Some(())
}

/// The C library's `ioctl`, which has its third argument where any function has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, at: *mut c_void) -> c_int {
    if request >> 8 & 0xff == rm::TYPE {
        // SAFETY: the caller's promise to `ioctl` is the one that is asked for here.
        let answered = std::panic::catch_unwind(|| unsafe { answer(fd, request, at) });
        if let Ok(Some(())) = answered {
            return 0;
        }
    }
    // SAFETY: the same call with the same arguments; the caller answers for them.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, at) as c_int }
}
