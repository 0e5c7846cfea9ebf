//! Fills of any shape, in one form: rows of elements, as CUDA_MEMSET_NODE_PARAMS has it.

use std::sync::Arc;

use super::copy::nanoseconds;
use super::managed;
use super::space::{self, Span, When};
use crate::abi::*;
use crate::api::Outcome;
use crate::effects::Effect;
use crate::lane::Piece;
use crate::process::process;
use crate::stream::Stream;

/// A fill of any shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Set {
    pub target: u64,
    /// Bytes from row to row.
    pub pitch: u64,
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u32,
    /// Elements in a row.
    pub width: u64,
    pub height: u64,
    /// The context of the node, where a graph was told one.
    pub context: usize,
}

impl Set {
    /// Rows of elements. Checked: the memory is there (or will be when a graph brings it).
    pub(crate) fn shaped(target: u64, pitch: u64, value: u32, element: u32, [width, height]: [u64; 2]) -> Outcome<Set> {
        let set = Set { target, pitch, value, element, width, height, context: 0 };
        set.check()?;
        Ok(set)
    }

    /// From the C form, checked.
    pub(crate) fn from_node(form: &CUDA_MEMSET_NODE_PARAMS_v2) -> Outcome<Set> {
        let set = Set {
            target: form.dst,
            pitch: form.pitch as u64,
            value: form.value,
            element: form.elementSize,
            width: form.width as u64,
            height: form.height as u64,
            context: form.ctx as usize,
        };
        set.check()?;
        Ok(set)
    }

    /// The C form again.
    pub(crate) fn to_node(&self) -> CUDA_MEMSET_NODE_PARAMS_v2 {
        CUDA_MEMSET_NODE_PARAMS_v2 {
            dst: self.target,
            pitch: self.pitch as usize,
            value: self.value,
            elementSize: self.element,
            width: self.width as usize,
            height: self.height as usize,
            ctx: self.context as CUcontext,
        }
    }

    /// Whether there is nothing to fill.
    pub(crate) fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0
    }

    fn check(&self) -> Outcome {
        let element = u64::from(self.element);
        if !matches!(element, 1 | 2 | 4) || !self.target.is_multiple_of(element) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if self.is_empty() {
            return Ok(());
        }
        let row = self.width.checked_mul(element).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if self.height > 1 && (self.pitch < row || !self.pitch.is_multiple_of(element)) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        space::resolve(self.target, self.extent()?, When::AtLaunch).map(|_| ())
    }

    /// Bytes from the first to behind the last.
    fn extent(&self) -> Outcome<u64> {
        let row = self.width.checked_mul(u64::from(self.element));
        let before = self.height.saturating_sub(1).checked_mul(self.pitch);
        row.zip(before).and_then(|(row, before)| before.checked_add(row)).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Puts the fill onto the timeline.
    pub(crate) fn execute(&self, stream: &Arc<Stream>) -> Outcome {
        if self.is_empty() {
            return Ok(());
        }
        let extent = self.extent()?;
        let span = space::resolve(self.target, extent, When::Now)?;
        if !self.is_zero() {
            span.prepare()?;
        }
        let context = stream.context()?;
        managed::touch_range(context.device.gpu, self.target, extent);
        let lane = context.lane()?;
        let bytes = self.width * u64::from(self.element) * self.height;
        let piece = Piece {
            priority: stream.rank(),
            ..Piece::filling(nanoseconds(bytes, 2 * lane.world.settings().device_rate))
        };
        let mark = lane.submit_marked(stream.queue, stream.order, piece, &[]);
        let set = self.clone();
        let act = Box::new(move || {
            if set.fill(&span).is_err() {
                eprintln!("ration-sim: a fill of {bytes} bytes could not be done: no memory for them on this machine");
            }
        });
        process()?.effects.add(mark, Effect::After(act));
        Ok(())
    }

    fn pattern(&self) -> [u8; 4] {
        let [a, b, ..] = self.value.to_le_bytes();
        match self.element {
            1 => [a; 4],
            2 => [a, b, a, b],
            _ => self.value.to_le_bytes(),
        }
    }

    fn is_zero(&self) -> bool {
        self.pattern() == [0; 4]
    }

    fn fill(&self, span: &Span) -> Outcome {
        let row = self.width * u64::from(self.element);
        let (rows, row) = if row == self.pitch { (1, row * self.height) } else { (self.height, row) };
        for y in 0..rows {
            if self.is_zero() {
                span.zero(y * self.pitch, row)?;
            } else {
                span.each(y * self.pitch, row, |at, size| fill_pattern(at, size, self.pattern()))?;
            }
        }
        Ok(())
    }
}

/// Fills memory with four bytes over and over. Stretches begin and end between elements: they are cut at pages.
fn fill_pattern(at: *mut u8, size: usize, pattern: [u8; 4]) {
    // SAFETY: callers hand over memory of this size that the fill may write.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at, size) };
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        bytes.fill(pattern[0]);
        return;
    }
    let mut chunks = bytes.chunks_exact_mut(4);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&pattern);
    }
    let rest = chunks.into_remainder();
    let len = rest.len();
    rest.copy_from_slice(&pattern[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(element: u32, value: u32, pitch: u64, [width, height]: [u64; 2]) -> Set {
        Set { target: 0, pitch, value, element, width, height, context: 0 }
    }

    #[test]
    fn rows_are_filled_and_nothing_beside_them() {
        let mut bytes = vec![0xffu8; 64];
        let span = Span::plain(bytes.as_mut_ptr() as u64, 64);
        set(2, 0x1234, 16, [3, 4]).fill(&span).expect("plain memory");
        for row in bytes.chunks(16) {
            assert_eq!(row[..6], [0x34, 0x12, 0x34, 0x12, 0x34, 0x12]);
            assert_eq!(row[6..], [0xff; 10]);
        }
    }

    #[test]
    fn values_are_cut_to_the_element() {
        assert_eq!(set(1, 0x1ff, 0, [1, 1]).pattern(), [0xff; 4]);
        assert_eq!(set(2, 0x5_0001, 0, [1, 1]).pattern(), [1, 0, 1, 0]);
        assert!(set(1, 0x100, 0, [1, 1]).is_zero());
    }

    #[test]
    fn the_c_form_survives_the_round_trip() {
        let all = set(4, 7, 64, [3, 2]);
        let form = all.to_node();
        assert_eq!((form.elementSize, form.width, form.height, form.pitch, form.value), (4, 3, 2, 64, 7));
    }
}
