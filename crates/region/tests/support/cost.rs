//! What the ledger costs: nanoseconds for a reservation and its return, and for a reservation that is kept, by threads of one
//! process and by processes of one container. Used by tests/cost.rs, and by the example `cost` for a closer look.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use ration_region::{Gpu, Member, Region, forget_in_child};

const GPU: Gpu = Gpu { uuid: *b"cost of a ledger", total: 80 << 30 };
const BYTES: u64 = 2 << 20;
/// So large that nobody is refused: refusals are another matter.
const CAP: u64 = 1 << 47;
/// Processes and threads of each.
const CROWDS: [(usize, usize); 4] = [(1, 1), (1, 8), (8, 1), (8, 8)];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// An allocation and its freeing.
    ReserveRefund,
    /// An allocation.
    ReserveKeep,
}

/// What was measured.
pub struct Row {
    /// What was done.
    pub deed: Deed,
    /// By how many processes.
    pub processes: usize,
    /// By how many threads of each.
    pub threads: usize,
    /// Nanoseconds of processor time that one takes of the thread which does it: the figure to judge by, because it does not
    /// depend on how many processors there are.
    pub cpu: f64,
    /// Nanoseconds that pass for a thread between one and the next: with more threads than processors, it has the turns of the
    /// others in it.
    pub wall: f64,
}

/// Measures everything, each for so long.
pub fn measure_all(dir: &Path, each: Duration) -> Vec<Row> {
    let deeds = [Deed::ReserveRefund, Deed::ReserveKeep].into_iter();
    deeds.flat_map(|deed| CROWDS.map(|(processes, threads)| measure(dir, deed, processes, threads, each))).collect()
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let mut table = format!("the ledger, on {processors} processors; nanoseconds each\n");
    table += &format!("{:<20} {:>9} {:>9} {:>9} {:>9}\n", "", "processes", "threads", "CPU", "wall");
    for row in rows {
        let deed = match row.deed {
            Deed::ReserveRefund => "reserve and refund",
            Deed::ReserveKeep => "reserve and keep",
        };
        table += &format!("{deed:<20} {:>9} {:>9} {:>9.1} {:>9.1}\n", row.processes, row.threads, row.cpu, row.wall);
    }
    table
}

/// What all operations of a row took: their number, processor time and time of all threads, in nanoseconds.
type Spent = [AtomicU64; 3];

fn measure(dir: &Path, deed: Deed, processes: usize, threads: usize, each: Duration) -> Row {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let (size, both) = (size_of::<Spent>(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: fresh memory, all zeros, which is a value of these words; not unmapped while they are used.
    let spent = unsafe {
        let place = libc::mmap(std::ptr::null_mut(), size, both, flags, -1, 0);
        assert_ne!(place, libc::MAP_FAILED);
        &*place.cast::<Spent>()
    };
    let start = |_| {
        // SAFETY: the child does nothing that glibc does not allow in a child of a process with threads.
        let child = unsafe { libc::fork() };
        if child == 0 {
            forget_in_child();
            work(dir, deed, threads, each, spent);
            // SAFETY: ends the child there and then.
            unsafe { libc::_exit(0) };
        }
        child
    };
    let children: Vec<libc::pid_t> = (0..processes).map(start).collect();
    for child in children {
        let mut status = 0;
        // SAFETY: waits for a child of this process.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(waited == child && status == 0, "a process failed: {status:#x}");
    }
    let [operations, cpu, wall] = [0, 1, 2].map(|at| spent[at].load(SeqCst) as f64);
    Row { deed, processes, threads, cpu: cpu / operations, wall: wall / operations }
}

fn work(dir: &Path, deed: Deed, threads: usize, each: Duration, spent: &Spent) {
    let region = Region::open(dir, &GPU).expect("the region");
    let member = region.join("cost", Some(CAP)).expect("room");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| match deed {
                Deed::ReserveRefund => repeat(each, spent, || reserve_and_refund(&member)),
                Deed::ReserveKeep => repeat(each, spent, || member.reserve(1).expect("room")),
            });
        }
    });
}

fn reserve_and_refund(member: &Member) {
    member.reserve(BYTES).expect("room");
    member.refund(BYTES);
}

/// Does something for so long, in this thread.
fn repeat(each: Duration, spent: &Spent, mut operation: impl FnMut()) {
    let (begun, cpu) = (Instant::now(), cpu_time());
    let mut operations = 0;
    while begun.elapsed() < each {
        (0..1000).for_each(|_| operation());
        operations += 1000;
    }
    let (cpu, wall) = (cpu_time() - cpu, begun.elapsed());
    for (word, figure) in spent.iter().zip([operations, cpu.as_nanos() as u64, wall.as_nanos() as u64]) {
        word.fetch_add(figure, SeqCst);
    }
}

/// The processor time that this thread has had.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write the time to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
