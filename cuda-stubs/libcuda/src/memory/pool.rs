//! Memory pools: stream-ordered allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sim_world::Path;
use sim_world::shared::ShareHandle;

use super::address::Reservation;
use super::backing::Backing;
use super::blocks::{ABSURD, Block, STEP};
use super::charge::{Charge, charge, refund};
use super::poolspace::PoolSpace;
use super::space::{self, Kind, Region};
use crate::abi::*;
use crate::api::Outcome;
use crate::context::Context;
use crate::device::Device;
use crate::handles::{Registry, Tag};
use crate::lane::{Mark, Piece};
use crate::stream::Stream;

pub(crate) use super::poolspace::CHUNK;

/// Where the next pool begins, if that is free; the first where the real driver's does.
static NEXT_BASE: AtomicU64 = AtomicU64::new(0x3_0200_0000);

/// How long somebody who looks for room waits for another thread that uses a pool.
pub(crate) const A_MOMENT: Duration = Duration::from_millis(1);

/// Every pool of this process.
pub(crate) static POOLS: Registry<Pool> = Registry::new(Tag::Pool);

/// By device: the pool it came with, and the one it uses now.
static OF_DEVICES: Mutex<BTreeMap<usize, [Arc<Pool>; 2]>> = Mutex::new(BTreeMap::new());

/// Destroyed pools from which something is still allocated.
static DESTROYED: Mutex<Vec<Arc<Pool>>> = Mutex::new(Vec::new());

/// Something was freed that has not gone back yet; spares those who synchronise a look at every pool.
static UNSETTLED: AtomicBool = AtomicBool::new(false);

pub(crate) struct Pool {
    pub handle: usize,
    pub device: &'static Device,
    /// Kinds of handles it can be exported as.
    pub handle_types: u32,
    pub max_size: usize,
    pub usage: u16,
    is_default: bool,
    /// All its addresses, and the bytes behind them.
    pub block: Arc<Block>,
    pub state: Mutex<State>,
    /// For a pool that another process exported: what it is.
    pub imported: Option<ShareHandle>,
}

pub(crate) struct State {
    space: PoolSpace<Order>,
    used: u64,
    used_high: u64,
    reserved_high: u64,
    pub threshold: u64,
    /// The three ways of using memory again: following events, opportunistic, by new dependencies.
    pub reuse: [bool; 3],
    /// Access by other devices.
    pub access: BTreeMap<i32, u32>,
    /// Holds the export, once there is one.
    pub export: Option<Charge>,
    /// Chunks, by their start, in which something was exported: whoever holds the pool keeps them.
    lent: BTreeSet<u64>,
}

/// The work behind which a range is free. It goes for others, and its memory goes back, only when somebody has synchronised
/// after that; whoever allocates in the same stream may have it at once.
#[derive(Clone)]
struct Order {
    stream: u64,
    /// None if the stream had nothing to do.
    mark: Option<Arc<Mark>>,
}

/// A pool allocation's state, in its region.
pub(crate) struct PoolRegion {
    pub pool: Arc<Pool>,
}

/// What a pool is made with.
pub(crate) struct PoolForm {
    pub handle_types: u32,
    pub max_size: usize,
    pub usage: u16,
    pub is_default: bool,
}

impl Pool {
    pub(crate) fn create(device: &'static Device, form: &PoolForm) -> Outcome<Arc<Pool>> {
        let len = match form.max_size as u64 {
            0 => (2 * device.settings.cuda_total()).next_multiple_of(CHUNK), // twice, so that holes do not use it up
            size if size > ABSURD => return Err(CUDA_ERROR_INVALID_VALUE),
            size => size.next_multiple_of(CHUNK),
        };
        let addresses = Reservation::at_or_near(NEXT_BASE.load(Ordering::Relaxed), len, CHUNK)?;
        NEXT_BASE.store(addresses.base() + len, Ordering::Relaxed);
        let backing = Backing::new(len);
        if form.handle_types != 0 {
            // While nothing is in it: later, its whole length would have to be searched for bytes to move.
            backing.publish()?;
        }
        let block = Block::new(addresses.base(), len, Arc::new(backing), None, Some(addresses));
        if form.handle_types != 0 {
            block.backing.publish()?; // now, while there are no bytes to move
        }
        Ok(Pool::register(device, form, block, None))
    }

    /// A pool of this process's making, or (with `imported`) a window into another's.
    pub(crate) fn register(
        device: &'static Device,
        form: &PoolForm,
        block: Block,
        imported: Option<ShareHandle>,
    ) -> Arc<Pool> {
        let len = block.len;
        POOLS.insert_with(|handle| Pool {
            handle,
            device,
            handle_types: form.handle_types,
            max_size: form.max_size,
            usage: form.usage,
            is_default: form.is_default,
            block: Arc::new(block),
            state: Mutex::new(State {
                space: PoolSpace::new(len),
                used: 0,
                used_high: 0,
                reserved_high: 0,
                threshold: 0,
                reuse: [true; 3],
                access: BTreeMap::new(),
                export: None,
                lent: BTreeSet::new(),
            }),
            imported,
        })
    }

    /// The properties that it was made with, as the C form.
    pub(crate) fn props(&self) -> CUmemPoolProps {
        CUmemPoolProps {
            allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: self.handle_types,
            location: CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: self.device.ordinal as i32 },
            maxSize: self.max_size,
            usage: self.usage,
            ..Default::default()
        }
    }

    /// Memory that is there from this point of a stream on.
    pub(crate) fn allocate(self: &Arc<Pool>, bytes: u64, stream: &Stream) -> Outcome<u64> {
        if bytes == 0 || self.imported.is_some() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if bytes > ABSURD {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let context = stream.context()?;
        let lane = context.lane()?;
        let size = bytes.next_multiple_of(STEP);
        let mut state = self.state.lock();
        let (start, waits) = self.place(&mut state, size, stream.id)?;
        state.used += bytes;
        state.used_high = state.used_high.max(state.used);
        state.reserved_high = state.reserved_high.max(state.space.reserved());
        drop(state);
        let others = waits.iter().filter(|order| order.stream != stream.id && !order.is_done());
        let behind: Vec<_> = others.filter_map(|order| order.mark.as_ref()).map(|mark| mark.seq).collect();
        if !behind.is_empty() {
            lane.submit(stream.queue, stream.order, Piece::MARKER, &behind);
        }
        let base = self.block.base + start;
        let kind = Kind::Pool(PoolRegion { pool: Arc::clone(self) });
        space::insert(Region::new(base, bytes, kind, Arc::clone(&self.block), &context));
        Ok(base)
    }

    /// Finds and takes a place: in memory that the stream may use, else in new memory, else in memory that another stream has
    /// yet to be through with.
    fn place(&self, state: &mut State, size: u64, stream: u64) -> Outcome<(u64, Vec<Order>)> {
        let opportunistic = state.reuse[1];
        let mine = |order: &Order| order.stream == stream || (opportunistic && order.is_done());
        if let Some(start) = state.space.find(size, true, mine) {
            return Ok((start, state.space.take(start, size)));
        }
        let fresh = state.space.find(size, false, mine);
        if let Some(start) = fresh {
            let gpu = self.device.gpu;
            let mut got = charge(gpu, Path::Pool, state.space.lacking(start, size));
            if got.is_err() {
                // What lies unused in the pool is remapped to where it is needed.
                self.give_back(state, |_| true);
                got = charge(gpu, Path::Pool, state.space.lacking(start, size));
            }
            if got.is_ok() {
                return Ok((start, state.space.take(start, size)));
            }
        }
        let shared = if state.reuse[2] { state.space.find(size, true, |_| true) } else { None };
        shared.map(|start| (start, state.space.take(start, size))).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn free(&self, region: &Region, after: Option<Order>) {
        let mut state = self.state.lock();
        state.space.put(region.base - self.block.base, region.len.next_multiple_of(STEP), after);
        state.used -= region.len;
        UNSETTLED.store(true, Ordering::Release);
    }

    /// Gives memory back while `more` (told what there is) wants it.
    fn give_back(&self, state: &mut State, more: impl Fn(u64) -> bool) {
        let gone = state.space.release(more);
        let (mut own, mut lent) = (0, 0);
        for (start, len) in &gone {
            if state.lent.remove(start) {
                lent += len; // its bytes are still somebody's
            } else {
                let _ = self.block.backing.zero(*start, *len);
                own += len;
            }
        }
        refund(self.device.gpu, Path::Pool, own);
        if let Some(export) = state.export.as_ref().filter(|_| lent != 0) {
            export.end_lending(lent);
        }
    }

    /// An allocation is exported: the memory it lies in is kept by all who hold the pool.
    pub(crate) fn lend(&self, start: u64, len: u64) {
        let mut state = self.state.lock();
        let State { export, lent, .. } = &mut *state;
        let chunks = (start / CHUNK..(start + len).div_ceil(CHUNK)).map(|chunk| chunk * CHUNK);
        let new = chunks.filter(|chunk| lent.insert(*chunk)).count() as u64;
        if let Some(export) = export {
            export.lend(new * CHUNK);
        }
    }

    /// Gives back what is above the threshold. False when some of it still waits for work.
    fn settle(&self) -> bool {
        let mut state = self.state.lock();
        state.space.settle(Order::is_done);
        let threshold = state.threshold;
        self.give_back(&mut state, |left| left > threshold);
        !state.space.is_waiting()
    }

    /// `cuMemPoolTrimTo`: of what was free when somebody last synchronised.
    pub(crate) fn trim(&self, keep: u64) {
        let mut state = self.state.lock();
        self.give_back(&mut state, |left| left.saturating_sub(CHUNK) >= keep && left != 0);
    }

    /// reserved, reserved high, used, used high.
    pub(crate) fn figures(&self) -> [u64; 4] {
        let state = self.state.lock();
        [state.space.reserved(), state.reserved_high, state.used, state.used_high]
    }

    /// Begins the high-water marks anew.
    pub(crate) fn reset_high(&self, reserved: bool) {
        let mut state = self.state.lock();
        if reserved {
            state.reserved_high = state.space.reserved();
        } else {
            state.used_high = state.used;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let lent = state.lent.len() as u64 * CHUNK;
        refund(self.device.gpu, Path::Pool, state.space.reserved() - lent);
        if let Some(export) = state.export.take() {
            export.end_lending(lent);
            export.end(&self.block.backing);
        }
    }
}

impl Order {
    fn is_done(&self) -> bool {
        self.mark.as_ref().is_none_or(|mark| mark.done_ns().is_some())
    }
}

/// The pool a device came with, and the one it uses now.
fn of_device(device: &'static Device) -> Outcome<[Arc<Pool>; 2]> {
    let mut all = OF_DEVICES.lock();
    if let Some(pools) = all.get(&device.ordinal) {
        return Ok(pools.clone());
    }
    let form = PoolForm { handle_types: 0, max_size: 0, usage: 0, is_default: true };
    let pool = Pool::create(device, &form)?;
    let pools = [Arc::clone(&pool), pool];
    all.insert(device.ordinal, pools.clone());
    Ok(pools)
}

/// The pool a device came with.
pub(crate) fn default_of(device: &'static Device) -> Outcome<Arc<Pool>> {
    of_device(device).map(|[default, _]| default)
}

/// The pool a device uses.
pub(crate) fn current_of(device: &'static Device) -> Outcome<Arc<Pool>> {
    of_device(device).map(|[_, current]| current)
}

/// Makes a device use another pool.
pub(crate) fn set_current(device: &'static Device, pool: Arc<Pool>) -> Outcome {
    let [default, _] = of_device(device)?;
    OF_DEVICES.lock().insert(device.ordinal, [default, pool]);
    Ok(())
}

/// Takes a pool away; what was allocated from it lives on until it is freed.
pub(crate) fn destroy(handle: usize) -> Outcome {
    let pool = POOLS.get(handle).filter(|pool| !pool.is_default).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    POOLS.remove(handle);
    for [default, current] in OF_DEVICES.lock().values_mut() {
        if current.handle == handle {
            *current = Arc::clone(default);
        }
    }
    if pool.state.lock().used != 0 {
        DESTROYED.lock().push(pool);
    }
    Ok(())
}

/// Frees a pool allocation behind what is in a stream.
pub(crate) fn free_after(region: &Arc<Region>, stream: &Stream) -> Outcome {
    let Kind::Pool(PoolRegion { pool }) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let lane = stream.lane()?;
    space::remove(region)?;
    let idle = lane.pending(stream.queue, stream.order).is_empty();
    let mark = (!idle).then(|| lane.submit_marked(stream.queue, stream.order, Piece::MARKER, &[]));
    pool.free(region, Some(Order { stream: stream.id, mark }));
    Ok(())
}

/// Frees a pool allocation that nothing uses any more.
pub(crate) fn free_now(region: &Arc<Region>) -> Outcome {
    let Kind::Pool(PoolRegion { pool }) = &region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    space::remove(region)?;
    pool.free(region, None);
    Ok(())
}

/// Somebody synchronised: what is free and above the thresholds goes back.
pub(crate) fn synchronized() {
    if !UNSETTLED.swap(false, Ordering::AcqRel) {
        return;
    }
    let waiting = POOLS.all().iter().filter(|pool| !pool.settle()).count(); // every one of them is settled
    let mut destroyed = DESTROYED.lock();
    destroyed.retain(|pool| !pool.settle() || pool.state.lock().used != 0);
    if waiting != 0 || !destroyed.is_empty() {
        UNSETTLED.store(true, Ordering::Release);
    }
}

/// Gives up everything that pools of a GPU keep for later; for allocations that find no room. A pool that is being used at
/// this moment is left out: it may be its own allocation that asks.
pub(crate) fn make_room(gpu: usize) {
    for pool in POOLS.all().iter().filter(|pool| pool.device.gpu == gpu) {
        if let Some(mut state) = pool.state.try_lock_for(A_MOMENT) {
            pool.give_back(&mut state, |_| true);
        }
    }
}

/// A context is gone, and with it what was allocated in it; with the last of a device, what pools kept for later too.
pub(crate) fn forget_context(context: &Context) {
    for region in space::remove_all(|r| r.context == context.handle && matches!(r.kind, Kind::Pool(_))) {
        if let Kind::Pool(PoolRegion { pool }) = &region.kind {
            pool.free(&region, None);
        }
    }
    let gpu = context.device.gpu;
    let others = crate::process::CONTEXTS.all();
    let last = !others.iter().any(|c| c.handle != context.handle && c.device.gpu == gpu && c.is_active());
    for pool in POOLS.all().iter().filter(|pool| pool.device.gpu == gpu) {
        pool.settle();
        if last {
            pool.trim(0);
        }
    }
}
