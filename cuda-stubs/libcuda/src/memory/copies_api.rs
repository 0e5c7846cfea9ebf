//! The entry points that copy so many bytes in a row.

use std::ffi::c_void;
use std::sync::Arc;

use super::array;
use super::copy::{Copy, End, Memory};
use crate::abi::*;
use crate::api::{DefaultStream, In, Out, Outcome};
use crate::capture;
use crate::process::{context, process};
use crate::stream::{self, Stream};
use crate::work::{self, Work};

/// Waits until the stream has done what is in it; the caller wants to look at the bytes.
pub(super) fn wait(stream: &Stream) -> Outcome {
    let lane = stream.lane()?;
    for seq in lane.pending(stream.queue, stream.order) {
        lane.world.wait(seq);
    }
    process()?.effects.settle();
    Ok(())
}

/// Puts a copy into a stream. Source bytes that the client may change are taken now, and a copy into pageable memory is
/// waited for; in a capture neither, since nothing is done yet.
pub(super) fn enqueue(stream: &Arc<Stream>, mut copy: Copy) -> Outcome {
    copy.check()?;
    if copy.is_empty() {
        return Ok(());
    }
    let capturing = capture::is_capturing(stream)?;
    if !capturing {
        copy.stage()?;
    }
    let waits = !capturing && copy.ends_in_pageable();
    work::enqueue(stream, Work::Copy(copy))?;
    if waits { wait(stream) } else { Ok(()) }
}

/// An asynchronous copy.
pub(super) fn later(copy: Copy, stream: CUstream, default: DefaultStream) -> Outcome {
    enqueue(&stream::resolve(stream, default)?, copy)
}

/// A synchronous copy: in the caller's default stream, and waited for unless both ends are the device's.
pub(super) fn now(copy: Copy, default: DefaultStream) -> Outcome {
    let stream = stream::resolve(std::ptr::null_mut(), default)?;
    copy.check()?;
    if copy.is_empty() {
        return Ok(());
    }
    let waits = !copy.is_on_device() && !capture::is_capturing(&stream)?;
    work::enqueue(&stream, Work::Copy(copy))?;
    if waits { wait(&stream) } else { Ok(()) }
}

fn host<T>(pointer: *const T) -> Memory {
    Memory::Host(pointer as u64)
}

/// A stretch of an array: bytes from an offset, inside one row or as whole rows.
fn stretch(handle: CUarray, offset: u64, bytes: u64) -> Outcome<(End, [u64; 3])> {
    let row = array::get(handle)?.row_bytes();
    let end = End::of(Memory::Array(handle as u64));
    if offset % row + bytes <= row {
        return Ok((End { x: offset % row, y: offset / row, ..end }, [bytes, 1, 1]));
    }
    if !offset.is_multiple_of(row) || !bytes.is_multiple_of(row) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok((End { y: offset / row, ..end }, [row, bytes / row, 1]))
}

fn to_array(array: CUarray, offset: u64, source: Memory, bytes: u64) -> Outcome<Copy> {
    let (end, shape) = stretch(array, offset, bytes)?;
    Ok(Copy::shaped(end, End::of(source), shape))
}

fn from_array(target: Memory, array: CUarray, offset: u64, bytes: u64) -> Outcome<Copy> {
    let (end, shape) = stretch(array, offset, bytes)?;
    Ok(Copy::shaped(End::of(target), end, shape))
}

fn between_arrays(to: CUarray, to_offset: u64, from: CUarray, from_offset: u64, bytes: u64) -> Outcome<Copy> {
    let ((target, shape), (source, other)) = (stretch(to, to_offset, bytes)?, stretch(from, from_offset, bytes)?);
    if shape != other {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    Ok(Copy::shaped(target, source, shape))
}

fn between_peers(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    bytes: usize,
) -> Outcome<Copy> {
    process()?;
    context(to_context)?;
    context(from_context)?;
    Ok(Copy::linear(Memory::Device(to), Memory::Device(from), bytes as u64))
}

/// Several copies in one call. `failed`: where the older form says which one could not be.
fn batch(
    to: In<CUdeviceptr>,
    from: In<CUdeviceptr>,
    sizes: In<usize>,
    count: usize,
    failed: Out<usize>,
    stream: CUstream,
    default: DefaultStream,
) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    failed.maybe(usize::MAX);
    let (to, from, sizes) = (to.array(count)?, from.array(count)?, sizes.array(count)?);
    if count == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for (index, ((to, from), size)) in to.iter().zip(&from).zip(&sizes).enumerate() {
        let copy = Copy::linear(Memory::Unified(*to), Memory::Unified(*from), *size as u64);
        if let Err(code) = enqueue(&stream, copy) {
            failed.maybe(index);
            return Err(code);
        }
    }
    Ok(())
}

const NOWHERE: *mut usize = std::ptr::null_mut();

api! {
    export fn cuMemcpy | cuMemcpy_ptds(default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        now(Copy::linear(Memory::Unified(to), Memory::Unified(from), bytes as u64), default)
    }
    export fn cuMemcpyAsync | cuMemcpyAsync_ptsz(default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        later(Copy::linear(Memory::Unified(to), Memory::Unified(from), bytes as u64), stream, default)
    }
    export fn cuMemcpyPeer | cuMemcpyPeer_ptds(default; to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext, bytes: usize) {
        now(between_peers(to, to_context, from, from_context, bytes)?, default)
    }
    export fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(default; to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
        bytes: usize, stream: CUstream) {
        later(between_peers(to, to_context, from, from_context, bytes)?, stream, default)
    }

    export fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(default; to: CUdeviceptr, from: *const c_void, bytes: usize) {
        now(Copy::linear(Memory::Device(to), host(from), bytes as u64), default)
    }
    export fn cuMemcpyHtoD(to: CUdeviceptr_v1, from: *const c_void, bytes: u32) {
        now(Copy::linear(Memory::Device(to.into()), host(from), bytes.into()), DefaultStream::Legacy)
    }
    export fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(default; to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream) {
        later(Copy::linear(Memory::Device(to), host(from), bytes as u64), stream, default)
    }
    export fn cuMemcpyHtoDAsync(to: CUdeviceptr_v1, from: *const c_void, bytes: u32, stream: CUstream) {
        later(Copy::linear(Memory::Device(to.into()), host(from), bytes.into()), stream, DefaultStream::Legacy)
    }
    export fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(default; to: *mut c_void, from: CUdeviceptr, bytes: usize) {
        now(Copy::linear(host(to), Memory::Device(from), bytes as u64), default)
    }
    export fn cuMemcpyDtoH(to: *mut c_void, from: CUdeviceptr_v1, bytes: u32) {
        now(Copy::linear(host(to), Memory::Device(from.into()), bytes.into()), DefaultStream::Legacy)
    }
    export fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(default; to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        later(Copy::linear(host(to), Memory::Device(from), bytes as u64), stream, default)
    }
    export fn cuMemcpyDtoHAsync(to: *mut c_void, from: CUdeviceptr_v1, bytes: u32, stream: CUstream) {
        later(Copy::linear(host(to), Memory::Device(from.into()), bytes.into()), stream, DefaultStream::Legacy)
    }
    export fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize) {
        now(Copy::linear(Memory::Device(to), Memory::Device(from), bytes as u64), default)
    }
    export fn cuMemcpyDtoD(to: CUdeviceptr_v1, from: CUdeviceptr_v1, bytes: u32) {
        now(Copy::linear(Memory::Device(to.into()), Memory::Device(from.into()), bytes.into()), DefaultStream::Legacy)
    }
    export fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(default; to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) {
        later(Copy::linear(Memory::Device(to), Memory::Device(from), bytes as u64), stream, default)
    }
    export fn cuMemcpyDtoDAsync(to: CUdeviceptr_v1, from: CUdeviceptr_v1, bytes: u32, stream: CUstream) {
        later(Copy::linear(Memory::Device(to.into()), Memory::Device(from.into()), bytes.into()), stream, DefaultStream::Legacy)
    }

    export fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(default; to: CUarray, offset: usize, from: CUdeviceptr, bytes: usize) {
        now(to_array(to, offset as u64, Memory::Device(from), bytes as u64)?, default)
    }
    export fn cuMemcpyDtoA(to: CUarray, offset: u32, from: CUdeviceptr_v1, bytes: u32) {
        now(to_array(to, offset.into(), Memory::Device(from.into()), bytes.into())?, DefaultStream::Legacy)
    }
    export fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(default; to: CUdeviceptr, from: CUarray, offset: usize, bytes: usize) {
        now(from_array(Memory::Device(to), from, offset as u64, bytes as u64)?, default)
    }
    export fn cuMemcpyAtoD(to: CUdeviceptr_v1, from: CUarray, offset: u32, bytes: u32) {
        now(from_array(Memory::Device(to.into()), from, offset.into(), bytes.into())?, DefaultStream::Legacy)
    }
    export fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(default; to: CUarray, offset: usize, from: *const c_void, bytes: usize) {
        now(to_array(to, offset as u64, host(from), bytes as u64)?, default)
    }
    export fn cuMemcpyHtoA(to: CUarray, offset: u32, from: *const c_void, bytes: u32) {
        now(to_array(to, offset.into(), host(from), bytes.into())?, DefaultStream::Legacy)
    }
    export fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(default; to: *mut c_void, from: CUarray, offset: usize, bytes: usize) {
        now(from_array(host(to), from, offset as u64, bytes as u64)?, default)
    }
    export fn cuMemcpyAtoH(to: *mut c_void, from: CUarray, offset: u32, bytes: u32) {
        now(from_array(host(to), from, offset.into(), bytes.into())?, DefaultStream::Legacy)
    }
    export fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds(default; to: CUarray, to_offset: usize, from: CUarray, from_offset: usize, bytes: usize) {
        now(between_arrays(to, to_offset as u64, from, from_offset as u64, bytes as u64)?, default)
    }
    export fn cuMemcpyAtoA(to: CUarray, to_offset: u32, from: CUarray, from_offset: u32, bytes: u32) {
        now(between_arrays(to, to_offset.into(), from, from_offset.into(), bytes.into())?, DefaultStream::Legacy)
    }
    export fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(default; to: CUarray, offset: usize, from: *const c_void, bytes: usize, stream: CUstream) {
        later(to_array(to, offset as u64, host(from), bytes as u64)?, stream, default)
    }
    export fn cuMemcpyHtoAAsync(to: CUarray, offset: u32, from: *const c_void, bytes: u32, stream: CUstream) {
        later(to_array(to, offset.into(), host(from), bytes.into())?, stream, DefaultStream::Legacy)
    }
    export fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(default; to: *mut c_void, from: CUarray, offset: usize, bytes: usize, stream: CUstream) {
        later(from_array(host(to), from, offset as u64, bytes as u64)?, stream, default)
    }
    export fn cuMemcpyAtoHAsync(to: *mut c_void, from: CUarray, offset: u32, bytes: u32, stream: CUstream) {
        later(from_array(host(to), from, offset.into(), bytes.into())?, stream, DefaultStream::Legacy)
    }

    export fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz(default; to: In<CUdeviceptr>, from: In<CUdeviceptr>, sizes: In<usize>, count: usize,
        _attributes: In<CUmemcpyAttributes>, _indexes: In<usize>, _attribute_count: usize, failed: Out<usize>, stream: CUstream) {
        batch(to, from, sizes, count, failed, stream, default)
    }
    export fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz(default; to: In<CUdeviceptr>, from: In<CUdeviceptr>, sizes: In<usize>, count: usize,
        _attributes: In<CUmemcpyAttributes>, _indexes: In<usize>, _attribute_count: usize, stream: CUstream) {
        batch(to, from, sizes, count, Out::from_ptr(NOWHERE), stream, default)
    }
}
