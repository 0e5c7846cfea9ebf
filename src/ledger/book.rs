//! What is known about each allocation of this process, so that what was charged is what is refunded.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::lent::{self, Keepers};
use super::marks::{self, FileId};
use super::slice::{BLOCK, Hold};
use super::{Slice, shared};
use crate::abi::cuda::CUcontext;
use crate::thread::Guarded;

/// Addresses and handles are spread well enough by one multiplication; Rust's own hasher asks the kernel for a key.
#[derive(Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

pub type Map<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

/// What an address or a handle stands for.
#[derive(Clone, Copy)]
pub struct Entry {
    slice: &'static Slice,
    /// It dies with this context.
    context: usize,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Memory of its own, in whole blocks.
    Whole(u64),
    /// A piece of the block with this number, which it shares with others.
    Piece(u64),
    /// Charged in full, though NVML does not count it as the process's.
    Beside(u64),
}

/// Allocations by address, and arrays by handle: no two are the same number.
static ENTRIES: Guarded<Map<Entry>> = Guarded::new(HashMap::with_hasher(BuildHasherDefault::new()));
/// How many pieces live in a block, by its number.
static BLOCKS: Guarded<Map<u32>> = Guarded::new(HashMap::with_hasher(BuildHasherDefault::new()));

/// In a forked child: nothing of the parent's is its own.
pub fn forget_the_parent() {
    ENTRIES.renew(HashMap::default());
    MOVED.renew(HashMap::default());
    BLOCKS.renew(HashMap::default());
    VMM.renew(Vmm::new());
}

/// An allocation of device memory, found at an address. Pieces smaller than a block share blocks, and the address tells
/// which; larger ones have blocks of their own.
pub fn keep_linear(hold: Hold, slice: &'static Slice, context: CUcontext, address: u64, bytes: u64) {
    let began = hold.gone();
    let kind = if bytes >= BLOCK {
        let bytes = super::slice::in_blocks(bytes);
        hold.keep(bytes);
        Kind::Whole(bytes)
    } else {
        let block = address / BLOCK;
        let first = BLOCKS.with(|blocks| {
            let pieces = blocks.entry(block).or_insert(0);
            *pieces += 1;
            *pieces == 1
        });
        hold.keep(if first { BLOCK } else { 0 });
        Kind::Piece(block)
    };
    put(address, Entry { slice, context: context as usize, kind });
    may_be_gone(slice, began);
}

/// Something with memory of its own, known by its handle.
pub fn keep_whole(hold: Hold, slice: &'static Slice, context: CUcontext, handle: u64, bytes: u64) {
    let began = hold.gone();
    hold.keep(bytes);
    put(handle, Entry { slice, context: context as usize, kind: Kind::Whole(bytes) });
    may_be_gone(slice, began);
}

/// How many contexts are gone.
static GONE: AtomicU64 = AtomicU64::new(0);

/// How many contexts are gone.
#[inline]
pub fn gone() -> u64 {
    GONE.load(Ordering::SeqCst)
}

/// Something was put into the books that was asked for when so many contexts were gone. If another thread has let its context go
/// meanwhile, it may have come too late to be taken out with it: what the driver holds tells.
fn may_be_gone(slice: &Slice, began: u64) {
    if gone() != began {
        slice.is_to_be_learned();
    }
}

/// Managed memory.
pub fn keep_beside(hold: Hold, slice: &'static Slice, context: CUcontext, address: u64, bytes: u64) {
    hold.keep_beside(bytes);
    put(address, Entry { slice, context: context as usize, kind: Kind::Beside(bytes) });
}

/// Managed memory that is to go to another GPU, and the room for it there.
pub struct Moved {
    pub hold: Hold,
    pub slice: &'static Slice,
    pub base: u64,
    pub bytes: u64,
}

/// What managed memory takes on GPUs that it was moved to, beside the one that it was made on: by its address.
static MOVED: Guarded<Map<Vec<(&'static Slice, u64)>>> = Guarded::new(HashMap::with_hasher(BuildHasherDefault::new()));

/// Whether there is any, so that other frees need not look.
static ANY_MOVED: AtomicBool = AtomicBool::new(false);

/// It was moved.
pub fn keep_moved(moved: Moved) {
    ANY_MOVED.store(true, Ordering::Release);
    moved.hold.keep_beside(moved.bytes);
    MOVED.with(|all| all.entry(moved.base).or_default().push((moved.slice, moved.bytes)));
}

/// Whether an allocation is charged to a slice already: it was made there, or moved there before.
pub fn is_charged(address: u64, slice: &Slice) -> bool {
    let made = ENTRIES.with(|entries| entries.get(&address).is_some_and(|entry| std::ptr::eq(entry.slice, slice)));
    made || MOVED
        .with(|all| all.get(&address).is_some_and(|there| there.iter().any(|(other, _)| std::ptr::eq(*other, slice))))
}

/// It was freed.
pub fn refund_moved(address: u64) {
    if !ANY_MOVED.load(Ordering::Acquire) {
        return;
    }
    for (slice, bytes) in MOVED.with(|all| all.remove(&address)).into_iter().flatten() {
        slice.refund_beside(bytes);
    }
}

/// Puts an entry back that the driver did not free after all.
pub fn put(number: u64, entry: Entry) {
    let before = ENTRIES.with(|entries| entries.insert(number, entry));
    // What was there before has gone without a call that says so: with a context that another thread let go of, or in a call that
    // was left.
    if let Some(before) = before {
        before.refund(number);
    }
}

/// Takes an entry out, before the driver is asked to free it: afterwards the same address may be another thread's.
pub fn take(number: u64) -> Option<Entry> {
    ENTRIES.with(|entries| entries.remove(&number))
}

impl Entry {
    /// The driver has freed it. `number`: what it was known by.
    pub fn refund(self, number: u64) {
        match self.kind {
            Kind::Whole(bytes) => shared::refund(self.slice, number, bytes),
            Kind::Beside(bytes) => self.slice.refund_beside(bytes),
            Kind::Piece(block) => {
                let last = BLOCKS.with(|blocks| match blocks.get_mut(&block) {
                    Some(pieces) if *pieces > 1 => {
                        *pieces -= 1;
                        false
                    }
                    Some(_) => blocks.remove(&block).is_some(),
                    None => false,
                });
                if last {
                    shared::refund(self.slice, block * BLOCK, BLOCK);
                }
            }
        }
    }
}

/// What others can have of an allocation: all of it, or the block that it lies in, by its address. `None`: it is not known here.
pub fn whole_of(number: u64) -> Option<u64> {
    ENTRIES.with(|entries| match entries.get(&number)?.kind {
        Kind::Whole(_) | Kind::Beside(_) => Some(number),
        Kind::Piece(block) => Some(block * BLOCK),
    })
}

/// The context is gone, and all that lived in it.
pub fn refund_context(context: CUcontext) {
    // Before the look: who puts something in after it finds this.
    GONE.fetch_add(1, Ordering::SeqCst);
    let gone: Vec<(u64, Entry)> = ENTRIES.with(|entries| {
        let numbers: Vec<u64> =
            entries.iter().filter(|(_, entry)| entry.context == context as usize).map(|(number, _)| *number).collect();
        numbers.iter().filter_map(|number| Some((*number, entries.remove(number)?))).collect()
    });
    for (number, entry) in gone {
        entry.refund(number);
        refund_moved(number);
    }
}

// ------------------------------------------------------------------------------------------------ virtual memory

/// Physical memory: it is held for as long as there is a handle to it or a mapping of it.
struct Physical {
    /// `None`: another process made it, and pays for it.
    slice: Option<&'static Slice>,
    bytes: u64,
    handles: u32,
    mappings: u32,
    /// It was exported.
    is_shared: bool,
    keepers: Keepers,
}

impl Physical {
    fn new(slice: Option<&'static Slice>, bytes: u64) -> Physical {
        Physical { slice, bytes, handles: 1, mappings: 0, is_shared: false, keepers: Keepers::default() }
    }

    /// Nothing of this process holds it any more. Says whether it was another's.
    fn give_back(self) -> bool {
        let Some(slice) = self.slice else {
            shared::end_import();
            return true;
        };
        if self.is_shared {
            slice.hand_over();
        }
        lent::let_go(slice, self.keepers, self.bytes);
        false
    }
}

/// Handles, mappings and the memory behind them.
struct Vmm {
    physical: BTreeMap<u64, Physical>,
    next: u64,
    /// Handle to physical memory.
    handles: BTreeMap<u64, u64>,
    /// Address to size and physical memory.
    mappings: BTreeMap<u64, (u64, u64)>,
}

impl Vmm {
    const fn new() -> Vmm {
        Vmm { physical: BTreeMap::new(), next: 1, handles: BTreeMap::new(), mappings: BTreeMap::new() }
    }

    /// Gives the memory back when nothing holds it any more.
    fn settle(&mut self, number: u64) -> Option<Physical> {
        let physical = self.physical.get(&number)?;
        if physical.handles != 0 || physical.mappings != 0 {
            return None;
        }
        self.physical.remove(&number)
    }
}

static VMM: Guarded<Vmm> = Guarded::new(Vmm::new());

/// `cuMemCreate` made this handle.
pub fn keep_handle(hold: Hold, slice: &'static Slice, handle: u64, bytes: u64) {
    hold.keep(bytes);
    VMM.with(|vmm| {
        let number = vmm.next;
        vmm.next += 1;
        vmm.physical.insert(number, Physical::new(Some(slice), bytes));
        vmm.handles.insert(handle, number);
    });
}

/// `cuMemImportFromShareableHandle` gave this handle to memory of another's making.
pub fn imported(handle: u64) {
    VMM.with(|vmm| {
        let known = vmm.handles.get(&handle).and_then(|number| vmm.physical.get_mut(number));
        if let Some(physical) = known {
            physical.handles += 1;
            return;
        }
        let number = vmm.next;
        vmm.next += 1;
        vmm.physical.insert(number, Physical::new(None, 0));
        vmm.handles.insert(handle, number);
        shared::begin_import();
    });
}

/// `cuMemRelease` released a handle. Says whether this process has let go of something that another made.
pub fn released(handle: u64) -> bool {
    let freed = VMM.with(|vmm| {
        let number = *vmm.handles.get(&handle)?;
        let physical = vmm.physical.get_mut(&number)?;
        physical.handles = physical.handles.saturating_sub(1);
        if physical.handles == 0 {
            vmm.handles.remove(&handle);
        }
        vmm.settle(number)
    });
    freed.is_some_and(Physical::give_back)
}

/// `cuMemExportToShareableHandle` made a descriptor of a handle.
pub fn exported(handle: u64, file: c_int) {
    VMM.with(|vmm| {
        let Some(physical) = vmm.handles.get(&handle).and_then(|number| vmm.physical.get_mut(number)) else { return };
        let Some(slice) = physical.slice else { return };
        physical.is_shared = true;
        // One mark for all of its descriptors.
        let known = physical.keepers.marks.first().copied();
        if let Some(mark) = marks::mark(slice, file, physical.bytes, known)
            && known != Some(mark)
        {
            physical.keepers.marks.push(mark);
        }
    });
}

/// `cuMemGetHandleForAddressRange` made a dma-buf of what is mapped at an address.
pub fn dma_buf(address: u64, file: FileId) {
    VMM.with(|vmm| {
        let found = vmm.mappings.range(..=address).next_back();
        let number = found.filter(|(start, (size, _))| address - **start < *size).map(|(_, (_, number))| *number);
        if let Some(physical) = number.and_then(|number| vmm.physical.get_mut(&number)) {
            physical.keepers.dma_bufs.push(file);
        }
    });
}

/// `cuMemRetainAllocationHandle` gave another handle to what is mapped at an address.
pub fn retained(handle: u64, address: u64) {
    VMM.with(|vmm| {
        let found = vmm.mappings.range(..=address).next_back();
        let Some((_, &(_, number))) = found.filter(|(start, (size, _))| address - **start < *size) else { return };
        if let Some(physical) = vmm.physical.get_mut(&number) {
            physical.handles += 1;
            vmm.handles.insert(handle, number);
        }
    });
}

/// `cuMemMap` mapped a handle.
pub fn mapped(address: u64, size: u64, handle: u64) {
    VMM.with(|vmm| {
        if let Some(&number) = vmm.handles.get(&handle)
            && let Some(physical) = vmm.physical.get_mut(&number)
        {
            physical.mappings += 1;
            vmm.mappings.insert(address, (size, number));
        }
    });
}

/// `cuMemUnmap` took away all that was mapped in a range. Says whether this process has let go of something that another made.
pub fn unmapped(address: u64, size: u64) -> bool {
    let freed: Vec<_> = VMM.with(|vmm| {
        let gone: Vec<u64> = vmm.mappings.range(address..address.saturating_add(size)).map(|(at, _)| *at).collect();
        gone.iter()
            .filter_map(|at| {
                let (_, number) = vmm.mappings.remove(at)?;
                let physical = vmm.physical.get_mut(&number)?;
                physical.mappings = physical.mappings.saturating_sub(1);
                vmm.settle(number)
            })
            .collect()
    });
    let others = freed.into_iter().map(Physical::give_back).filter(|is_anothers| *is_anothers);
    others.count() > 0
}
