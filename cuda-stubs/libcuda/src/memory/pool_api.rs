//! The entry points of memory pools.

use std::ffi::c_void;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use sim_world::Path;
use sim_world::shared::{Descriptor, ShareHandle, from_bytes, to_bytes};

use super::address::Reservation;
use super::backing::Backing;
use super::blocks::Block;
use super::charge::Charge;
use super::pool::{self, CHUNK, POOLS, Pool, PoolForm, PoolRegion};
use super::space::{self, Kind, Region};
use super::{graphpool, linear};
use crate::abi::*;
use crate::api::{DefaultStream, In, Out, Outcome};
use crate::capture;
use crate::context::current;
use crate::device::Device;
use crate::effects::Effect;
use crate::lane::Piece;
use crate::process::process;
use crate::stream::{self, Stream};

fn get(handle: CUmemoryPool) -> Outcome<Arc<Pool>> {
    process()?;
    POOLS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Allocates in a stream: from a pool, or as a node of the graph that the stream is capturing.
fn allocate(
    out: Out<CUdeviceptr>,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    default: DefaultStream,
) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    out.required()?;
    let pool = match pool {
        Some(handle) => get(handle)?,
        None => pool::current_of(stream.context()?.device)?,
    };
    if capture::is_capturing(&stream)? {
        return out.set(capture::add_alloc(&stream, &pool.props(), bytes as u64)?);
    }
    capture::forbid_unsafe()?;
    if bytes == 0 {
        return out.set(0);
    }
    out.set(pool.allocate(bytes as u64, &stream)?)
}

fn free(address: u64, stream: CUstream, default: DefaultStream) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    if address == 0 {
        return Ok(());
    }
    if capture::is_capturing(&stream)? {
        return capture::add_free(&stream, address);
    }
    capture::forbid_unsafe()?;
    let region = space::at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    match &region.kind {
        Kind::Pool(_) => pool::free_after(&region, &stream),
        Kind::Graph(_) => graphpool::free(address),
        Kind::Linear { .. } => free_linear_after(&region, &stream),
        Kind::Imported { from_pool: true } => space::remove(&region), // the exporter frees the memory
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// cuMemFreeAsync takes what cuMemAlloc gave, too: it goes back when the stream has come to it.
fn free_linear_after(region: &Arc<Region>, stream: &Stream) -> Outcome {
    let lane = stream.lane()?;
    space::remove(region)?;
    let mark = lane.submit_marked(stream.queue, stream.order, Piece::MARKER, &[]);
    let region = Arc::clone(region);
    process()?.effects.add(mark, Effect::After(Box::new(move || linear::release(&region))));
    Ok(())
}

fn create(out: Out<CUmemoryPool>, props: &CUmemPoolProps) -> Outcome {
    let process = process()?;
    out.required()?;
    if props.allocType != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(match props.allocType {
            CU_MEM_ALLOCATION_TYPE_MANAGED => unmodelled!("a pool of managed memory"),
            _ => CUDA_ERROR_INVALID_VALUE,
        });
    }
    if props.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(match props.location.type_ {
            CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {
                unmodelled!("a pool of host memory")
            }
            _ => CUDA_ERROR_INVALID_VALUE,
        });
    }
    if props.handleTypes & !CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        return Err(unmodelled!("a pool that is exported otherwise than as a file descriptor"));
    }
    let device = process.device(props.location.id).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let form =
        PoolForm { handle_types: props.handleTypes, max_size: props.maxSize, usage: props.usage, is_default: false };
    out.set(Pool::create(device, &form)?.handle as CUmemoryPool)
}

fn get_attribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Outcome {
    let pool = get(pool)?;
    capture::forbid_unsafe()?;
    let [reserved, reserved_high, used, used_high] = pool.figures();
    let number = |n: u64| Out::from_ptr(value.cast::<u64>()).set(n);
    match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            let on = pool.state.lock().reuse[attribute as usize - 1];
            Out::from_ptr(value.cast::<i32>()).set(i32::from(on))
        }
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => number(pool.state.lock().threshold),
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => number(reserved),
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => number(reserved_high),
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT => number(used),
        CU_MEMPOOL_ATTR_USED_MEM_HIGH => number(used_high),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

fn set_attribute(pool: CUmemoryPool, attribute: u32, value: *mut c_void) -> Outcome {
    let pool = get(pool)?;
    capture::forbid_unsafe()?;
    let number = || Out::from_ptr(value.cast::<u64>()).get();
    match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        | CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            let on = Out::from_ptr(value.cast::<i32>()).get()? != 0;
            pool.state.lock().reuse[attribute as usize - 1] = on;
        }
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.state.lock().threshold = number()?,
        // High-water marks can only be begun anew.
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH if number()? == 0 => {
            pool.reset_high(attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

fn set_access(pool: CUmemoryPool, descriptions: In<CUmemAccessDesc>, count: usize) -> Outcome {
    let pool = get(pool)?;
    let all = descriptions.array(count)?;
    for one in &all {
        let own = one.location.id == pool.device.ordinal as i32;
        let known = matches!(
            one.flags,
            CU_MEM_ACCESS_FLAGS_PROT_NONE | CU_MEM_ACCESS_FLAGS_PROT_READ | CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        );
        if one.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
            || !known
            || (own && one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        process()?.device(one.location.id)?;
    }
    let mut state = pool.state.lock();
    for one in all {
        state.access.insert(one.location.id, one.flags);
    }
    Ok(())
}

fn get_access(out: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: &CUmemLocation) -> Outcome {
    let pool = get(pool)?;
    if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    process()?.device(location.id)?;
    let own = location.id == pool.device.ordinal as i32;
    let none = if own { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE };
    let flags = pool.state.lock().access.get(&location.id).copied();
    out.set(flags.unwrap_or(none))
}

/// The device that a pool for this kind of memory is of.
fn location_device(location: In<CUmemLocation>, kind: u32) -> Outcome<&'static Device> {
    let location = location.get()?;
    if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE || kind != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(unmodelled!("a pool of other than pinned device memory"));
    }
    process()?.device(location.id)
}

/// Makes the pool's bytes something that other processes can map, and says what they are.
fn export(pool: &Pool) -> Outcome<ShareHandle> {
    if pool.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR == 0 || pool.imported.is_some() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut state = pool.state.lock();
    if state.export.is_none() {
        // It holds the pool's address range; the memory in it stays on the account of the process that allocates.
        state.export = Some(Charge::take(pool.device.gpu, Path::Pool, 0)?);
    }
    let offset = pool.block.backing.publish()?;
    state.export.as_ref().map_or(Err(CUDA_ERROR_INVALID_VALUE), |held| held.share(offset))
}

fn import(out: Out<CUmemoryPool>, fd: i32) -> Outcome {
    let process = process()?;
    out.required()?;
    let share = process.world.import_fd(fd).filter(|share| share.bytes == 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let device = process.devices.iter().find(|d| d.gpu as u64 == share.gpu).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
    let held = Charge::imported(share, Path::Pool)?;
    let len = (2 * device.settings.cuda_total()).next_multiple_of(CHUNK);
    let addresses = Reservation::aligned(len, CHUNK)?;
    let block =
        Block::new(addresses.base(), len, Arc::new(Backing::imported(&share, len)), Some(held), Some(addresses));
    let form =
        PoolForm { handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, max_size: 0, usage: 0, is_default: false };
    out.set(Pool::register(device, &form, block, Some(share)).handle as CUmemoryPool)
}

fn export_pointer(out: Out<CUmemPoolPtrExportData>, address: u64) -> Outcome {
    process()?;
    let region = space::at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Pool(PoolRegion { pool }) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    if pool.state.lock().export.is_none() {
        return Err(CUDA_ERROR_INVALID_VALUE); // the pool itself has to be exported first
    }
    let share = export(pool)?;
    pool.lend(region.base - pool.block.base, region.len);
    let mut data = CUmemPoolPtrExportData::default();
    // The pool's own size is not needed again: its place holds where the allocation is, and the end how long.
    let named = ShareHandle { bytes: region.base - pool.block.base, ..share };
    for (to, from) in data.reserved.iter_mut().zip(to_bytes(&named).into_iter().chain(region.len.to_le_bytes())) {
        *to = from;
    }
    out.set(data)
}

fn import_pointer(out: Out<CUdeviceptr>, pool: CUmemoryPool, data: In<CUmemPoolPtrExportData>) -> Outcome {
    let context = current()?;
    let (pool, data) = (get(pool)?, data.get()?);
    out.required()?;
    let own = pool.imported.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let named = from_bytes(&data.reserved[..56]).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let len = data.reserved[56..].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let inside = named.bytes.checked_add(len).is_some_and(|end| end <= pool.block.len);
    if (named.index, named.id) != (own.index, own.id) || len == 0 || !inside {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let base = pool.block.base + named.bytes;
    if space::at(base).is_none() {
        space::insert(Region::new(base, len, Kind::Imported { from_pool: true }, Arc::clone(&pool.block), &context));
    }
    out.set(base)
}

api! {
    export fn cuMemAllocAsync | cuMemAllocAsync_ptsz(default; pointer: Out<CUdeviceptr>, bytes: usize, stream: CUstream) {
        allocate(pointer, bytes, None, stream, default)
    }
    export fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(default; pointer: Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) {
        allocate(pointer, bytes, Some(pool), stream, default)
    }
    export fn cuMemFreeAsync | cuMemFreeAsync_ptsz(default; pointer: CUdeviceptr, stream: CUstream) { free(pointer, stream, default) }
    export fn cuMemPoolCreate(pool: Out<CUmemoryPool>, props: In<CUmemPoolProps>) {
        capture::forbid_unsafe()?;
        create(pool, &props.get()?)
    }
    export fn cuMemPoolDestroy(pool: CUmemoryPool) {
        process()?;
        capture::forbid_unsafe()?;
        pool::destroy(pool as usize)
    }
    export fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        let pool = get(pool)?;
        capture::forbid_unsafe()?;
        pool.trim(keep as u64);
        Ok(())
    }
    export fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) { get_attribute(pool, attribute, value) }
    export fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: CUmemPool_attribute, value: *mut c_void) { set_attribute(pool, attribute, value) }
    export fn cuMemPoolSetAccess(pool: CUmemoryPool, descriptions: In<CUmemAccessDesc>, count: usize) { set_access(pool, descriptions, count) }
    export fn cuMemPoolGetAccess(flags: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: In<CUmemLocation>) {
        get_access(flags, pool, &location.get()?)
    }
    export fn cuDeviceGetDefaultMemPool(pool: Out<CUmemoryPool>, dev: CUdevice) {
        pool.required()?;
        pool.set(pool::default_of(process()?.device(dev)?)?.handle as CUmemoryPool)
    }
    export fn cuDeviceGetMemPool(pool: Out<CUmemoryPool>, dev: CUdevice) {
        pool.required()?;
        pool.set(pool::current_of(process()?.device(dev)?)?.handle as CUmemoryPool)
    }
    export fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) {
        let device = process()?.device(dev)?;
        let pool = get(pool)?;
        if pool.device.gpu != device.gpu || pool.imported.is_some() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pool::set_current(device, pool)
    }
    export fn cuMemGetDefaultMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: CUmemAllocationType) {
        process()?;
        pool.set(pool::default_of(location_device(location, kind)?)?.handle as CUmemoryPool)
    }
    export fn cuMemGetMemPool(pool: Out<CUmemoryPool>, location: In<CUmemLocation>, kind: CUmemAllocationType) {
        process()?;
        pool.set(pool::current_of(location_device(location, kind)?)?.handle as CUmemoryPool)
    }
    export fn cuMemSetMemPool(location: In<CUmemLocation>, kind: CUmemAllocationType, pool: CUmemoryPool) {
        process()?;
        let (device, pool) = (location_device(location, kind)?, get(pool)?);
        if pool.device.gpu != device.gpu || pool.imported.is_some() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        pool::set_current(device, pool)
    }
    export fn cuMemPoolExportToShareableHandle(handle: Out<i32>, pool: CUmemoryPool, kind: CUmemAllocationHandleType, flags: u64) {
        let pool = get(pool)?;
        handle.required()?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let share = export(&pool)?;
        let fd = process()?.world.export_fd(&share, Descriptor::Handle).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        handle.set(fd.into_raw_fd())
    }
    export fn cuMemPoolImportFromShareableHandle(pool: Out<CUmemoryPool>, handle: *mut c_void, kind: CUmemAllocationHandleType, flags: u64) {
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        import(pool, handle as usize as i32)
    }
    export fn cuMemPoolExportPointer(data: Out<CUmemPoolPtrExportData>, pointer: CUdeviceptr) { export_pointer(data, pointer) }
    export fn cuMemPoolImportPointer(pointer: Out<CUdeviceptr>, pool: CUmemoryPool, data: In<CUmemPoolPtrExportData>) {
        import_pointer(pointer, pool, data)
    }
}
