//! Device memory by address, managed memory, arrays, and virtual memory.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use super::{Call, Outcome, sharing};
use crate::abi::cuda::*;
use crate::driver::{self, Place, Stream, calls};
use crate::ledger::book::{self, Entry};
use crate::ledger::slice::in_blocks;
use crate::ledger::{self, Changing, Slice, Unheld};
use crate::steer;

/// What a program is told that asks for more than its slice has: nothing else says to all of them "free something".
pub const REFUSED: Outcome = Outcome::Refused(CUDA_ERROR_OUT_OF_MEMORY);

/// Contexts whose devices are known, which never change. An entry is written once, its context last.
static CONTEXTS: [(AtomicUsize, AtomicI32); 16] = [const { (AtomicUsize::new(0), AtomicI32::new(0)) }; 16];

/// The slice of the current context's GPU, and that context, which is asked for and not remembered: programs switch.
pub fn here(changing: &Changing) -> Result<(&'static Slice, CUcontext), Unheld> {
    let context = driver::current_context().ok_or(Unheld::NoContext)?;
    for (known, device) in &CONTEXTS {
        match known.load(Ordering::Acquire) {
            0 => break,
            known if known == context as usize => {
                return Ok((ledger::of(device.load(Ordering::Relaxed), changing)?, context));
            }
            _ => {}
        }
    }
    let place = Place::current().ok_or(Unheld::Untold)?;
    remember(place);
    Ok((ledger::of(place.device, changing)?, place.context))
}

/// The slice of the GPU of a stream's context, which need not be the current one: memory that is asked for in a stream is of
/// its device.
pub fn there(stream: Stream, changing: &Changing) -> Result<&'static Slice, Unheld> {
    let context = stream.context().ok_or(Unheld::NoContext)?;
    for (known, device) in &CONTEXTS {
        match known.load(Ordering::Acquire) {
            0 => break,
            known if known == context as usize => return ledger::of(device.load(Ordering::Relaxed), changing),
            _ => {}
        }
    }
    let mut pushed: CUcontext = std::ptr::null_mut();
    // SAFETY: a context that lives, made current for one question, and a place to write to.
    let place = unsafe {
        if calls::cuCtxPushCurrent_v2(context) != CUDA_SUCCESS {
            return Err(Unheld::Untold);
        }
        let place = Place::current();
        calls::cuCtxPopCurrent_v2(&raw mut pushed);
        place.ok_or(Unheld::Untold)?
    };
    remember(place);
    ledger::of(place.device, changing)
}

fn remember(place: Place) {
    const WRITING: usize = 1;
    for (known, device) in &CONTEXTS {
        if known.compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            device.store(place.device, Ordering::Relaxed);
            known.store(place.context as usize, Ordering::Release);
            return;
        }
    }
}

/// A context is gone, and another with the same handle may be of another device; or this is a forked child, which has none.
pub fn forget_contexts() {
    CONTEXTS.iter().for_each(|(known, _)| known.store(0, Ordering::Release));
}

/// Asks the driver for device memory of a size that is known before, and keeps it at the address that it gave.
fn linear(call: &mut Call<'_>, bytes: u64, given: impl FnOnce() -> (u64, u64)) -> Outcome {
    let changing = ledger::changing();
    let (slice, context) = match here(&changing) {
        Ok(place) => place,
        Err(unheld) => return unheld.ask(call),
    };
    let Ok(hold) = slice.reserve(in_blocks(bytes.max(1)), &changing) else { return REFUSED };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        let (address, bytes) = given();
        book::keep_linear(hold, slice, context, address, bytes);
    }
    Outcome::Done(result)
}

/// `cuMemAlloc_v2`
pub unsafe fn alloc(call: &mut Call<'_>, to: *mut CUdeviceptr, bytes: usize) -> Outcome {
    // SAFETY: the driver has just written the address there.
    linear(call, bytes as u64, || (unsafe { *to }, bytes as u64))
}

/// `cuMemAlloc`, of CUDA 2
pub unsafe fn alloc_32(call: &mut Call<'_>, to: *mut CUdeviceptr_v1, bytes: c_uint) -> Outcome {
    // SAFETY: as above.
    linear(call, bytes.into(), || (unsafe { *to }.into(), bytes.into()))
}

/// Rows start at multiples of this, or of less.
const ROW: u64 = 512;

/// `cuMemAllocPitch_v2`
pub unsafe fn pitch(
    call: &mut Call<'_>,
    to: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    _element: c_uint,
) -> Outcome {
    let bytes = (width as u64).next_multiple_of(ROW).saturating_mul(height as u64);
    // SAFETY: the driver has just written both.
    linear(call, bytes, || unsafe { (*to, (*pitch as u64).saturating_mul(height as u64)) })
}

/// `cuMemAllocPitch`, of CUDA 2
pub unsafe fn pitch_32(
    call: &mut Call<'_>,
    to: *mut CUdeviceptr_v1,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    _element: c_uint,
) -> Outcome {
    let bytes = u64::from(width).next_multiple_of(ROW) * u64::from(height);
    // SAFETY: as above.
    linear(call, bytes, || unsafe { ((*to).into(), u64::from(*pitch) * u64::from(height)) })
}

/// `cuMemAllocManaged`: charged in full, though the driver takes it as it is touched.
pub unsafe fn managed(call: &mut Call<'_>, to: *mut CUdeviceptr, bytes: usize, _flags: c_uint) -> Outcome {
    let changing = ledger::changing();
    let (slice, context) = match here(&changing) {
        Ok(place) => place,
        Err(unheld) => return unheld.ask(call),
    };
    let bytes = in_blocks(bytes as u64);
    let Ok(hold) = slice.reserve(bytes, &changing) else { return REFUSED };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written the address there.
        book::keep_beside(hold, slice, context, unsafe { *to }, bytes);
    }
    Outcome::Done(result)
}

/// Frees what is known under a number. What is not known was never charged: another process's, or a pool's.
fn free_number(call: &mut Call<'_>, number: u64) -> Outcome {
    steer::before_asking();
    let _changing = ledger::changing();
    let entry: Option<Entry> = book::take(number);
    let result = call.driver();
    if let Some(entry) = entry {
        if result == CUDA_SUCCESS {
            entry.refund(number);
        } else {
            book::put(number, entry);
        }
    }
    if result == CUDA_SUCCESS {
        book::refund_moved(number);
    }
    Outcome::Done(result)
}

/// `cuMemFree_v2`
pub unsafe fn free(call: &mut Call<'_>, address: CUdeviceptr) -> Outcome {
    free_number(call, address)
}

/// `cuMemFree`, of CUDA 2
pub unsafe fn free_32(call: &mut Call<'_>, address: CUdeviceptr_v1) -> Outcome {
    free_number(call, address.into())
}

// --------------------------------------------------------------------------------------------------------- arrays

/// Bytes of an element in a format of `CUarray_format`; block-compressed and planar ones are taken for what they are at most.
fn element(format: CUarray_format, channels: c_uint) -> u64 {
    let bytes = match format {
        CU_AD_FORMAT_UNSIGNED_INT8 | CU_AD_FORMAT_SIGNED_INT8 => 1,
        CU_AD_FORMAT_UNSIGNED_INT16 | CU_AD_FORMAT_SIGNED_INT16 | CU_AD_FORMAT_HALF => 2,
        _ => 4,
    };
    bytes * u64::from(channels.max(1))
}

/// Makes an array that is expected to take so many bytes, and keeps it for what the driver then says.
fn array(call: &mut Call<'_>, expected: u64, given: impl FnOnce(CUdevice) -> (u64, Option<u64>)) -> Outcome {
    let changing = ledger::changing();
    let (slice, context) = match here(&changing) {
        Ok(place) => place,
        Err(unheld) => return unheld.ask(call),
    };
    let Ok(hold) = slice.reserve(in_blocks(expected.max(1)), &changing) else { return REFUSED };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        let (handle, bytes) = given(slice.device);
        // How its rows are laid out is the driver's secret, and small ones share blocks. The next look at NVML's figure
        // puts right what this estimate gets wrong.
        book::keep_whole(hold, slice, context, handle, in_blocks(bytes.unwrap_or(expected)));
        slice.is_to_be_learned();
        slice.learn(&changing);
    }
    Outcome::Done(result)
}

/// What the driver says an array takes.
fn size_of_array(array: CUarray, device: CUdevice) -> Option<u64> {
    let mut needs = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
    // SAFETY: an array that was just made, and a place to write to.
    let told = unsafe { calls::cuArrayGetMemoryRequirements(&raw mut needs, array, device) };
    (told == CUDA_SUCCESS && needs.size != 0).then_some(needs.size as u64)
}

/// `cuArrayCreate_v2`
pub unsafe fn array_create(call: &mut Call<'_>, to: *mut CUarray, shape: *const CUDA_ARRAY_DESCRIPTOR) -> Outcome {
    // SAFETY: null, or the caller's description, which the driver reads too.
    let Some(shape) = (unsafe { shape.as_ref() }) else { return Unheld::NoArgument.ask(call) };
    let bytes = (shape.Width as u64).saturating_mul((shape.Height as u64).max(1));
    let bytes = bytes.saturating_mul(element(shape.Format, shape.NumChannels));
    // SAFETY: the driver has just written the handle there.
    array(call, bytes, |device| unsafe { (*to as u64, size_of_array(*to, device)) })
}

/// `cuArrayCreate`, of CUDA 2
pub unsafe fn array_create_32(
    call: &mut Call<'_>,
    to: *mut CUarray,
    shape: *const CUDA_ARRAY_DESCRIPTOR_v1,
) -> Outcome {
    // SAFETY: as above.
    let Some(shape) = (unsafe { shape.as_ref() }) else { return Unheld::NoArgument.ask(call) };
    let bytes = u64::from(shape.Width) * u64::from(shape.Height.max(1));
    let bytes = bytes.saturating_mul(element(shape.Format, shape.NumChannels));
    // SAFETY: as above.
    array(call, bytes, |device| unsafe { (*to as u64, size_of_array(*to, device)) })
}

/// Arrays without memory of their own: pages are mapped into them.
const WITHOUT_MEMORY: c_uint = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;

fn bytes_of(shape: &CUDA_ARRAY3D_DESCRIPTOR) -> u64 {
    let bytes =
        (shape.Width as u64).saturating_mul((shape.Height as u64).max(1)).saturating_mul((shape.Depth as u64).max(1));
    bytes.saturating_mul(element(shape.Format, shape.NumChannels))
}

/// `cuArray3DCreate_v2`
pub unsafe fn array_3d_create(call: &mut Call<'_>, to: *mut CUarray, shape: *const CUDA_ARRAY3D_DESCRIPTOR) -> Outcome {
    // SAFETY: as above.
    match unsafe { shape.as_ref() } {
        Some(shape) if shape.Flags & WITHOUT_MEMORY == 0 => {
            // SAFETY: as above.
            array(call, bytes_of(shape), |device| unsafe { (*to as u64, size_of_array(*to, device)) })
        }
        Some(_) => Outcome::Done(call.driver()),
        None => Unheld::NoArgument.ask(call),
    }
}

/// `cuArray3DCreate`, of CUDA 2
pub unsafe fn array_3d_create_32(
    call: &mut Call<'_>,
    to: *mut CUarray,
    shape: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
) -> Outcome {
    // SAFETY: as above.
    match unsafe { shape.as_ref() } {
        Some(shape) if shape.Flags & WITHOUT_MEMORY == 0 => {
            let bytes = u64::from(shape.Width) * u64::from(shape.Height.max(1));
            let bytes = bytes
                .saturating_mul(shape.Depth.max(1).into())
                .saturating_mul(element(shape.Format, shape.NumChannels));
            // SAFETY: as above.
            array(call, bytes, |device| unsafe { (*to as u64, size_of_array(*to, device)) })
        }
        Some(_) => Outcome::Done(call.driver()),
        None => Unheld::NoArgument.ask(call),
    }
}

/// `cuMipmappedArrayCreate`: each level is half as large in each direction as the one before.
pub unsafe fn mipmap_create(
    call: &mut Call<'_>,
    to: *mut CUmipmappedArray,
    shape: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> Outcome {
    // SAFETY: as above.
    match unsafe { shape.as_ref() } {
        Some(shape) if shape.Flags & WITHOUT_MEMORY == 0 => {
            let mut level = *shape;
            let mut bytes = 0u64;
            for _ in 0..levels.min(32) {
                bytes = bytes.saturating_add(bytes_of(&level));
                (level.Width, level.Height, level.Depth) = (level.Width.div_ceil(2), level.Height / 2, level.Depth / 2);
            }
            array(call, bytes, |device| {
                let mut needs = CUDA_ARRAY_MEMORY_REQUIREMENTS::default();
                // SAFETY: an array that was just made, and a place to write to.
                unsafe {
                    let told = calls::cuMipmappedArrayGetMemoryRequirements(&raw mut needs, *to, device);
                    (*to as u64, (told == CUDA_SUCCESS && needs.size != 0).then_some(needs.size as u64))
                }
            })
        }
        Some(_) => Outcome::Done(call.driver()),
        None => Unheld::NoArgument.ask(call),
    }
}

/// `cuArrayDestroy`
pub unsafe fn array_destroy(call: &mut Call<'_>, array: CUarray) -> Outcome {
    destroyed(call, array as u64)
}

/// `cuMipmappedArrayDestroy`
pub unsafe fn mipmap_destroy(call: &mut Call<'_>, array: CUmipmappedArray) -> Outcome {
    destroyed(call, array as u64)
}

/// What it was charged was an estimate, so what is left is looked at.
fn destroyed(call: &mut Call<'_>, array: u64) -> Outcome {
    let outcome = free_number(call, array);
    let changing = ledger::changing();
    // Whichever GPU it was on: a program may destroy it with another's context current.
    for slice in ledger::all() {
        slice.is_to_be_learned();
        slice.learn(&changing);
    }
    outcome
}

// ------------------------------------------------------------------------------------------------- virtual memory

/// `cuMemCreate`: held while there is a handle or a mapping.
pub unsafe fn create(
    call: &mut Call<'_>,
    to: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    _flags: c_ulonglong,
) -> Outcome {
    // SAFETY: null, or the caller's description, which the driver reads too.
    let Some(properties) = (unsafe { properties.as_ref() }) else { return Unheld::NoArgument.ask(call) };
    if properties.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        // The host's memory.
        return Outcome::Done(call.driver());
    }
    let changing = ledger::changing();
    let slice = match ledger::of(properties.location.id, &changing) {
        Ok(slice) => slice,
        Err(unheld) => return unheld.ask(call),
    };
    let bytes = in_blocks(bytes as u64);
    let Ok(hold) = slice.reserve(bytes, &changing) else { return REFUSED };
    let result = call.driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written the handle there.
        book::keep_handle(hold, slice, unsafe { *to }, bytes);
    }
    Outcome::Done(result)
}

/// `cuMemRelease`
pub unsafe fn release(call: &mut Call<'_>, handle: CUmemGenericAllocationHandle) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS && book::released(handle) {
        sharing::let_go(&changing);
    }
    Outcome::Done(result)
}

/// `cuMemRetainAllocationHandle`
pub unsafe fn retain(
    call: &mut Call<'_>,
    to: *mut CUmemGenericAllocationHandle,
    address: *mut std::ffi::c_void,
) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written the handle there.
        book::retained(unsafe { *to }, address as u64);
    }
    Outcome::Done(result)
}

/// `cuMemMap`
pub unsafe fn map(
    call: &mut Call<'_>,
    address: CUdeviceptr,
    bytes: usize,
    _offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS {
        book::mapped(address, bytes as u64, handle);
    }
    Outcome::Done(result)
}

/// `cuMemUnmap`
pub unsafe fn unmap(call: &mut Call<'_>, address: CUdeviceptr, bytes: usize) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS && book::unmapped(address, bytes as u64) {
        sharing::let_go(&changing);
    }
    Outcome::Done(result)
}
