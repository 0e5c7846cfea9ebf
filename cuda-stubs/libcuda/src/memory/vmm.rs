//! Virtual memory management: addresses, physical memory, and mapping one to the other.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sim_world::Path;
use sim_world::shared::{Descriptor, ShareHandle};

use super::address::{GRANULE, Reservation};
use super::backing::Backing;
use super::blocks::{ABSURD, Block};
use super::charge::Charge;
use super::space::{self, Kind, Region};
use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::{Context, current, primary_object};
use crate::handles::{Registry, Tag};
use crate::process::process;

/// Handles of physical memory. The memory lives while a handle or a mapping does.
static HANDLES: Registry<Handle> = Registry::new(Tag::Allocation);
/// Reserved addresses.
static RESERVED: Mutex<BTreeMap<u64, Reservation>> = Mutex::new(BTreeMap::new());

struct Handle {
    physical: Arc<Physical>,
    /// How often it has to be released.
    count: Mutex<usize>,
}

/// Physical memory.
pub(crate) struct Physical {
    pub size: u64,
    /// As it was asked for.
    pub form: Form,
    backing: Arc<Backing>,
    /// None for memory of the host's.
    charge: Option<Charge>,
    /// Its handle, if that still is one.
    handle: Mutex<u64>,
}

/// What of `CUmemAllocationProp` is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub handle_types: u32,
    location: (u32, i32),
    compression: u8,
    rdma: u8,
    usage: u16,
}

/// A mapping's state, in its region.
pub(crate) struct Mapping {
    pub physical: Arc<Physical>,
    /// By location: flags of cuMemSetAccess.
    access: Mutex<BTreeMap<(u32, i32), u32>>,
    accessible: AtomicBool,
}

impl Mapping {
    /// Whether anything may use it.
    pub(crate) fn is_accessible(&self) -> bool {
        self.accessible.load(Ordering::Acquire)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(charge) = self.charge.take() {
            charge.end(&self.backing);
        }
    }
}

impl Physical {
    /// Makes it something that others can hold too.
    pub(crate) fn share(&self) -> Outcome<ShareHandle> {
        let Some(charge) = &self.charge else { return Err(unmodelled!("exporting physical memory of the host's")) };
        charge.share(self.backing.publish()?)
    }
}

impl Form {
    fn of(prop: &CUmemAllocationProp) -> Outcome<Form> {
        if prop.type_ != CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(match prop.type_ {
                CU_MEM_ALLOCATION_TYPE_MANAGED => unmodelled!("cuMemCreate of managed memory"),
                _ => CUDA_ERROR_INVALID_VALUE,
            });
        }
        match prop.location.type_ {
            CU_MEM_LOCATION_TYPE_DEVICE => drop(process()?.device(prop.location.id)?),
            CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {}
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        if prop.requestedHandleTypes & !CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
            return Err(unmodelled!("physical memory that is exported otherwise than as a file descriptor"));
        }
        let flags = prop.allocFlags;
        Ok(Form {
            handle_types: prop.requestedHandleTypes,
            location: (prop.location.type_, prop.location.id),
            compression: flags.compressionType,
            rdma: flags.gpuDirectRDMACapable,
            usage: flags.usage,
        })
    }

    fn prop(&self) -> CUmemAllocationProp {
        let mut prop = CUmemAllocationProp {
            type_: CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: self.handle_types,
            location: CUmemLocation { type_: self.location.0, id: self.location.1 },
            ..Default::default()
        };
        prop.allocFlags.compressionType = self.compression;
        prop.allocFlags.gpuDirectRDMACapable = self.rdma;
        prop.allocFlags.usage = self.usage;
        prop
    }

    fn gpu(&self) -> Option<usize> {
        let device = || process().ok()?.device(self.location.1).ok();
        (self.location.0 == CU_MEM_LOCATION_TYPE_DEVICE).then(device).flatten().map(|d| d.gpu)
    }
}

fn get(handle: u64) -> Outcome<Arc<Handle>> {
    process()?;
    HANDLES.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// The handle of physical memory, to be released once more than before; a new one if the old one is gone.
fn hand_out(physical: &Arc<Physical>) -> u64 {
    let mut handle = physical.handle.lock();
    if let Some(there) = HANDLES.get(*handle as usize) {
        let mut count = there.count.lock();
        if *count != 0 {
            *count += 1;
            return *handle;
        }
    }
    *handle = HANDLES.insert(Handle { physical: Arc::clone(physical), count: Mutex::new(1) }) as u64;
    *handle
}

fn sized(size: usize) -> Outcome<u64> {
    let size = size as u64;
    if size == 0 || !size.is_multiple_of(GRANULE) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if size > ABSURD { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(size) }
}

fn create(out: Out<u64>, size: usize, prop: &CUmemAllocationProp, flags: u64) -> Outcome {
    process()?;
    out.required()?;
    let form = Form::of(prop)?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let size = sized(size)?;
    let charge = form.gpu().map(|gpu| Charge::take(gpu, Path::Vmm, size)).transpose()?;
    let backing = Arc::new(Backing::new(size));
    out.set(hand_out(&Arc::new(Physical { size, form, backing, charge, handle: Mutex::new(0) })))
}

fn release(handle: u64) -> Outcome {
    let found = get(handle)?;
    let mut count = found.count.lock();
    *count = count.checked_sub(1).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if *count == 0 {
        HANDLES.remove(handle as usize);
    }
    Ok(())
}

fn reserve(out: Out<CUdeviceptr>, size: usize, alignment: usize, wanted: u64, flags: u64) -> Outcome {
    process()?;
    out.required()?;
    let size = sized(size)?;
    if flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let reservation = Reservation::at_or_near(wanted, size, alignment as u64)?;
    let base = reservation.base();
    RESERVED.lock().insert(base, reservation);
    out.set(base)
}

fn unreserve(base: u64, size: usize) -> Outcome {
    process()?;
    let mut reserved = RESERVED.lock();
    let whole = reserved.get(&base).is_some_and(|r| r.len() == size as u64);
    if !whole || !space::within(base, size as u64).is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    reserved.remove(&base);
    Ok(())
}

/// The reservation that an address is in: its beginning and length.
pub(crate) fn reservation_of(address: u64) -> Option<(u64, u64)> {
    let reserved = RESERVED.lock();
    let (base, found) = reserved.range(..=address).next_back()?;
    (address < base + found.len()).then(|| (*base, found.len()))
}

/// Whose the mapping is, as far as pointers' attributes go: the device's primary context, as the memory belongs to none.
fn context_for(physical: &Physical) -> Outcome<Arc<Context>> {
    match physical.form.gpu() {
        Some(_) => Ok(primary_object(process()?.device(physical.form.location.1)?)),
        None => current().or_else(|_| Ok(primary_object(process()?.device(0)?))),
    }
}

fn map(base: u64, size: usize, offset: usize, handle: u64, flags: u64) -> Outcome {
    let physical = Arc::clone(&get(handle)?.physical);
    let size = size as u64;
    if flags != 0 || !base.is_multiple_of(GRANULE) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if offset != 0 || size != physical.size {
        return Err(CUDA_ERROR_NOT_SUPPORTED); // the real driver's own answer to mapping a part
    }
    let reserved = RESERVED.lock();
    let inside = reserved.range(..=base).next_back().is_some_and(|(at, r)| base + size <= at + r.len());
    if !inside || !space::within(base, size).is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let context = context_for(&physical)?;
    let block = Block::new(base, size, Arc::clone(&physical.backing), None, None);
    let mapping = Mapping { physical, access: Mutex::default(), accessible: AtomicBool::new(false) };
    space::insert(Region::new(base, size, Kind::Mapped(mapping), Arc::new(block), &context));
    Ok(())
}

/// The mappings that make up a range, whole and without gaps.
fn mappings(base: u64, size: usize) -> Outcome<Vec<Arc<Region>>> {
    process()?;
    let size = sized(size)?;
    let found = space::within(base, size);
    let mut next = base;
    for region in &found {
        if !matches!(region.kind, Kind::Mapped(_)) || region.base != next {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        next = region.end();
    }
    if next == base + size { Ok(found) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Takes whole mappings out of a reserved range; where nothing is mapped there is nothing to do.
fn unmap(base: u64, size: usize) -> Outcome {
    process()?;
    let end = base + sized(size)?;
    let reserved = RESERVED.lock();
    let inside = reserved.range(..=base).next_back().is_some_and(|(at, r)| end <= at + r.len());
    let found = space::within(base, end - base);
    let whole = |r: &Arc<Region>| matches!(r.kind, Kind::Mapped(_)) && r.base >= base && r.end() <= end;
    if !inside || !found.iter().all(whole) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    found.iter().try_for_each(space::remove)
}

fn set_access(base: u64, size: usize, descriptions: In<CUmemAccessDesc>, count: usize) -> Outcome {
    let found = mappings(base, size)?;
    let all = descriptions.array(count)?;
    for one in &all {
        let flags = matches!(
            one.flags,
            CU_MEM_ACCESS_FLAGS_PROT_NONE | CU_MEM_ACCESS_FLAGS_PROT_READ | CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        );
        match one.location.type_ {
            CU_MEM_LOCATION_TYPE_DEVICE => drop(process()?.device(one.location.id)?),
            CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {}
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        }
        if !flags {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
    }
    if count == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for region in found {
        let Kind::Mapped(mapping) = &region.kind else { continue };
        let mut access = mapping.access.lock();
        for one in &all {
            access.insert((one.location.type_, one.location.id), one.flags);
        }
        mapping.accessible.store(access.values().any(|flags| *flags != 0), Ordering::Release);
    }
    Ok(())
}

fn get_access(out: Out<u64>, location: &CUmemLocation, address: u64) -> Outcome {
    process()?;
    let region = space::find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Mapped(mapping) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let flags = mapping.access.lock().get(&(location.type_, location.id)).copied();
    out.set(u64::from(flags.unwrap_or(CU_MEM_ACCESS_FLAGS_PROT_NONE)))
}

fn export(out: Out<i32>, handle: u64, kind: u32, flags: u64) -> Outcome {
    let handle = get(handle)?;
    let physical = &handle.physical;
    out.required()?;
    if flags != 0 || kind & physical.form.handle_types == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let share = physical.share()?;
    let fd = process()?.world.export_fd(&share, Descriptor::Handle).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    out.set(fd.into_raw_fd())
}

fn import(out: Out<u64>, fd: i32, kind: u32) -> Outcome {
    let process = process()?;
    out.required()?;
    if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return Err(match kind {
            CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC => {
                unmodelled!("importing memory otherwise than by a file descriptor")
            }
            _ => CUDA_ERROR_INVALID_VALUE,
        });
    }
    let share: ShareHandle =
        process.world.import_fd(fd).filter(|share| share.bytes != 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let device = process.devices.iter().find(|d| d.gpu as u64 == share.gpu).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
    let charge = Charge::imported(share, Path::Vmm)?;
    let form = Form {
        // What was imported cannot be exported again, not even by its maker.
        handle_types: 0,
        location: (CU_MEM_LOCATION_TYPE_DEVICE, device.ordinal as i32),
        compression: 0,
        rdma: 0,
        usage: 0,
    };
    let backing = Arc::new(Backing::imported(&share, share.bytes));
    let physical = Physical { size: share.bytes, form, backing, charge: Some(charge), handle: Mutex::new(0) };
    out.set(hand_out(&Arc::new(physical)))
}

api! {
    export fn cuMemAddressReserve(pointer: Out<CUdeviceptr>, size: usize, alignment: usize, wanted: CUdeviceptr, flags: u64) {
        reserve(pointer, size, alignment, wanted, flags)
    }
    export fn cuMemAddressFree(pointer: CUdeviceptr, size: usize) { unreserve(pointer, size) }
    export fn cuMemCreate(handle: Out<CUmemGenericAllocationHandle>, size: usize, prop: In<CUmemAllocationProp>, flags: u64) {
        create(handle, size, &prop.get()?, flags)
    }
    export fn cuMemRelease(handle: CUmemGenericAllocationHandle) { release(handle) }
    export fn cuMemMap(pointer: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64) {
        map(pointer, size, offset, handle, flags)
    }
    export fn cuMemUnmap(pointer: CUdeviceptr, size: usize) {
        unmap(pointer, size)
    }
    export fn cuMemSetAccess(pointer: CUdeviceptr, size: usize, descriptions: In<CUmemAccessDesc>, count: usize) {
        set_access(pointer, size, descriptions, count)
    }
    export fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, pointer: CUdeviceptr) { get_access(flags, &location.get()?, pointer) }
    export fn cuMemGetAllocationGranularity(granularity: Out<usize>, prop: In<CUmemAllocationProp>, option: CUmemAllocationGranularity_flags) {
        process()?;
        Form::of(&prop.get()?)?;
        if option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        granularity.set(GRANULE as usize)
    }
    export fn cuMemGetAllocationPropertiesFromHandle(prop: Out<CUmemAllocationProp>, handle: CUmemGenericAllocationHandle) {
        prop.set(get(handle)?.physical.form.prop())
    }
    export fn cuMemRetainAllocationHandle(handle: Out<CUmemGenericAllocationHandle>, address: *mut c_void) {
        process()?;
        handle.required()?;
        let region = space::find(address as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let Kind::Mapped(mapping) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
        handle.set(hand_out(&mapping.physical))
    }
    export fn cuMemExportToShareableHandle(shareable: Out<i32>, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: u64) {
        export(shareable, handle, kind, flags)
    }
    export fn cuMemImportFromShareableHandle(handle: Out<CUmemGenericAllocationHandle>, shareable: *mut c_void, kind: CUmemAllocationHandleType) {
        import(handle, shareable as usize as i32, kind)
    }
}
