//! Entry points of stream capture.

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::forbidden::look_closer;
use super::session::Session;
use super::{enter, thread};
use crate::abi::*;
use crate::api::{DefaultStream, In, Out, Outcome};
use crate::graph::store::Owner;
use crate::graph::{Edge, Graph, dependencies, graph};
use crate::lane::Order;
use crate::stream::{Stream, resolve};

/// What a capture goes into.
struct Target {
    graph: Arc<Graph>,
    /// The nodes that the first thing recorded comes after.
    after: Vec<(usize, Edge)>,
}

/// Begins a capture, into a graph of its own if there is no other.
fn begin(stream: CUstream, target: Option<Target>, mode: CUstreamCaptureMode, default: DefaultStream) -> Outcome {
    let stream = resolve(stream, default)?;
    let mode = thread::known(mode)?;
    if stream.order == Order::Legacy {
        if stream.capture.concerned.load(Ordering::Acquire) != 0 {
            return look_closer(&stream).map(|_| ());
        }
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if stream.capture.place.lock().is_some() {
        return Err(CUDA_ERROR_ILLEGAL_STATE);
    }
    let own = target.is_none();
    let target = target.unwrap_or_else(|| Target { graph: Graph::create(Owner::Client), after: Vec::new() });
    let session = Session::begin(&target.graph, mode)?;
    enter(&stream, &session, target.after, true).inspect_err(|_| {
        // Another thread was quicker.
        let graph = session.finish();
        if own {
            graph.destroy();
        }
    })
}

fn begin_to_graph(
    stream: CUstream,
    into: CUgraph,
    after: In<CUgraphNode>,
    edges: In<CUgraphEdgeData>,
    count: usize,
    mode: CUstreamCaptureMode,
    default: DefaultStream,
) -> Outcome {
    let graph = graph(into)?;
    let after = dependencies(after, Some(edges), count)?;
    {
        let inner = graph.lock();
        after.iter().try_for_each(|(node, _)| inner.place(*node).map(|_| ()))?;
    }
    begin(stream, Some(Target { graph, after }), mode, default)
}

fn end(stream: CUstream, out: Out<CUgraph>, default: DefaultStream) -> Outcome {
    let stream = resolve(stream, default)?;
    if stream.order == Order::Legacy && stream.capture.concerned.load(Ordering::Acquire) != 0 {
        return look_closer(&stream).map(|_| ());
    }
    out.maybe(null_mut());
    let (session, after, origin) = match &*stream.capture.place.lock() {
        Some(place) => (Arc::clone(&place.session), place.after.clone(), place.origin),
        None => return Err(CUDA_ERROR_ILLEGAL_STATE),
    };
    if !origin {
        session.invalidate();
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    // From here on the capture is over, whatever became of it.
    let own_thread = session.mode == CU_STREAM_CAPTURE_MODE_RELAXED || session.thread == thread::this();
    let verdict = match () {
        () if !own_thread => Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
        () if !session.is_active() => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        () if !session.is_joined(&after) => Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
        () => Ok(()),
    };
    let graph = session.finish();
    if verdict.is_err() || out.is_null() {
        graph.destroy();
    } else {
        out.set(graph.handle as CUgraph)?;
    }
    verdict
}

/// The state of a stream's capture. The question is harmless, also to captures that the legacy stream would be in the way of.
fn status_of(stream: &Stream) -> Outcome<CUstreamCaptureStatus> {
    if stream.capture.concerned.load(Ordering::Acquire) == 0 {
        return Ok(CU_STREAM_CAPTURE_STATUS_NONE);
    }
    if stream.order == Order::Legacy {
        return Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    Ok(match &*stream.capture.place.lock() {
        None => CU_STREAM_CAPTURE_STATUS_NONE,
        Some(place) if place.session.is_active() => CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Some(_) => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    })
}

/// Where the answers about a capture go.
struct Answers {
    status: Out<CUstreamCaptureStatus>,
    id: Out<u64>,
    graph: Out<CUgraph>,
    nodes: Out<*const CUgraphNode>,
    /// None in the forms that know no edge data.
    edges: Option<Out<*const CUgraphEdgeData>>,
    count: Out<usize>,
}

fn info(stream: CUstream, answers: &Answers, default: DefaultStream) -> Outcome {
    let stream = resolve(stream, default)?;
    let status = status_of(&stream)?;
    answers.status.set(status)?;
    if status != CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(()); // nothing else is touched then
    }
    let mut at = stream.capture.place.lock();
    let Some(place) = at.as_mut() else { return Ok(()) };
    let wants_nodes = !answers.nodes.is_null();
    let edges = answers.edges.filter(|edges| !edges.is_null());
    if wants_nodes && edges.is_none() && place.after.iter().any(|(_, edge)| !edge.is_plain()) {
        return Err(CUDA_ERROR_LOSSY_QUERY);
    }
    answers.id.maybe(place.session.id);
    answers.graph.maybe(place.session.graph().handle as CUgraph);
    place.shown_nodes = place.after.iter().map(|(node, _)| *node).collect();
    place.shown_edges = place.after.iter().map(|(_, edge)| edge.to_c()).collect();
    let none = place.after.is_empty();
    answers.nodes.maybe(if none { std::ptr::null() } else { place.shown_nodes.as_ptr().cast() });
    if let Some(edges) = edges {
        edges.maybe(if none { std::ptr::null() } else { place.shown_edges.as_ptr() });
    }
    answers.count.maybe(place.after.len());
    Ok(())
}

fn update(
    stream: CUstream,
    nodes: In<CUgraphNode>,
    edges: Option<In<CUgraphEdgeData>>,
    count: usize,
    flags: u32,
    default: DefaultStream,
) -> Outcome {
    let stream = resolve(stream, default)?;
    let new = dependencies(nodes, edges, count)?;
    if flags & !CU_STREAM_SET_CAPTURE_DEPENDENCIES != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut at = stream.capture.place.lock();
    let place = at.as_mut().ok_or(CUDA_ERROR_ILLEGAL_STATE)?;
    place.session.check()?;
    {
        let graph = place.session.graph().lock();
        new.iter().try_for_each(|(node, _)| graph.place(*node).map(|_| ()))?;
    }
    if flags & CU_STREAM_SET_CAPTURE_DEPENDENCIES != 0 {
        place.session.let_go(&place.after);
        place.after.clear();
    }
    for (node, edge) in new {
        if !place.after.iter().any(|(known, _)| *known == node) {
            place.after.push((node, edge));
        }
    }
    Ok(())
}

api! {
    export fn cuStreamBeginCapture | cuStreamBeginCapture_ptsz(default; stream: CUstream) {
        begin(stream, None, CU_STREAM_CAPTURE_MODE_GLOBAL, default)
    }
    export fn cuStreamBeginCapture_v2 | cuStreamBeginCapture_v2_ptsz(default; stream: CUstream, mode: CUstreamCaptureMode) {
        begin(stream, None, mode, default)
    }
    export fn cuStreamBeginCaptureToGraph | cuStreamBeginCaptureToGraph_ptsz(default; stream: CUstream, into: CUgraph, after: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, mode: CUstreamCaptureMode) {
        begin_to_graph(stream, into, after, edges, count, mode, default)
    }
    export fn cuStreamEndCapture | cuStreamEndCapture_ptsz(default; stream: CUstream, out: Out<CUgraph>) { end(stream, out, default) }
    export fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(default; stream: CUstream, status: Out<CUstreamCaptureStatus>) {
        let stream = resolve(stream, default)?;
        status.required()?;
        status.set(status_of(&stream)?)
    }
    export fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(default; stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>) {
        let (graph, nodes, count) = (Out::from_ptr(null_mut()), Out::from_ptr(null_mut()), Out::from_ptr(null_mut()));
        info(stream, &Answers { status, id, graph, nodes, edges: None, count }, default)
    }
    export fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(default; stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>, count: Out<usize>) {
        info(stream, &Answers { status, id, graph, nodes, edges: None, count }, default)
    }
    export fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(default; stream: CUstream, status: Out<CUstreamCaptureStatus>, id: Out<u64>, graph: Out<CUgraph>, nodes: Out<*const CUgraphNode>, edges: Out<*const CUgraphEdgeData>, count: Out<usize>) {
        info(stream, &Answers { status, id, graph, nodes, edges: Some(edges), count }, default)
    }
    export fn cuStreamUpdateCaptureDependencies | cuStreamUpdateCaptureDependencies_ptsz(default; stream: CUstream, nodes: In<CUgraphNode>, count: usize, flags: u32) {
        update(stream, nodes, None, count, flags, default)
    }
    export fn cuStreamUpdateCaptureDependencies_v2 | cuStreamUpdateCaptureDependencies_v2_ptsz(default; stream: CUstream, nodes: In<CUgraphNode>, edges: In<CUgraphEdgeData>, count: usize, flags: u32) {
        update(stream, nodes, Some(edges), count, flags, default)
    }
}
