//! Pinned host memory, and memory of the client's that it registers. It takes nothing of a GPU.

use std::ffi::c_void;
use std::sync::Arc;

use super::backing::Backing;
use super::blocks::{Block, Heaps};
use super::linear::wait_for;
use super::space::{self, Kind, Region};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::capture;
use crate::context::{Context, current};

/// By context, and whether writes are combined: such memory has blocks of its own.
static HEAPS: Heaps<bool> = Heaps::new();

const PAGE: u64 = 4096;
const ALLOC_FLAGS: u32 = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
const REGISTER_FLAGS: u32 = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

fn allocate(out: Out<*mut c_void>, bytes: u64, flags: u32) -> Outcome {
    let context = current()?;
    capture::forbid_unsafe()?;
    out.required()?;
    if flags & !ALLOC_FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if bytes == 0 {
        return out.set(std::ptr::null_mut());
    }
    // What the driver says of it afterwards: all pinned memory is mapped, and portable without saying so.
    let flags = flags & CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP;
    let (at, block) = HEAPS.with(context.handle, is_combined(flags), |heap| heap.allocate(bytes, Block::for_host))?;
    space::insert(Region::new(at, bytes, Kind::Host { flags }, block, &context));
    out.set(at as *mut c_void)
}

fn is_combined(flags: u32) -> bool {
    flags & CU_MEMHOSTALLOC_WRITECOMBINED != 0
}

fn free(pointer: *mut c_void) -> Outcome {
    current()?;
    capture::forbid_unsafe()?;
    if pointer.is_null() {
        return Ok(());
    }
    let region = space::at(pointer as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Host { flags } = region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    wait_for(&region)?;
    space::remove(&region)?;
    HEAPS.with(region.context, is_combined(flags), |heap| heap.release(&region.block, region.base, region.len));
    Ok(())
}

fn register(pointer: *mut c_void, bytes: u64, flags: u32) -> Outcome {
    let context = current()?;
    capture::forbid_unsafe()?;
    let base = pointer as u64;
    if base == 0 || bytes == 0 || flags & !REGISTER_FLAGS != 0 || base.checked_add(bytes).is_none() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return Err(unmodelled!("registering memory of another device"));
    }
    if let Some(there) = space::within(base, bytes).first() {
        let registered = matches!(there.kind, Kind::Registered { .. });
        return Err(if registered { CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED } else { CUDA_ERROR_INVALID_VALUE });
    }
    // Whole pages are pinned.
    let (first, end) = (base & !(PAGE - 1), (base + bytes).next_multiple_of(PAGE));
    let block = Block::new(first, end - first, Arc::new(Backing::registered(first, end - first)), None, None);
    let kind = Kind::Registered { flags: flags | CU_MEMHOSTREGISTER_DEVICEMAP };
    space::insert(Region::new(base, bytes, kind, Arc::new(block), &context));
    Ok(())
}

fn unregister(pointer: *mut c_void) -> Outcome {
    current()?;
    capture::forbid_unsafe()?;
    if pointer.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    match space::find(pointer as u64) {
        None => Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
        Some(region) if matches!(region.kind, Kind::Registered { .. }) && region.base == pointer as u64 => {
            wait_for(&region)?;
            space::remove(&region)
        }
        Some(_) => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// The pinned or registered memory that holds an address.
fn holding(pointer: *const c_void) -> Outcome<Arc<Region>> {
    current()?;
    space::find(pointer as u64).filter(|r| r.on_host()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn device_pointer(pointer: *const c_void, flags: u32) -> Outcome<u64> {
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    holding(pointer)?;
    Ok(pointer as u64) // host and device use the same address
}

/// A context is gone, and with it what was pinned in it.
pub(crate) fn forget_context(context: &Context) {
    drop(space::remove_all(|r| r.context == context.handle && r.on_host()));
    HEAPS.forget(context.handle);
}

api! {
    export fn cuMemHostAlloc(pointer: Out<*mut c_void>, bytes: usize, flags: u32) { allocate(pointer, bytes as u64, flags) }
    export fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, bytes: usize) { allocate(pointer, bytes as u64, 0) }
    export fn cuMemAllocHost(pointer: Out<*mut c_void>, bytes: u32) { allocate(pointer, u64::from(bytes), 0) }
    export fn cuMemFreeHost(pointer: *mut c_void) { free(pointer) }
    export fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32) { register(pointer, bytes as u64, flags) }
    export fn cuMemHostRegister(pointer: *mut c_void, bytes: usize, flags: u32) { register(pointer, bytes as u64, flags) }
    export fn cuMemHostUnregister(pointer: *mut c_void) { unregister(pointer) }
    export fn cuMemHostGetDevicePointer_v2(device: Out<CUdeviceptr>, pointer: *mut c_void, flags: u32) {
        device.required()?;
        device.set(device_pointer(pointer, flags)?)
    }
    export fn cuMemHostGetDevicePointer(device: Out<CUdeviceptr_v1>, pointer: *mut c_void, flags: u32) {
        device.required()?;
        let address = device_pointer(pointer, flags)?;
        device.set(u32::try_from(address).map_err(|_| CUDA_ERROR_INVALID_VALUE)?)
    }
    export fn cuMemHostGetFlags(flags: Out<u32>, pointer: *mut c_void) {
        match holding(pointer)?.kind {
            // Every address of the host's is one of the device's too.
            Kind::Host { flags: of } | Kind::Registered { flags: of } => flags.set(of | CU_MEMHOSTALLOC_DEVICEMAP),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
