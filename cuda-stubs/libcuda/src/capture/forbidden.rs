//! Calls that captures do not bear.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::session::Session;
use super::{session_of, thread};
use crate::abi::*;
use crate::api::Outcome;
use crate::context::Context;
use crate::lane::Order;
use crate::stream::Stream;

/// For work into a stream that captures concern: whether it is recorded.
#[cold]
pub(super) fn look_closer(stream: &Arc<Stream>) -> Outcome<bool> {
    if stream.order == Order::Legacy {
        break_around_legacy(stream);
        return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    match session_of(stream) {
        Some(session) => session.check().map(|()| true),
        None => Ok(false),
    }
}

/// The legacy stream waits for blocking streams; where those are capturing, there is nothing that it could wait for.
fn break_around_legacy(legacy: &Stream) {
    let is_blocking = |s: &Arc<Stream>| s.order == Order::Blocking && s.context_handle() == legacy.context_handle();
    for session in Session::all() {
        if session.streams().iter().any(is_blocking) {
            session.invalidate();
        }
    }
}

/// Calls that are unsafe during capture fail and break captures, by the calling thread's mode.
#[inline]
pub(crate) fn forbid_unsafe() -> Outcome {
    if Session::any() { forbid_unsafe_now() } else { Ok(()) }
}

#[cold]
fn forbid_unsafe_now() -> Outcome {
    let (mode, me) = (thread::mode(), thread::this());
    if mode == CU_STREAM_CAPTURE_MODE_RELAXED {
        return Ok(());
    }
    let mut outcome = Ok(());
    for session in Session::all() {
        let own = session.thread == me && session.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        let everybodys = mode == CU_STREAM_CAPTURE_MODE_GLOBAL && session.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if own || everybodys {
            session.invalidate();
            outcome = Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    outcome
}

/// Synchronising with, or asking about, a stream that is capturing fails and breaks the capture, in every mode.
#[inline]
pub(crate) fn forbid_on_stream(stream: &Arc<Stream>) -> Outcome {
    if stream.capture.concerned.load(Ordering::Acquire) == 0 { Ok(()) } else { forbid_on_stream_now(stream) }
}

#[cold]
fn forbid_on_stream_now(stream: &Arc<Stream>) -> Outcome {
    if stream.order == Order::Legacy {
        break_around_legacy(stream);
        return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    match session_of(stream) {
        Some(session) => {
            session.invalidate();
            Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

/// Synchronising with a context fails and breaks all its captures, in every mode.
#[inline]
pub(crate) fn forbid_in_any_capture(context: &Arc<Context>) -> Outcome {
    if Session::any() { forbid_in_any_capture_now(context) } else { Ok(()) }
}

#[cold]
fn forbid_in_any_capture_now(context: &Arc<Context>) -> Outcome {
    let mut outcome = Ok(());
    for session in Session::all() {
        if session.streams().iter().any(|stream| stream.context_handle() == context.handle) {
            session.invalidate();
            outcome = Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    outcome
}
