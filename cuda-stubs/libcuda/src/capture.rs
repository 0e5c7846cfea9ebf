//! Stream capture: recording a stream's work into a graph instead of doing it, and what breaks that.

use std::sync::Arc;

use crate::api::Outcome;
use crate::context::Context;
use crate::event::Event;
use crate::stream::Stream;
use crate::work::{self, Work};

/// What a stream is capturing.
#[derive(Default)]
pub(crate) struct CaptureState {}

/// The place in a capture where an event was recorded.
pub(crate) struct CapturedEvent {}

impl CapturedEvent {
    /// Breaks the capture.
    pub(crate) fn invalidate(&self) {}
}

/// Whether work put into the stream is recorded. Fails when its capture is broken, or when the work would order the legacy
/// stream against a capturing one.
#[inline]
pub(crate) fn is_capturing(_stream: &Arc<Stream>) -> Outcome<bool> {
    Ok(false)
}

/// Adds work to the graph being captured.
pub(crate) fn add(_stream: &Arc<Stream>, _work: Work) -> Outcome {
    Ok(())
}

/// Calls that are unsafe during capture fail and break captures, by the calling thread's mode.
pub(crate) fn forbid_unsafe() -> Outcome {
    Ok(())
}

/// Synchronising with, or asking about, a stream that is capturing fails and breaks the capture, in every mode.
pub(crate) fn forbid_on_stream(_stream: &Arc<Stream>) -> Outcome {
    Ok(())
}

/// Synchronising with a context fails and breaks all its captures, in every mode.
pub(crate) fn forbid_in_any_capture(_context: &Arc<Context>) -> Outcome {
    Ok(())
}

/// `cuEventRecord`, into a capture or onto the timeline.
pub(crate) fn record_event(stream: &Arc<Stream>, event: &Arc<Event>, _external: bool) -> Outcome {
    work::enqueue(stream, Work::RecordEvent(Arc::clone(event)))
}

/// `cuStreamWaitEvent`, joining a capture or on the timeline.
pub(crate) fn wait_event(stream: &Arc<Stream>, event: &Arc<Event>, _external: bool) -> Outcome {
    work::enqueue(stream, Work::WaitEvent(Arc::clone(event)))
}

/// A capturing stream was destroyed.
pub(crate) fn stream_destroyed(_stream: &Stream) {}
