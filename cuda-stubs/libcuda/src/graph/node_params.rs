//! What nodes do, from and to the forms that the C API has for it.

use std::sync::Arc;

use super::conditional::Conditional;
use super::{Graph, GraphWork, copying, memory};
use crate::abi::*;
use crate::api::{In, Outcome};
use crate::context::current;
use crate::launch::KernelLaunch;
use crate::memory::copy::{Copy, Set};
use crate::memory::values::ValueOp;
use crate::process::context;
use crate::work::{HostCall, Work};

/// A node's work, and the context that the client named for it (0: none).
pub(super) type Described = (Work, usize);

pub(super) fn kernel(params: &CUDA_KERNEL_NODE_PARAMS) -> Outcome<Described> {
    let launch = KernelLaunch::from_node_params(params, &current()?)?;
    // A library's kernel is loaded when a node is made of it.
    launch.function.ensure_loaded()?;
    Ok((Work::Kernel(launch), params.ctx as usize))
}

/// The oldest form, which knows neither library kernels nor contexts.
pub(super) fn kernel_from_v1(params: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    }
}

pub(super) fn kernel_to_v1(params: &CUDA_KERNEL_NODE_PARAMS) -> CUDA_KERNEL_NODE_PARAMS_v1 {
    CUDA_KERNEL_NODE_PARAMS_v1 {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
    }
}

pub(super) fn copy(params: &CUDA_MEMCPY3D, ctx: CUcontext) -> Outcome<Described> {
    let copy = Copy::from_3d(params)?;
    if copy.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok((Work::Copy(copy), named(ctx)?))
}

pub(super) fn set(params: &CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) -> Outcome<Described> {
    let form = CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: params.dst,
        pitch: params.pitch,
        value: params.value,
        elementSize: params.elementSize,
        width: params.width,
        height: params.height,
        ctx,
    };
    let set = Set::from_node(&form)?;
    if set.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok((Work::Set(set), named(ctx)?))
}

pub(super) fn host(function: CUhostFn, data: *mut std::ffi::c_void) -> Outcome<Described> {
    let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok((Work::Host(HostCall { function, data: data as usize }), 0))
}

pub(super) fn record(event: CUevent) -> Outcome<Described> {
    Ok((Work::RecordEvent(crate::event::get(event).map_err(|_| CUDA_ERROR_INVALID_VALUE)?), 0))
}

pub(super) fn wait(event: CUevent) -> Outcome<Described> {
    Ok((Work::WaitEvent(crate::event::get(event).map_err(|_| CUDA_ERROR_INVALID_VALUE)?), 0))
}

pub(super) fn values(params: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Outcome<Described> {
    if params.ctx.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let operations = In::at(params.paramArray).array(params.count as usize)?;
    let operations = operations.iter().map(ValueOp::from_params).collect::<Outcome<Vec<ValueOp>>>()?;
    Ok((Work::Values(operations), named(params.ctx)?))
}

/// A context that the client named, if it did.
fn named(ctx: CUcontext) -> Outcome<usize> {
    if ctx.is_null() { Ok(0) } else { Ok(context(ctx)?.handle) }
}

/// From the one form for all kinds. What the driver answers in that form (addresses, bodies) is written into it.
pub(super) fn read(inside: &Arc<Graph>, params: &mut CUgraphNodeParams) -> Outcome<Described> {
    match params.type_ {
        CU_GRAPH_NODE_TYPE_GRAPH => {
            let form: CUDA_CHILD_GRAPH_NODE_PARAMS = member(params)?;
            Ok((copying::adopt(inside, form.graph, form.ownership)?, 0))
        }
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let mut form: CUDA_MEM_ALLOC_NODE_PARAMS_v2 = member(params)?;
            let work = memory::from_params(&mut form)?;
            params.__bindgen_anon_1.alloc = form;
            Ok((work, 0))
        }
        CU_GRAPH_NODE_TYPE_MEM_FREE => {
            let form: CUDA_MEM_FREE_NODE_PARAMS = member(params)?;
            Ok((memory::free_node(&inside.lock(), form.dptr)?, 0))
        }
        CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            let mut form: CUDA_CONDITIONAL_NODE_PARAMS = member(params)?;
            let conditional = Conditional::new(inside, &form)?;
            form.phGraph_out = conditional.shown.as_ptr().cast_mut().cast();
            params.__bindgen_anon_1.conditional = form;
            let context = conditional.context;
            Ok((Work::Graph(GraphWork::Conditional(conditional)), context))
        }
        _ => read_simple(params),
    }
}

/// The graph in the form of a child node.
pub(super) fn child_of(params: &CUgraphNodeParams) -> Outcome<CUgraph> {
    member::<CUDA_CHILD_GRAPH_NODE_PARAMS>(params).map(|form| form.graph)
}

/// The kinds whose work can also be changed later.
pub(super) fn read_simple(params: &CUgraphNodeParams) -> Outcome<Described> {
    match params.type_ {
        CU_GRAPH_NODE_TYPE_KERNEL => {
            let form: CUDA_KERNEL_NODE_PARAMS = member(params)?; // the third version has the second's layout
            kernel(&form)
        }
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            let form: CUDA_MEMCPY_NODE_PARAMS = member(params)?;
            if form.flags != 0 || form.reserved != 0 {
                return Err(CUDA_ERROR_INVALID_VALUE);
            }
            copy(&form.copyParams, form.copyCtx)
        }
        CU_GRAPH_NODE_TYPE_MEMSET => {
            let form: CUDA_MEMSET_NODE_PARAMS_v2 = member(params)?;
            let old = CUDA_MEMSET_NODE_PARAMS {
                dst: form.dst,
                pitch: form.pitch,
                value: form.value,
                elementSize: form.elementSize,
                width: form.width,
                height: form.height,
            };
            set(&old, form.ctx)
        }
        CU_GRAPH_NODE_TYPE_HOST => {
            let form: CUDA_HOST_NODE_PARAMS = member(params)?;
            host(form.fn_, form.userData)
        }
        CU_GRAPH_NODE_TYPE_EMPTY => member::<[u8; 0]>(params).map(|_| (Work::Nothing, 0)),
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            let form: CUDA_EVENT_WAIT_NODE_PARAMS = member(params)?;
            wait(form.event)
        }
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            let form: CUDA_EVENT_RECORD_NODE_PARAMS = member(params)?;
            record(form.event)
        }
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
            let form: CUDA_BATCH_MEM_OP_NODE_PARAMS = member(params)?;
            values(&form)
        }
        CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL | CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT => {
            Err(crate::api::unmodelled!("a graph node for external semaphores"))
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Bytes of the part of the form that depends on the kind.
const UNION: usize = size_of::<[i64; 29]>();

/// The part of the form for a kind; all that it does not use must be 0, so that later versions can give it a meaning.
fn member<T: Clone>(params: &CUgraphNodeParams) -> Outcome<T> {
    const { assert!(size_of::<T>() <= UNION && align_of::<T>() <= align_of::<CUgraphNodeParams>()) };
    let union = (&raw const params.__bindgen_anon_1).cast::<u8>();
    // SAFETY: the caller gave the whole form, whose union has this many bytes; it comes out of C memory and is read as bytes.
    let bytes = unsafe { std::slice::from_raw_parts(union, UNION) };
    let clean = params.reserved0 == [0; 3] && params.reserved2 == 0 && bytes[size_of::<T>()..].iter().all(|b| *b == 0);
    if !clean {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: callers name the plain C struct that the form's kind says is there; it fits and is aligned, by the assertion.
    Ok(unsafe { (*union.cast::<T>()).clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kind_does_not_use_must_be_zero() {
        let mut params = CUgraphNodeParams { type_: CU_GRAPH_NODE_TYPE_HOST, ..Default::default() };
        params.__bindgen_anon_1.host = CUDA_HOST_NODE_PARAMS_v2 { fn_: None, userData: 7 as *mut _ };
        assert_eq!(member::<CUDA_HOST_NODE_PARAMS>(&params).map(|form| form.userData as usize), Ok(7));
        params.reserved2 = 1;
        assert!(member::<CUDA_HOST_NODE_PARAMS>(&params).is_err());
        params.reserved2 = 0;
        params.__bindgen_anon_1.reserved1 = [0; 29];
        // SAFETY: the union's widest member is plain integers.
        unsafe { params.__bindgen_anon_1.reserved1[20] = 1 };
        assert!(member::<CUDA_HOST_NODE_PARAMS>(&params).is_err());
    }
}
