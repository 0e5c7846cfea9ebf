//! The heap that kernels allocate from, one for each context.
//!
//! The driver makes it at the first launch of a kernel that uses it, which nobody can tell by the launch. So it is charged
//! ahead: when its size is asked for, or else when code that uses it is loaded; and the charge goes when the heap is there
//! and NVML counts it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::code::USUAL_HEAP;
use super::slice::{BLOCK, in_blocks};
use super::{Changing, Slice};
use crate::abi::cuda::CUcontext;
use crate::thread::Guarded;

/// What is known of a context's heap.
#[derive(Clone, Copy, Default)]
struct Heap {
    /// Charged for what is not there yet.
    ahead: u64,
    /// It is there, and stays as it is.
    there: bool,
    /// Code that uses it was loaded.
    code: bool,
}

/// The heaps of a slice's contexts.
pub struct Heaps {
    /// Whether any is charged ahead.
    any_ahead: AtomicBool,
    by_context: Guarded<BTreeMap<usize, Heap>>,
}

impl Heaps {
    pub const fn new() -> Heaps {
        Heaps { any_ahead: AtomicBool::new(false), by_context: Guarded::new(BTreeMap::new()) }
    }

    fn with<T>(&self, context: CUcontext, change: impl FnOnce(&mut Heap) -> T) -> T {
        self.by_context.with(|heaps| change(heaps.entry(context as usize).or_default()))
    }

    /// NVML's figure has grown by so much at once: was that a heap? Returns what was charged ahead for it.
    pub fn came(&self, growth: u64) -> u64 {
        if !self.is_ahead() {
            return 0;
        }
        self.by_context.with(|heaps| {
            let came = heaps.values_mut().find(|heap| heap.ahead > 0 && growth + 2 * BLOCK >= heap.ahead);
            let ahead = came.map_or(0, |heap| {
                heap.there = true;
                std::mem::take(&mut heap.ahead)
            });
            self.any_ahead.store(heaps.values().any(|heap| heap.ahead > 0), Ordering::Release);
            ahead
        })
    }

    /// Whether any is charged ahead, so that a launch may make it.
    pub fn is_ahead(&self) -> bool {
        self.any_ahead.load(Ordering::Acquire)
    }
}

impl Slice {
    /// Makes room for a heap of so many bytes in a context. `false`: there is none. To be told how that ended.
    pub fn foresee_heap(&'static self, context: CUcontext, bytes: u64, changing: &Changing) -> Option<HeapChange> {
        let wanted = in_blocks(bytes).saturating_add(BLOCK);
        let before = self.heaps.with(context, |heap| heap.ahead);
        let hold = self.reserve(wanted.saturating_sub(before), changing).ok()?;
        Some(HeapChange { slice: self, context, wanted, hold })
    }

    /// The same for the heap that a context has if it asks for no other, when code that uses it is loaded.
    pub fn foresee_usual_heap(&'static self, context: CUcontext, changing: &Changing) -> bool {
        if self.heaps.with(context, |heap| heap.there || heap.ahead > 0) {
            return true;
        }
        let Ok(hold) = self.reserve_at_most(USUAL_HEAP, changing) else { return false };
        HeapChange { slice: self, context, wanted: USUAL_HEAP, hold }.done();
        true
    }

    /// Whether code that uses the heap was loaded into a context before.
    pub fn has_heap_code(&self, context: CUcontext) -> bool {
        self.heaps.with(context, |heap| heap.code)
    }

    /// It was.
    pub fn set_heap_code(&self, context: CUcontext) {
        self.heaps.with(context, |heap| heap.code = true);
    }

    /// The context is gone, and its heap.
    pub fn forget_heap(&self, context: CUcontext) {
        let gone = self.heaps.by_context.with(|heaps| {
            let gone = heaps.remove(&(context as usize));
            self.heaps.any_ahead.store(heaps.values().any(|heap| heap.ahead > 0), Ordering::Release);
            gone
        });
        if let Some(heap) = gone {
            self.refund_beside(heap.ahead);
        }
    }
}

/// A heap's new size, for which there is room, until the driver has agreed.
#[must_use]
pub struct HeapChange {
    slice: &'static Slice,
    context: CUcontext,
    wanted: u64,
    hold: super::slice::Hold,
}

impl HeapChange {
    /// The driver has.
    pub fn done(self) {
        let before = self.slice.heaps.with(self.context, |heap| std::mem::replace(&mut heap.ahead, self.wanted));
        self.slice.heaps.any_ahead.store(true, Ordering::Release);
        self.hold.keep_beside(self.wanted.saturating_sub(before));
        self.slice.refund_beside(before.saturating_sub(self.wanted));
    }
}
