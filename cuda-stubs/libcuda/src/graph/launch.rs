//! Launches of executable graphs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sim_world::channel::Kind;

use super::exec::{Exec, Newest, State};
use super::program::{ENDLESS, Output, Program, Run};
use super::{GraphAllocation, exec};
use crate::abi::*;
use crate::api::{self, DefaultStream, Outcome};
use crate::capture;
use crate::context::Context;
use crate::lane::{Lane, Order, Piece};
use crate::launch::KernelLaunch;
use crate::memory::graphpool;
use crate::process::LAUNCH_COST;
use crate::stream::{Stream, resolve};
use crate::work;

/// Puts a whole graph into a stream.
fn launch(exec: &Exec, stream: &Arc<Stream>) -> Outcome {
    // Held to the end: launches of one executable graph come one after another.
    let mut state = exec.state.lock();
    let program = state.program().map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let context = stream.context()?;
    let lane = context.lane()?;
    let frees_itself = exec.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    check_memory(&program, frees_itself)?;
    for kernel in &program.kernels {
        check_device(kernel, &context)?;
        kernel.prepare(&context)?;
    }
    let mut values = begin_values(&state);
    let outputs = program.follow(&mut values).ok_or_else(endless)?;
    if frees_itself {
        program.allocations.iter().filter(|a| a.is_live()).try_for_each(|a| graphpool::free(a.at()))?;
    }
    wait_for_newest(&state, &lane, stream);
    let by_node = exec.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY) != 0;
    for output in &outputs {
        match output {
            Output::Kernels(run) => {
                lane.submit(stream.queue, stream.order, piece(run, stream, by_node), &[]);
            }
            Output::Work(work) => work::execute(stream, work)?,
        }
    }
    state.values = values;
    state.newest = newest(&state, &lane, stream);
    Ok(())
}

/// A node may be another context's, but the time it takes is taken where the graph is launched.
fn check_device(kernel: &KernelLaunch, context: &Context) -> Outcome {
    let own = kernel.function.context;
    if own != context.handle && crate::process::context(own as CUcontext)?.device.gpu != context.device.gpu {
        return Err(api::unmodelled!("a graph with kernels for several devices"));
    }
    Ok(())
}

fn piece(run: &Run, stream: &Stream, by_node: bool) -> Piece {
    let priority = if by_node { (-run.priority).clamp(0, 255) as u8 } else { stream.rank() };
    Piece { kind: Kind::Kernel, duration: run.duration, width: run.width, priority, kernels: run.kernels }
}

/// The conditions as a launch finds them.
fn begin_values(state: &State) -> Vec<u64> {
    let each = state.conditions.iter().zip(&state.values);
    each.map(|(condition, held)| if condition.assigned { u64::from(condition.default) } else { *held }).collect()
}

/// A launch brings what is not there, and frees what is.
fn check_memory(program: &Program, frees_itself: bool) -> Outcome {
    let own = |address: u64| program.allocations.iter().any(|a| a.at() == address);
    let still_there = !frees_itself && program.allocations.iter().any(GraphAllocation::is_live);
    if still_there || program.frees.iter().any(|address| !own(*address) && !graphpool::is_live(*address)) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

/// An earlier launch of the same executable graph, in another stream, comes first.
fn wait_for_newest(state: &State, lane: &Lane, stream: &Stream) {
    if let Some(newest) = &state.newest {
        let same = newest.seq.chan() == lane.chan && newest.seq.queue() == stream.queue;
        if !same && !lane.world.is_done(newest.seq) {
            lane.submit(stream.queue, stream.order, Piece::MARKER, &[newest.seq]);
        }
    }
}

/// The end of this launch: a mark of it if user objects will want to know, else just the newest piece of the queue.
fn newest(state: &State, lane: &Arc<Lane>, stream: &Stream) -> Option<Newest> {
    if !state.objects.is_empty() {
        let mark = lane.submit_marked(stream.queue, stream.order, Piece::MARKER, &[]);
        return Some(Newest { seq: mark.seq, mark: Some(mark) });
    }
    let seq = lane.pending(stream.queue, Order::NonBlocking).first().copied()?;
    Some(Newest { seq, mark: None })
}

fn endless() -> CUresult {
    use std::sync::atomic::AtomicBool;
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "ration-sim: a conditional WHILE node would go round more than {ENDLESS} times; no kernel of its body sets its \
             handle to 0 (see `sets=` of kernel images): CUDA_ERROR_LAUNCH_FAILED"
        );
    }
    CUDA_ERROR_LAUNCH_FAILED
}

/// Makes a launch quicker by doing ahead what can be done; here that is nothing, but for finding that it may not be done.
pub(super) fn upload(_exec: &Exec, stream: &Arc<Stream>) -> Outcome {
    capture::forbid_on_stream(stream)
}

fn launch_into(handle: CUgraphExec, stream: CUstream, default: DefaultStream) -> Outcome {
    let cost = LAUNCH_COST.load(Ordering::Relaxed);
    if cost != 0 {
        api::spend(cost);
    }
    let exec = exec(handle)?;
    let stream = resolve(stream, default)?;
    capture::forbid_on_stream(&stream)?; // the driver does not record launches of graphs
    launch(&exec, &stream)
}

api! {
    export fn cuGraphLaunch | cuGraphLaunch_ptsz(default; handle: CUgraphExec, stream: CUstream) { launch_into(handle, stream, default) }
    export fn cuGraphUpload | cuGraphUpload_ptsz(default; handle: CUgraphExec, stream: CUstream) {
        upload(&*exec(handle)?, &resolve(stream, default)?)
    }
}
