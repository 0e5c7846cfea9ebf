//! Work: what can be put into a stream. The same description is a graph's node when the stream is capturing.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::*;
use crate::api::Outcome;
use crate::capture;
use crate::effects::Effect;
use crate::event::Event;
use crate::graph::GraphWork;
use crate::lane::Piece;
use crate::launch::KernelLaunch;
use crate::memory::copy::{Copy, Set};
use crate::memory::values::ValueOp;
use crate::process::process;
use crate::stream::Stream;

/// One piece of work, complete: it can be done now, kept in a graph, and done again.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel(KernelLaunch),
    Copy(Copy),
    Set(Set),
    Host(HostCall),
    Values(Vec<ValueOp>),
    RecordEvent(Arc<Event>),
    WaitEvent(Arc<Event>),
    /// Joins what comes before it.
    Nothing,
    /// What only graphs have: child graphs, conditionals, allocations.
    Graph(GraphWork),
}

/// A host function and its argument.
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    pub function: unsafe extern "C" fn(*mut c_void),
    pub data: usize,
}

/// Puts work into a stream: onto the timeline, or into the graph that the stream is capturing.
#[inline]
pub(crate) fn enqueue(stream: &Arc<Stream>, work: Work) -> Outcome {
    if capture::is_capturing(stream)? {
        return capture::add(stream, work);
    }
    execute(stream, &work)
}

/// Puts work onto the timeline.
pub(crate) fn execute(stream: &Arc<Stream>, work: &Work) -> Outcome {
    match work {
        Work::Kernel(launch) => launch.execute(stream),
        Work::Copy(copy) => copy.execute(stream),
        Work::Set(set) => set.execute(stream),
        Work::Host(call) => {
            let call = *call;
            // SAFETY: the client gave the function and its argument to be called like this, once, at this point of the stream.
            host(stream, Box::new(move || unsafe { (call.function)(call.data as *mut c_void) }))
        }
        Work::Values(operations) => operations.iter().try_for_each(|op| op.execute(stream)),
        Work::RecordEvent(event) => {
            let note = |mark: &_| event.recorded(Arc::clone(mark));
            stream.lane()?.submit_noted(stream.queue, stream.order, Piece::MARKER, &[], note);
            Ok(())
        }
        Work::WaitEvent(event) => {
            if let Some(seq) = event.pending()? {
                stream.lane()?.submit(stream.queue, stream.order, Piece::MARKER, &[seq]);
            }
            Ok(())
        }
        Work::Nothing => Ok(()),
        Work::Graph(work) => work.execute(stream),
    }
}

/// Runs something on the worker thread when the stream has come to this point, and holds the stream until it is through.
pub(crate) fn host(stream: &Stream, act: Box<dyn FnOnce() + Send>) -> Outcome {
    let mark = stream.lane()?.submit_marked(stream.queue, stream.order, Piece::GATE, &[]);
    process()?.effects.add(mark, Effect::Host(act));
    Ok(())
}

/// `cuStreamAddCallback`: the older form, which also tells the stream and its status.
pub(crate) fn add_callback(
    stream: &Stream,
    handle: usize,
    callback: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    data: usize,
) -> Outcome {
    // SAFETY: the client gave the callback and its argument to be called like this, once, at this point of the stream.
    host(stream, Box::new(move || unsafe { callback(handle as CUstream, CUDA_SUCCESS, data as *mut c_void) }))
}
