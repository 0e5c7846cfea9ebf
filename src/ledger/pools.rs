//! Memory pools, and the memory of graphs: what they have reserved is what is held, used or not.

use std::ffi::c_void;

use super::Slice;
use super::lent::{self, Keepers};
use super::marks::{self, Copy, Mark};
use super::slice::BLOCK;
use crate::abi::cuda::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
    CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CUDA_SUCCESS, CUdevice, CUmemoryPool,
};
use crate::driver::calls::{self, without_breaking_captures};
use crate::thread::Guarded;

/// What pools grow by, on the GPUs that were measured.
pub const STEP: u64 = 32 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Pool(usize),
    Graphs(CUdevice),
}

struct Known {
    source: Source,
    slice: &'static Slice,
    /// What is charged for it.
    reserved: u64,
    /// Of that, what was exported: when the pool lets go of it, the GPU does not.
    exported: u64,
    /// What it let go of so.
    kept: u64,
    /// The descriptors that it was exported as itself: whoever has one of these has what was exported of the pool, when the pool
    /// is destroyed here.
    descriptors: Vec<Copy>,
    /// The marks on them, for so many bytes.
    marks: Vec<Mark>,
    marked: u64,
}

impl Known {
    fn new(source: Source, slice: &'static Slice) -> Known {
        let (descriptors, marks) = (Vec::new(), Vec::new());
        Known { source, slice, reserved: 0, exported: 0, kept: 0, descriptors, marks, marked: 0 }
    }

    /// Marks the descriptors for all that was exported, so that whoever comes after this process can tell.
    fn mark(&mut self) {
        let more = (self.exported + self.kept).saturating_sub(self.marked);
        let mut files = self.descriptors.iter().filter_map(Copy::file);
        if more >= BLOCK
            && let Some(mark) = files.next().and_then(|file| marks::mark(self.slice, file, more, None))
        {
            self.marks.push(mark);
            self.marked += more;
            for file in files {
                marks::put(file, &mark);
            }
        }
    }
}

static KNOWN: Guarded<Vec<Known>> = Guarded::new(Vec::new());

/// In a forked child: none.
pub fn forget_the_parent() {
    KNOWN.renew(Vec::new());
}

fn ask(source: Source) -> Option<u64> {
    let mut value = 0u64;
    let to = (&raw mut value).cast::<c_void>();
    // SAFETY: a place for the eight bytes that these attributes have. A pool is the caller's, who is using it, or one that
    // has not been destroyed since: see `forget`.
    let told = without_breaking_captures(|| unsafe {
        match source {
            Source::Pool(pool) => {
                calls::cuMemPoolGetAttribute(pool as CUmemoryPool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, to)
            }
            Source::Graphs(device) => {
                calls::cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, to)
            }
        }
    });
    (told == CUDA_SUCCESS).then_some(value)
}

/// Charges what a source has reserved since it was last looked at, or refunds what it has let go.
fn settle(source: Source, slice: &'static Slice) {
    KNOWN.with(|all| {
        // Asked for under the lock, so that an older answer never overwrites a newer one.
        let Some(reserved) = ask(source) else { return };
        let at = all.iter().position(|known| known.source == source).unwrap_or_else(|| {
            all.push(Known::new(source, slice));
            all.len() - 1
        });
        let known = &mut all[at];
        if reserved > known.reserved {
            slice.charge(reserved - known.reserved);
        } else if reserved < known.reserved {
            // It let go of that a while ago, and who learned from NVML meanwhile has given it back already.
            slice.is_to_be_learned();
            let gone = known.reserved - reserved;
            let kept = gone.min(known.exported);
            known.exported -= kept;
            known.kept += kept;
            if kept > 0 {
                slice.becomes_beside(kept);
            }
            slice.refund(gone - kept);
        }
        known.reserved = reserved;
    });
}

/// Something in a pool was exported: the memory it lies in stays on the GPU while anybody has the pool, also when it was freed.
pub fn exported(pool: CUmemoryPool, bytes: u64) {
    KNOWN.with(|all| {
        if let Some(known) = all.iter_mut().find(|known| known.source == Source::Pool(pool as usize)) {
            known.exported = known.exported.saturating_add(bytes.next_multiple_of(STEP)).min(known.reserved);
            known.mark();
        }
    });
}

/// A descriptor of a pool was made.
pub fn exported_itself(pool: CUmemoryPool, slice: &'static Slice, file: std::ffi::c_int) {
    settle_pool(pool, slice);
    KNOWN.with(|all| {
        if let Some(known) = all.iter_mut().find(|known| known.source == Source::Pool(pool as usize)) {
            for mark in &known.marks {
                marks::put(file, mark);
            }
            known.descriptors.extend(Copy::of(file));
        }
    });
}

/// A pool of the slice's GPU was used.
pub fn settle_pool(pool: CUmemoryPool, slice: &'static Slice) {
    settle(Source::Pool(pool as usize), slice);
}

/// A graph with memory of its own was launched.
pub fn settle_graphs(slice: &'static Slice) {
    settle(Source::Graphs(slice.device), slice);
}

/// Whether a pool has room for so many bytes without growing.
pub fn has_room(pool: CUmemoryPool, bytes: u64) -> bool {
    let mut used = 0u64;
    // SAFETY: as in `ask`.
    let told = without_breaking_captures(|| unsafe {
        calls::cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, (&raw mut used).cast())
    });
    told == CUDA_SUCCESS && is_free(Source::Pool(pool as usize), used, bytes)
}

/// The same for the memory of graphs, which keep what they were once given.
pub fn graphs_have_room(slice: &Slice, bytes: u64) -> bool {
    let mut used = 0u64;
    // SAFETY: as in `ask`.
    let told = without_breaking_captures(|| unsafe {
        calls::cuDeviceGetGraphMemAttribute(slice.device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, (&raw mut used).cast())
    });
    told == CUDA_SUCCESS && is_free(Source::Graphs(slice.device), used, bytes)
}

fn is_free(source: Source, used: u64, bytes: u64) -> bool {
    ask(source).is_some_and(|reserved| reserved.saturating_sub(used) >= bytes)
}

/// A pool is gone, and with it all that it had reserved.
pub fn forget(pool: CUmemoryPool) {
    KNOWN.with(|all| {
        if let Some(at) = all.iter().position(|known| known.source == Source::Pool(pool as usize)) {
            let known = all.swap_remove(at);
            // Our own copies would keep it.
            drop(known.descriptors);
            known.slice.was_beside(known.kept);
            let exported = known.exported.min(known.reserved);
            known.slice.refund(known.reserved - exported);
            lent::let_go(known.slice, Keepers { marks: known.marks, dma_bufs: Vec::new() }, exported + known.kept);
        }
    });
}

fn of(slice: &'static Slice) -> Vec<Source> {
    KNOWN.with(|all| all.iter().filter(|known| std::ptr::eq(known.slice, slice)).map(|known| known.source).collect())
}

/// Asks the driver to take back what the slice's pools keep without using it.
pub fn trim(slice: &'static Slice) {
    for source in of(slice) {
        if let Source::Pool(pool) = source {
            // SAFETY: a pool that has not been destroyed.
            without_breaking_captures(|| unsafe { calls::cuMemPoolTrimTo(pool as CUmemoryPool, 0) });
        }
    }
}

/// Looks at all of them again: after the program waited for the GPU, pools may have let go of memory.
pub fn refresh(slice: &'static Slice) {
    for source in of(slice) {
        settle(source, slice);
    }
}

/// Whether any pool or graph memory is known of, which is all that a wait for the GPU wants to know.
pub fn any() -> bool {
    KNOWN.with(|all| !all.is_empty())
}
