//! One capture, from its beginning in one stream to its end there.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::leave;
use super::thread;
use crate::abi::*;
use crate::api::Outcome;
use crate::graph::{Edge, Graph};
use crate::stream::Stream;
use crate::work::Work;

/// All captures under way.
static SESSIONS: Mutex<Vec<Arc<Session>>> = Mutex::new(Vec::new());
/// How many there are: nearly always none, and then nothing else needs to be looked at.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

const ACTIVE: u8 = 0;
const BROKEN: u8 = 1;
const OVER: u8 = 2;

pub(crate) struct Session {
    pub id: u64,
    pub mode: CUstreamCaptureMode,
    /// The thread that began it.
    pub thread: u64,
    graph: Arc<Graph>,
    state: AtomicU8,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    streams: Vec<Weak<Stream>>,
    /// Recorded nodes that nothing recorded comes after: at the end the first stream must have joined them all.
    loose: HashSet<usize>,
}

impl Session {
    /// Begins a capture into a graph. Fails if the graph is being captured into.
    pub(super) fn begin(graph: &Arc<Graph>, mode: CUstreamCaptureMode) -> Outcome<Arc<Session>> {
        {
            let mut inner = graph.lock();
            if inner.captured_into {
                return Err(CUDA_ERROR_ILLEGAL_STATE);
            }
            inner.captured_into = true;
        }
        let session = Arc::new(Session {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            mode,
            thread: thread::this(),
            graph: Arc::clone(graph),
            state: AtomicU8::new(ACTIVE),
            parts: Mutex::default(),
        });
        let mut sessions = SESSIONS.lock();
        sessions.push(Arc::clone(&session));
        COUNT.store(sessions.len(), Ordering::Release);
        Ok(session)
    }

    /// Whether any capture is under way.
    #[inline]
    pub(super) fn any() -> bool {
        COUNT.load(Ordering::Acquire) != 0
    }

    /// All captures under way.
    pub(super) fn all() -> Vec<Arc<Session>> {
        SESSIONS.lock().clone()
    }

    pub(super) fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    pub(super) fn is_active(&self) -> bool {
        self.state.load(Ordering::Acquire) == ACTIVE
    }

    /// Whether it was ended.
    pub(super) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) == OVER
    }

    /// Fails once the capture is broken.
    pub(super) fn check(&self) -> Outcome {
        if self.is_active() { Ok(()) } else { Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) }
    }

    /// Breaks the capture: nothing more is recorded, and its end says so.
    pub(super) fn invalidate(&self) {
        let _ = self.state.compare_exchange(ACTIVE, BROKEN, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn joined(&self, stream: &Arc<Stream>) {
        self.parts.lock().streams.push(Arc::downgrade(stream));
    }

    /// The streams that take part, as far as they live.
    pub(super) fn streams(&self) -> Vec<Arc<Stream>> {
        self.parts.lock().streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// Adds a node to the graph.
    pub(super) fn record(&self, work: Work, stream: &Stream, after: &[(usize, Edge)]) -> Outcome<usize> {
        let is_kernel = matches!(work, Work::Kernel(_));
        let context = if let Work::Values(_) = work { stream.context_handle() } else { 0 };
        let node = self.graph.add(work, context, after)?;
        if is_kernel && stream.priority != 0 {
            let mut graph = self.graph.lock();
            let attributes = &mut graph.node_mut(node)?.attributes;
            if attributes.priority() == 0 {
                attributes.set_priority(stream.priority);
            }
        }
        let mut parts = self.parts.lock();
        for (before, _) in after {
            parts.loose.remove(before);
        }
        parts.loose.insert(node);
        Ok(node)
    }

    /// Nodes that the client took out of a stream's dependencies itself need not be joined.
    pub(super) fn let_go(&self, nodes: &[(usize, Edge)]) {
        let mut parts = self.parts.lock();
        for (node, _) in nodes {
            parts.loose.remove(node);
        }
    }

    /// Whether a stream that comes after these nodes comes after everything.
    pub(super) fn is_joined(&self, after: &[(usize, Edge)]) -> bool {
        self.parts.lock().loose.iter().all(|node| after.iter().any(|(joined, _)| joined == node))
    }

    /// Ends the capture for all its streams. The graph is the caller's from here on.
    pub(super) fn finish(self: &Arc<Self>) -> Arc<Graph> {
        self.state.store(OVER, Ordering::Release);
        {
            let mut sessions = SESSIONS.lock();
            sessions.retain(|other| !Arc::ptr_eq(other, self));
            COUNT.store(sessions.len(), Ordering::Release);
        }
        for stream in self.streams() {
            leave(&stream, self);
        }
        self.graph.lock().captured_into = false;
        Arc::clone(&self.graph)
    }

    /// Ends the capture without a graph, also one that was captured into.
    pub(super) fn abandon(self: &Arc<Self>) {
        self.finish().destroy();
    }
}
