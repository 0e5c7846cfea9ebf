//! Process slots: taking one, and taking back what the dead held.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use crate::layout::{PATHS, PROC_DEAD, PROC_FREE, PROC_LIVE, PROCS, Proc, WorldFile};
use crate::lock::Tx;
use crate::open::{Role, World};
use crate::{life, shared, timeline};

/// Takes a slot for this process. The caller holds the file's flock, so that no two processes choose at once.
pub(crate) fn claim(world: &World, role: Role) -> io::Result<(usize, u64)> {
    let file = world.file();
    let full = || io::Error::other(format!("all {PROCS} process slots of this world are taken by living processes"));
    // One that died holding the world's lock keeps its slot until the lock was taken from it: it would seem to live again. Also
    // one that died in here, whose slot is still free.
    let holder = (file.lock.load(Ordering::Acquire) as usize & 0xffff).wrapping_sub(1);
    let is_free = |(slot, proc): (usize, &Proc)| slot != holder && proc.state.get() == PROC_FREE;
    let slot = match file.procs.iter().enumerate().position(is_free) {
        Some(slot) => slot,
        None => longest_dead(file, holder).ok_or_else(full)?,
    };
    let proc = &file.procs[slot];
    // The slot is not PROC_LIVE yet: if we are killed in here it is simply taken again.
    life::keep(&proc.life)?;
    let tx = Tx::begin_as(world, slot);
    if proc.state.get() == PROC_LIVE {
        bury(&tx, slot); // its death was not noticed before
    }
    proc.observer.store(u32::from(role == Role::Observer), Ordering::Release);
    proc.pid.publish(u64::from(std::process::id()));
    proc.pid_namespace.publish(own_pid_namespace());
    for (word, bytes) in proc.name.iter().zip(own_name().chunks_exact(8)) {
        word.publish(u64::from_le_bytes(bytes.try_into().expect("chunks of 8")));
    }
    for gpu in &proc.gpu {
        let counts = [&gpu.busy, &gpu.work, &gpu.copying, &gpu.kernels, &gpu.slices, &gpu.switches];
        let held = [&gpu.shared, &gpu.peak];
        for word in gpu.own.iter().chain(&gpu.history).chain(held).chain(counts) {
            word.publish(0);
        }
    }
    for count in &proc.calls {
        count.store(0, Ordering::Relaxed);
    }
    if proc.heap.get() != 0 {
        // Nobody came to tidy up after the one before us.
        let _ = std::fs::remove_file(world.heap_path(slot as u64, proc.generation.get()));
        proc.heap.publish(0);
    }
    proc.started.publish(world.now());
    proc.ended.publish(0);
    proc.generation.publish(proc.generation.get() + 1);
    proc.state.publish(PROC_LIVE);
    Ok((slot, proc.generation.get()))
}

/// Whose slot can be taken over: the one that has been dead for longest.
fn longest_dead(file: &WorldFile, holder: usize) -> Option<usize> {
    let takeable = |slot: usize, proc: &Proc| {
        let dead = proc.state.get() == PROC_DEAD || life::is_over(&proc.life);
        // One whose exported memory somebody still holds keeps its slot, which names the memory's file.
        dead && slot != holder && !file.shares.iter().any(|s| s.id.get() != 0 && s.owner.get() == slot as u64)
    };
    let dead = file.procs.iter().enumerate().filter(|(slot, proc)| takeable(*slot, proc));
    dead.min_by_key(|(_, proc)| if proc.state.get() == PROC_DEAD { proc.ended.get() } else { u64::MAX })
        .map(|(slot, _)| slot)
}

/// The inode of this process's PID namespace, 0 where /proc does not say.
pub fn own_pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
}

fn own_name() -> [u8; 32] {
    let mut name = [0; 32];
    let text = std::fs::read("/proc/self/comm").unwrap_or_default();
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let len = text.len().min(31);
    name[..len].copy_from_slice(&text[..len]);
    name
}

/// Notices the dead: their work stops, their memory comes back, their record stays.
pub fn reap(tx: &Tx<'_>) {
    for slot in 0..PROCS {
        let proc = &tx.file().procs[slot];
        if proc.state.get() == PROC_LIVE && life::is_over(&proc.life) {
            bury(tx, slot);
        }
    }
    shared::collect(tx);
}

fn bury(tx: &Tx<'_>, slot: usize) {
    let file = tx.file();
    let proc = &file.procs[slot];
    for (chan, channel) in file.chans.iter().enumerate() {
        if channel.state.get() != 0 && channel.proc.get() == slot as u64 {
            timeline::abandon(tx, chan);
        }
    }
    for (gpu, held) in proc.gpu.iter().enumerate() {
        let own: u64 = (0..PATHS).map(|path| held.own[path].get()).sum();
        if own != 0 {
            tx.take(&file.gpus[gpu].used, own);
            for word in &held.own {
                tx.set(word, 0);
            }
        }
        tx.set(&held.shared, 0);
    }
    for share in &file.shares {
        let word = &share.holders[slot / 64];
        if share.id.get() != 0 && word.get() & (1 << (slot % 64)) != 0 {
            tx.set(word, word.get() & !(1 << (slot % 64)));
            if share.figure.get() == slot as u64 + 1 {
                tx.set(&share.figure, shared::OPEN);
            }
        }
    }
    for event in &file.ipc_events {
        if event.id.get() != 0 && event.owner.get() == slot as u64 {
            tx.set(&event.id, 0);
        }
    }
    tx.set(&proc.ended, file.clock.get().max(1));
    tx.set(&proc.state, PROC_DEAD);
    tx.commit();
}

impl Proc {
    /// Whether its process lives.
    pub fn alive(&self) -> bool {
        self.state.get() == PROC_LIVE && !life::is_over(&self.life)
    }

    /// Its name as text.
    pub fn name_text(&self) -> String {
        let bytes: Vec<u8> = self.name.iter().flat_map(|w| w.get().to_le_bytes()).take_while(|b| *b != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
