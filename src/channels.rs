//! The process's own channels on the GPU: seen as the driver makes them, taken off the GPU and put back, and given slices.
//!
//! A context's kernels reach the GPU through the *channels* of one *channel group*; the GPU's own scheduler serves the groups
//! that have work in turn, each for its *slice*. The driver makes them by `ioctl` on a device of the kernel module, so a
//! library in front of libc's `ioctl` sees them come and go. Two controls of the module, open to any process for its own
//! channels, do the rest: one sets a group's slice, one takes channels *off* the GPU, in the middle of a kernel, until they
//! are put back *on*. docs/design/compute.md says what was measured of them.
//!
//! Here is all that knows their numbers and layouts. What is not understood, or answers with an error, is left alone from
//! then on: [`Trouble`].

mod abi;
mod registry;

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use ration_policy::tuning::SLOW;

use registry::{Registry, Seen};

use crate::abi::cuda::CUdevice;
use crate::ledger::marks;
use crate::resolve::elf;
use crate::thread::{Guarded, Thread};
use crate::{process, sys};

/// What is known of the channels. Held across a control, so that no channel goes away in the middle of one.
static REGISTRY: Guarded<Registry> = Guarded::new(Registry::new());

/// What comes behind our `ioctl`.
static NEXT: AtomicPtr<()> = AtomicPtr::new(null_mut());

/// Stands in front of libc's. What is not the driver's costs a comparison.
///
/// # Safety
/// As the kernel says of the request.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if !abi::is_drivers(request) {
        // SAFETY: the caller's own call.
        return unsafe { pass(descriptor, request, argument) };
    }
    // SAFETY: a request of the driver's has an argument of the size that it says.
    unsafe { drivers(descriptor, request, argument) }
}

/// # Safety
/// As of [`ioctl`].
unsafe fn pass(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let mut next = NEXT.load(Ordering::Acquire);
    if next.is_null() {
        let _walking = process::walking();
        let _errno = sys::Errno::kept();
        next = elf::function_behind_us(c"ioctl").map_or(null_mut(), <*const ()>::cast_mut);
        NEXT.store(next, Ordering::Release);
    }
    if next.is_null() {
        // SAFETY: the caller's own call. A process without libc's function has the kernel's.
        return unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) } as c_int;
    }
    // SAFETY: a function of this name takes these; a third argument that the caller did not give is a register that nobody reads.
    unsafe {
        std::mem::transmute::<*mut (), unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int>(next)(
            descriptor, request, argument,
        )
    }
}

/// # Safety
/// As of [`ioctl`], for a request that the driver makes.
#[cold]
unsafe fn drivers(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let taken = abi::as_taken(request);
    // What goes is forgotten before it is gone: nobody names it in between. On a descriptor that is not the driver's, the same
    // number may mean anything.
    if taken == abi::FREE && REGISTRY.with(|registry| registry.is_clients(marks::identity(descriptor))) {
        // SAFETY: a request to the kernel module, whose argument it reads as well.
        if let Some(Seen::Freed { client, object }) = unsafe { Seen::before(taken, argument) } {
            REGISTRY.with(|registry| registry.forget(client, object));
        }
    }
    // SAFETY: the caller's own call.
    let result = unsafe { pass(descriptor, request, argument) };
    if result == 0 {
        // SAFETY: the caller's word, and the kernel has filled it in.
        if let Some(seen) = unsafe { Seen::after(taken, argument) } {
            let file = marks::identity(descriptor);
            REGISTRY.with(|registry| registry.note(&seen, descriptor, file));
        }
    }
    result
}

/// The GPU that this thread is making a context on, as the process numbers it.
fn device_of_this_thread() -> Option<CUdevice> {
    Thread::attached().and_then(Thread::making)
}

/// Why channels cannot be driven, or not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// No compute channels of this GPU were seen being made.
    Unseen,
    /// They lie in a group that somebody else made: an MPS server, whose other clients would stop too.
    Shared,
    /// The driver itself takes channels off and on.
    DriversOwn,
    /// The descriptor is not the driver's any more.
    Closed,
    /// The kernel module refused, with this status.
    Refused(u32),
    /// The system call failed.
    Failed,
    /// It was done, and took too long.
    Slow,
}

/// Takes the compute channels of a GPU off it, or puts them back. Returns how many there are.
pub fn put(device: CUdevice, on: bool) -> Result<usize, Trouble> {
    REGISTRY.with(|registry| {
        registry.is_drivable(device)?;
        let (mut count, mut slow) = (0, false);
        for mut list in registry.switches(device, on) {
            count += list.count();
            slow |= is_slow(|| registry.control(list.client, list.subdevice, abi::SWITCH, list.params()))?;
        }
        match (count, slow) {
            (0, _) => Err(Trouble::Unseen),
            (_, true) => Err(Trouble::Slow),
            (count, false) => Ok(count),
        }
    })
}

/// Gives this process's compute groups on a GPU a slice of so many microseconds, all together.
pub fn set_slice(device: CUdevice, microseconds: u64) -> Result<(), Trouble> {
    REGISTRY.with(|registry| {
        registry.is_drivable(device)?;
        let groups = registry.compute_groups(device).count().max(1) as u64;
        let mut slow = false;
        for group in registry.compute_groups(device) {
            let mut slice = (microseconds / groups).max(1);
            let params = ((&raw mut slice).cast::<c_void>(), size_of::<u64>());
            slow |= is_slow(|| registry.control(group.client, group.object, abi::SET_SLICE, params))?;
        }
        if slow { Err(Trouble::Slow) } else { Ok(()) }
    })
}

/// Whether the channels of a GPU can be driven, as far as is known without trying.
pub fn is_drivable(device: CUdevice) -> Result<(), Trouble> {
    REGISTRY.with(|registry| registry.looks_drivable(device))
}

/// Whether there were channels of a GPU at some time.
pub fn were_there(device: CUdevice) -> bool {
    REGISTRY.with(|registry| registry.were_there(device))
}

/// How often the channels of this process have changed: whoever put them off looks again when it has moved.
pub fn generation() -> u64 {
    REGISTRY.with(|registry| registry.generation)
}

/// Whether a call took too long.
fn is_slow(call: impl FnOnce() -> Result<(), Trouble>) -> Result<bool, Trouble> {
    let began = sys::nanoseconds();
    call()?;
    Ok(sys::nanoseconds() - began > SLOW)
}

/// In a forked child: the channels are its parent's, and so is the descriptor.
pub fn forget_the_parent() {
    REGISTRY.renew(Registry::new());
}

impl Registry {
    /// A control of the kernel module. It goes to whoever comes behind us, and so does not come by here again.
    fn control(&self, client: u32, object: u32, command: u32, params: (*mut c_void, usize)) -> Result<(), Trouble> {
        let descriptor = self.descriptor_of(client).ok_or(Trouble::Closed)?;
        let mut control = abi::Control {
            client,
            object,
            command,
            flags: 0,
            params: params.0 as u64,
            params_size: params.1 as u32,
            status: 0,
        };
        // SAFETY: laid out as the module takes it, with parameters of the size that it says, all of which live until it returns.
        let result = unsafe { pass(descriptor, abi::CONTROL, (&raw mut control).cast()) } as c_long;
        match (result, control.status) {
            (0, 0) => Ok(()),
            (0, status) => Err(Trouble::Refused(status)),
            _ => Err(Trouble::Failed),
        }
    }
}
