//! The entry points that fill memory.

use super::copies_api;
use super::set::Set;
use super::space::{self, Kind};
use crate::abi::*;
use crate::api::{DefaultStream, Outcome};
use crate::process::process;
use crate::work::{self, Work};
use crate::{capture, stream};

/// Fills so many elements in a row.
fn row(to: u64, value: u32, element: u32, count: u64, stream: Option<CUstream>, default: DefaultStream) -> Outcome {
    rows(to, 0, value, element, [count, 1], stream, default)
}

/// Fills rows of elements. `stream`: none in the synchronous forms, which wait where the host could look; a fill of device
/// memory is the device's own business.
fn rows(
    to: u64,
    pitch: u64,
    value: u32,
    element: u32,
    shape: [u64; 2],
    stream: Option<CUstream>,
    default: DefaultStream,
) -> Outcome {
    process()?;
    let synchronous = stream.is_none();
    let stream = stream::resolve(stream.unwrap_or(std::ptr::null_mut()), default)?;
    let capturing = capture::is_capturing(&stream)?; // a capture that forbids this comes before a bad address
    let set = Set::shaped(to, pitch, value, element, shape)?;
    if set.is_empty() {
        return Ok(());
    }
    work::enqueue(&stream, Work::Set(set))?;
    let seen_by_host =
        || space::find(to).is_some_and(|region| region.on_host() || matches!(region.kind, Kind::Managed(_)));
    if synchronous && !capturing && seen_by_host() { copies_api::wait(&stream) } else { Ok(()) }
}

api! {
    export fn cuMemsetD8_v2 | cuMemsetD8_v2_ptds(default; to: CUdeviceptr, value: u8, count: usize) {
        row(to, value.into(), 1, count as u64, None, default)
    }
    export fn cuMemsetD8(to: CUdeviceptr_v1, value: u8, count: u32) { row(to.into(), value.into(), 1, count.into(), None, DefaultStream::Legacy) }
    export fn cuMemsetD8Async | cuMemsetD8Async_ptsz(default; to: CUdeviceptr, value: u8, count: usize, stream: CUstream) {
        row(to, value.into(), 1, count as u64, Some(stream), default)
    }
    export fn cuMemsetD2D8_v2 | cuMemsetD2D8_v2_ptds(default; to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize) {
        rows(to, pitch as u64, value.into(), 1, [width as u64, height as u64], None, default)
    }
    export fn cuMemsetD2D8(to: CUdeviceptr_v1, pitch: u32, value: u8, width: u32, height: u32) {
        rows(to.into(), pitch.into(), value.into(), 1, [width.into(), height.into()], None, DefaultStream::Legacy)
    }
    export fn cuMemsetD2D8Async | cuMemsetD2D8Async_ptsz(default; to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream) {
        rows(to, pitch as u64, value.into(), 1, [width as u64, height as u64], Some(stream), default)
    }
    export fn cuMemsetD16_v2 | cuMemsetD16_v2_ptds(default; to: CUdeviceptr, value: u16, count: usize) {
        row(to, value.into(), 2, count as u64, None, default)
    }
    export fn cuMemsetD16(to: CUdeviceptr_v1, value: u16, count: u32) { row(to.into(), value.into(), 2, count.into(), None, DefaultStream::Legacy) }
    export fn cuMemsetD16Async | cuMemsetD16Async_ptsz(default; to: CUdeviceptr, value: u16, count: usize, stream: CUstream) {
        row(to, value.into(), 2, count as u64, Some(stream), default)
    }
    export fn cuMemsetD2D16_v2 | cuMemsetD2D16_v2_ptds(default; to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize) {
        rows(to, pitch as u64, value.into(), 2, [width as u64, height as u64], None, default)
    }
    export fn cuMemsetD2D16(to: CUdeviceptr_v1, pitch: u32, value: u16, width: u32, height: u32) {
        rows(to.into(), pitch.into(), value.into(), 2, [width.into(), height.into()], None, DefaultStream::Legacy)
    }
    export fn cuMemsetD2D16Async | cuMemsetD2D16Async_ptsz(default; to: CUdeviceptr, pitch: usize, value: u16, width: usize, height: usize, stream: CUstream) {
        rows(to, pitch as u64, value.into(), 2, [width as u64, height as u64], Some(stream), default)
    }
    export fn cuMemsetD32_v2 | cuMemsetD32_v2_ptds(default; to: CUdeviceptr, value: u32, count: usize) {
        row(to, value, 4, count as u64, None, default)
    }
    export fn cuMemsetD32(to: CUdeviceptr_v1, value: u32, count: u32) { row(to.into(), value, 4, count.into(), None, DefaultStream::Legacy) }
    export fn cuMemsetD32Async | cuMemsetD32Async_ptsz(default; to: CUdeviceptr, value: u32, count: usize, stream: CUstream) {
        row(to, value, 4, count as u64, Some(stream), default)
    }
    export fn cuMemsetD2D32_v2 | cuMemsetD2D32_v2_ptds(default; to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize) {
        rows(to, pitch as u64, value, 4, [width as u64, height as u64], None, default)
    }
    export fn cuMemsetD2D32(to: CUdeviceptr_v1, pitch: u32, value: u32, width: u32, height: u32) {
        rows(to.into(), pitch.into(), value, 4, [width.into(), height.into()], None, DefaultStream::Legacy)
    }
    export fn cuMemsetD2D32Async | cuMemsetD2D32Async_ptsz(default; to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream) {
        rows(to, pitch as u64, value, 4, [width as u64, height as u64], Some(stream), default)
    }
}
