//! The world's lock, and changes that are made whole or not at all.
//!
//! A client may be killed between any two instructions, also while it holds the lock and has half moved something. So every
//! write under the lock first notes the old value in a journal that lies in the world itself; [`Tx::commit`] empties the
//! journal, and whoever takes the lock over from a dead holder first plays the journal backwards.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::layout::{JOURNAL, Word, WorldFile};
use crate::life;
use crate::open::World;
use crate::procs;

const WAITERS: u32 = 1 << 31;
const SPINS: u32 = 200;
/// How long a holder must be known dead before its lock is taken. The kernel marks a process dead when its keeper thread is
/// gone; a sibling thread on another core may run on for the microseconds that a kill needs to get there.
const GRACE: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_millis(5);
/// After so many of those it is looked whether the holder was stopped.
const STOPPED: u32 = 4;

/// The lock, held: the only way to change what the lock guards.
pub struct Tx<'w> {
    /// The world that is locked.
    pub world: &'w World,
}

impl<'w> Tx<'w> {
    pub(crate) fn begin(world: &'w World) -> Tx<'w> {
        Tx::begin_as(world, world.slot())
    }

    /// For a process that is just taking its slot.
    pub(crate) fn begin_as(world: &'w World, slot: usize) -> Tx<'w> {
        acquire(world, slot as u32 + 1);
        Tx { world }
    }

    pub(crate) fn file(&self) -> &'w WorldFile {
        self.world.file()
    }

    /// Changes a word so that the change can be undone until [`Tx::commit`].
    #[inline]
    pub fn set(&self, word: &Word, value: u64) {
        let file = self.file();
        let len = file.journal_len.get();
        let entry = &file.journal[len as usize % JOURNAL];
        assert!((len as usize) < JOURNAL, "one change to the world needs more than {JOURNAL} words");
        let offset = std::ptr::from_ref(word) as usize - std::ptr::from_ref(file) as usize;
        entry.offset.publish(offset as u64);
        entry.old.publish(word.get());
        // Release: a taker-over that sees the new length sees the entry, and one that sees the new value sees the length.
        file.journal_len.publish(len + 1);
        word.publish(value);
    }

    /// Adds to a word, undoably.
    #[inline]
    pub fn add(&self, word: &Word, amount: u64) {
        self.set(word, word.get().wrapping_add(amount));
    }

    /// Takes from a word, undoably, stopping at zero.
    #[inline]
    pub fn take(&self, word: &Word, amount: u64) {
        self.set(word, word.get().saturating_sub(amount));
    }

    /// What was changed so far stays.
    #[inline]
    pub fn commit(&self) {
        self.file().journal_len.publish(0);
    }

    fn roll_back(&self) {
        roll_back(self.file());
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.roll_back();
        } else {
            self.commit();
        }
        release(&self.world.file().lock);
    }
}

fn roll_back(file: &WorldFile) {
    let len = file.journal_len.get().min(JOURNAL as u64);
    for entry in file.journal[..len as usize].iter().rev() {
        let offset = entry.offset.get() as usize;
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= std::mem::size_of::<WorldFile>(),
            "the journal names a word of the world"
        );
        // SAFETY: the offset was checked to be an aligned word inside the mapped file just above.
        let word = unsafe { &*std::ptr::from_ref(file).cast::<u8>().add(offset).cast::<Word>() };
        word.publish(entry.old.get());
    }
    file.journal_len.publish(0);
}

fn acquire(world: &World, me: u32) {
    let lock = &world.file().lock;
    for _ in 0..SPINS {
        if lock.compare_exchange_weak(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        std::hint::spin_loop();
    }
    let mut dead_since: Option<(u32, Instant)> = None;
    let mut waits = 0u32;
    loop {
        let seen = lock.load(Ordering::Relaxed);
        if seen == 0 {
            if lock.compare_exchange(0, me | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            continue;
        }
        if seen & WAITERS == 0
            && lock.compare_exchange(seen, seen | WAITERS, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            continue;
        }
        futex_wait(lock, seen | WAITERS, NAP);
        waits += 1;
        let holder = (seen & !WAITERS) - 1;
        if waits.is_multiple_of(STOPPED) && lock.load(Ordering::Relaxed) == seen | WAITERS {
            let_finish(world, holder);
        }
        let dead = world.file().procs.get(holder as usize).is_none_or(|proc| life::is_over(&proc.life));
        match dead_since {
            _ if !dead => dead_since = None,
            Some((who, since)) if who == holder => {
                if since.elapsed() > GRACE
                    && lock.compare_exchange(seen | WAITERS, me | WAITERS, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    roll_back(world.file());
                    world.file().takeovers.publish(world.file().takeovers.get() + 1);
                    return;
                }
            }
            _ => dead_since = Some((holder, Instant::now())),
        }
    }
}

/// Nobody is stopped in the middle of a call of the kernel module's, and the GPU never is. So a process that was stopped with the lock
/// goes on until it has let go of it, and is stopped again.
#[cold]
fn let_finish(world: &World, holder: u32) {
    let Some(proc) = world.file().procs.get(holder as usize) else { return };
    let (Ok(pid), namespace) = (i32::try_from(proc.pid.get()), proc.pid_namespace.get()) else { return };
    if pid <= 0 || namespace != procs::own_pid_namespace() || !is_stopped(pid) {
        return;
    }
    // SAFETY: plain numbers. It was alive just now, and nobody waits for a process that is stopped.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    let begun = Instant::now();
    while world.file().lock.load(Ordering::Relaxed) & !WAITERS == holder + 1 && begun.elapsed() < GRACE {
        std::thread::sleep(Duration::from_micros(100));
    }
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
}

fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

fn release(lock: &AtomicU32) {
    if lock.swap(0, Ordering::Release) & WAITERS != 0 {
        futex_wake(lock);
    }
}

fn futex_wait(word: &AtomicU32, value: u32, at_most: Duration) {
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: at_most.as_nanos() as _ };
    // SAFETY: FUTEX_WAIT reads the aligned word and the timespec, both of which outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const timeout) };
}

fn futex_wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE uses the address only as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
