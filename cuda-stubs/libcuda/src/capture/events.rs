//! Events and captures: how a capture spreads from stream to stream, and comes back together.

use std::sync::Arc;

use super::session::Session;
use super::{break_capture, enter, is_capturing, record};
use crate::abi::*;
use crate::api::Outcome;
use crate::event::{Event, EventState};
use crate::graph::Edge;
use crate::lane::Order;
use crate::stream::Stream;
use crate::work::{self, Work};

/// The place in a capture where an event was recorded.
#[derive(Clone)]
pub(crate) struct CapturedEvent {
    session: Arc<Session>,
    after: Vec<(usize, Edge)>,
}

impl CapturedEvent {
    /// What a call gets that wants to know whether the event is done: it never will be. After the capture, or once that is
    /// broken, the event is good for nothing until it is recorded again.
    pub(crate) fn code(&self) -> CUresult {
        if self.session.is_active() { CUDA_ERROR_CAPTURED_EVENT } else { CUDA_ERROR_INVALID_VALUE }
    }

    /// Breaks the capture.
    pub(crate) fn invalidate(&self) {
        self.session.invalidate();
    }
}

/// `cuEventRecord`, into a capture or onto the timeline. `external`: as a node, for others to wait for.
pub(crate) fn record_event(stream: &Arc<Stream>, event: &Arc<Event>, external: bool) -> Outcome {
    if !is_capturing(stream)? {
        if external {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        return work::execute(stream, &Work::RecordEvent(Arc::clone(event)));
    }
    if external {
        return record(stream, Work::RecordEvent(Arc::clone(event))).map(|_| ());
    }
    let captured = {
        let at = stream.capture.place.lock();
        let place = at.as_ref().ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
        CapturedEvent { session: Arc::clone(&place.session), after: place.after.clone() }
    };
    *event.state.lock() = EventState::Captured(captured);
    Ok(())
}

/// What an event says to a stream that is to wait for it.
enum Last {
    Never,
    OnTimeline,
    Captured(CapturedEvent),
}

fn last(event: &Event) -> Last {
    match &*event.state.lock() {
        EventState::Never if event.ipc.is_none() => Last::Never,
        EventState::Captured(captured) => Last::Captured(captured.clone()),
        _ => Last::OnTimeline,
    }
}

/// `cuStreamWaitEvent`, joining a capture or on the timeline. `external`: as a node, for what others record.
pub(crate) fn wait_event(stream: &Arc<Stream>, event: &Arc<Event>, external: bool) -> Outcome {
    let capturing = is_capturing(stream)?;
    if external && !capturing {
        return Err(CUDA_ERROR_ILLEGAL_STATE);
    }
    match last(event) {
        Last::Captured(captured) if !captured.session.is_active() => {
            break_capture(stream);
            Err(CUDA_ERROR_INVALID_VALUE)
        }
        _ if external => record(stream, Work::WaitEvent(Arc::clone(event))).map(|_| ()),
        Last::Never => Ok(()),
        Last::OnTimeline if capturing => {
            break_capture(stream);
            Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        }
        Last::OnTimeline => work::execute(stream, &Work::WaitEvent(Arc::clone(event))),
        Last::Captured(captured) if capturing => join(stream, &captured),
        Last::Captured(captured) if stream.order == Order::Legacy => {
            captured.invalidate();
            Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        }
        Last::Captured(captured) => enter(stream, &captured.session, captured.after, false),
    }
}

/// A capturing stream waits for what its own capture recorded elsewhere.
fn join(stream: &Stream, captured: &CapturedEvent) -> Outcome {
    let mut at = stream.capture.place.lock();
    let place = at.as_mut().ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
    if !Arc::ptr_eq(&place.session, &captured.session) {
        place.session.invalidate();
        captured.invalidate();
        return Err(CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    for (node, edge) in &captured.after {
        if !place.after.iter().any(|(known, _)| known == node) {
            place.after.push((*node, *edge));
        }
    }
    Ok(())
}
