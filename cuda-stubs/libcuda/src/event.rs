//! Events: marks in streams that can be waited for and timed.

use std::sync::Arc;

use parking_lot::Mutex;
use sim_world::channel::Seq;

use crate::abi::*;
use crate::api::{DefaultStream, Out, Outcome};
use crate::capture::{self, CapturedEvent};
use crate::context::current;
use crate::lane::Mark;
use crate::process::{EVENTS, process};
use crate::stream;

pub(crate) struct Event {
    pub handle: usize,
    /// The context it belongs to.
    pub context: usize,
    pub flags: u32,
    pub state: Mutex<EventState>,
    /// (slot, id) in the world, for events that cross processes.
    pub ipc: Option<(u64, u64)>,
}

/// What was last recorded.
#[derive(Default)]
pub(crate) enum EventState {
    #[default]
    Never,
    Recorded(Arc<Mark>),
    /// In a stream that was capturing.
    Captured(CapturedEvent),
}

impl Event {
    pub(crate) fn is_timed(&self) -> bool {
        self.flags & CU_EVENT_DISABLE_TIMING == 0
    }

    /// Notes a record made on the timeline.
    pub(crate) fn recorded(&self, mark: Arc<Mark>) {
        if let (Some((slot, id)), Ok(process)) = (self.ipc, process()) {
            process.world.record_ipc_event(slot, id, mark.seq.to_word());
        }
        *self.state.lock() = EventState::Recorded(mark);
    }

    /// What somebody who waits for it waits for; None when there is nothing to wait for.
    pub(crate) fn pending(&self) -> Outcome<Option<Seq>> {
        if let Some((slot, id)) = self.ipc {
            let word = process()?.world.ipc_event(slot, id).unwrap_or(0);
            return Ok(Seq::from_word(word));
        }
        match &*self.state.lock() {
            EventState::Never => Ok(None),
            EventState::Recorded(mark) => Ok(Some(mark.seq)),
            EventState::Captured(captured) => Err(captured.code()),
        }
    }

    fn mark(&self) -> Outcome<Option<Arc<Mark>>> {
        match &*self.state.lock() {
            EventState::Never => Ok(None),
            EventState::Recorded(mark) => Ok(Some(Arc::clone(mark))),
            EventState::Captured(captured) => Err(captured.code()),
        }
    }
}

pub(crate) fn get(handle: CUevent) -> Outcome<Arc<Event>> {
    process()?;
    EVENTS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn create(out: Out<CUevent>, flags: u32) -> Outcome {
    let context = current()?;
    out.required()?;
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    let interprocess = flags & CU_EVENT_INTERPROCESS != 0;
    if flags & !known != 0 || (interprocess && flags & CU_EVENT_DISABLE_TIMING == 0) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let ipc = match interprocess {
        true => Some(process()?.world.new_ipc_event().ok_or(CUDA_ERROR_OUT_OF_MEMORY)?),
        false => None,
    };
    let event =
        EVENTS.insert_with(|handle| Event { handle, context: context.handle, flags, state: Mutex::default(), ipc });
    out.set(event.handle as CUevent)
}

fn destroy(handle: CUevent) -> Outcome {
    process()?;
    EVENTS.remove(handle as usize).map(|_| ()).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

fn record(event: CUevent, stream: CUstream, flags: u32, default: DefaultStream) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    let event = get(event)?;
    if flags & !CU_EVENT_RECORD_EXTERNAL != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if event.context != stream.context_handle() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    capture::record_event(&stream, &event, flags & CU_EVENT_RECORD_EXTERNAL != 0)
}

/// Querying or waiting for an event that a capture holds breaks that capture.
fn forbid_captured(event: &Event) -> Outcome {
    if let EventState::Captured(captured) = &*event.state.lock() {
        let code = captured.code();
        captured.invalidate();
        return Err(code);
    }
    Ok(())
}

fn elapsed(out: Out<f32>, start: CUevent, end: CUevent) -> Outcome {
    let (start, end) = (get(start)?, get(end)?);
    if out.is_null() || !start.is_timed() || !end.is_timed() {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let (Some(start), Some(end)) = (start.mark()?, end.mark()?) else { return Err(CUDA_ERROR_INVALID_HANDLE) };
    if !start.poll() || !end.poll() {
        return Err(CUDA_ERROR_NOT_READY);
    }
    let (start, end) = (start.done_ns().unwrap_or(0), end.done_ns().unwrap_or(0));
    out.set(((end as f64 - start as f64) / 1e6) as f32)
}

api! {
    export fn cuEventCreate(event: Out<CUevent>, flags: u32) { create(event, flags) }
    export fn cuEventDestroy(event: CUevent) { destroy(event) }
    export fn cuEventDestroy_v2(event: CUevent) { destroy(event) }
    export fn cuEventRecord | cuEventRecord_ptsz(default; event: CUevent, stream: CUstream) { record(event, stream, 0, default) }
    export fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(default; event: CUevent, stream: CUstream, flags: u32) {
        record(event, stream, flags, default)
    }
    export fn cuEventQuery(event: CUevent) {
        let event = get(event)?;
        forbid_captured(&event)?;
        capture::forbid_unsafe()?;
        let world = process()?.world;
        match event.pending()? {
            Some(seq) if !world.poll(seq) => Err(CUDA_ERROR_NOT_READY),
            _ => {
                process()?.effects.settle();
                Ok(())
            }
        }
    }
    export fn cuEventSynchronize(event: CUevent) {
        let event = get(event)?;
        forbid_captured(&event)?;
        capture::forbid_unsafe()?;
        if let Some(seq) = event.pending()? {
            process()?.world.wait(seq);
        }
        process()?.effects.settle();
        crate::memory::synchronized();
        Ok(())
    }
    export fn cuEventElapsedTime(ms: Out<f32>, start: CUevent, end: CUevent) { elapsed(ms, start, end) }
    export fn cuEventElapsedTime_v2(ms: Out<f32>, start: CUevent, end: CUevent) { elapsed(ms, start, end) }
}
