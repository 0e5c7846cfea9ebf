//! Contexts: what a process has on a device, which one a thread uses, and what each takes of the device's memory.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use sim_world::Path;

use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::device::Device;
use crate::lane::{Lane, Order};
use crate::process::{CONTEXTS, EVENTS, STREAMS, context, process};
use crate::stream::Stream;
use crate::{capture, memory, module, tables};

const THREADS_PER_SM: u64 = 2048;
const STACK_IN_CONTEXT: u64 = 1024;
/// What the H200 takes when code that uses the heap is first loaded into a context, and then besides the heap's size when
/// such a kernel is first launched.
const HEAP_CODE: u64 = 140 << 20;
const HEAP_OVERHEAD: u64 = 2 << 20;
const API_VERSION: u32 = 3020;

pub(crate) struct Context {
    pub handle: usize,
    pub id: u64,
    pub device: &'static Device,
    pub primary: bool,
    pub flags: AtomicU32,
    /// None while a primary context is not active, and after destruction.
    lane: RwLock<Option<Arc<Lane>>>,
    legacy: OnceLock<Arc<Stream>>,
    limits: Mutex<Limits>,
    /// Streams made so far, for spreading them over queues.
    pub streams_made: AtomicU64,
    /// Contexts whose memory this one may use.
    pub peers: Mutex<HashSet<usize>>,
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    stack: u64,
    printf: u64,
    heap: u64,
    pending_launches: u64,
    fetch_granularity: u64,
    persisting_l2: u64,
    /// Bytes of local memory per thread that the device has for this context now.
    local: u64,
    /// Bytes charged for the device-side heap.
    heap_charged: u64,
    /// And for the code of it.
    heap_code: u64,
}

impl Limits {
    const FRESH: Limits = Limits {
        stack: STACK_IN_CONTEXT,
        printf: 8_650_752,
        heap: 8_388_608,
        pending_launches: 2048,
        fetch_granularity: 64,
        persisting_l2: 11_796_480,
        local: STACK_IN_CONTEXT,
        heap_charged: 0,
        heap_code: 0,
    };
}

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's context, alive.
#[inline]
pub(crate) fn current() -> Outcome<Arc<Context>> {
    process()?;
    match top() {
        Some(context) if context.is_active() => Ok(context),
        Some(_) => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        None => Err(CUDA_ERROR_INVALID_CONTEXT),
    }
}

fn top() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow().last().cloned()).ok().flatten()
}

fn push(context: Arc<Context>) {
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(context));
}

fn pop() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten()
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Context {
    fn register(device: &'static Device, flags: u32, primary: bool) -> Arc<Context> {
        CONTEXTS.insert_with(|handle| Context {
            handle,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            device,
            primary,
            flags: AtomicU32::new(flags),
            lane: RwLock::new(None),
            legacy: OnceLock::new(),
            limits: Mutex::new(Limits::FRESH),
            streams_made: AtomicU64::new(0),
            peers: Mutex::default(),
        })
    }

    fn activate(&self) -> Outcome {
        let world = process()?.world;
        let mut lane = self.lane.write();
        if lane.is_some() {
            return Ok(());
        }
        let (settings, gpu) = (world.settings(), self.device.gpu);
        world
            .charge_all(gpu, &[(Path::Context, settings.context), (Path::Overhead, settings.context_overhead)])
            .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        match Lane::new(world, gpu) {
            Some(new) => *lane = Some(new),
            None => {
                world.refund(gpu, Path::Context, settings.context);
                world.refund(gpu, Path::Overhead, settings.context_overhead);
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
        *self.limits.lock() = Limits::FRESH;
        Ok(())
    }

    /// Takes everything down: queued work, streams, events, modules, memory.
    fn deactivate(&self) {
        let Ok(process) = process() else { return };
        let Some(lane) = self.lane.write().take() else { return };
        for seq in lane.newest() {
            lane.world.wait(seq);
        }
        process.effects.settle();
        lane.close();
        process.effects.settle();
        capture::forget_context(self.handle);
        STREAMS.remove_all(|stream| stream.context_handle() == self.handle);
        EVENTS.remove_all(|event| event.context == self.handle);
        tables::forget_context(self);
        module::forget_context(self);
        memory::forget_context(self);
        let (gpu, settings) = (self.device.gpu, lane.world.settings());
        let limits = std::mem::replace(&mut *self.limits.lock(), Limits::FRESH);
        lane.world.refund(gpu, Path::Local, self.local_bytes(limits.local));
        lane.world.refund(gpu, Path::Heap, limits.heap_charged + limits.heap_code);
        lane.world.refund(gpu, Path::Context, settings.context);
        lane.world.refund(gpu, Path::Overhead, settings.context_overhead);
        self.peers.lock().clear();
    }

    pub(crate) fn is_active(&self) -> bool {
        self.lane.read().is_some()
    }

    /// The way onto the timeline.
    #[inline]
    pub(crate) fn lane(&self) -> Outcome<Arc<Lane>> {
        self.lane.read().clone().ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// The legacy default stream.
    pub(crate) fn legacy(self: &Arc<Self>) -> Arc<Stream> {
        Arc::clone(self.legacy.get_or_init(|| Arc::new(Stream::new(0, self, 0, Order::Legacy, 0))))
    }

    /// Device memory that so many bytes of local memory per thread take beyond what is in a fresh context.
    fn local_bytes(&self, per_thread: u64) -> u64 {
        let threads = self.device.settings.sms * THREADS_PER_SM;
        (threads * per_thread.saturating_sub(STACK_IN_CONTEXT)).next_multiple_of(2 << 20)
    }

    /// Makes sure that kernels with so much local memory per thread can run. The driver does this at the launch.
    pub(crate) fn ensure_local(&self, per_thread: u64) -> Outcome {
        let mut limits = self.limits.lock();
        if per_thread <= limits.local {
            return Ok(());
        }
        self.resize_local(&mut limits, per_thread)
    }

    fn resize_local(&self, limits: &mut Limits, per_thread: u64) -> Outcome {
        let world = process()?.world;
        let (old, new) = (self.local_bytes(limits.local), self.local_bytes(per_thread));
        if new > old {
            world.charge(self.device.gpu, Path::Local, new - old).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        } else {
            world.refund(self.device.gpu, Path::Local, old - new);
        }
        limits.local = per_thread;
        Ok(())
    }

    /// Code that uses the heap is loaded into the context: what it takes then, once.
    pub(crate) fn ensure_heap_code(&self) -> Outcome {
        let mut limits = self.limits.lock();
        if limits.heap_code == 0 {
            process()?.world.charge(self.device.gpu, Path::Heap, HEAP_CODE).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
            limits.heap_code = HEAP_CODE;
        }
        Ok(())
    }

    /// Makes sure that the device-side heap is there. The driver does this when a kernel that uses it is first launched.
    pub(crate) fn ensure_heap(&self) -> Outcome {
        let mut limits = self.limits.lock();
        let wanted = limits.heap.next_multiple_of(2 << 20) + HEAP_OVERHEAD;
        if limits.heap_charged >= wanted {
            return Ok(());
        }
        process()?
            .world
            .charge(self.device.gpu, Path::Heap, wanted - limits.heap_charged)
            .map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        limits.heap_charged = wanted;
        Ok(())
    }

    /// Waits until all its work is done.
    pub(crate) fn synchronize(&self) -> Outcome {
        let lane = self.lane()?;
        for seq in lane.newest() {
            lane.world.wait(seq);
        }
        process()?.effects.settle();
        memory::synchronized();
        Ok(())
    }
}

/// The primary context's object, active or not.
pub(crate) fn primary_object(device: &'static Device) -> Arc<Context> {
    let mut primary = device.primary.lock();
    let flags = primary.flags;
    Arc::clone(primary.context.get_or_insert_with(|| Context::register(device, flags | CU_CTX_MAP_HOST, true)))
}

fn activate_primary(device: &'static Device) -> Outcome<Arc<Context>> {
    let context = primary_object(device);
    context.activate()?;
    Ok(context)
}

fn create(out: Out<CUcontext>, flags: u32, dev: CUdevice) -> Outcome {
    let device = process()?.device(dev)?;
    out.required()?;
    if flags & !(CU_CTX_FLAGS_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX) != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let context = Context::register(device, flags, false);
    if let Err(code) = context.activate() {
        CONTEXTS.remove(context.handle);
        return Err(code);
    }
    out.set(context.handle as CUcontext)?;
    push(context);
    Ok(())
}

fn destroy(handle: CUcontext) -> Outcome {
    let context = context(handle)?;
    if context.primary {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    CONTEXTS.remove(context.handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    context.deactivate();
    if top().is_some_and(|c| c.handle == context.handle) {
        pop();
    }
    Ok(())
}

fn pop_current(out: Out<CUcontext>) -> Outcome {
    process()?;
    let context = pop().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    out.maybe(context.handle as CUcontext);
    Ok(())
}

fn push_current(handle: CUcontext) -> Outcome {
    process()?;
    if handle.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    push(context(handle)?);
    Ok(())
}

fn release_primary(dev: CUdevice) -> Outcome {
    let device = process()?.device(dev)?;
    let _changing = device.changing.lock();
    let last = {
        let mut primary = device.primary.lock();
        if primary.retained == 0 {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        primary.retained -= 1;
        if primary.retained == 0 { primary.context.clone() } else { None }
    };
    if let Some(context) = last {
        context.deactivate();
    }
    Ok(())
}

fn reset_primary(dev: CUdevice) -> Outcome {
    let device = process()?.device(dev)?;
    let _changing = device.changing.lock();
    // Those who retained it still have to release it.
    let context = device.primary.lock().context.clone();
    if let Some(context) = context {
        context.deactivate();
    }
    Ok(())
}

fn set_primary_flags(dev: CUdevice, flags: u32) -> Outcome {
    let device = process()?.device(dev)?;
    if flags & !(CU_CTX_FLAGS_MASK) != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut primary = device.primary.lock();
    primary.flags = flags;
    if let Some(context) = &primary.context {
        context.flags.store(flags | CU_CTX_MAP_HOST, Ordering::Relaxed);
    }
    Ok(())
}

/// A limit that this GPU does not have, or that nobody has.
fn unknown_limit(limit: u32) -> CUresult {
    if limit < CU_LIMIT_MAX { CUDA_ERROR_UNSUPPORTED_LIMIT } else { CUDA_ERROR_INVALID_VALUE }
}

fn get_limit(limit: u32) -> Outcome<u64> {
    let context = current()?;
    let limits = *context.limits.lock();
    Ok(match limit {
        CU_LIMIT_STACK_SIZE => limits.stack,
        CU_LIMIT_PRINTF_FIFO_SIZE => limits.printf,
        CU_LIMIT_MALLOC_HEAP_SIZE => limits.heap,
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => limits.pending_launches,
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY => limits.fetch_granularity,
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE => limits.persisting_l2,
        CU_LIMIT_SHMEM_SIZE => 232_448,
        CU_LIMIT_CIG_ENABLED => 0,
        other => return Err(unknown_limit(other)),
    })
}

fn set_limit(limit: u32, value: u64) -> Outcome {
    let context = current()?;
    capture::forbid_unsafe()?;
    let mut limits = context.limits.lock();
    match limit {
        CU_LIMIT_STACK_SIZE => {
            let value = value.clamp(1, 512 << 10);
            context.resize_local(&mut limits, value.max(STACK_IN_CONTEXT))?;
            limits.stack = value;
        }
        CU_LIMIT_PRINTF_FIFO_SIZE => limits.printf = value,
        CU_LIMIT_MALLOC_HEAP_SIZE if limits.heap_charged != 0 => return Err(CUDA_ERROR_INVALID_VALUE),
        CU_LIMIT_MALLOC_HEAP_SIZE => limits.heap = value,
        CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => limits.pending_launches = value,
        CU_LIMIT_MAX_L2_FETCH_GRANULARITY => limits.fetch_granularity = value.min(128),
        CU_LIMIT_PERSISTING_L2_CACHE_SIZE => limits.persisting_l2 = value,
        other => return Err(unknown_limit(other)),
    }
    Ok(())
}

fn synchronize(context: &Arc<Context>) -> Outcome {
    capture::forbid_in_any_capture(context)?;
    context.synchronize()
}

api! {
    export fn cuCtxCreate(ctx: Out<CUcontext>, flags: u32, dev: CUdevice) { create(ctx, flags, dev) }
    export fn cuCtxCreate_v2(ctx: Out<CUcontext>, flags: u32, dev: CUdevice) { create(ctx, flags, dev) }
    export fn cuCtxCreate_v3(ctx: Out<CUcontext>, params: In<CUexecAffinityParam>, count: i32, flags: u32, dev: CUdevice) {
        if count != 0 || !params.is_null() {
            return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        create(ctx, flags, dev)
    }
    export fn cuCtxCreate_v4(ctx: Out<CUcontext>, params: In<CUctxCreateParams>, flags: u32, dev: CUdevice) {
        if let Some(params) = params.maybe() {
            if params.numExecAffinityParams != 0 {
                return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
            }
            if !params.cigParams.is_null() {
                return Err(CUDA_ERROR_NOT_SUPPORTED);
            }
        }
        create(ctx, flags, dev)
    }
    export fn cuCtxDestroy(ctx: CUcontext) { destroy(ctx) }
    export fn cuCtxDestroy_v2(ctx: CUcontext) { destroy(ctx) }
    export fn cuCtxPushCurrent(ctx: CUcontext) { push_current(ctx) }
    export fn cuCtxPushCurrent_v2(ctx: CUcontext) { push_current(ctx) }
    export fn cuCtxPopCurrent(ctx: Out<CUcontext>) { pop_current(ctx) }
    export fn cuCtxPopCurrent_v2(ctx: Out<CUcontext>) { pop_current(ctx) }
    export fn cuCtxSetCurrent(ctx: CUcontext) {
        process()?;
        if ctx.is_null() {
            pop();
            return Ok(());
        }
        let context = context(ctx)?;
        pop();
        push(context);
        Ok(())
    }
    export fn cuCtxGetCurrent(ctx: Out<CUcontext>) {
        process()?;
        ctx.set(top().map_or(std::ptr::null_mut(), |c| c.handle as CUcontext))
    }
    export fn cuCtxGetDevice(device: Out<CUdevice>) {
        process()?;
        device.set(top().ok_or(CUDA_ERROR_INVALID_CONTEXT)?.device.ordinal as CUdevice)
    }
    export fn cuCtxGetDevice_v2(device: Out<CUdevice>, ctx: CUcontext) {
        let context = if ctx.is_null() { top().ok_or(CUDA_ERROR_INVALID_CONTEXT)? } else { context(ctx)? };
        process()?;
        device.set(context.device.ordinal as CUdevice)
    }
    export fn cuCtxGetFlags(flags: Out<u32>) { flags.set(current()?.flags.load(Ordering::Relaxed)) }
    export fn cuCtxSetFlags(flags: u32) {
        if flags & !CU_CTX_FLAGS_MASK != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }
    export fn cuCtxGetId(ctx: CUcontext, id: Out<u64>) {
        let context = if ctx.is_null() { current()? } else { context(ctx)? };
        id.set(context.id)
    }
    export fn cuCtxSynchronize() { synchronize(&current()?) }
    export fn cuCtxSynchronize_v2(ctx: CUcontext) {
        let context = if ctx.is_null() { current()? } else { context(ctx)? };
        synchronize(&context)
    }
    export fn cuCtxGetLimit(value: Out<usize>, limit: u32) { value.set(get_limit(limit)? as usize) }
    export fn cuCtxSetLimit(limit: u32, value: usize) { set_limit(limit, value as u64) }
    export fn cuCtxGetApiVersion(ctx: CUcontext, version: Out<u32>) {
        process()?;
        let context = if ctx.is_null() { current()? } else { context(ctx)? };
        if !context.is_active() {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        version.set(API_VERSION)
    }
    export fn cuCtxGetCacheConfig(config: Out<u32>) { current()?; config.set(CU_FUNC_CACHE_PREFER_NONE) }
    export fn cuCtxSetCacheConfig(_config: u32) { current().map(|_| ()) }
    export fn cuCtxGetSharedMemConfig(config: Out<u32>) { current()?; config.set(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE) }
    export fn cuCtxSetSharedMemConfig(_config: u32) { current().map(|_| ()) }
    export fn cuCtxResetPersistingL2Cache() { current().map(|_| ()) }
    export fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.maybe(0);
        greatest.maybe(-5);
        Ok(())
    }
    export fn cuCtxGetExecAffinity(_affinity: Out<CUexecAffinityParam>, _kind: u32) {
        current()?;
        Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)
    }
    export fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) {
        let (own, peer) = (current()?, context(peer)?);
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if own.device.gpu == peer.device.gpu {
            return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        if own.peers.lock().insert(peer.handle) { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) }
    }
    export fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let (own, peer) = (current()?, context(peer)?);
        if own.peers.lock().remove(&peer.handle) { Ok(()) } else { Err(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED) }
    }
    export fn cuDevicePrimaryCtxRetain(ctx: Out<CUcontext>, dev: CUdevice) {
        let device = process()?.device(dev)?;
        ctx.required()?;
        let _changing = device.changing.lock();
        let context = activate_primary(device)?;
        device.primary.lock().retained += 1;
        ctx.set(context.handle as CUcontext)
    }
    export fn cuDevicePrimaryCtxRelease(dev: CUdevice) { release_primary(dev) }
    export fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) { release_primary(dev) }
    export fn cuDevicePrimaryCtxReset(dev: CUdevice) { reset_primary(dev) }
    export fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) { reset_primary(dev) }
    export fn cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: u32) { set_primary_flags(dev, flags) }
    export fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: u32) { set_primary_flags(dev, flags) }
    export fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: Out<u32>, active: Out<i32>) {
        let device = process()?.device(dev)?;
        let primary = device.primary.lock();
        flags.maybe(primary.flags);
        active.maybe(i32::from(primary.context.as_ref().is_some_and(|c| c.is_active())));
        Ok(())
    }
}
