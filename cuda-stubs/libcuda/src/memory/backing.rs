//! The bytes behind device memory. They exist only once something touches them: an allocation that is never read or written
//! costs no memory of the machine's, however large it is.
//!
//! Bytes are private to the process until they are exported; then they move into the process's heap file in the world's
//! directory, where another process can map them ([`Backing::publish`]). Nothing keeps a descriptor open.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use sim_world::shared::ShareHandle;

use crate::abi::CUDA_ERROR_OPERATING_SYSTEM;
use crate::api::Outcome;
use crate::process::process;

/// Zero fills from here on give pages back instead of writing zeroes.
const LARGE: usize = 256 << 10;
const PAGE: usize = 4096;

/// A number of bytes, all zero at first.
pub(crate) struct Backing {
    len: usize,
    at: RwLock<At>,
}

/// Where the bytes are. `view`: the address at which this process sees them; it stays the same once it is there.
enum At {
    /// Nowhere: all zero.
    Nowhere,
    /// In memory of this process's own.
    Private { view: usize },
    /// In a heap file; not mapped here yet if `view` is 0.
    File { view: usize, piece: Piece },
    /// The client's: pinned, managed or registered memory, which host and device see at the same address.
    /// `ours`: whether the mapping goes with it.
    Client { address: usize, ours: bool },
}

/// A piece of a heap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    slot: u64,
    generation: u64,
    offset: u64,
}

/// The next free place in this process's heap file; places are never used twice.
static NEXT_OFFSET: AtomicU64 = AtomicU64::new(0);

impl Backing {
    /// Device memory of this process.
    pub(crate) fn new(len: u64) -> Backing {
        Backing { len: len as usize, at: RwLock::new(At::Nowhere) }
    }

    /// What another process exported.
    pub(crate) fn imported(share: &ShareHandle, len: u64) -> Backing {
        let piece = Piece { slot: share.owner, generation: share.owner_generation, offset: share.offset };
        Backing { len: len as usize, at: RwLock::new(At::File { view: 0, piece }) }
    }

    /// Memory of the client's that it registered.
    pub(crate) fn registered(address: u64, len: u64) -> Backing {
        Backing { len: len as usize, at: RwLock::new(At::Client { address: address as usize, ours: false }) }
    }

    /// New memory that the host can use too, aligned to `align`.
    pub(crate) fn for_host(len: u64, align: u64) -> Outcome<(u64, Backing)> {
        let len = usize::try_from(len).map_err(|_| CUDA_ERROR_OPERATING_SYSTEM)?;
        let align = align as usize;
        let raw = map_private(len.checked_add(align).ok_or(CUDA_ERROR_OPERATING_SYSTEM)?)?;
        let address = raw.next_multiple_of(align);
        unmap(raw, address - raw);
        unmap(address + len, raw + align - address);
        Ok((address as u64, Backing { len, at: RwLock::new(At::Client { address, ours: true }) }))
    }

    /// Makes sure that [`Backing::view`] will succeed, and that so many bytes from `offset` can be written.
    pub(crate) fn prepare(&self, offset: u64, len: u64) -> Outcome {
        let view = self.view()?;
        if matches!(*view.guard, At::File { .. }) && len != 0 {
            let start = (view.address + offset as usize) & !(PAGE - 1);
            let end = view.address + (offset + len) as usize;
            // A full file system would show as SIGBUS at the first write; ask for the pages now, where it is an error.
            // SAFETY: a part of the mapping that the guard keeps; populating does not change what is in it.
            let failed =
                unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_POPULATE_WRITE) } != 0;
            let unknown = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL); // before Linux 5.14
            if failed && !unknown {
                return Err(no_room("the world's directory is full"));
            }
        }
        Ok(())
    }

    /// The bytes, for as long as the view is held.
    pub(crate) fn view(&self) -> Outcome<View<'_>> {
        // Recursive: a copy inside one allocation holds two views of the same bytes.
        let guard = self.at.read_recursive();
        if let Some(address) = guard.address() {
            return Ok(View { address, guard });
        }
        drop(guard);
        let mut writer = self.at.write();
        if writer.address().is_none() {
            *writer = match *writer {
                At::File { piece, .. } => At::File { view: map_file(piece, self.len, 0)?, piece },
                _ => At::Private { view: map_private(self.len)? },
            };
        }
        let guard = RwLockWriteGuard::downgrade(writer);
        guard.address().map(|address| View { address, guard }).ok_or(CUDA_ERROR_OPERATING_SYSTEM)
    }

    /// Makes so many bytes from `offset` zero.
    pub(crate) fn zero(&self, offset: u64, len: u64) -> Outcome {
        let (offset, len) = (offset as usize, len as usize);
        if matches!(*self.at.read_recursive(), At::Nowhere) {
            return Ok(());
        }
        let view = self.view()?;
        let (start, end) = (view.address + offset, view.address + offset + len);
        let (first, last) = (start.next_multiple_of(PAGE), end & !(PAGE - 1));
        let advice = match *view.guard {
            At::Private { .. } | At::Client { ours: true, .. } => libc::MADV_DONTNEED,
            At::File { .. } => libc::MADV_REMOVE,
            _ => -1,
        };
        if len < LARGE || advice == -1 {
            view.fill(offset, len, 0);
            return Ok(());
        }
        // SAFETY: whole pages inside the mapping that the guard keeps. They become zero, which is what is asked for.
        if unsafe { libc::madvise(first as *mut libc::c_void, last - first, advice) } != 0 {
            view.fill(offset, len, 0); // a file system that cannot punch holes
            return Ok(());
        }
        view.fill(offset, first - start, 0);
        view.fill(last - view.address, end - last, 0);
        Ok(())
    }

    /// Moves the bytes into the heap file, if they are not there, and says where in it. Views keep their address.
    pub(crate) fn publish(&self) -> Outcome<u64> {
        let mut at = self.at.write();
        let world = process()?.world;
        let (slot, generation) = (world.slot() as u64, world.generation());
        let old = match *at {
            At::File { piece, .. } if (piece.slot, piece.generation) == (slot, generation) => return Ok(piece.offset),
            At::Nowhere => 0,
            At::Private { view } => view,
            At::File { .. } | At::Client { .. } => return Err(crate::abi::CUDA_ERROR_INVALID_VALUE),
        };
        let offset = NEXT_OFFSET.fetch_add((self.len as u64).next_multiple_of(2 << 20), Ordering::Relaxed);
        let piece = Piece { slot, generation, offset };
        // Also makes the file, so that whoever imports finds one.
        let view = map_file(piece, self.len, 0)?;
        if old != 0 {
            for page in (0..self.len).step_by(PAGE) {
                let size = PAGE.min(self.len - page);
                // SAFETY: both mappings are `len` long and nobody else uses them: views need the lock we hold for writing.
                unsafe {
                    let from = std::slice::from_raw_parts((old + page) as *const u8, size);
                    // Pages that hold nothing stay holes.
                    if from.iter().any(|byte| *byte != 0) {
                        std::ptr::copy_nonoverlapping(from.as_ptr(), (view + page) as *mut u8, size);
                    }
                }
            }
            unmap(view, self.len);
            map_file(piece, self.len, old)?;
        }
        *at = At::File { view: if old == 0 { view } else { old }, piece };
        Ok(offset)
    }

    /// Gives the pages of a heap file back: for whoever was the last to hold exported memory.
    pub(crate) fn punch(&self) {
        let At::File { piece, .. } = *self.at.read_recursive() else { return };
        // The file goes with the last that is held of what a dead process exported.
        let there = process().is_ok_and(|p| p.world.heap_path(piece.slot, piece.generation).exists());
        if there && let Ok(view) = self.view() {
            // SAFETY: the whole mapping that the guard keeps; nobody holds the memory any more, so nobody misses the bytes.
            unsafe { libc::madvise(view.address as *mut libc::c_void, self.len, libc::MADV_REMOVE) };
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        match *self.at.get_mut() {
            At::Private { view } | At::File { view, .. } | At::Client { address: view, ours: true } if view != 0 => {
                unmap(view, self.len);
            }
            _ => {}
        }
    }
}

impl At {
    fn address(&self) -> Option<usize> {
        match *self {
            At::Private { view } | At::File { view, .. } if view != 0 => Some(view),
            At::Client { address, .. } => Some(address),
            _ => None,
        }
    }
}

/// Access to a backing's bytes; while it is held they stay where they are.
pub(crate) struct View<'a> {
    address: usize,
    guard: RwLockReadGuard<'a, At>,
}

impl View<'_> {
    /// Where the byte at `offset` is.
    pub(crate) fn pointer(&self, offset: u64) -> *mut u8 {
        (self.address + offset as usize) as *mut u8
    }

    fn fill(&self, offset: usize, len: usize, byte: u8) {
        // SAFETY: callers pass ranges inside the backing, whose mapping the guard keeps.
        unsafe { self.pointer(offset as u64).write_bytes(byte, len) };
    }
}

fn no_room(why: &str) -> crate::abi::CUresult {
    static SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "ration-sim: no room on this machine for the bytes of device memory: {why} ({})",
            std::io::Error::last_os_error()
        );
    }
    CUDA_ERROR_OPERATING_SYSTEM
}

fn map_private(len: usize) -> Outcome<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if got == libc::MAP_FAILED { Err(no_room("no memory")) } else { Ok(got as usize) }
}

/// Maps a piece of a heap file; `over`: in the place of this mapping of the same length, or 0.
fn map_file(piece: Piece, len: usize, over: usize) -> Outcome<usize> {
    let world = process()?.world;
    let own = (piece.slot, piece.generation) == (world.slot() as u64, world.generation());
    let file = world.open_heap(piece.slot, piece.generation, own).map_err(|_| no_room("no heap file"))?;
    if file.metadata().map_or(0, |meta| meta.len()) < piece.offset + len as u64 {
        return Err(no_room("the heap file is used up")); // beyond its end every access would be a SIGBUS
    }
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | if over == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: a new mapping, or one that takes the place of a mapping of ours that the caller has for itself.
    let got = unsafe {
        libc::mmap(
            over as *mut libc::c_void,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file.as_raw_fd(),
            piece.offset as i64,
        )
    };
    if got == libc::MAP_FAILED { Err(no_room("the heap file cannot be mapped")) } else { Ok(got as usize) }
}

fn unmap(address: usize, len: usize) {
    if len != 0 {
        // SAFETY: only called with mappings, or parts, that this file made and that no view shows any more.
        unsafe { libc::munmap(address as *mut libc::c_void, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_until_written_and_after_a_large_fill() {
        let backing = Backing::new(4 << 20);
        backing.zero(0, 4 << 20).expect("nothing to do");
        assert!(backing.at.read().address().is_none(), "zeroing what nobody touched touches nothing");
        let view = backing.view().expect("memory");
        for at in [0, 1, 4095, 4096, 1 << 20, (4 << 20) - 1] {
            // SAFETY: inside the backing.
            unsafe {
                assert_eq!(view.pointer(at).read(), 0);
                view.pointer(at).write(7);
            }
        }
        drop(view);
        backing.zero(1, (4 << 20) - 2).expect("zeroed");
        let view = backing.view().expect("memory");
        for (at, value) in [(0, 7), (1, 0), (4095, 0), (4096, 0), (1 << 20, 0), ((4 << 20) - 1, 7)] {
            // SAFETY: inside the backing.
            assert_eq!(unsafe { view.pointer(at).read() }, value, "at {at}");
        }
    }

    #[test]
    fn memory_for_the_host_is_where_it_says() {
        let (address, backing) = Backing::for_host(2 << 20, 2 << 20).expect("memory");
        assert!(address.is_multiple_of(2 << 20));
        // SAFETY: memory just made, and only ours.
        unsafe { (address as *mut u8).add(5).write(9) };
        // SAFETY: inside the backing.
        assert_eq!(unsafe { backing.view().expect("memory").pointer(5).read() }, 9);
    }
}
