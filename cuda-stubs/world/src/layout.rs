//! The shape of the world file. Everything in it is made of 64-bit (and a few 32-bit) atomics; nothing in it is a pointer.
//!
//! Two kinds of words: those changed only under the world's lock, through [`crate::lock::Tx::set`], so that a holder's death
//! leaves no half-made change; and those that their owner writes alone without the lock (queue tails, call counters, gates).

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::settings::WorldSettings;

/// What a world file begins with.
pub const MAGIC: u64 = 0x5241_5449_4f4e_5349; // "RATIONSI"
/// Moves with every change of this file.
pub const VERSION: u32 = 3;

/// Most GPUs a world has.
pub const GPUS: usize = 16;
/// Most processes the record remembers, the dead included.
pub const PROCS: usize = 256;
/// Most contexts at one time.
pub const CHANS: usize = 512;
/// Hardware queues per context; streams are spread over them.
pub const QUEUES: usize = 32;
/// Operations one queue holds before a launch has to wait.
pub const DEPTH: u64 = 1024;
/// Allocations shared between processes at one time.
pub const SHARES: usize = 1024;
/// Events shared between processes at one time.
pub const IPC_EVENTS: usize = 256;
/// Run intervals the record keeps per world.
pub const TRACE: usize = 32768;
/// Utilization history: so many periods of [`HISTORY_NS`].
pub const HISTORY: usize = 16;
/// One period of the utilization history.
pub const HISTORY_NS: u64 = 100_000_000;
/// Undo entries one change may need.
pub const JOURNAL: usize = 4096;

/// A word of the world. Who may write it, and how, is said where it is declared.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(pub(crate) AtomicU64);

impl Word {
    /// The value now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// A write by the word's only writer, outside the lock.
    #[inline]
    pub(crate) fn publish(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// What memory was taken for: the rows of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
#[allow(missing_docs)] // the names say it; `label` is what the record prints
pub enum Path {
    Context,
    Linear,
    Array,
    Vmm,
    Pool,
    Graph,
    Module,
    Local,
    Heap,
    /// On the device, but in no process's figure: managed memory that the GPU touched.
    Managed,
    /// On the device, but in no process's figure: the driver's own, per context.
    Overhead,
}

impl Path {
    /// All of them, in the order of the record.
    pub const ALL: [Path; 11] = [
        Path::Context,
        Path::Linear,
        Path::Array,
        Path::Vmm,
        Path::Pool,
        Path::Graph,
        Path::Module,
        Path::Local,
        Path::Heap,
        Path::Managed,
        Path::Overhead,
    ];

    /// The name in the record.
    pub fn label(self) -> &'static str {
        match self {
            Path::Context => "context",
            Path::Linear => "linear",
            Path::Array => "array",
            Path::Vmm => "vmm",
            Path::Pool => "pool",
            Path::Graph => "graph",
            Path::Module => "module",
            Path::Local => "local",
            Path::Heap => "heap",
            Path::Managed => "managed",
            Path::Overhead => "overhead",
        }
    }

    /// Whether NVML counts it in the process's figure.
    pub fn in_process_figure(self) -> bool {
        !matches!(self, Path::Managed | Path::Overhead)
    }
}

/// How many [`Path`]s there are.
pub const PATHS: usize = Path::ALL.len();

/// The file.
#[repr(C)]
pub struct WorldFile {
    /// [`MAGIC`].
    pub magic: Word,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// 1 once the creator is through.
    pub ready: AtomicU32,
    /// Size of this struct, as its creator knew it.
    pub size: Word,
    /// CLOCK_MONOTONIC when the world began.
    pub epoch: Word,
    /// Fixed at creation.
    pub settings: WorldSettings,
    /// 0, or the holder's slot + 1; the top bit says that somebody waits.
    pub lock: AtomicU32,
    pub(crate) pad: AtomicU32,
    /// How often a lock was taken over from a dead holder.
    pub takeovers: Word,
    pub(crate) journal_len: Word,
    pub(crate) journal: [JournalEntry; JOURNAL],
    /// Simulated nanoseconds up to which everything has happened. Under the lock.
    pub clock: Word,
    /// The utilization history's newest period. Under the lock.
    pub history_tick: Word,
    /// Run intervals ever written. Under the lock.
    pub trace_len: Word,
    /// The last [`TRACE`] of them.
    pub trace: [Trace; TRACE],
    /// See [`Gpu`].
    pub gpus: [Gpu; GPUS],
    /// See [`Proc`].
    pub procs: [Proc; PROCS],
    /// See [`Share`].
    pub shares: [Share; SHARES],
    /// See [`IpcEvent`].
    pub ipc_events: [IpcEvent; IPC_EVENTS],
    /// See [`Chan`].
    pub chans: [Chan; CHANS],
}

/// One undo entry: the word at `offset` held `old` before the change in progress.
#[repr(C)]
pub(crate) struct JournalEntry {
    pub offset: Word,
    pub old: Word,
}

/// A context's uninterrupted time on a GPU's compute engine.
#[repr(C)]
pub struct Trace {
    /// gpu << 32 | process slot.
    pub who: Word,
    /// Simulated nanoseconds.
    pub start: Word,
    /// Simulated nanoseconds.
    pub end: Word,
}

/// A GPU: memory in use, and who runs. All under the lock, but for `active`.
#[repr(C)]
pub struct Gpu {
    /// Bytes taken, all processes together.
    pub used: Word,
    /// Context on the compute engine, or coming onto it: channel + 1. This and the next five are
    /// [`sim_scheduler::Engine`].
    pub resident: Word,
    /// How much of its slice it has had.
    pub slice_used: Word,
    /// Its slice as it was when the slice began.
    pub granted: Word,
    /// When the context before it is off the engine.
    pub left_at: Word,
    /// When it is restored.
    pub restored_at: Word,
    /// When it ran dry; 0 while it has work.
    pub dry_at: Word,
    /// When the interval that runs now began; 0 while nothing runs.
    pub run_since: Word,
    /// Nanoseconds with a context on the engine that has work.
    pub busy: Word,
    /// Nanoseconds spent switching between contexts.
    pub switching: Word,
    /// Copy engines (to the device, from it): busy until then.
    pub copy_until: [Word; 2],
    /// `busy` at the end of each history period.
    pub history: [Word; HISTORY],
    /// Channels with work, as bits. Set by producers, cleared under the lock.
    pub active: [AtomicU64; CHANS / 64],
}

/// A client process, alive or remembered.
#[repr(C)]
pub struct Proc {
    /// [`PROC_FREE`], [`PROC_LIVE`] or [`PROC_DEAD`]. Under the lock.
    pub state: Word,
    /// How often the slot was taken. Under the lock.
    pub generation: Word,
    /// The keeper thread's word: the kernel marks it when the thread dies. See [`crate::life`].
    pub life: AtomicU32,
    /// 1 for a process that only looks (NVML, the record's reader).
    pub observer: AtomicU32,
    /// As the process sees itself.
    pub pid: Word,
    /// The inode of its PID namespace.
    pub pid_namespace: Word,
    /// Simulated time.
    pub started: Word,
    /// Simulated time; 0 while alive.
    pub ended: Word,
    /// 1 while its heap file exists. Written by the process, and under the lock after its death.
    pub heap: Word,
    /// Up to 32 bytes of its name.
    pub name: [Word; 4],
    /// Per GPU.
    pub gpu: [ProcGpu; GPUS],
    /// Calls by symbol. Written by the process alone.
    pub calls: [AtomicU64; crate::surface::COUNTERS],
}

/// A slot nobody has used.
pub const PROC_FREE: u64 = 0;
/// A slot in use.
pub const PROC_LIVE: u64 = 1;
/// A slot whose process is gone; what it did stays readable.
pub const PROC_DEAD: u64 = 2;

/// What a process holds of a GPU and has done on it. Under the lock.
#[repr(C)]
pub struct ProcGpu {
    /// Bytes by [`Path`], each owned by this process alone.
    pub own: [Word; PATHS],
    /// Bytes it holds together with others (see [`Share`]).
    pub shared: Word,
    /// The most its process figure ever was.
    pub peak: Word,
    /// Nanoseconds on the compute engine.
    pub busy: Word,
    /// Of those, nanoseconds in which kernels made progress.
    pub work: Word,
    /// Nanoseconds of copy engine time.
    pub copying: Word,
    /// Kernels finished, graph nodes included.
    pub kernels: Word,
    /// Times its contexts were put on the engine.
    pub slices: Word,
    /// Times its contexts' channels were taken off the GPU or put back on.
    pub switches: Word,
    /// `busy` at the end of each history period.
    pub history: [Word; HISTORY],
}

/// Physical memory that more than one process can hold: exported handles. Under the lock.
#[repr(C)]
pub struct Share {
    /// 0 when free, else the number of this use of the slot.
    pub id: Word,
    /// On which GPU.
    pub gpu: Word,
    /// How much.
    pub bytes: Word,
    /// Slot of the process whose heap file holds the data.
    pub owner: Word,
    /// That slot's generation.
    pub owner_generation: Word,
    /// Where in the heap file.
    pub offset: Word,
    /// Kinds of descriptors that it was exported as, as bits: they hold it too (see [`crate::shared`]).
    pub descriptors: Word,
    /// In whose figure it is: a process slot + 1, or one of the marks in [`crate::shared`].
    pub figure: Word,
    /// The last to join in holding it, as in `figure`.
    pub latest: Word,
    /// Processes holding it, as bits.
    pub holders: [Word; PROCS / 64],
}

/// An event that several processes can wait on. Under the lock.
#[repr(C)]
pub struct IpcEvent {
    /// 0 when free, else the number of this use of the slot.
    pub id: Word,
    /// Slot of its creator.
    pub owner: Word,
    /// The last record: a [`crate::channel::Seq`], 0 for none.
    pub last: Word,
}

/// One context's queues of work: its compute channel group, as the hardware has it.
#[repr(C)]
pub struct Chan {
    /// 0 free, 1 in use. Under the lock.
    pub state: Word,
    /// Process slot. Under the lock.
    pub proc: Word,
    /// GPU. Under the lock.
    pub gpu: Word,
    /// Its time slice, nanoseconds. Under the lock.
    pub slice: Word,
    /// 1 while it is taken off the compute engine. Under the lock.
    pub off: Word,
    /// 1 while it is saved, and has to be restored before it runs. Under the lock.
    pub saved: Word,
    /// Queues with work, as bits. Set by producers, cleared under the lock.
    pub active: AtomicU32,
    pub(crate) pad: AtomicU32,
    /// See [`Queue`].
    pub queues: [Queue; QUEUES],
}

/// Operations in order. `pushed` is the producer's, the rest is under the lock.
#[repr(C)]
pub struct Queue {
    /// Operations ever put in.
    pub pushed: Word,
    /// Operations ever finished.
    pub done: Word,
    /// Whether the first unfinished one has begun.
    pub begun: Word,
    /// What it still needs (kernels), or when it ends (copies).
    pub left: Word,
    /// When it began.
    pub began_at: Word,
    /// 1 while the last that took time in it was a copy: what takes no time then needs no compute engine.
    pub copied: Word,
    pub(crate) pad: [Word; 2],
    /// The operation with number n (from 0) is at n % DEPTH.
    pub ops: [Op; DEPTH as usize],
}

/// One operation. Written by the producer before `pushed` moves; `done_at` under the lock; `gate` by the owner.
#[repr(C)]
pub struct Op {
    /// When it was put in (simulated time).
    pub submitted: Word,
    /// GPU time it needs, nanoseconds.
    pub duration: Word,
    /// [`crate::channel::Kind`] | width << 8 | priority << 24.
    pub kind: Word,
    /// What must be finished before: two [`crate::channel::Seq`], 0 for none.
    pub after: [Word; 2],
    /// For gates: not 0 once the host opened it.
    pub gate: Word,
    /// When it began.
    pub began_at: Word,
    /// When it was finished.
    pub done_at: Word,
}

const _: () = assert!(std::mem::size_of::<Op>() == 64);
