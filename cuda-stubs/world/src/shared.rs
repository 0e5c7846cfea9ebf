//! Memory and events that cross processes.
//!
//! Data lies in sparse heap files beside the world, one per process that has needed one, so that another process can map it.
//! A [`crate::layout::Share`] says who holds a piece of one.
//!
//! A piece exported as a file descriptor is also held by that descriptor, wherever it went. All such descriptors are of one
//! file, as a real driver's are all of `/dev/nvidiactl`: here it is the world's own, for reading. Which piece a descriptor is
//! of is its position, and that it is open somewhere is known from a lock on one byte, which belongs to the open file and goes
//! with its last copy. A dma-buf is a file of its own, and has a `flock`.
//!
//! In whose figure the piece is: in its maker's, as long as that holds it. Then in that of the last to join of those who
//! still hold it; if that is a descriptor, in nobody's. So it was measured.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use crate::accounts::note_peak;
use crate::layout::{PROCS, Path, Share};
use crate::lock::Tx;
use crate::open::World;

/// A share, as a handle that can cross processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ShareHandle {
    /// Slot in the table.
    pub index: u64,
    /// Number of that use of the slot.
    pub id: u64,
    /// On which GPU.
    pub gpu: u64,
    /// How much.
    pub bytes: u64,
    /// Whose heap file, and which use of that process slot.
    pub owner: u64,
    /// See `owner`.
    pub owner_generation: u64,
    /// Where in the heap file.
    pub offset: u64,
}

/// Nobody's figure has it yet, or whose had it is gone: it is to be passed on.
pub(crate) const OPEN: u64 = 0;
/// A descriptor has it, where a process is its slot + 1.
const DESCRIPTOR: u64 = PROCS as u64 + 1;
/// A pool: what it lends leaves the figure of the process that frees it, and is in no other's.
const POOL: u64 = u64::MAX;

/// Kinds of descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Descriptor {
    /// Of the world's file.
    Handle = 1,
    /// A file of its own.
    DmaBuf = 2,
}

impl World {
    /// The heap file of a process.
    pub fn heap_path(&self, slot: u64, generation: u64) -> PathBuf {
        self.dir().join(format!("heap-{slot}-{generation}"))
    }

    /// Opens a heap file; `create` for one's own.
    pub fn open_heap(&self, slot: u64, generation: u64, create: bool) -> io::Result<File> {
        let path = self.heap_path(slot, generation);
        let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o666).open(&path)?;
        if create && file.metadata()?.len() == 0 {
            let _ = file.set_permissions(std::fs::Permissions::from_mode(0o666));
            // Sparse; offsets in it are never used twice. ext4 has no files as large as tmpfs has.
            file.set_len(1 << 45).or_else(|_| file.set_len(1 << 43))?;
            self.file().procs[self.slot()].heap.publish(1);
        }
        Ok(file)
    }

    /// Makes bytes that this process holds under `path` a share. They leave `path` and go into the process's shared figure.
    /// None at all: a pool, to which [`World::lend`] adds.
    pub fn share(&self, gpu: usize, path: Path, bytes: u64, offset: u64) -> Option<ShareHandle> {
        let tx = self.lock();
        let file = tx.file();
        let index = file.shares.iter().position(|s| s.id.get() == 0)?;
        let share = &file.shares[index];
        let held = &file.procs[self.slot()].gpu[gpu];
        tx.set(&share.gpu, gpu as u64);
        tx.set(&share.bytes, bytes);
        tx.set(&share.owner, self.slot() as u64);
        tx.set(&share.owner_generation, self.generation());
        tx.set(&share.offset, offset);
        tx.set(&share.descriptors, 0);
        tx.set(&share.figure, if bytes == 0 { POOL } else { self.slot() as u64 + 1 });
        tx.set(&share.latest, self.slot() as u64 + 1);
        for (i, word) in share.holders.iter().enumerate() {
            tx.set(word, if i == self.slot() / 64 { 1 << (self.slot() % 64) } else { 0 });
        }
        tx.set(&share.id, file.clock.get().max(1));
        tx.take(&held.own[path as usize], bytes);
        tx.add(&held.shared, bytes);
        Some(handle(index, share))
    }

    /// Adds bytes that this process holds under `path` to a pool's share: they stay in its figure until [`World::end_lending`].
    pub fn lend(&self, share: &ShareHandle, path: Path, bytes: u64) {
        let tx = self.lock();
        let held = &tx.file().procs[self.slot()].gpu[share.gpu as usize];
        if let Some(entry) = live(&tx, share) {
            let bytes = bytes.min(held.own[path as usize].get());
            tx.take(&held.own[path as usize], bytes);
            tx.add(&held.shared, bytes);
            tx.add(&entry.bytes, bytes);
        }
    }

    /// The process has given them back; the GPU gets them when nobody holds the share any more.
    pub fn end_lending(&self, share: &ShareHandle, bytes: u64) {
        let tx = self.lock();
        tx.take(&tx.file().procs[self.slot()].gpu[share.gpu as usize].shared, bytes);
    }

    /// Joins in holding a share. False when it is gone.
    pub fn hold(&self, share: &ShareHandle) -> bool {
        let tx = self.lock();
        // All of it: one that is half another share's would name memory that this one does not keep.
        let Some(entry) = live(&tx, share).filter(|entry| handle(share.index as usize, entry) == *share) else {
            return false;
        };
        let word = &entry.holders[self.slot() / 64];
        tx.set(word, word.get() | 1 << (self.slot() % 64));
        tx.set(&entry.latest, self.slot() as u64 + 1);
        pass_on(&tx, share.index as usize, entry);
        true
    }

    /// Stops holding it.
    pub fn let_go(&self, share: &ShareHandle) {
        let tx = self.lock();
        if let Some(entry) = live(&tx, share) {
            let word = &entry.holders[self.slot() / 64];
            tx.set(word, word.get() & !(1 << (self.slot() % 64)));
            if entry.figure.get() == self.slot() as u64 + 1 {
                tx.take(&tx.file().procs[self.slot()].gpu[share.gpu as usize].shared, entry.bytes.get());
                tx.set(&entry.figure, OPEN);
            }
        }
        tx.commit();
        collect(&tx);
    }

    fn node_path(&self) -> PathBuf {
        self.dir().join("world")
    }

    fn dma_buf_path(&self, share: &ShareHandle) -> PathBuf {
        self.dir().join(format!("dma-buf-{}-{}", share.index, share.id))
    }

    /// A descriptor that holds the share for as long as any copy of it is open.
    pub fn export_fd(&self, share: &ShareHandle, kind: Descriptor) -> io::Result<OwnedFd> {
        let (file, locked) = match kind {
            Descriptor::Handle => {
                let file = File::open(self.node_path())?;
                // SAFETY: the descriptor is open; a position beyond the end is as good as another.
                unsafe { libc::lseek(file.as_raw_fd(), share.index as i64 + 1, libc::SEEK_SET) };
                let mut byte = lock_of(share.index, libc::F_RDLCK);
                // SAFETY: the descriptor is open and the lock's description outlives the call.
                let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut byte) };
                (file, locked)
            }
            Descriptor::DmaBuf => {
                let path = self.dma_buf_path(share);
                let file =
                    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o666).open(path)?;
                let _ = file.set_permissions(std::fs::Permissions::from_mode(0o666));
                // SAFETY: the descriptor is open for the whole call.
                let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH) };
                (file, locked)
            }
        };
        if locked != 0 {
            return Err(io::Error::last_os_error());
        }
        let tx = self.lock();
        let Some(entry) = live(&tx, share) else {
            return Err(io::Error::other("the memory was released meanwhile"));
        };
        tx.set(&entry.descriptors, entry.descriptors.get() | kind as u64);
        tx.set(&entry.latest, DESCRIPTOR);
        Ok(file.into())
    }

    /// What a descriptor of the world's file stands for.
    pub fn import_fd(&self, fd: i32) -> Option<ShareHandle> {
        let node = std::fs::metadata(self.node_path()).ok()?;
        // SAFETY: all zeroes is a stat; it is filled in by the call below.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: fstat fills in what it is given, and both fail cleanly on a bad descriptor. The position belongs to the
        // open file, so all copies of the descriptor have it.
        let position = unsafe {
            if libc::fstat(fd, &raw mut found) != 0 {
                return None;
            }
            libc::lseek(fd, 0, libc::SEEK_CUR)
        };
        if (found.st_dev, found.st_ino) != (node.dev(), node.ino()) {
            return None;
        }
        let index = usize::try_from(position).ok()?.checked_sub(1)?;
        let tx = self.lock();
        let share = tx.file().shares.get(index).filter(|share| share.id.get() != 0)?;
        Some(handle(index, share))
    }

    /// A new event that others can wait on: (slot in the table, id).
    pub fn new_ipc_event(&self) -> Option<(u64, u64)> {
        let tx = self.lock();
        let file = tx.file();
        let index = file.ipc_events.iter().position(|e| e.id.get() == 0)?;
        let event = &file.ipc_events[index];
        tx.set(&event.owner, self.slot() as u64);
        tx.set(&event.last, 0);
        let id = file.clock.get().max(1);
        tx.set(&event.id, id);
        Some((index as u64, id))
    }

    /// Notes that an IPC event was recorded at `seq`.
    pub fn record_ipc_event(&self, index: u64, id: u64, seq: u64) {
        let tx = self.lock();
        if let Some(event) = tx.file().ipc_events.get(index as usize).filter(|e| e.id.get() == id) {
            tx.set(&event.last, seq);
        }
    }

    /// The last record of an IPC event (0: none), or None when the event is gone.
    pub fn ipc_event(&self, index: u64, id: u64) -> Option<u64> {
        self.file().ipc_events.get(index as usize).filter(|e| e.id.get() == id).map(|e| e.last.get())
    }
}

const SHARE_BYTES: usize = std::mem::size_of::<ShareHandle>();

/// The handle as bytes, for IPC handles and export files.
pub fn to_bytes(share: &ShareHandle) -> [u8; SHARE_BYTES] {
    let words = [share.index, share.id, share.gpu, share.bytes, share.owner, share.owner_generation, share.offset];
    let mut bytes = [0; SHARE_BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The other way; None for bytes that cannot be one.
pub fn from_bytes(bytes: &[u8]) -> Option<ShareHandle> {
    let mut words = [0u64; SHARE_BYTES / 8];
    let mut rest = bytes;
    for word in &mut words {
        let mut eight = [0; 8];
        rest.read_exact(&mut eight).ok()?;
        *word = u64::from_le_bytes(eight);
    }
    let [index, id, gpu, bytes, owner, owner_generation, offset] = words;
    (id != 0 && index < crate::layout::SHARES as u64 && gpu < crate::layout::GPUS as u64).then_some(ShareHandle {
        index,
        id,
        gpu,
        bytes,
        owner,
        owner_generation,
        offset,
    })
}

fn handle(index: usize, share: &Share) -> ShareHandle {
    ShareHandle {
        index: index as u64,
        id: share.id.get(),
        gpu: share.gpu.get(),
        // What a pool has lent is nobody's to map as a whole.
        bytes: if share.figure.get() == POOL { 0 } else { share.bytes.get() },
        owner: share.owner.get(),
        owner_generation: share.owner_generation.get(),
        offset: share.offset.get(),
    }
}

fn live<'t>(tx: &'t Tx<'_>, share: &ShareHandle) -> Option<&'t Share> {
    tx.file().shares.get(share.index as usize).filter(|entry| share.id != 0 && entry.id.get() == share.id)
}

/// Puts a share into the figure of somebody who holds it, if it is in nobody's.
fn pass_on(tx: &Tx<'_>, index: usize, share: &Share) {
    let now = share.figure.get();
    if now != OPEN && now != DESCRIPTOR {
        return;
    }
    let holds = |slot: u64| share.holders[slot as usize / 64].get() & 1 << (slot % 64) != 0;
    let open = share.descriptors.get() != 0 && is_open(tx, index, share);
    if now == DESCRIPTOR && open {
        return;
    }
    let latest = share.latest.get();
    let next = match latest {
        DESCRIPTOR if open => Some(DESCRIPTOR),
        1..DESCRIPTOR if holds(latest - 1) => Some(latest),
        _ => (0..PROCS as u64).find(|slot| holds(*slot)).map(|slot| slot + 1).or(open.then_some(DESCRIPTOR)),
    };
    tx.set(&share.figure, next.unwrap_or(OPEN));
    if let Some(slot @ 1..DESCRIPTOR) = next {
        let held = &tx.file().procs[slot as usize - 1].gpu[share.gpu.get() as usize];
        tx.add(&held.shared, share.bytes.get());
        note_peak(tx, held);
    }
}

/// Frees shares that neither a process nor a descriptor holds any more, and files that nothing needs.
pub(crate) fn collect(tx: &Tx<'_>) {
    let file = tx.file();
    for (index, share) in file.shares.iter().enumerate() {
        if share.id.get() == 0 {
            continue;
        }
        pass_on(tx, index, share);
        let held = share.holders.iter().any(|word| word.get() != 0);
        if held || (share.descriptors.get() != 0 && is_open(tx, index, share)) {
            tx.commit();
            continue;
        }
        let _ = std::fs::remove_file(tx.world.dma_buf_path(&handle(index, share)));
        tx.take(&file.gpus[share.gpu.get() as usize].used, share.bytes.get());
        tx.set(&share.id, 0);
        tx.commit();
    }
    for (slot, proc) in file.procs.iter().enumerate() {
        let (owner, generation) = (slot as u64, proc.generation.get());
        if proc.state.get() == crate::layout::PROC_DEAD
            && proc.heap.get() != 0
            && !file
                .shares
                .iter()
                .any(|s| s.id.get() != 0 && s.owner.get() == owner && s.owner_generation.get() == generation)
        {
            let _ = std::fs::remove_file(tx.world.heap_path(owner, generation));
            tx.set(&proc.heap, 0);
        }
    }
    tx.commit();
}

/// The byte of the world's file that stands for a share.
fn lock_of(index: u64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: index as i64,
        l_len: 1,
        l_pid: 0,
    }
}

/// Whether a descriptor that a share was exported as is open anywhere.
fn is_open(tx: &Tx<'_>, index: usize, share: &Share) -> bool {
    let kinds = share.descriptors.get();
    let node = || {
        let Ok(file) = File::open(tx.world.node_path()) else { return false };
        let mut byte = lock_of(index as u64, libc::F_WRLCK);
        // SAFETY: the descriptor is open, and the lock's description is filled in by the call: nothing is locked.
        let told = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut byte) };
        told == 0 && byte.l_type != libc::F_UNLCK as libc::c_short
    };
    let dma_buf = || {
        let Ok(file) = File::open(tx.world.dma_buf_path(&handle(index, share))) else { return false };
        // SAFETY: the descriptor is open for the whole call; a lock taken here goes when `file` is dropped.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) != 0 }
    };
    (kinds & Descriptor::Handle as u64 != 0 && node()) || (kinds & Descriptor::DmaBuf as u64 != 0 && dma_buf())
}
