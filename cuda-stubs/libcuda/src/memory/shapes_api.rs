//! The entry points that copy boxes of bytes.

use super::copies_api::{enqueue, later, now};
use super::copy::{Copy, End, Memory};
use crate::abi::*;
use crate::api::{DefaultStream, In, Out, Outcome};
use crate::process::{context, process};
use crate::stream;

/// The forms of two dimensions and of 32 bits, as the one of three and 64.
macro_rules! widened {
    ($form:expr; $($field:ident),*) => {
        CUDA_MEMCPY3D { $($field: $form.$field as _,)* ..Default::default() }
    };
}

fn from_2d(form: &CUDA_MEMCPY2D) -> CUDA_MEMCPY3D {
    let mut all = widened!(form; srcXInBytes, srcY, srcMemoryType, srcHost, srcDevice, srcArray, srcPitch, dstXInBytes, dstY,
        dstMemoryType, dstHost, dstDevice, dstArray, dstPitch, WidthInBytes, Height);
    all.Depth = 1;
    all
}

fn from_2d_v1(form: &CUDA_MEMCPY2D_v1) -> CUDA_MEMCPY3D {
    let mut all = widened!(form; srcXInBytes, srcY, srcMemoryType, srcHost, srcDevice, srcArray, srcPitch, dstXInBytes, dstY,
        dstMemoryType, dstHost, dstDevice, dstArray, dstPitch, WidthInBytes, Height);
    all.Depth = 1;
    all
}

fn from_3d_v1(form: &CUDA_MEMCPY3D_v1) -> CUDA_MEMCPY3D {
    widened!(form; srcXInBytes, srcY, srcZ, srcLOD, srcMemoryType, srcHost, srcDevice, srcArray, srcPitch, srcHeight, dstXInBytes,
        dstY, dstZ, dstLOD, dstMemoryType, dstHost, dstDevice, dstArray, dstPitch, dstHeight, WidthInBytes, Height, Depth)
}

fn from_peer(form: &CUDA_MEMCPY3D_PEER) -> Outcome<CUDA_MEMCPY3D> {
    process()?;
    for (kind, handle) in [(form.srcMemoryType, form.srcContext), (form.dstMemoryType, form.dstContext)] {
        if kind != CU_MEMORYTYPE_HOST && kind != CU_MEMORYTYPE_UNIFIED {
            context(handle)?;
        }
    }
    Ok(
        widened!(form; srcXInBytes, srcY, srcZ, srcLOD, srcMemoryType, srcHost, srcDevice, srcArray, srcPitch, srcHeight,
        dstXInBytes, dstY, dstZ, dstLOD, dstMemoryType, dstHost, dstDevice, dstArray, dstPitch, dstHeight, WidthInBytes, Height, Depth),
    )
}

fn copy_of(form: &CUDA_MEMCPY3D) -> Outcome<Copy> {
    process()?;
    Copy::from_3d(form)
}

/// An end of a batched copy: rows and layers are given in elements, which of plain memory are bytes.
fn operand(form: &CUmemcpy3DOperand) -> Outcome<End> {
    match form.type_ {
        CU_MEMCPY_OPERAND_TYPE_POINTER => {
            // SAFETY: the type says which member of the union was written, and both are plain data.
            let at = unsafe { form.op.ptr };
            Ok(End { pitch: at.rowLength as u64, rows: at.layerHeight as u64, ..End::of(Memory::Unified(at.ptr)) })
        }
        CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            // SAFETY: as above.
            let at = unsafe { form.op.array };
            let (x, y, z) = (at.offset.x as u64, at.offset.y as u64, at.offset.z as u64);
            let bytes = super::array::get(at.array)?.element_bytes();
            Ok(End { x: x * bytes, y, z, ..End::of(Memory::Array(at.array as u64)) })
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// What an element of either end takes: of an array its own, else a byte.
fn element(op: &CUDA_MEMCPY3D_BATCH_OP) -> Outcome<u64> {
    for end in [&op.src, &op.dst] {
        if end.type_ == CU_MEMCPY_OPERAND_TYPE_ARRAY {
            // SAFETY: the type says which member of the union was written.
            return Ok(super::array::get(unsafe { end.op.array.array })?.element_bytes());
        }
    }
    Ok(1)
}

fn batch(
    count: usize,
    ops: In<CUDA_MEMCPY3D_BATCH_OP>,
    failed: Out<usize>,
    flags: u64,
    stream: CUstream,
    default: DefaultStream,
) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    failed.maybe(usize::MAX);
    if count == 0 || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for (index, op) in ops.array(count)?.iter().enumerate() {
        let one = || {
            let element = element(op)?;
            let scaled = |end: End| End { pitch: end.pitch * element, ..end };
            let shape = [op.extent.width as u64 * element, op.extent.height as u64, op.extent.depth as u64];
            enqueue(&stream, Copy::shaped(scaled(operand(&op.dst)?), scaled(operand(&op.src)?), shape))
        };
        if let Err(code) = one() {
            failed.maybe(index);
            return Err(code);
        }
    }
    Ok(())
}

const NOWHERE: *mut usize = std::ptr::null_mut();

api! {
    export fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(default; form: In<CUDA_MEMCPY2D>) { now(copy_of(&from_2d(&form.get()?))?, default) }
    export fn cuMemcpy2D(form: In<CUDA_MEMCPY2D_v1>) { now(copy_of(&from_2d_v1(&form.get()?))?, DefaultStream::Legacy) }
    export fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(default; form: In<CUDA_MEMCPY2D>) {
        now(copy_of(&from_2d(&form.get()?))?, default)
    }
    export fn cuMemcpy2DUnaligned(form: In<CUDA_MEMCPY2D_v1>) { now(copy_of(&from_2d_v1(&form.get()?))?, DefaultStream::Legacy) }
    export fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(default; form: In<CUDA_MEMCPY2D>, stream: CUstream) {
        later(copy_of(&from_2d(&form.get()?))?, stream, default)
    }
    export fn cuMemcpy2DAsync(form: In<CUDA_MEMCPY2D_v1>, stream: CUstream) {
        later(copy_of(&from_2d_v1(&form.get()?))?, stream, DefaultStream::Legacy)
    }
    export fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(default; form: In<CUDA_MEMCPY3D>) { now(copy_of(&form.get()?)?, default) }
    export fn cuMemcpy3D(form: In<CUDA_MEMCPY3D_v1>) { now(copy_of(&from_3d_v1(&form.get()?))?, DefaultStream::Legacy) }
    export fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(default; form: In<CUDA_MEMCPY3D>, stream: CUstream) {
        later(copy_of(&form.get()?)?, stream, default)
    }
    export fn cuMemcpy3DAsync(form: In<CUDA_MEMCPY3D_v1>, stream: CUstream) {
        later(copy_of(&from_3d_v1(&form.get()?))?, stream, DefaultStream::Legacy)
    }
    export fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(default; form: In<CUDA_MEMCPY3D_PEER>) {
        now(copy_of(&from_peer(&form.get()?)?)?, default)
    }
    export fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(default; form: In<CUDA_MEMCPY3D_PEER>, stream: CUstream) {
        later(copy_of(&from_peer(&form.get()?)?)?, stream, default)
    }
    export fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz(default; count: usize, ops: In<CUDA_MEMCPY3D_BATCH_OP>, failed: Out<usize>,
        flags: u64, stream: CUstream) {
        batch(count, ops, failed, flags, stream, default)
    }
    export fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz(default; count: usize, ops: In<CUDA_MEMCPY3D_BATCH_OP>, flags: u64, stream: CUstream) {
        batch(count, ops, Out::from_ptr(NOWHERE), flags, stream, default)
    }
}
