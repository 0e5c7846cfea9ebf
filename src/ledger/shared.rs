//! Allocations that others may have open, by an IPC handle, or that dma-bufs keep; and how much of theirs is open here.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Slice;
use super::book::{self, Map};
use super::lent::{self, Keepers};
use super::marks::FileId;
use crate::thread::Guarded;

/// By address, the dma-bufs that were made of each.
static SHARED: Guarded<Map<Vec<FileId>>> = Guarded::new(HashMap::with_hasher(BuildHasherDefault::new()));

/// Whether there ever was one, so that other frees need not look.
static ANY: AtomicBool = AtomicBool::new(false);

/// How much this process has open that others made, in pieces: it becomes its own when they let go of it.
static IMPORTS: AtomicUsize = AtomicUsize::new(0);

/// Others may have an allocation from now on; a dma-buf, where one was made of it. Says whether it is known here.
pub fn share(number: u64, dma_buf: Option<FileId>) -> bool {
    let Some(address) = book::whole_of(number) else { return false };
    ANY.store(true, Ordering::Release);
    SHARED.with(|shared| shared.entry(address).or_default().extend(dma_buf));
    true
}

/// The driver has freed an allocation, or the last piece of a block, with this address.
#[inline]
pub fn refund(slice: &'static Slice, address: u64, bytes: u64) {
    if ANY.load(Ordering::Acquire) {
        return refund_shared(slice, address, bytes);
    }
    slice.refund(bytes);
}

#[cold]
fn refund_shared(slice: &'static Slice, address: u64, bytes: u64) {
    let Some(dma_bufs) = SHARED.with(|shared| shared.remove(&address)) else { return slice.refund(bytes) };
    // What others have open of it has become theirs.
    slice.hand_over();
    lent::let_go(slice, Keepers { marks: Vec::new(), dma_bufs }, bytes);
}

/// This process has something open that another made.
pub fn begin_import() {
    IMPORTS.fetch_add(1, Ordering::Relaxed);
}

/// It has closed it.
pub fn end_import() {
    let _ = IMPORTS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(1));
}

/// Whether it has anything open that others made.
pub fn has_imports() -> bool {
    IMPORTS.load(Ordering::Relaxed) != 0
}

/// In a forked child: nothing of the parent's is its own.
pub fn forget_the_parent() {
    SHARED.renew(HashMap::default());
    ANY.store(false, Ordering::Release);
    IMPORTS.store(0, Ordering::Relaxed);
}
