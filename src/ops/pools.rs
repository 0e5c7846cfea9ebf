//! Stream-ordered memory and the memory of graphs: what their pools have reserved is what counts.

use std::collections::BTreeMap;
use std::ffi::c_ulonglong;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use super::memory::{REFUSED, there};
use super::{Call, Outcome, paced};
use crate::abi::cuda::*;
use crate::driver::{Stream, calls};
use crate::ledger::marks::Copy;
use crate::ledger::pools::{self, STEP};
use crate::ledger::{self, Changing, Slice, Unheld};
use crate::steer;
use crate::thread::Guarded;

/// Memory from a pool of the slice's: the pool may have to grow for it.
fn from(call: &mut Call<'_>, slice: &'static Slice, pool: CUmemoryPool, bytes: u64, changing: &Changing) -> Outcome {
    let hold = slice.reserve(bytes.next_multiple_of(STEP), changing);
    if hold.is_err() && !pools::has_room(pool, bytes) {
        return REFUSED;
    }
    let result = call.driver();
    pools::settle_pool(pool, slice);
    // Only now: what the pool took of it is charged, the reservation is no more.
    drop(hold);
    Outcome::Done(result)
}

fn alloc_async(call: &mut Call<'_>, bytes: usize, stream: Stream) -> Outcome {
    let changing = ledger::changing();
    // In a capture it becomes a node of a graph, and takes memory when that is launched.
    if stream.is_capturing() {
        return Outcome::Done(call.driver());
    }
    let slice = match there(stream, &changing) {
        Ok(slice) => slice,
        Err(unheld) => return unheld.ask(call),
    };
    let mut pool: CUmemoryPool = null_mut();
    // SAFETY: a place to write to.
    if unsafe { calls::cuDeviceGetMemPool(&raw mut pool, slice.device) } != CUDA_SUCCESS {
        return Unheld::Untold.ask(call);
    }
    from(call, slice, pool, bytes as u64, &changing)
}

/// `cuMemAllocAsync`
pub unsafe fn alloc(call: &mut Call<'_>, _to: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Outcome {
    alloc_async(call, bytes, Stream::given(stream, false))
}

/// `cuMemAllocAsync_ptsz`
pub unsafe fn alloc_ptsz(call: &mut Call<'_>, _to: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Outcome {
    alloc_async(call, bytes, Stream::given(stream, true))
}

fn alloc_from(call: &mut Call<'_>, bytes: usize, pool: CUmemoryPool, stream: Stream) -> Outcome {
    let changing = ledger::changing();
    if pool.is_null() {
        return Unheld::NoArgument.ask(call);
    }
    // In a capture as above; and another process's pool is that one's to pay for.
    if stream.is_capturing() || IMPORTED.with(|imported| imported.contains_key(&(pool as usize))) {
        return Outcome::Done(call.driver());
    }
    // The pool says whose memory it is; neither the stream nor the current context does.
    let slice = match device_of(pool).ok_or(Unheld::Untold).and_then(|device| ledger::of(device, &changing)) {
        Ok(slice) => slice,
        Err(unheld) => return unheld.ask(call),
    };
    from(call, slice, pool, bytes as u64, &changing)
}

/// `cuMemAllocFromPoolAsync`
pub unsafe fn alloc_from_pool(
    call: &mut Call<'_>,
    _to: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    alloc_from(call, bytes, pool, Stream::given(stream, false))
}

/// `cuMemAllocFromPoolAsync_ptsz`
pub unsafe fn alloc_from_pool_ptsz(
    call: &mut Call<'_>,
    _to: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    alloc_from(call, bytes, pool, Stream::given(stream, true))
}

/// The device that a pool's memory is of: one that the program made, or the one that a device came with.
fn device_of(pool: CUmemoryPool) -> Option<CUdevice> {
    if let Some(device) = MADE.with(|made| made.get(&(pool as usize)).copied()) {
        return Some(device);
    }
    let mut count = 0;
    // SAFETY: a place to write to.
    unsafe { calls::cuDeviceGetCount(&raw mut count) };
    let device = (0..count).find(|device| {
        let mut own: CUmemoryPool = null_mut();
        // SAFETY: a place to write to.
        let told = unsafe { calls::cuDeviceGetDefaultMemPool(&raw mut own, *device) };
        told == CUDA_SUCCESS && own == pool
    })?;
    MADE.with(|made| made.insert(pool as usize, device));
    Some(device)
}

/// The device of each pool that the program made, and of those that devices came with, once used. [`HOST`]: the
/// host's memory.
static MADE: Guarded<BTreeMap<usize, CUdevice>> = Guarded::new(BTreeMap::new());
/// Pools that are another process's, who pays for them.
/// With a copy of the descriptor that each was imported by: it shows the other, by its mark, that it is not gone.
static IMPORTED: Guarded<BTreeMap<usize, Option<Copy>>> = Guarded::new(BTreeMap::new());

/// A pool was destroyed, and the driver may let go of what lived in it at any later wait.
static LEFTOVERS: AtomicBool = AtomicBool::new(false);

/// No device: nobody's slice.
const HOST: CUdevice = -1;

/// `cuMemGetDefaultMemPool` and `cuMemGetMemPool`: pools that nobody made, also the host's and those of managed memory.
pub unsafe fn found(call: &mut Call<'_>, to: *mut CUmemoryPool, location: *mut CUmemLocation) -> Outcome {
    let result = call.driver();
    // SAFETY: null, or the caller's description, which the driver has read too.
    let location = unsafe { location.as_ref() };
    if let (CUDA_SUCCESS, Some(location)) = (result, location) {
        // SAFETY: the driver has just written the handle there.
        let pool = unsafe { *to } as usize;
        let device = if location.type_ == CU_MEM_LOCATION_TYPE_DEVICE { location.id } else { HOST };
        // One that is known is what it was.
        if !IMPORTED.with(|imported| imported.contains_key(&pool)) {
            MADE.with(|made| *made.entry(pool).or_insert(device));
        }
    }
    Outcome::Done(result)
}

/// `cuMemPoolCreate`
pub unsafe fn create(call: &mut Call<'_>, to: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Outcome {
    let result = call.driver();
    // SAFETY: null, or the caller's description, which the driver has read too.
    let device = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let device = device.filter(|location| location.type_ == CU_MEM_LOCATION_TYPE_DEVICE).map(|location| location.id);
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written the handle there.
        let pool = unsafe { *to } as usize;
        MADE.with(|made| made.insert(pool, device.unwrap_or(HOST)));
    }
    Outcome::Done(result)
}

/// `cuMemPoolImportFromShareableHandle`
pub unsafe fn import(
    call: &mut Call<'_>,
    to: *mut CUmemoryPool,
    handle: *mut std::ffi::c_void,
    kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written the handle there.
        let pool = unsafe { *to } as usize;
        // The handle is the descriptor's number itself.
        let is_file = kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let copy = if is_file { Copy::of(handle as usize as std::ffi::c_int) } else { None };
        IMPORTED.with(|imported| imported.insert(pool, copy));
    }
    Outcome::Done(result)
}

/// `cuMemPoolExportToShareableHandle`
pub unsafe fn export(
    call: &mut Call<'_>,
    to: *mut std::ffi::c_void,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS
        && kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        && let Some(slice) = device_of(pool).and_then(|device| ledger::of(device, &changing).ok())
    {
        // SAFETY: the driver has just written a descriptor there.
        pools::exported_itself(pool, slice, unsafe { *to.cast::<std::ffi::c_int>() });
    }
    Outcome::Done(result)
}

/// `cuMemPoolExportPointer`
pub unsafe fn export_pointer(call: &mut Call<'_>, address: CUdeviceptr) -> Outcome {
    let result = call.driver();
    let (mut pool, mut base, mut bytes): (CUmemoryPool, _, _) = (null_mut(), 0, 0usize);
    // SAFETY: places to write to, of the sizes that these have; the driver knows the address.
    let told = unsafe {
        [
            calls::cuPointerGetAttribute((&raw mut pool).cast(), CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address),
            calls::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address),
        ]
    };
    if result == CUDA_SUCCESS && told == [CUDA_SUCCESS; 2] {
        pools::exported(pool, bytes as u64);
    }
    Outcome::Done(result)
}

/// `cuMemPoolDestroy`
pub unsafe fn destroy(call: &mut Call<'_>, pool: CUmemoryPool) -> Outcome {
    let _changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        pools::forget(pool);
        MADE.with(|made| made.remove(&(pool as usize)));
        IMPORTED.with(|imported| imported.remove(&(pool as usize)));
        // What still lives in it goes with the last free.
        LEFTOVERS.store(true, Ordering::Relaxed);
        ledger::all().for_each(Slice::is_to_be_learned);
    }
    Outcome::Done(result)
}

/// `cuMemPoolTrimTo`
pub unsafe fn trim(call: &mut Call<'_>, _pool: CUmemoryPool, _keep: usize) -> Outcome {
    let _changing = ledger::changing();
    refreshed(call)
}

/// Asks the driver for something after which pools may have let go of memory.
pub fn refreshed(call: &mut Call<'_>) -> Outcome {
    refreshed_by(|| paced::waiting(|| call.driver()))
}

fn refreshed_by(ask: impl FnOnce() -> CUresult) -> Outcome {
    let wait = ledger::Wait::begin();
    let result = ask();
    if pools::any() {
        let changing = ledger::changing();
        // Pools may have let go of memory already: whoever learned from NVML meanwhile looks again.
        if wait.end(&changing) || LEFTOVERS.load(Ordering::Relaxed) {
            ledger::all().for_each(Slice::is_to_be_learned);
        }
        ledger::all().for_each(pools::refresh);
    }
    Outcome::Done(result)
}

/// `cuCtxSynchronize`
pub unsafe fn synchronize(call: &mut Call<'_>) -> Outcome {
    refreshed(call)
}

/// `cuCtxSynchronize_v2`
pub unsafe fn synchronize_context(call: &mut Call<'_>, _context: CUcontext) -> Outcome {
    refreshed(call)
}

/// `cuStreamSynchronize` and its per-thread form
pub unsafe fn synchronize_stream(call: &mut Call<'_>, _stream: CUstream) -> Outcome {
    refreshed(call)
}

/// `cuEventSynchronize`
pub unsafe fn synchronize_event(call: &mut Call<'_>, event: CUevent) -> Outcome {
    // A loop that is some steps ahead of the GPU asks for what is done already.
    if steer::is_done(event) { refreshed_by(|| call.driver()) } else { refreshed(call) }
}

/// In a forked child: none.
pub fn forget_the_parent() {
    MADE.renew(BTreeMap::new());
    IMPORTED.renew(BTreeMap::new());
    LEFTOVERS.store(false, Ordering::Relaxed);
}
