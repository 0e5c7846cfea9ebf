//! A region in this process's memory, and beside it the room for the kernel's list of life words.
//!
//! A robust list is a ring of nodes, each of which lies at the same distance from the word that it stands for. The words lie
//! in memory that others can write; the nodes hold pointers and must not. So every region is mapped with a *shadow* of the
//! same size behind it, which no stranger has: a word's node lies where the word lies, one region further on. Of the
//! shadow, only the pages that are used take memory.
//!
//! Behind that lies what the containers tell everybody ([`Public`]): a file of its own, or memory that nobody else sees, until there
//! is one.
//!
//! The shadow is memory that could be shared, because what cannot may be taken away from a process that is killed for want
//! of memory before its list is read. For the same reason a forked child has its parent's, and must get one of its own
//! before it joins ([`own_shadow`]).

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::around::Around;
use crate::layout::{PUBLIC_SIZE, Public, SIZE, Table};
use crate::sys::{File, errno};

/// A mapped region, with its shadow. Unmapped when dropped.
pub struct Mapping {
    table: NonNull<Table>,
    /// Where it lies, and so where others' lie; `None`: it is this process's alone.
    pub around: Option<Around>,
    /// The number of the inode of the region's file; 0: it has none.
    file: u64,
    /// The number by which others know the public file; 0: there is none.
    public: AtomicU64,
}

// SAFETY: the mapping is shared memory of atomic words, and its address does not change.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The distance from a word to its node, in bytes.
pub const SHADOW: usize = SIZE;

/// Where the public part lies.
const PUBLIC_AT: usize = SIZE + SHADOW;
const ROOM: usize = PUBLIC_AT + PUBLIC_SIZE;

/// The regions that are mapped, as many as there is room for; for [`rescue`].
static MAPPED: [AtomicPtr<Table>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];

/// Room at a place of the kernel's choosing, which nobody can use before it is filled. Miri knows none but what can be used.
fn reserve() -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let (usable, flags) = if cfg!(miri) {
        (libc::PROT_READ | libc::PROT_WRITE, flags)
    } else {
        (libc::PROT_NONE, flags | libc::MAP_NORESERVE)
    };
    // SAFETY: fresh memory.
    unsafe { libc::mmap(null_mut(), ROOM, usable, flags, -1, 0) }
}

/// Shared memory without a file at a place that is ours to fill.
///
/// # Safety
/// Nothing but atomic words is read or written there by anybody.
unsafe fn fill(place: *mut c_void, size: usize) -> *mut c_void {
    if cfg!(miri) {
        return place;
    }
    let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_ANONYMOUS);
    // SAFETY: as the caller promises.
    unsafe { libc::mmap(place, size, both, flags, -1, 0) }
}

impl Mapping {
    /// Maps the file, of which there are at least [`SIZE`] bytes, or else memory that this process shares with none but
    /// those that it forks. `Err` holds the error number.
    pub fn new(file: Option<&File>, around: Option<Around>) -> Result<Mapping, c_int> {
        let number = file.map_or(Ok(0), File::number)?;
        // Room for the region and for its shadow; nothing lies there yet.
        let room = reserve();
        if room == libc::MAP_FAILED {
            return Err(errno());
        }
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the parts of the room, which is ours and which nothing points to yet; their sizes are multiples of the page's.
        let filled = unsafe {
            let table = match file {
                Some(file) => libc::mmap(room, SIZE, both, shared, file.0, 0),
                None => fill(room, SIZE),
            };
            // What is told to everybody is told to nobody yet.
            let rest = fill(room.wrapping_byte_add(SHADOW), SHADOW + PUBLIC_SIZE);
            table != libc::MAP_FAILED && rest != libc::MAP_FAILED
        };
        match NonNull::new(room.cast::<Table>()) {
            Some(table) if filled => {
                let add = |place: &&AtomicPtr<Table>| {
                    place.compare_exchange(null_mut(), table.as_ptr(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
                };
                // What has no file nobody can cut short.
                if file.is_some() {
                    MAPPED.iter().find(add);
                }
                Ok(Mapping { table, around, file: number, public: AtomicU64::new(0) })
            }
            _ => {
                let error = errno();
                // SAFETY: the room from above, to which nothing points.
                unsafe { libc::munmap(room, ROOM) };
                Err(error)
            }
        }
    }

    /// The region.
    #[inline]
    pub fn table(&self) -> &Table {
        // SAFETY: mapped by `new`, aligned to a page, as large as a `Table`, which is all atomic words; stays mapped for as long
        // as `self` is there.
        unsafe { self.table.as_ref() }
    }

    /// What its containers tell everybody.
    #[inline]
    pub fn public(&self) -> &Public {
        // SAFETY: mapped by `new` behind the region and its shadow, aligned to a page, as large as a `Public`, which is all atomic
        // words; stays mapped for as long as `self` is there.
        unsafe { &*self.table.as_ptr().cast::<u8>().wrapping_add(PUBLIC_AT).cast::<Public>() }
    }

    /// Whether this is the file of that number.
    pub fn is_of(&self, number: u64) -> bool {
        self.file == number
    }

    /// From now on what is told goes into a file, of which there are at least [`PUBLIC_SIZE`] bytes, and which others know by a number.
    pub fn publish(&self, file: c_int, number: u64) -> Result<(), c_int> {
        let place = self.table.as_ptr().cast::<u8>().wrapping_add(PUBLIC_AT).cast::<c_void>();
        let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: takes the place of atomic words: who reads them finds other ones, as if somebody had written them.
        if unsafe { libc::mmap(place, PUBLIC_SIZE, both, shared, file, 0) } == libc::MAP_FAILED {
            return Err(errno());
        }
        self.public.store(number, Ordering::Release);
        Ok(())
    }

    /// The number by which others know the public file; 0: there is none.
    #[inline]
    pub fn number(&self) -> u64 {
        self.public.load(Ordering::Acquire)
    }
}

/// Makes the shadow of a region this process's own, if it is one that was inherited. Its first word, which no node needs, says
/// in which [epoch](crate::keeper::Keeper::epoch) it was made. False: there is no memory.
///
/// # Safety
/// The region is one of a [`Mapping`], and only the keeper of this process calls this, which has no word of the region in its
/// list if it has not called this before.
pub unsafe fn own_shadow(table: &Table, epoch: u32) -> bool {
    let shadow = std::ptr::from_ref(table).cast_mut().wrapping_byte_add(SHADOW);
    // SAFETY: mapped and aligned; whoever else has this memory only reads it.
    let made = unsafe { &*shadow.cast::<AtomicU32>() };
    if made.load(Ordering::Relaxed) == epoch {
        return true;
    }
    // SAFETY: takes the place of a shadow in which this process has no nodes.
    let filled = unsafe { fill(shadow.cast(), SHADOW) } != libc::MAP_FAILED;
    if filled {
        made.store(epoch, Ordering::Relaxed);
    }
    filled
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let mine = self.table.as_ptr();
        let remove = |place: &&AtomicPtr<Table>| {
            place.compare_exchange(mine, null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        MAPPED.iter().find(remove);
        // SAFETY: the room that `new` mapped; whoever has a reference into it has one to `self` too. Members hold the mapping
        // until the keeper has none of its words in its list.
        unsafe { libc::munmap(mine.cast(), ROOM) };
    }
}

/// Whether an address lies in a region, which is then replaced by empty memory of this process's own.
///
/// Whoever may write to a region's file may also cut it short, and then reading it ends in `SIGBUS`. A handler of that signal
/// can call this with the address that it was given, and return if it says true: the access is made again, finds zeros, and
/// [`crate::Member::is_lost`] tells. It makes one system call, and takes no lock.
pub fn rescue(address: *const c_void) -> bool {
    let address = address as usize;
    let begins = |place: &AtomicPtr<Table>| place.load(Ordering::Acquire) as usize;
    let inside = |place: &&AtomicPtr<Table>| {
        let first = begins(place);
        first != 0 && (first..first + ROOM).contains(&address)
    };
    let Some(place) = MAPPED.iter().find(inside) else { return false };
    let table = place.load(Ordering::Acquire).cast::<u8>();
    let (part, size) = if address < table as usize + SIZE { (0, SIZE) } else { (PUBLIC_AT, PUBLIC_SIZE) };
    // SAFETY: takes the place of a region or of what is public of it, which is all atomic words: who reads them finds other ones, as if
    // somebody had written them. A mapping is not dropped while one of its words is being read.
    unsafe { fill(table.wrapping_add(part).cast(), size) != libc::MAP_FAILED }
}
