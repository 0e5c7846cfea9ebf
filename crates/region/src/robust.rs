//! The list of the life words that the keeper holds, in the form in which the kernel reads it when the keeper ends.
//!
//! The kernel walks a ring of nodes, each of which lies at the same distance from its word. It marks the words that hold the
//! number of the thread that ended. Between taking a word and listing it (and the other way round), the thread could be
//! killed; so it first says which one it is about to (`pending`), and the kernel looks at that one too.

use std::cell::UnsafeCell;
use std::ptr::null;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

use crate::memory::SHADOW;
use crate::sync::AtomicU32;

/// `struct robust_list_head`.
#[repr(C)]
pub struct List {
    first: UnsafeCell<*const Node>,
    /// The distance from a node to its word.
    offset: isize,
    pending: UnsafeCell<*const Node>,
}

/// `struct robust_list`.
#[repr(C)]
struct Node {
    next: UnsafeCell<*const Node>,
}

/// The node of a word of a mapped region: see [`crate::memory`].
fn node_of(word: &AtomicU32) -> *const Node {
    std::ptr::from_ref(word).cast::<u8>().wrapping_add(SHADOW).cast()
}

impl List {
    /// Makes an empty list at a place where it is to stay.
    ///
    /// # Safety
    /// The place is large enough, aligned, writable, and nobody else's, and stays so.
    pub unsafe fn make(place: *mut List) {
        // An empty ring: the head points to itself.
        let head = place.cast::<Node>().cast_const();
        // SAFETY: as the caller promises.
        unsafe {
            place.write(List {
                first: UnsafeCell::new(head),
                offset: -(SHADOW as isize),
                pending: UnsafeCell::new(null()),
            });
        }
    }

    /// Gives the list to the kernel as this thread's. False: the kernel will not have it.
    ///
    /// # Safety
    /// The list stays where it is until the thread has ended, and no other thread uses it.
    pub unsafe fn register(&self) -> bool {
        // SAFETY: as the caller promises. The list that it replaces is the C library's for robust mutexes, of which the keeper
        // has none.
        unsafe { libc::syscall(libc::SYS_set_robust_list, std::ptr::from_ref(self), size_of::<List>()) == 0 }
    }

    fn head(&self) -> *const Node {
        self.first.get().cast_const().cast()
    }

    /// The cells that point to nodes, the last one to the head again.
    fn links(&self) -> impl Iterator<Item = *mut *const Node> {
        let head = self.head();
        std::iter::successors(Some(self.first.get()), move |link| {
            // SAFETY: the list is the keeper's alone, and its nodes lie in shadows of regions that stay mapped while a word of
            // theirs is held.
            let node = unsafe { **link };
            // SAFETY: as above; not the head, so a node.
            (node != head).then(|| unsafe { (*node).next.get() })
        })
    }

    fn set_pending(&self, node: *const Node) {
        // It is this thread on which the kernel will read the list, so it is enough that the compiler keeps the order.
        compiler_fence(SeqCst);
        // SAFETY: the keeper's alone.
        unsafe { self.pending.get().write_volatile(node) };
        compiler_fence(SeqCst);
    }

    /// The link that leads to a node, if it is in the list.
    fn link_to(&self, node: *const Node) -> Option<*mut *const Node> {
        // SAFETY: the link is one of this list's, which is this thread's alone.
        self.links().find(|link| unsafe { **link } == node)
    }

    /// Puts `number`, the thread's own, into a word that has the value `from`. False: it has another.
    ///
    /// # Safety
    /// The word is one of a [`crate::memory::Mapping`], which stays until the word is given back, and lies at a multiple of 64
    /// in it; only the thread whose list this is may call it.
    pub unsafe fn take(&self, word: &AtomicU32, from: u32, number: u32) -> bool {
        // A look first: while it is pending, a word that another thread of the same number holds, in another PID namespace,
        // would be marked if this one died.
        if word.load(SeqCst) != from {
            return false;
        }
        let node = node_of(word);
        self.set_pending(node);
        let taken = word.compare_exchange(from, number, SeqCst, SeqCst).is_ok();
        // A stranger may have cleared a word that this thread holds: then it is in the list already, and if it were put there
        // once more, the list would have no end.
        if taken && self.link_to(node).is_none() {
            // SAFETY: the node lies in the shadow behind the word's region, which is mapped and writable, and is this process's
            // alone. It is aligned as the word is.
            unsafe {
                (*node).next.get().write_volatile(*self.first.get());
                compiler_fence(SeqCst);
                self.first.get().write_volatile(node);
            }
        }
        self.set_pending(null());
        taken
    }

    /// Gives a word back that was taken: it becomes 0, unless a stranger has written something else into it. Either way, this
    /// list knows of it no more.
    ///
    /// # Safety
    /// As for [`List::take`].
    pub unsafe fn give(&self, word: &AtomicU32, number: u32) {
        let node = node_of(word);
        self.set_pending(node);
        if let Some(link) = self.link_to(node) {
            // SAFETY: the link is one of this list's, and the node is in the list.
            unsafe { link.write_volatile(*(*node).next.get()) };
        }
        compiler_fence(SeqCst);
        let _ = word.compare_exchange(number, 0, SeqCst, SeqCst);
        self.set_pending(null());
    }
}
