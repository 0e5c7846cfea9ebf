//! Memory and events that cross processes.
//!
//! Data lies in sparse heap files beside the world, one per process that has needed one, so that another process can map it.
//! A [`crate::layout::Share`] says who holds a piece of one. A piece exported as a file descriptor is also held by that
//! descriptor, wherever it went: it is an open file of the world's directory with a shared `flock`, which the kernel drops
//! when the last copy of the descriptor is closed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use crate::accounts::note_peak;
use crate::layout::{Path, Share};
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
        tx.set(&share.by_fd, 0);
        for (i, word) in share.holders.iter().enumerate() {
            tx.set(word, if i == self.slot() / 64 { 1 << (self.slot() % 64) } else { 0 });
        }
        tx.set(&share.id, file.clock.get().max(1));
        tx.take(&held.own[path as usize], bytes);
        tx.add(&held.shared, bytes);
        Some(handle(index, share))
    }

    /// Joins in holding a share. False when it is gone. `counted`: whether it shows in this process's figure.
    pub fn hold(&self, share: &ShareHandle, counted: bool) -> bool {
        let tx = self.lock();
        let file = tx.file();
        let Some(entry) = live(&tx, share) else { return false };
        let word = &entry.holders[self.slot() / 64];
        tx.set(word, word.get() | 1 << (self.slot() % 64));
        if counted {
            let held = &file.procs[self.slot()].gpu[share.gpu as usize];
            tx.add(&held.shared, share.bytes);
            note_peak(&tx, held);
        }
        true
    }

    /// Stops holding it. `counted` as it was taken.
    pub fn let_go(&self, share: &ShareHandle, counted: bool) {
        let tx = self.lock();
        let file = tx.file();
        if counted {
            tx.take(&file.procs[self.slot()].gpu[share.gpu as usize].shared, share.bytes);
        }
        if let Some(entry) = live(&tx, share) {
            let word = &entry.holders[self.slot() / 64];
            tx.set(word, word.get() & !(1 << (self.slot() % 64)));
        }
        tx.commit();
        collect(&tx);
    }

    fn export_path(&self, share: &ShareHandle) -> PathBuf {
        self.dir().join(format!("export-{}-{}", share.index, share.id))
    }

    /// A descriptor that holds the share for as long as any copy of it is open.
    pub fn export_fd(&self, share: &ShareHandle) -> io::Result<OwnedFd> {
        let path = self.export_path(share);
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o666).open(&path)?;
        let _ = file.set_permissions(std::fs::Permissions::from_mode(0o666));
        if file.metadata()?.len() == 0 {
            file.write_all(&to_bytes(share))?;
        }
        // SAFETY: the descriptor is open for the whole call.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let tx = self.lock();
        match live(&tx, share) {
            Some(entry) => tx.set(&entry.by_fd, 1),
            None => return Err(io::Error::other("the memory was released meanwhile")),
        }
        Ok(file.into())
    }

    /// What a descriptor made by [`World::export_fd`] stands for.
    pub fn import_fd(&self, fd: i32) -> Option<ShareHandle> {
        // A descriptor of another process's making: its offset is shared with all its copies, so read at 0 explicitly.
        let mut bytes = [0u8; SHARE_BYTES];
        // SAFETY: pread writes at most the buffer's length into it, and fails cleanly on a bad descriptor.
        let got = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if got != bytes.len() as isize {
            return None;
        }
        from_bytes(&bytes)
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
        bytes: share.bytes.get(),
        owner: share.owner.get(),
        owner_generation: share.owner_generation.get(),
        offset: share.offset.get(),
    }
}

fn live<'t>(tx: &'t Tx<'_>, share: &ShareHandle) -> Option<&'t Share> {
    tx.file().shares.get(share.index as usize).filter(|entry| share.id != 0 && entry.id.get() == share.id)
}

/// Frees shares that neither a process nor a descriptor holds any more, and files that nothing needs.
pub(crate) fn collect(tx: &Tx<'_>) {
    let file = tx.file();
    for (index, share) in file.shares.iter().enumerate() {
        if share.id.get() == 0 || share.holders.iter().any(|word| word.get() != 0) {
            continue;
        }
        let path = tx.world.export_path(&handle(index, share));
        if share.by_fd.get() != 0 && still_locked(&path) {
            continue;
        }
        let _ = std::fs::remove_file(path);
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

fn still_locked(path: &std::path::Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    // SAFETY: the descriptor is open for the whole call; a lock taken here goes when `file` is dropped.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) != 0 }
}
