//! The address space: which allocation an address belongs to, and the bytes behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::backing::Backing;
use super::blocks::Block;
use super::graphpool::GraphRegion;
use super::managed::ManagedRegion;
use super::pool::PoolRegion;
use super::vmm::Mapping;
use crate::abi::CUDA_ERROR_INVALID_VALUE;
use crate::api::Outcome;
use crate::context::Context;
use crate::device::Device;

/// What an allocation is, and with it who takes it back.
pub(crate) enum Kind {
    /// cuMemAlloc and its like; `low`: by a 32-bit entry point.
    Linear {
        low: bool,
    },
    /// A module's variables.
    Module,
    /// From a pool.
    Pool(PoolRegion),
    /// A graph's allocation node.
    Graph(GraphRegion),
    /// Physical memory mapped by cuMemMap.
    Mapped(Mapping),
    /// Another process's; `from_pool`: by cuMemPoolImportPointer, else by cuIpcOpenMemHandle.
    Imported {
        from_pool: bool,
    },
    Managed(ManagedRegion),
    /// Pinned host memory.
    Host {
        flags: u32,
    },
    /// The client's memory, registered.
    Registered {
        flags: u32,
    },
}

/// An allocation.
pub(crate) struct Region {
    pub base: u64,
    /// As asked for, not as rounded.
    pub len: u64,
    pub kind: Kind,
    pub block: Arc<Block>,
    /// The context it was made in.
    pub context: usize,
    pub device: &'static Device,
    /// Unique in this process's life.
    pub id: u64,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub sync_memops: AtomicBool,
}

static REGIONS: RwLock<BTreeMap<u64, Arc<Region>>> = RwLock::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Region {
    pub(crate) fn new(base: u64, len: u64, kind: Kind, block: Arc<Block>, context: &Context) -> Region {
        let synchronous = matches!(kind, Kind::Managed(_)); // as the driver has it
        Region {
            base,
            len,
            kind,
            block,
            context: context.handle,
            device: context.device,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            sync_memops: AtomicBool::new(synchronous),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.base + self.len
    }

    /// Whether it is memory of the host's.
    pub(crate) fn on_host(&self) -> bool {
        matches!(self.kind, Kind::Host { .. } | Kind::Registered { .. })
    }

    pub(crate) fn piece(&self, start: u64, len: u64) -> Piece {
        Piece { store: Store::Backed(Arc::clone(&self.block.backing)), offset: start - self.block.base, len }
    }
}

/// Makes an allocation known.
pub(crate) fn insert(region: Region) -> Arc<Region> {
    let region = Arc::new(region);
    REGIONS.write().insert(region.base, Arc::clone(&region));
    region
}

/// The allocation that holds this address.
pub(crate) fn find(address: u64) -> Option<Arc<Region>> {
    let regions = REGIONS.read();
    let (_, region) = regions.range(..=address).next_back()?;
    (address < region.end()).then(|| Arc::clone(region))
}

/// The allocation that begins at this address.
pub(crate) fn at(base: u64) -> Option<Arc<Region>> {
    REGIONS.read().get(&base).cloned()
}

/// The allocations that touch a range.
pub(crate) fn within(base: u64, len: u64) -> Vec<Arc<Region>> {
    let regions = REGIONS.read();
    let before = regions.range(..base).next_back().filter(|(_, r)| r.end() > base);
    before.into_iter().chain(regions.range(base..base.saturating_add(len))).map(|(_, r)| Arc::clone(r)).collect()
}

/// Takes an allocation out; only one caller gets it.
pub(crate) fn remove(region: &Arc<Region>) -> Outcome {
    let mut regions = REGIONS.write();
    match regions.get(&region.base) {
        Some(there) if Arc::ptr_eq(there, region) => {
            regions.remove(&region.base);
            Ok(())
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE), // another thread was first
    }
}

/// Takes out all that `f` says.
pub(crate) fn remove_all(mut f: impl FnMut(&Region) -> bool) -> Vec<Arc<Region>> {
    let mut gone = Vec::new();
    REGIONS.write().retain(|_, region| {
        let goes = f(region);
        if goes {
            gone.push(Arc::clone(region));
        }
        !goes
    });
    gone
}

/// Where bytes are.
#[derive(Clone)]
enum Store {
    Backed(Arc<Backing>),
    /// Memory of the client's that the driver knows nothing about.
    Plain(usize),
    /// Taken at the call.
    Staged(Arc<[u8]>),
}

/// A stretch of bytes in one place.
#[derive(Clone)]
pub(crate) struct Piece {
    store: Store,
    offset: u64,
    len: u64,
}

/// A stretch of addresses, as the bytes behind it.
#[derive(Clone)]
pub(crate) struct Span {
    pieces: Vec<Piece>,
}

/// Whether memory must be there now, or only when a graph that is being built is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Now,
    AtLaunch,
}

/// The bytes behind so many addresses from `address`, if one allocation (or adjacent mappings) holds them all and the
/// device may use them.
pub(crate) fn resolve(address: u64, len: u64, when: When) -> Outcome<Span> {
    let end = address.checked_add(len).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut pieces = Vec::with_capacity(1);
    let mut next = address;
    loop {
        let region = find(next).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let usable = match &region.kind {
            Kind::Mapped(mapping) => mapping.is_accessible(),
            Kind::Graph(graph) => when == When::AtLaunch || graph.is_backed(),
            _ => true,
        };
        let chains = matches!(region.kind, Kind::Mapped(_));
        if !usable || (!chains && (next != address || end > region.end())) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let stop = end.min(region.end());
        pieces.push(region.piece(next, stop - next));
        next = stop;
        if next >= end {
            return Ok(Span { pieces });
        }
    }
}

impl Span {
    /// Memory that the driver knows nothing about, taken at the client's word.
    pub(crate) fn plain(address: u64, len: u64) -> Span {
        Span { pieces: vec![Piece { store: Store::Plain(address as usize), offset: 0, len }] }
    }

    /// So many bytes of a backing.
    pub(crate) fn backed(backing: &Arc<Backing>, offset: u64, len: u64) -> Span {
        Span { pieces: vec![Piece { store: Store::Backed(Arc::clone(backing)), offset, len }] }
    }

    /// A copy of what is there now.
    pub(crate) fn staged(&self) -> Outcome<Span> {
        let len: u64 = self.pieces.iter().map(|piece| piece.len).sum();
        let mut bytes = Vec::with_capacity(len as usize);
        self.each(0, len, |from, size| {
            // SAFETY: `each` hands out readable memory of this size.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, size) });
        })?;
        let store = Store::Staged(bytes.into());
        Ok(Span { pieces: vec![Piece { store, offset: 0, len }] })
    }

    /// Makes sure that the bytes can be had when their time comes.
    pub(crate) fn prepare(&self) -> Outcome {
        self.pieces.iter().try_for_each(|piece| match &piece.store {
            Store::Backed(backing) => backing.prepare(piece.offset, piece.len),
            Store::Plain(_) | Store::Staged(_) => Ok(()),
        })
    }

    /// Calls `f` with each stretch of memory that holds the bytes from `start` on. Staged bytes may only be read.
    pub(crate) fn each(&self, start: u64, len: u64, mut f: impl FnMut(*mut u8, usize)) -> Outcome {
        let (mut skip, mut left) = (start, len);
        for piece in &self.pieces {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            let size = left.min(piece.len - skip);
            if size == 0 {
                break;
            }
            let at = piece.offset + skip;
            match &piece.store {
                Store::Backed(backing) => f(backing.view()?.pointer(at), size as usize),
                Store::Plain(address) => f((*address + at as usize) as *mut u8, size as usize),
                Store::Staged(bytes) => f(bytes.as_ptr().wrapping_add(at as usize).cast_mut(), size as usize),
            }
            (skip, left) = (0, left - size);
        }
        if left == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Makes bytes zero, without touching pages that need not be.
    pub(crate) fn zero(&self, start: u64, len: u64) -> Outcome {
        let (mut skip, mut left) = (start, len);
        for piece in &self.pieces {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            let size = left.min(piece.len - skip);
            match &piece.store {
                Store::Backed(backing) => backing.zero(piece.offset + skip, size)?,
                Store::Plain(_) | Store::Staged(_) => return Err(CUDA_ERROR_INVALID_VALUE),
            }
            (skip, left) = (0, left - size);
        }
        Ok(())
    }
}

/// Copies so many bytes between two spans, which may overlap.
pub(crate) fn copy_bytes(to: &Span, to_start: u64, from: &Span, from_start: u64, len: u64) -> Outcome {
    let mut done = 0;
    from.each(from_start, len, |source, size| {
        let mut at = source;
        let result = to.each(to_start + done, size as u64, |target, size| {
            // SAFETY: `each` hands out memory of this size on both sides; it may overlap, and `copy` minds that. That the
            // client's own memory is what it said is the C API's contract.
            unsafe {
                std::ptr::copy(at.cast_const(), target, size);
                at = at.add(size);
            }
        });
        if result.is_ok() {
            done += size as u64;
        }
    })?;
    if done == len { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}
