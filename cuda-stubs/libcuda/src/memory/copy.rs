//! Copies of any shape, in one form: a box of bytes between two memories, as CUDA_MEMCPY3D has it.

use std::sync::Arc;

use sim_world::channel::Kind as Engine;

use super::array;
use super::managed;
use super::space::{self, Span, When};
use crate::abi::*;
use crate::api::Outcome;
use crate::effects::Effect;
use crate::lane::Piece;
use crate::process::process;
use crate::stream::Stream;

pub(crate) use super::set::Set;

/// Which memory, and where in it. Numbers, not pointers, so that a copy can be kept and sent between threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Host(u64),
    Device(u64),
    /// An address that says itself what it is.
    Unified(u64),
    /// An array, by its handle.
    Array(u64),
}

/// One end of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End {
    pub memory: Memory,
    pub x: u64,
    pub y: u64,
    pub z: u64,
    pub lod: u64,
    /// Bytes from row to row; 0: as many as are copied.
    pub pitch: u64,
    /// Rows from slice to slice; 0: as many as are copied.
    pub rows: u64,
}

impl End {
    /// The beginning of a memory.
    pub(crate) fn of(memory: Memory) -> End {
        End { memory, x: 0, y: 0, z: 0, lod: 0, pitch: 0, rows: 0 }
    }
}

/// A copy of any shape.
#[derive(Clone)]
pub(crate) struct Copy {
    pub source: End,
    pub target: End,
    /// In bytes.
    pub width: u64,
    pub height: u64,
    pub depth: u64,
    /// The source's bytes, where they were taken at the call.
    staged: Option<Rows>,
}

/// An end of a copy as the bytes behind it.
#[derive(Clone)]
struct Rows {
    span: Span,
    /// Where in the span the first row begins.
    start: u64,
    pitch: u64,
    slice: u64,
    place: Place,
}

/// Where memory is, as far as the time of a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Device,
    Pinned,
    Pageable,
}

impl Copy {
    /// So many bytes in a row.
    pub(crate) fn linear(target: Memory, source: Memory, bytes: u64) -> Copy {
        Copy::shaped(End::of(target), End::of(source), [bytes, 1, 1])
    }

    /// A box of bytes: width, height, depth.
    pub(crate) fn shaped(target: End, source: End, [width, height, depth]: [u64; 3]) -> Copy {
        Copy { source, target, width, height, depth, staged: None }
    }

    /// From the C form. Checked: both ends are there (or will be when a graph brings them).
    pub(crate) fn from_3d(form: &CUDA_MEMCPY3D) -> Outcome<Copy> {
        let end = |kind, host: u64, device, array: u64| {
            Ok(match kind {
                CU_MEMORYTYPE_HOST => Memory::Host(host),
                CU_MEMORYTYPE_DEVICE => Memory::Device(device),
                CU_MEMORYTYPE_ARRAY => Memory::Array(array),
                CU_MEMORYTYPE_UNIFIED => Memory::Unified(device),
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            })
        };
        let copy = Copy {
            source: End {
                memory: end(form.srcMemoryType, form.srcHost as u64, form.srcDevice, form.srcArray as u64)?,
                x: form.srcXInBytes as u64,
                y: form.srcY as u64,
                z: form.srcZ as u64,
                lod: form.srcLOD as u64,
                pitch: form.srcPitch as u64,
                rows: form.srcHeight as u64,
            },
            target: End {
                memory: end(form.dstMemoryType, form.dstHost as u64, form.dstDevice, form.dstArray as u64)?,
                x: form.dstXInBytes as u64,
                y: form.dstY as u64,
                z: form.dstZ as u64,
                lod: form.dstLOD as u64,
                pitch: form.dstPitch as u64,
                rows: form.dstHeight as u64,
            },
            width: form.WidthInBytes as u64,
            height: form.Height as u64,
            depth: form.Depth as u64,
            staged: None,
        };
        copy.check()?;
        Ok(copy)
    }

    /// The C form again.
    pub(crate) fn to_3d(&self) -> CUDA_MEMCPY3D {
        let mut form = CUDA_MEMCPY3D {
            srcXInBytes: self.source.x as usize,
            srcY: self.source.y as usize,
            srcZ: self.source.z as usize,
            srcLOD: self.source.lod as usize,
            srcPitch: self.source.pitch as usize,
            srcHeight: self.source.rows as usize,
            dstXInBytes: self.target.x as usize,
            dstY: self.target.y as usize,
            dstZ: self.target.z as usize,
            dstLOD: self.target.lod as usize,
            dstPitch: self.target.pitch as usize,
            dstHeight: self.target.rows as usize,
            WidthInBytes: self.width as usize,
            Height: self.height as usize,
            Depth: self.depth as usize,
            ..Default::default()
        };
        match self.source.memory {
            Memory::Host(at) => (form.srcMemoryType, form.srcHost) = (CU_MEMORYTYPE_HOST, at as *const _),
            Memory::Device(at) => (form.srcMemoryType, form.srcDevice) = (CU_MEMORYTYPE_DEVICE, at),
            Memory::Unified(at) => (form.srcMemoryType, form.srcDevice) = (CU_MEMORYTYPE_UNIFIED, at),
            Memory::Array(at) => (form.srcMemoryType, form.srcArray) = (CU_MEMORYTYPE_ARRAY, at as CUarray),
        }
        match self.target.memory {
            Memory::Host(at) => (form.dstMemoryType, form.dstHost) = (CU_MEMORYTYPE_HOST, at as *mut _),
            Memory::Device(at) => (form.dstMemoryType, form.dstDevice) = (CU_MEMORYTYPE_DEVICE, at),
            Memory::Unified(at) => (form.dstMemoryType, form.dstDevice) = (CU_MEMORYTYPE_UNIFIED, at),
            Memory::Array(at) => (form.dstMemoryType, form.dstArray) = (CU_MEMORYTYPE_ARRAY, at as CUarray),
        }
        form
    }

    /// Whether there is nothing to copy.
    pub(crate) fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// Fails unless both ends are memory that is there, or will be when the graph is launched that it becomes part of.
    pub(crate) fn check(&self) -> Outcome {
        if !self.is_empty() {
            self.rows(&self.source, When::AtLaunch)?;
            self.rows(&self.target, When::AtLaunch)?;
        }
        Ok(())
    }

    /// Takes the bytes now if the source is memory that the client may change as soon as the call is over.
    pub(crate) fn stage(&mut self) -> Outcome {
        if self.is_empty() {
            return Ok(());
        }
        let rows = self.rows(&self.source, When::Now)?;
        if rows.place == Place::Pageable && self.rows(&self.target, When::Now)?.place != Place::Pageable {
            self.staged = Some(Rows { span: rows.span.staged()?, ..rows });
        }
        Ok(())
    }

    /// Whether the call must not return before the copy is done: the driver copies to pageable memory through buffers of its
    /// own, with the caller waiting.
    pub(crate) fn ends_in_pageable(&self) -> bool {
        !self.is_empty() && self.rows(&self.target, When::Now).is_ok_and(|rows| rows.place == Place::Pageable)
    }

    /// Whether both ends are the device's.
    pub(crate) fn is_on_device(&self) -> bool {
        let on_device = |end| self.rows(end, When::AtLaunch).is_ok_and(|rows| rows.place == Place::Device);
        self.is_empty() || (on_device(&self.source) && on_device(&self.target))
    }

    /// Puts the copy onto the timeline.
    pub(crate) fn execute(&self, stream: &Arc<Stream>) -> Outcome {
        if self.is_empty() {
            return Ok(());
        }
        let source = match &self.staged {
            Some(rows) => rows.clone(),
            None => self.rows(&self.source, When::Now)?,
        };
        let target = self.rows(&self.target, When::Now)?;
        target.span.prepare()?;
        let context = stream.context()?;
        self.touch_managed(&source, &self.source, context.device.gpu);
        self.touch_managed(&target, &self.target, context.device.gpu);
        let lane = context.lane()?;
        let settings = lane.world.settings();
        let bytes = self.width * self.height * self.depth;
        let mut piece = match (source.place, target.place) {
            (Place::Device, Place::Device) => Piece::filling(nanoseconds(bytes, settings.device_rate)),
            (_, Place::Device) => {
                Piece { kind: Engine::CopyIn, ..Piece::filling(nanoseconds(bytes, settings.copy_rate)) }
            }
            (Place::Device, _) => {
                Piece { kind: Engine::CopyOut, ..Piece::filling(nanoseconds(bytes, settings.copy_rate)) }
            }
            _ => Piece::MARKER,
        };
        piece.priority = stream.rank();
        let mark = lane.submit_marked(stream.queue, stream.order, piece, &[]);
        let shape = [self.width, self.height, self.depth];
        let act = Box::new(move || {
            if transfer(&target, &source, shape).is_err() {
                eprintln!("ration-sim: a copy of {bytes} bytes could not be done: no memory for them on this machine");
            }
        });
        process()?.effects.add(mark, Effect::After(act));
        Ok(())
    }

    fn touch_managed(&self, rows: &Rows, end: &End, gpu: usize) {
        if rows.place == Place::Device
            && let Memory::Device(at) | Memory::Unified(at) | Memory::Host(at) = end.memory
        {
            let (first, len) = extent(end, [self.width, self.height, self.depth]);
            managed::touch_range(gpu, at.saturating_add(first), len);
        }
    }

    fn rows(&self, end: &End, when: When) -> Outcome<Rows> {
        let shape = [self.width, self.height, self.depth];
        let (address, known) = match end.memory {
            Memory::Array(handle) => {
                let array = array::get(handle as CUarray)?;
                let (span, start, pitch, slice) = array.rows(end, shape)?;
                return Ok(Rows { span, start, pitch, slice, place: Place::Device });
            }
            Memory::Device(at) => (at, true),
            Memory::Host(at) | Memory::Unified(at) => (at, false),
        };
        if end.pitch != 0 && end.x.checked_add(self.width).is_none_or(|needed| needed > end.pitch) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if address == 0
            || [end.x, end.y, end.z, end.pitch, end.rows, shape[0], shape[1], shape[2]].iter().any(|n| *n > SANE)
        {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (first, len) = extent(end, shape);
        let first = address.checked_add(first).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let (pitch, slice) = steps(end, shape);
        let (span, place) = match space::find(first) {
            Some(region) => {
                let place = if region.on_host() { Place::Pinned } else { Place::Device };
                (space::resolve(first, len, when)?, place)
            }
            None if known => return Err(CUDA_ERROR_INVALID_VALUE),
            None => (Span::plain(first, len), Place::Pageable),
        };
        Ok(Rows { span, start: 0, pitch, slice, place })
    }
}

/// Sizes above this are mistakes; below, products of two fit in 128 bits and are checked there.
const SANE: u64 = 1 << 47;

/// Bytes from row to row and from slice to slice.
fn steps(end: &End, [width, height, _]: [u64; 3]) -> (u64, u64) {
    let pitch = if end.pitch == 0 { end.x + width } else { end.pitch };
    let rows = if end.rows == 0 { end.y + height } else { end.rows };
    (pitch, pitch.saturating_mul(rows))
}

/// Where the first byte is, and how far it is from there to behind the last one.
fn extent(end: &End, shape: [u64; 3]) -> (u64, u64) {
    let (pitch, slice) = steps(end, shape);
    let at = |z: u64, y: u64, x: u64| {
        let sum = u128::from(z) * u128::from(slice) + u128::from(y) * u128::from(pitch) + u128::from(x);
        u64::try_from(sum).unwrap_or(u64::MAX)
    };
    let [width, height, depth] = shape;
    (at(end.z, end.y, end.x), at(depth.saturating_sub(1), height.saturating_sub(1), width))
}

fn transfer(to: &Rows, from: &Rows, [width, height, depth]: [u64; 3]) -> Outcome {
    // Rows that lie end to end are one row; most copies are that.
    let joined = |rows: &Rows| rows.pitch == width || height == 1;
    let stacked = |rows: &Rows| rows.slice == rows.pitch * height || depth == 1;
    if joined(to) && joined(from) && stacked(to) && stacked(from) {
        return space::copy_bytes(&to.span, to.start, &from.span, from.start, width * height * depth);
    }
    for z in 0..depth {
        for y in 0..height {
            let at = |rows: &Rows| rows.start + z * rows.slice + y * rows.pitch;
            space::copy_bytes(&to.span, at(to), &from.span, at(from), width)?;
        }
    }
    Ok(())
}

/// How long so many bytes take at a rate per second.
pub(crate) fn nanoseconds(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_follow_the_c_form() {
        let end = End { memory: Memory::Device(0), x: 3, y: 2, z: 1, lod: 0, pitch: 100, rows: 10 };
        assert_eq!(extent(&end, [20, 4, 2]), (1000 + 200 + 3, 1000 + 300 + 20));
        let plain = End::of(Memory::Device(0));
        assert_eq!(extent(&plain, [20, 1, 1]), (0, 20));
        assert_eq!(extent(&plain, [20, 4, 2]), (0, 160), "without a pitch rows lie end to end");
    }

    #[test]
    fn the_c_form_survives_the_round_trip() {
        let copy = Copy::shaped(
            End { memory: Memory::Device(0x7000), x: 1, y: 2, z: 3, lod: 0, pitch: 512, rows: 7 },
            End { memory: Memory::Host(0x9000), x: 4, y: 5, z: 6, lod: 0, pitch: 256, rows: 8 },
            [16, 3, 2],
        );
        let form = copy.to_3d();
        assert_eq!((form.srcMemoryType, form.srcHost as u64, form.srcPitch), (CU_MEMORYTYPE_HOST, 0x9000, 256));
        assert_eq!((form.dstMemoryType, form.dstDevice, form.dstHeight), (CU_MEMORYTYPE_DEVICE, 0x7000, 7));
        assert_eq!((form.WidthInBytes, form.Height, form.Depth), (16, 3, 2));
    }

    #[test]
    fn rows_are_moved_one_by_one() {
        let mut from: Vec<u8> = (0..200).collect();
        let mut to = vec![0u8; 200];
        let rows = |bytes: &mut Vec<u8>, pitch, slice| Rows {
            span: Span::plain(bytes.as_mut_ptr() as u64, 200),
            start: 0,
            pitch,
            slice,
            place: Place::Pageable,
        };
        transfer(&rows(&mut to, 10, 50), &rows(&mut from, 20, 100), [5, 3, 2]).expect("plain memory");
        for z in 0..2 {
            for y in 0..3 {
                assert_eq!(to[z * 50 + y * 10..][..5], from[z * 100 + y * 20..][..5]);
                assert_eq!(to[z * 50 + y * 10 + 5..][..5], [0; 5], "nothing beside the box");
            }
        }
    }
}
