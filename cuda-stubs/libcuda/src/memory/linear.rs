//! Plain device memory: cuMemAlloc and its family, and the one cuMemFree for everything that has a device address.

use std::sync::Arc;

use sim_world::Path;

use super::blocks::{Block, Heaps, STEP};
use super::space::{self, Kind, Region};
use super::{graphpool, managed, pool};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::capture;
use crate::context::{Context, current};
use crate::process::{CONTEXTS, process};

/// By context, and whether addresses must be below 4 GiB.
static HEAPS: Heaps<bool> = Heaps::new();

/// Allocates device memory in a context.
pub(crate) fn allocate(context: &Context, bytes: u64, low: bool) -> Outcome<u64> {
    if bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let gpu = context.device.gpu;
    let make = |len| Block::on_device(gpu, Path::Linear, len, low);
    let (at, block) = HEAPS.with(context.handle, low, |heap| heap.allocate(bytes, make))?;
    space::insert(Region::new(at, bytes, Kind::Linear { low }, block, context));
    Ok(at)
}

/// Takes back the memory of an allocation that is no longer known.
pub(crate) fn release(region: &Region) {
    if let Kind::Linear { low } = region.kind {
        HEAPS.with(region.context, low, |heap| heap.release(&region.block, region.base, region.len));
    }
}

/// A context is gone, and with it what was allocated in it.
pub(crate) fn forget_context(context: &Context) {
    drop(space::remove_all(|r| r.context == context.handle && matches!(r.kind, Kind::Linear { .. })));
    HEAPS.forget(context.handle);
}

/// Waits until the context of an allocation is idle, as the driver does before it takes memory away. It is no
/// synchronisation of the client's: pools keep what they have.
pub(crate) fn wait_for(region: &Region) -> Outcome {
    wait_for_context(region.context)
}

/// The same for a context, if it still is one.
pub(crate) fn wait_for_context(handle: usize) -> Outcome {
    if let Some(Ok(lane)) = CONTEXTS.get(handle).map(|context| context.lane()) {
        for seq in lane.newest() {
            lane.world.wait(seq);
        }
        process()?.effects.settle();
    }
    Ok(())
}

fn free(address: u64) -> Outcome {
    current()?;
    capture::forbid_unsafe()?;
    if address == 0 {
        return Ok(());
    }
    let region = space::at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    match &region.kind {
        Kind::Linear { .. } | Kind::Managed(_) => {
            wait_for(&region)?;
            space::remove(&region)?;
            release(&region);
            managed::release(&region);
            Ok(())
        }
        Kind::Pool(_) => {
            wait_for(&region)?;
            pool::free_now(&region)
        }
        Kind::Graph(_) => {
            wait_for(&region)?;
            graphpool::free(address)
        }
        Kind::Module | Kind::Mapped(_) | Kind::Imported { .. } | Kind::Host { .. } | Kind::Registered { .. } => {
            Err(CUDA_ERROR_INVALID_VALUE)
        }
    }
}

fn alloc(out: Out<CUdeviceptr>, bytes: usize) -> Outcome {
    let context = current()?;
    capture::forbid_unsafe()?;
    out.required()?;
    out.set(allocate(&context, bytes as u64, false)?)
}

/// (pitch, total) of rows of `width` bytes.
fn pitched(width: usize, height: usize, element: u32) -> Outcome<(u64, u64)> {
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let pitch = (width as u64).checked_next_multiple_of(STEP).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok((pitch, pitch.checked_mul(height as u64).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?))
}

fn address_range(address: u64) -> Outcome<Arc<Region>> {
    current()?;
    space::find(address).ok_or(CUDA_ERROR_NOT_FOUND)
}

/// (free, total) of the current device, as CUDA says it.
fn info() -> Outcome<(u64, u64)> {
    let context = current()?;
    let world = process()?.world;
    Ok((world.free_bytes(context.device.gpu), context.device.settings.cuda_total()))
}

fn clamped(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

api! {
    export fn cuMemAlloc_v2(pointer: Out<CUdeviceptr>, bytes: usize) { alloc(pointer, bytes) }
    export fn cuMemAlloc(pointer: Out<CUdeviceptr_v1>, bytes: u32) {
        let context = current()?;
        capture::forbid_unsafe()?;
        pointer.required()?;
        pointer.set(allocate(&context, u64::from(bytes), true)? as u32)
    }
    export fn cuMemAllocPitch_v2(pointer: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        current()?;
        capture::forbid_unsafe()?;
        pitch.required()?;
        let (row, total) = pitched(width, height, element)?;
        alloc(pointer, total as usize)?;
        pitch.set(row as usize)
    }
    export fn cuMemAllocPitch(pointer: Out<CUdeviceptr_v1>, pitch: Out<u32>, width: u32, height: u32, element: u32) {
        let context = current()?;
        capture::forbid_unsafe()?;
        pointer.required()?;
        pitch.required()?;
        let (row, total) = pitched(width as usize, height as usize, element)?;
        pointer.set(allocate(&context, total, true)? as u32)?;
        pitch.set(clamped(row))
    }
    export fn cuMemFree_v2(pointer: CUdeviceptr) { free(pointer) }
    export fn cuMemFree(pointer: CUdeviceptr_v1) { free(u64::from(pointer)) }
    export fn cuMemGetAddressRange_v2(base: Out<CUdeviceptr>, size: Out<usize>, pointer: CUdeviceptr) {
        let region = address_range(pointer)?;
        base.maybe(region.base);
        size.maybe(region.len as usize);
        Ok(())
    }
    export fn cuMemGetAddressRange(base: Out<CUdeviceptr_v1>, size: Out<u32>, pointer: CUdeviceptr_v1) {
        let region = address_range(u64::from(pointer))?;
        base.maybe(region.base as u32);
        size.maybe(clamped(region.len));
        Ok(())
    }
    export fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (left, all) = info()?;
        free.maybe(left as usize);
        total.maybe(all as usize);
        Ok(())
    }
    export fn cuMemGetInfo(free: Out<u32>, total: Out<u32>) {
        let (left, all) = info()?;
        free.maybe(clamped(left));
        total.maybe(clamped(all));
        Ok(())
    }
}
