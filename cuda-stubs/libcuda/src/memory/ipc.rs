//! Memory and events that another process opens by a handle of 64 bytes, and memory as a dma-buf.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use parking_lot::Mutex;
use sim_world::Path;
use sim_world::shared::{Descriptor, ShareHandle, from_bytes, to_bytes};

use super::address::Reservation;
use super::backing::Backing;
use super::blocks::{Block, STEP};
use super::charge::Charge;
use super::space::{self, Kind, Region};
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::context::{Context, current};
use crate::event::{self, Event};
use crate::process::{EVENTS, process};

/// What an event's handle begins with, so that nothing else is taken for one.
const EVENT_MAGIC: u64 = 0x4556_454e_545f_5349;
/// An allocation in a handle: its length in the low 48 bits, above them where it is in its block, in steps of 512.
const LENGTH_BITS: u32 = 48;

/// A block of another process's that is open here.
struct Import {
    block: Arc<Block>,
    /// How often each allocation in it was opened, by address.
    opened: BTreeMap<u64, usize>,
}

/// By share (index and id) and by the context that opened it.
static IMPORTS: Mutex<BTreeMap<(u64, u64, usize), Import>> = Mutex::new(BTreeMap::new());

fn handle_of(address: u64) -> Outcome<CUipcMemHandle> {
    current()?;
    let region = space::find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if !matches!(region.kind, Kind::Linear { .. }) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let share = region.block.share()?;
    let place = region.len | ((region.base - region.block.base) / STEP) << LENGTH_BITS;
    let mut handle = CUipcMemHandle::default();
    for (to, from) in handle.reserved.iter_mut().zip(to_bytes(&share).into_iter().chain(place.to_le_bytes())) {
        *to = from as _;
    }
    Ok(handle)
}

fn bytes_of(reserved: &[std::ffi::c_char; 64]) -> [u8; 64] {
    reserved.map(|byte| byte as u8)
}

/// The share that a handle names, and where in it the allocation is: start and length.
fn decode(handle: &CUipcMemHandle) -> Option<(ShareHandle, u64, u64)> {
    let bytes = bytes_of(&handle.reserved);
    let (share, place) = bytes.split_at(56);
    let share = from_bytes(share)?;
    let place = place.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (start, len) = ((place >> LENGTH_BITS) * STEP, place & ((1 << LENGTH_BITS) - 1));
    (len != 0 && start.checked_add(len)? <= share.bytes).then_some((share, start, len))
}

fn open(out: Out<CUdeviceptr>, handle: &CUipcMemHandle, flags: u32) -> Outcome {
    let context = current()?;
    let process = process()?;
    out.required()?;
    if flags & !CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let (share, start, len) = decode(handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if (share.owner, share.owner_generation) == (process.world.slot() as u64, process.world.generation()) {
        return Err(CUDA_ERROR_INVALID_CONTEXT); // one's own
    }
    process.devices.iter().find(|d| d.gpu as u64 == share.gpu).ok_or(CUDA_ERROR_INVALID_DEVICE)?;
    let mut imports = IMPORTS.lock();
    let key = (share.index, share.id, context.handle);
    if let std::collections::btree_map::Entry::Vacant(slot) = imports.entry(key) {
        let held = Charge::imported(share, Path::Linear)?;
        let addresses = Reservation::new(share.bytes)?;
        let backing = Arc::new(Backing::imported(&share, share.bytes));
        let block = Block::new(addresses.base(), share.bytes, backing, Some(held), Some(addresses));
        slot.insert(Import { block: Arc::new(block), opened: BTreeMap::new() });
    }
    let Some(import) = imports.get_mut(&key) else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let base = import.block.base + start;
    let times = import.opened.entry(base).or_insert(0);
    *times += 1;
    if *times == 1 {
        let kind = Kind::Imported { from_pool: false };
        space::insert(Region::new(base, len, kind, Arc::clone(&import.block), &context));
    }
    out.set(base)
}

fn close(address: u64) -> Outcome {
    current()?;
    let region = space::at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if !matches!(region.kind, Kind::Imported { from_pool: false }) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    super::linear::wait_for(&region)?;
    let mut imports = IMPORTS.lock();
    for (key, import) in imports.iter_mut() {
        let Some(times) = import.opened.get_mut(&address) else { continue };
        *times -= 1;
        if *times == 0 {
            import.opened.remove(&address);
            space::remove(&region)?;
        }
        if import.opened.is_empty() {
            let key = *key;
            imports.remove(&key);
        }
        return Ok(());
    }
    Err(CUDA_ERROR_INVALID_VALUE)
}

/// A descriptor by which other devices reach memory. It holds all of the allocation, also when that is freed.
fn dma_buf(out: Out<i32>, address: u64, len: usize, kind: u32, flags: u64) -> Outcome {
    const PAGE: u64 = 4096;
    let process = process()?;
    out.required()?;
    let end = address.checked_add(len as u64).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let region = space::find(address).filter(|r| len != 0 && end <= r.base + r.len.next_multiple_of(PAGE));
    let region = region.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let aligned = address.is_multiple_of(PAGE) && (len as u64).is_multiple_of(PAGE);
    if kind != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0 || !aligned {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let share = match &region.kind {
        Kind::Linear { .. } => region.block.share()?,
        Kind::Mapped(mapping) => mapping.physical.share()?,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let fd = process.world.export_fd(&share, Descriptor::DmaBuf).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
    out.set(fd.into_raw_fd())
}

/// A context is gone, and with it what was opened in it.
pub(crate) fn forget_context(context: &Context) {
    drop(space::remove_all(|r| r.context == context.handle && matches!(r.kind, Kind::Imported { .. })));
    IMPORTS.lock().retain(|(_, _, owner), _| *owner != context.handle);
}

fn event_handle(handle: CUevent) -> Outcome<CUipcEventHandle> {
    let event = event::get(handle)?;
    let (slot, id) = event.ipc.ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let mut out = CUipcEventHandle::default();
    let words = [EVENT_MAGIC, slot, id].into_iter().flat_map(u64::to_le_bytes);
    for (to, from) in out.reserved.iter_mut().zip(words) {
        *to = from as _;
    }
    Ok(out)
}

fn open_event(out: Out<CUevent>, handle: &CUipcEventHandle) -> Outcome {
    let context = current()?;
    out.required()?;
    let bytes = bytes_of(&handle.reserved);
    let mut words =
        bytes.chunks_exact(8).map(|eight| eight.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)));
    let (magic, slot, id) = (words.next(), words.next().unwrap_or(0), words.next().unwrap_or(0));
    let world = process()?.world;
    if magic != Some(EVENT_MAGIC) || world.ipc_event(slot, id).is_none() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if world.file().ipc_events[slot as usize].owner.get() == world.slot() as u64 {
        return Err(CUDA_ERROR_INVALID_CONTEXT); // one's own
    }
    let flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    let event = EVENTS.insert_with(|handle| Event {
        handle,
        context: context.handle,
        flags,
        state: Mutex::default(),
        ipc: Some((slot, id)),
    });
    out.set(event.handle as CUevent)
}

api! {
    export fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, pointer: CUdeviceptr) {
        handle.required()?;
        handle.set(handle_of(pointer)?)
    }
    export fn cuIpcOpenMemHandle_v2(pointer: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) { open(pointer, &handle, flags) }
    export fn cuIpcOpenMemHandle(pointer: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) { open(pointer, &handle, flags) }
    export fn cuIpcCloseMemHandle(pointer: CUdeviceptr) { close(pointer) }
    export fn cuMemGetHandleForAddressRange(handle: *mut c_void, pointer: CUdeviceptr, size: usize, kind: CUmemRangeHandleType, flags: u64) {
        dma_buf(Out::from_ptr(handle.cast()), pointer, size, kind, flags)
    }
    export fn cuIpcGetEventHandle(handle: Out<CUipcEventHandle>, event: CUevent) {
        handle.required()?;
        handle.set(event_handle(event)?)
    }
    export fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: CUipcEventHandle) { open_event(event, &handle) }
}
