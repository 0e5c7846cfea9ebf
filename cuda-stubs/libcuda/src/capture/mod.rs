//! Stream capture: recording a stream's work into a graph instead of doing it, and what breaks that.
//!
//! A capture is a [`session::Session`]. Streams that take part each have a [`Place`] in it: the nodes that the next thing
//! recorded there comes after. Events carry such places from stream to stream. The rules of what breaks a capture, with
//! which code, are the driver's: they were asked of a real one, and the tests hold the answers.

mod entry;
mod events;
mod forbidden;
mod session;
mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::abi::*;
use crate::api::Outcome;
use crate::graph::{self, Edge, GraphWork};
use crate::lane::Order;
use crate::stream::Stream;
use crate::work::Work;

pub(crate) use events::{CapturedEvent, record_event, wait_event};
pub(crate) use forbidden::{forbid_in_any_capture, forbid_on_stream, forbid_unsafe};
use session::Session;

/// What a stream is capturing.
#[derive(Default)]
pub(crate) struct CaptureState {
    /// Looked at by every launch, so one word says that there is nothing: 1 while the stream takes part in a capture; for a
    /// legacy stream, which cannot, how many streams do that it would have to be ordered against.
    concerned: AtomicUsize,
    place: Mutex<Option<Place>>,
}

/// A stream's part in a capture. It ends with this; the capture itself, if it began here.
struct Place {
    session: Arc<Session>,
    /// What the next thing recorded here comes after.
    after: Vec<(usize, Edge)>,
    /// The capture began here.
    origin: bool,
    /// The legacy stream that must not be used meanwhile, because it would have to wait for this one.
    legacy: Option<Arc<Stream>>,
    /// What the last question about `after` was answered with: the client holds pointers to it.
    shown_nodes: Vec<usize>,
    shown_edges: Vec<CUgraphEdgeData>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(legacy) = &self.legacy {
            legacy.capture.concerned.fetch_sub(1, Ordering::AcqRel);
        }
        // Its stream is gone, with a thread or because it was destroyed: nobody can end the capture any more.
        if self.origin && !self.session.is_over() {
            self.session.abandon();
        }
    }
}

/// The session that a stream takes part in.
fn session_of(stream: &Stream) -> Option<Arc<Session>> {
    stream.capture.place.lock().as_ref().map(|place| Arc::clone(&place.session))
}

/// Puts a stream into a session, unless it is in one. `origin`: the capture begins with this.
fn enter(stream: &Arc<Stream>, session: &Arc<Session>, after: Vec<(usize, Edge)>, origin: bool) -> Outcome {
    let legacy = if stream.order == Order::Blocking { Some(stream.context()?.legacy()) } else { None };
    let mut at = stream.capture.place.lock();
    if at.is_some() {
        return Err(CUDA_ERROR_ILLEGAL_STATE);
    }
    if let Some(legacy) = &legacy {
        legacy.capture.concerned.fetch_add(1, Ordering::AcqRel);
    }
    let (shown_nodes, shown_edges) = (Vec::new(), Vec::new());
    *at = Some(Place { session: Arc::clone(session), after, origin, legacy, shown_nodes, shown_edges });
    stream.capture.concerned.store(1, Ordering::Release);
    drop(at);
    session.joined(stream);
    Ok(())
}

/// Takes a stream out of a session, if it is in that one.
fn leave(stream: &Stream, session: &Arc<Session>) {
    let mut at = stream.capture.place.lock();
    if at.as_ref().is_some_and(|place| Arc::ptr_eq(&place.session, session)) {
        let gone = at.take();
        stream.capture.concerned.store(0, Ordering::Release);
        drop(at);
        drop(gone); // not under the lock: where the capture began, it ends with this
    }
}

/// Whether work put into the stream is recorded. Fails when its capture is broken, or when the work would order the legacy
/// stream against a capturing one.
#[inline]
pub(crate) fn is_capturing(stream: &Arc<Stream>) -> Outcome<bool> {
    if stream.capture.concerned.load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    forbidden::look_closer(stream)
}

/// Adds work to the graph being captured.
pub(crate) fn add(stream: &Arc<Stream>, work: Work) -> Outcome {
    record(stream, work).map(|_| ())
}

/// Adds a node after all that the stream has recorded. None: work of no size, which the driver does not record.
fn record(stream: &Stream, work: Work) -> Outcome<Option<usize>> {
    let mut at = stream.capture.place.lock();
    // Another thread may have ended the capture since the caller looked.
    let place = at.as_mut().ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
    place.session.check()?;
    let nothing = match &work {
        Work::Copy(copy) => copy.is_empty(),
        Work::Set(set) => set.is_empty(),
        _ => false,
    };
    if nothing {
        return Ok(None);
    }
    let node = place.session.record(work, stream, &place.after)?;
    place.after = vec![(node, Edge::default())];
    Ok(Some(node))
}

/// `cuMemAllocAsync` into a capturing stream: an allocation node, and its address.
pub(crate) fn add_alloc(stream: &Arc<Stream>, pool: &CUmemPoolProps, bytes: u64) -> Outcome<u64> {
    let allocation = graph::allocate(bytes, pool.location.id)?;
    let address = allocation.at();
    add(stream, Work::Graph(GraphWork::Allocate(allocation)))?;
    Ok(address)
}

/// `cuMemFreeAsync` into a capturing stream: a free node, for what some graph allocates. Anything else is refused, without
/// harm to the capture.
pub(crate) fn add_free(stream: &Arc<Stream>, address: u64) -> Outcome {
    let session = session_of(stream).ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
    session.check()?;
    let work = graph::free_node(&session.graph().lock(), address)?;
    add(stream, work)
}

/// Something that was to be recorded is wrong in a way that breaks the capture, if the stream takes part in one.
pub(crate) fn break_capture(stream: &Stream) {
    if let Some(session) = session_of(stream) {
        session.invalidate();
    }
}

/// A stream was destroyed. A capture that began in it ends; one that it only takes part in has lost that part.
pub(crate) fn stream_destroyed(stream: &Stream) {
    if let Some(session) = session_of(stream) {
        leave(stream, &session);
    }
}

/// A context is gone, with its streams: so are the captures in them.
pub(crate) fn forget_context(context: usize) {
    for session in Session::all() {
        if session.streams().iter().any(|stream| stream.context_handle() == context) {
            session.abandon();
        }
    }
}
