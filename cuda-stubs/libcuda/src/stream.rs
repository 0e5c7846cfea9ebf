//! Streams: orders of work, and waiting for them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use sim_world::channel::Seq;
use sim_world::layout::QUEUES;

use crate::abi::*;
use crate::api::{DefaultStream, Out, Outcome};
use crate::capture::{self, CaptureState};
use crate::context::{Context, current};
use crate::lane::{Lane, Order};
use crate::memory;
use crate::process::{STREAMS, process};
use crate::work::{self, Work};

pub(crate) struct Stream {
    /// 0 for the default streams, which have no handle of their own.
    pub handle: usize,
    pub id: u64,
    context: Weak<Context>,
    context_handle: usize,
    pub queue: usize,
    pub order: Order,
    /// As CUDA counts: 0 is least, more negative goes first.
    pub priority: i32,
    /// What is being captured in it.
    pub capture: CaptureState,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(7); // as the real driver's first stream of a program

thread_local! {
    /// The calling thread's own default stream, by context.
    static PER_THREAD: RefCell<Vec<Arc<Stream>>> = const { RefCell::new(Vec::new()) };
}

impl Stream {
    pub(crate) fn new(handle: usize, context: &Arc<Context>, queue: usize, order: Order, priority: i32) -> Stream {
        let id = if order == Order::Legacy { 1 } else { NEXT_ID.fetch_add(1, Ordering::Relaxed) };
        Stream {
            handle,
            id,
            context: Arc::downgrade(context),
            context_handle: context.handle,
            queue,
            order,
            priority,
            capture: CaptureState::default(),
        }
    }

    pub(crate) fn context_handle(&self) -> usize {
        self.context_handle
    }

    pub(crate) fn context(&self) -> Outcome<Arc<Context>> {
        self.context.upgrade().ok_or(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    pub(crate) fn lane(&self) -> Outcome<Arc<Lane>> {
        self.context()?.lane()
    }

    /// Priority as the timeline wants it: larger goes first.
    pub(crate) fn rank(&self) -> u8 {
        (-self.priority).clamp(0, 255) as u8
    }

    /// What the stream still has to do.
    pub(crate) fn pending(&self) -> Outcome<Vec<Seq>> {
        Ok(self.lane()?.pending(self.queue, self.order))
    }

    /// Waits until all that is in it now is done, effects included.
    pub(crate) fn synchronize(&self) -> Outcome {
        let lane = self.lane()?;
        for seq in lane.pending(self.queue, self.order) {
            lane.world.wait(seq);
        }
        process()?.effects.settle();
        memory::synchronized();
        Ok(())
    }
}

fn next_queue(context: &Context) -> usize {
    1 + context.streams_made.fetch_add(1, Ordering::Relaxed) as usize % (QUEUES - 1)
}

/// The stream that a handle means to a caller: a stream, or one of the three numbers for default streams.
pub(crate) fn resolve(handle: CUstream, default: DefaultStream) -> Outcome<Arc<Stream>> {
    match handle as usize {
        0 if default == DefaultStream::Legacy => Ok(current()?.legacy()),
        1 => Ok(current()?.legacy()),
        0 | 2 => per_thread(),
        other => {
            process()?;
            let stream = STREAMS.get(other).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
            Ok(stream)
        }
    }
}

fn per_thread() -> Outcome<Arc<Stream>> {
    let context = current()?;
    let find = |streams: &RefCell<Vec<Arc<Stream>>>| {
        let mut streams = streams.borrow_mut();
        streams.retain(|s| s.context.strong_count() != 0);
        if let Some(found) = streams.iter().find(|s| s.context_handle == context.handle) {
            return Arc::clone(found);
        }
        let new = Arc::new(Stream::new(0, &context, next_queue(&context), Order::Blocking, 0));
        streams.push(Arc::clone(&new));
        new
    };
    // A thread that is ending has no stream of its own any more; the legacy one is what is left.
    PER_THREAD.try_with(find).or_else(|_| Ok(context.legacy()))
}

fn create(out: Out<CUstream>, flags: u32, priority: i32) -> Outcome {
    let context = current()?;
    out.required()?;
    let order = match flags {
        CU_STREAM_DEFAULT => Order::Blocking,
        CU_STREAM_NON_BLOCKING => Order::NonBlocking,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    };
    let queue = next_queue(&context);
    let stream = STREAMS.insert_with(|handle| Stream::new(handle, &context, queue, order, priority.clamp(-5, 0)));
    out.set(stream.handle as CUstream)
}

fn destroy(handle: CUstream) -> Outcome {
    process()?;
    let stream = STREAMS.remove(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    capture::stream_destroyed(&stream);
    Ok(()) // what is in it is still done; the queue is the context's
}

fn wait_event(stream: CUstream, event: CUevent, flags: u32, default: DefaultStream) -> Outcome {
    let stream = resolve(stream, default)?;
    let event = crate::event::get(event)?;
    if flags & !CU_EVENT_WAIT_EXTERNAL != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    capture::wait_event(&stream, &event, flags & CU_EVENT_WAIT_EXTERNAL != 0)
}

api! {
    export fn cuStreamCreate(stream: Out<CUstream>, flags: u32) { create(stream, flags, 0) }
    export fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: u32, priority: i32) { create(stream, flags, priority) }
    export fn cuStreamDestroy(stream: CUstream) { destroy(stream) }
    export fn cuStreamDestroy_v2(stream: CUstream) { destroy(stream) }
    export fn cuStreamSynchronize | cuStreamSynchronize_ptsz(default; stream: CUstream) {
        let stream = resolve(stream, default)?;
        capture::forbid_on_stream(&stream)?;
        capture::forbid_unsafe()?;
        stream.synchronize()
    }
    export fn cuStreamQuery | cuStreamQuery_ptsz(default; stream: CUstream) {
        let stream = resolve(stream, default)?;
        capture::forbid_on_stream(&stream)?;
        capture::forbid_unsafe()?;
        let lane = stream.lane()?;
        lane.world.advance();
        let idle = stream.pending()?.is_empty();
        process()?.effects.settle();
        if idle { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
    }
    export fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(default; stream: CUstream, event: CUevent, flags: u32) {
        wait_event(stream, event, flags, default)
    }
    export fn cuStreamGetFlags | cuStreamGetFlags_ptsz(default; stream: CUstream, flags: Out<u32>) {
        let stream = resolve(stream, default)?;
        capture::forbid_on_stream(&stream)?; // the driver does not answer this, nor the two below, while it captures
        flags.set(if stream.order == Order::NonBlocking { CU_STREAM_NON_BLOCKING } else { CU_STREAM_DEFAULT })
    }
    export fn cuStreamGetPriority | cuStreamGetPriority_ptsz(default; stream: CUstream, priority: Out<i32>) {
        priority.set(resolve(stream, default)?.priority)
    }
    export fn cuStreamGetId | cuStreamGetId_ptsz(default; stream: CUstream, id: Out<u64>) {
        let stream = resolve(stream, default)?;
        capture::forbid_on_stream(&stream)?;
        id.set(stream.id)
    }
    export fn cuStreamGetCtx | cuStreamGetCtx_ptsz(default; stream: CUstream, ctx: Out<CUcontext>) {
        ctx.set(resolve(stream, default)?.context()?.handle as CUcontext)
    }
    export fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(default; stream: CUstream, ctx: Out<CUcontext>, green: Out<CUgreenCtx>) {
        green.maybe(std::ptr::null_mut());
        ctx.set(resolve(stream, default)?.context()?.handle as CUcontext)
    }
    export fn cuStreamGetDevice | cuStreamGetDevice_ptsz(default; stream: CUstream, device: Out<CUdevice>) {
        let stream = resolve(stream, default)?;
        capture::forbid_on_stream(&stream)?;
        device.set(stream.context()?.device.ordinal as CUdevice)
    }
    export fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(default; stream: CUstream, function: CUhostFn, data: *mut std::ffi::c_void) {
        let stream = resolve(stream, default)?;
        let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        work::enqueue(&stream, Work::Host(work::HostCall { function, data: data as usize }))
    }
    export fn cuStreamAddCallback | cuStreamAddCallback_ptsz(default; stream: CUstream, callback: CUstreamCallback, data: *mut std::ffi::c_void, flags: u32) {
        let resolved = resolve(stream, default)?;
        let callback = callback.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        capture::forbid_on_stream(&resolved)?;
        work::add_callback(&resolved, stream as usize, callback, data as usize)
    }
}
