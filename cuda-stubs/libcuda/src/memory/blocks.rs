//! How the driver hands out memory: small pieces share blocks of 2 MiB, first fit; from 2 MiB on a piece has a block of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sim_world::Path;
use sim_world::shared::ShareHandle;

use super::address::{GRANULE, Reservation};
use super::backing::Backing;
use super::charge::Charge;
use crate::abi::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use crate::api::Outcome;

/// Sizes and addresses of small pieces are multiples of this.
pub(crate) const STEP: u64 = 512;
/// No allocation is this large; keeps the arithmetic on sizes from overflowing.
pub(crate) const ABSURD: u64 = 1 << 46;

/// A stretch of memory that is had and given back as a whole.
pub(crate) struct Block {
    pub base: u64,
    pub len: u64,
    pub id: u64,
    pub backing: Arc<Backing>,
    /// None for what takes nothing of a GPU, or is accounted for elsewhere.
    charge: Option<Charge>,
    _addresses: Option<Reservation>,
}

static NEXT_BLOCK: AtomicU64 = AtomicU64::new(1);

impl Block {
    pub(crate) fn new(
        base: u64,
        len: u64,
        backing: Arc<Backing>,
        charge: Option<Charge>,
        addresses: Option<Reservation>,
    ) -> Block {
        Block { base, len, id: NEXT_BLOCK.fetch_add(1, Ordering::Relaxed), backing, charge, _addresses: addresses }
    }

    /// Memory of a GPU, with addresses; `low`: below 4 GiB.
    pub(crate) fn on_device(gpu: usize, path: Path, len: u64, low: bool) -> Outcome<Block> {
        let charge = Charge::take(gpu, path, len)?;
        let addresses = if low { Reservation::low(len)? } else { Reservation::new(len)? };
        Ok(Block::new(addresses.base(), len, Arc::new(Backing::new(len)), Some(charge), Some(addresses)))
    }

    /// Memory that host and device see at the same address.
    pub(crate) fn for_host(len: u64) -> Outcome<Block> {
        let (base, backing) = Backing::for_host(len, GRANULE).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Block::new(base, len, Arc::new(backing), None, None))
    }

    /// Makes the block something that other processes can hold too.
    pub(crate) fn share(&self) -> Outcome<ShareHandle> {
        let charge = self.charge.as_ref().ok_or(CUDA_ERROR_INVALID_VALUE)?;
        charge.share(self.backing.publish()?)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(charge) = self.charge.take() {
            charge.end(&self.backing);
        }
    }
}

/// The pieces that share blocks.
#[derive(Debug, Default)]
struct Shelf {
    /// In the order in which they came.
    blocks: Vec<Shared>,
}

#[derive(Debug)]
struct Shared {
    base: u64,
    /// Free ranges: start and length, never adjacent.
    holes: BTreeMap<u64, u64>,
}

impl Shelf {
    /// The first place in which so many bytes fit.
    fn place(&mut self, bytes: u64) -> Option<u64> {
        for block in &mut self.blocks {
            if let Some((&start, &len)) = block.holes.iter().find(|(_, len)| **len >= bytes) {
                block.holes.remove(&start);
                if len > bytes {
                    block.holes.insert(start + bytes, len - bytes);
                }
                return Some(start);
            }
        }
        None
    }

    fn add(&mut self, base: u64) {
        self.blocks.push(Shared { base, holes: BTreeMap::from([(base, GRANULE)]) });
    }

    /// Gives a piece back; true when its block (at `base`) holds nothing any more and was taken out.
    fn release(&mut self, base: u64, start: u64, bytes: u64) -> bool {
        let Some(index) = self.blocks.iter().position(|b| b.base == base) else { return false };
        let holes = &mut self.blocks[index].holes;
        let (mut from, mut to) = (start, start + bytes);
        if let Some((&before, &len)) = holes.range(..start).next_back()
            && before + len == start
        {
            holes.remove(&before);
            from = before;
        }
        if let Some(len) = holes.remove(&to) {
            to += len;
        }
        holes.insert(from, to - from);
        let empty = to - from == GRANULE;
        if empty {
            self.blocks.remove(index);
        }
        empty
    }
}

/// All blocks of one kind in one context.
#[derive(Default)]
pub(crate) struct Heap {
    shelf: Shelf,
    blocks: HashMap<u64, Arc<Block>>,
}

/// What a piece takes: 512-byte steps in a shared block, or 2 MiB steps of its own.
fn rounded(bytes: u64) -> u64 {
    let small = bytes.next_multiple_of(STEP);
    if small < GRANULE { small } else { bytes.next_multiple_of(GRANULE) }
}

impl Heap {
    /// A place for so many bytes, and the block it is in. `make` gets a new block of a length when there is no room.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        make: impl FnOnce(u64) -> Outcome<Block>,
    ) -> Outcome<(u64, Arc<Block>)> {
        if bytes > ABSURD {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let size = rounded(bytes);
        let shares = size < GRANULE;
        if shares && let Some(at) = self.shelf.place(size) {
            let base = at & !(GRANULE - 1); // blocks are aligned to their length
            return self.blocks.get(&base).map(|block| (at, Arc::clone(block))).ok_or(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let block = Arc::new(make(size.next_multiple_of(GRANULE))?);
        self.blocks.insert(block.base, Arc::clone(&block));
        let mut at = block.base;
        if shares {
            self.shelf.add(block.base);
            at = self.shelf.place(size).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        }
        Ok((at, block))
    }

    /// Takes a piece back, and with the last one its block: true if that is gone.
    pub(crate) fn release(&mut self, block: &Block, at: u64, bytes: u64) -> bool {
        let size = rounded(bytes);
        let empty = size >= GRANULE || self.shelf.release(block.base, at, size);
        if empty {
            self.blocks.remove(&block.base);
        }
        empty
    }
}

/// One heap per context (and, where `K` says so, per kind).
pub(crate) struct Heaps<K>(Mutex<BTreeMap<(usize, K), Heap>>);

impl<K: Ord> Heaps<K> {
    pub(crate) const fn new() -> Heaps<K> {
        Heaps(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn with<T>(&self, context: usize, kind: K, f: impl FnOnce(&mut Heap) -> T) -> T {
        f(self.0.lock().entry((context, kind)).or_default())
    }

    /// A context is gone, and its heaps with it.
    pub(crate) fn forget(&self, context: usize) {
        self.0.lock().retain(|(owner, _), _| *owner != context);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A heap whose blocks cost nothing; counts what the real ones would.
    struct Model {
        heap: Heap,
        next: u64,
        held: u64,
    }

    impl Model {
        fn new() -> Model {
            Model { heap: Heap::default(), next: 1 << 40, held: 0 }
        }

        fn allocate(&mut self, bytes: u64) -> (u64, Arc<Block>) {
            let (next, held) = (&mut self.next, &mut self.held);
            let make = |len| {
                *held += len;
                let base = *next;
                *next += 2 * len; // never adjacent
                Ok(Block::new(base, len, Arc::new(Backing::new(len)), None, None))
            };
            self.heap.allocate(bytes, make).expect("memory is free here")
        }

        fn release(&mut self, block: &Block, at: u64, bytes: u64) {
            if self.heap.release(block, at, bytes) {
                self.held -= block.len;
            }
        }
    }

    #[test]
    fn the_measured_sequence_comes_out() {
        let mut model = Model::new();
        for (count, bytes, grows) in
            [(16, 4096, 2), (64, 100_000, 6), (10, MIB + 1, 18), (10, 2 * MIB + 1, 40), (10, 20 * MIB + 1, 220)]
        {
            let before = model.held;
            for _ in 0..count {
                model.allocate(bytes);
            }
            assert_eq!((model.held - before) / MIB, grows, "{count} x {bytes}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn pieces_never_overlap_and_all_comes_back(steps in prop::collection::vec((any::<u8>(), 1u64..5 * MIB), 1..200)) {
            let mut model = Model::new();
            let mut live: Vec<(u64, u64, Arc<Block>)> = Vec::new();
            for (choice, bytes) in steps {
                if choice < 110 && !live.is_empty() {
                    let (at, bytes, block) = live.swap_remove(usize::from(choice) % live.len());
                    model.release(&block, at, bytes);
                    continue;
                }
                let bytes = if choice < 200 { bytes % 70_000 + 1 } else { bytes };
                let (at, block) = model.allocate(bytes);
                prop_assert!(at.is_multiple_of(STEP) && at >= block.base && at + bytes <= block.base + block.len);
                for (other, len, _) in &live {
                    prop_assert!(at + bytes <= *other || other + len <= at);
                }
                live.push((at, bytes, block));
                let used: u64 = live.iter().map(|(_, len, _)| len).sum();
                prop_assert!(model.held >= used && model.held.is_multiple_of(GRANULE));
            }
            for (at, bytes, block) in live {
                model.release(&block, at, bytes);
            }
            prop_assert_eq!(model.held, 0);
            prop_assert!(model.heap.shelf.blocks.is_empty());
        }
    }
}
