//! Many processes in one region, of which some are killed at any moment.

#[path = "support/dice.rs"]
mod dice;
mod support;

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use dice::Dice;
use ration_region::{Dead, Member, Region, forget_in_child};
use support::{GPU, Scratch, file_in};

const WORKERS: usize = 6;
const THREADS: usize = 4;
/// The containers' caps: processes with an even number are in the first one.
const CAPS: [u64; 2] = [1000, 77];
const NAMES: [&str; 2] = ["team/even", "team/odd"];
/// An ordinary user, who is in no group that matters.
const NOBODY: libc::uid_t = 65534;

/// What the processes and the test share beside the region, and what the ledger is compared with.
#[repr(C)]
struct Board {
    /// Everybody rests while this is not 0.
    rest: AtomicU32,
    /// The end: everybody gives back what it has, and goes.
    end: AtomicU32,
    workers: [Desk; WORKERS],
    /// Processes of which everything is gone, as the driver would say.
    gone: [AtomicU32; 4096],
    refusals: AtomicU64,
    takings: AtomicU64,
}

#[repr(C)]
struct Desk {
    pid: AtomicU32,
    threads: [Tally; THREADS],
}

/// What a thread knows that it holds, and whether it rests: then it is exact.
#[repr(C)]
struct Tally {
    held: AtomicU64,
    rests: AtomicU32,
}

/// Memory that forked processes have in common.
fn board() -> &'static Board {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let (size, both) = (size_of::<Board>(), libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: fresh memory, all zeros, which is a value of every word of a board; it is never unmapped.
    unsafe {
        let place = libc::mmap(std::ptr::null_mut(), size, both, flags, -1, 0);
        assert_ne!(place, libc::MAP_FAILED);
        &*place.cast::<Board>()
    }
}

/// Runs something in a child, which ends with it; 0 if all was well.
fn fork(deed: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child does nothing that glibc does not allow in a child of a process with threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no process");
    if child == 0 {
        die_with_the_test();
        forget_in_child();
        let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(deed)).is_ok();
        // SAFETY: ends the child there and then, without what the test's process does at its end.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    child
}

/// A test that fails leaves nobody behind.
fn die_with_the_test() {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

fn kill(child: libc::pid_t) {
    // SAFETY: a child of this process that nobody has waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
}

/// Becomes an ordinary user, if this is the superuser. No privilege is needed for anything here.
fn become_nobody() {
    // SAFETY: plain numbers. Without the right to, nothing happens.
    unsafe {
        libc::setgid(NOBODY);
        libc::setuid(NOBODY);
    }
    // Another user, another death.
    die_with_the_test();
}

/// A process: its threads take and give back at random until the end.
fn work(dir: &Path, board: &'static Board, number: usize, seed: u64) {
    if number >= WORKERS / 2 {
        become_nobody();
    }
    let region = Region::open(dir, &GPU).expect("the region");
    let member = region.join(NAMES[number % 2], Some(CAPS[number % 2])).expect("room");
    let desk = &board.workers[number];
    desk.pid.store(std::process::id(), SeqCst);
    std::thread::scope(|scope| {
        for (thread, tally) in desk.threads.iter().enumerate() {
            let (member, dice) = (&member, Dice(seed ^ (thread as u64) << 32));
            scope.spawn(move || use_memory(member, board, tally, dice));
        }
    });
    assert_eq!(member.held(), 0, "everything was given back");
    assert_eq!(member.drift(), 0);
    // Some go without a word.
    if seed.is_multiple_of(2) {
        drop(member);
    }
}

fn use_memory(member: &Member, board: &Board, tally: &Tally, mut dice: Dice) {
    let mut mine: Vec<u64> = Vec::new();
    while board.end.load(SeqCst) == 0 {
        let wanted = 1 + dice.roll() % dice.pick(&[5, 40, 400]);
        if dice.once_in(2) && member.reserve(wanted).is_ok() {
            mine.push(wanted);
            tally.held.fetch_add(wanted, SeqCst);
            board.takings.fetch_add(1, SeqCst);
        } else if let Some(bytes) = mine.pop() {
            member.refund(bytes);
            tally.held.fetch_sub(bytes, SeqCst);
        } else {
            board.refusals.fetch_add(1, SeqCst);
            member.reap(&mut |dead| is_gone(board, dead));
        }
        while board.rest.load(SeqCst) != 0 {
            tally.rests.store(1, SeqCst);
            std::thread::sleep(Duration::from_micros(200));
        }
        tally.rests.store(0, SeqCst);
    }
    mine.into_iter().for_each(|bytes| member.refund(bytes));
}

/// What the driver would be asked: whether everything of a process is gone.
fn is_gone(board: &Board, dead: &Dead) -> bool {
    board.gone.iter().any(|pid| pid.load(SeqCst) == dead.pid)
}

struct Storm {
    region: Region,
    board: &'static Board,
    dice: Dice,
    children: [libc::pid_t; WORKERS],
    killed: usize,
}

impl Storm {
    fn start(&mut self, dir: &Path, number: usize) {
        let desk = &self.board.workers[number];
        desk.pid.store(0, SeqCst);
        for tally in &desk.threads {
            tally.held.store(0, SeqCst);
            tally.rests.store(0, SeqCst);
        }
        let (board, seed) = (self.board, self.dice.roll());
        self.children[number] = fork(|| work(dir, board, number, seed));
    }

    fn kill(&mut self, number: usize) {
        let child = self.children[number];
        kill(child);
        let status = wait(child);
        assert!(libc::WIFSIGNALED(status), "a process ended by itself: {status:#x}");
        self.board.gone[self.killed].store(child as u32, SeqCst);
        self.killed += 1;
    }

    /// Nobody is over a cap. This can be asked at any moment.
    fn look(&self) {
        for container in self.region.containers() {
            let (used, name) = (container.used(), container.name.to_string());
            let number = NAMES.iter().position(|it| *it == name).expect("one of the two");
            assert!(container.cap.is_none_or(|cap| cap == CAPS[number]), "{name}: cap {:?}", container.cap);
            assert!(used <= CAPS[number], "{name}: {used} bytes of {}", CAPS[number]);
        }
    }

    /// While everybody rests, each process's account is what its threads say.
    fn compare(&self) {
        self.board.rest.store(1, SeqCst);
        let begun = Instant::now();
        let resting = |desk: &Desk| desk.threads.iter().all(|tally| tally.rests.load(SeqCst) == 1);
        while !self.board.workers.iter().all(resting) {
            assert!(begun.elapsed() < Duration::from_secs(60), "somebody does not come to rest");
            std::thread::sleep(Duration::from_millis(1));
        }
        for (number, desk) in self.board.workers.iter().enumerate() {
            let expected: u64 = desk.threads.iter().map(|tally| tally.held.load(SeqCst)).sum();
            let container = self.region.containers().find(|it| it.name.as_bytes() == NAMES[number % 2].as_bytes());
            let container = container.expect("it has members");
            let process = container.members().find(|it| it.pid == desk.pid.load(SeqCst) && it.alive);
            let process = process.unwrap_or_else(|| panic!("process {number} is not counted: {container:?}"));
            assert_eq!((process.held, process.drift), (expected, 0), "process {number}");
            let sum: u64 = container.members().map(|it| it.held).sum();
            assert!(sum == container.used() && sum <= CAPS[number % 2], "{container:?}");
        }
        self.board.rest.store(0, SeqCst);
    }
}

#[test]
fn whoever_is_killed_whenever_the_ledger_is_right() {
    const KILLS: usize = 40;
    let scratch = Scratch::new("storm");
    scratch.open_to_all();
    let (dir, board) = (scratch.regions(), board());
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = clock.as_micros() as u64;
    println!("seed {seed}");
    let region = Region::private(&GPU);
    let mut storm = Storm { region, board, dice: Dice(seed), children: [0; WORKERS], killed: 0 };
    // They make the region themselves, all at once.
    (0..WORKERS).for_each(|number| storm.start(&dir, number));
    let begun = Instant::now();
    while !file_in(&dir).exists() {
        assert!(begun.elapsed() < Duration::from_secs(30), "nobody makes the region");
        std::thread::sleep(Duration::from_millis(1));
    }
    storm.region = Region::open(&dir, &GPU).expect("the region");
    for kill in 0..KILLS {
        let until = Instant::now() + Duration::from_millis(storm.dice.roll() % 60);
        while Instant::now() < until {
            storm.look();
            std::thread::sleep(Duration::from_micros(100));
        }
        if kill % 6 == 5 {
            storm.compare();
        }
        let number = storm.dice.below(WORKERS);
        storm.kill(number);
        storm.start(&dir, number);
    }
    storm.compare();
    board.end.store(1, SeqCst);
    for child in storm.children {
        assert_eq!(wait(child), 0, "a process did not end well");
    }
    storm.look();
    let (takings, refusals) = (board.takings.load(SeqCst), board.refusals.load(SeqCst));
    println!("{KILLS} killed; {takings} times something was taken, {refusals} times there was nothing to be had");
    assert!(takings > 1000 && refusals > 10, "nothing much happened: {takings}, {refusals}");
    // What is left of them can be cleared away, and then there is nothing.
    for name in NAMES {
        let member = storm.region.join(name, None).expect("room");
        member.reap(&mut |_| true);
        assert_eq!(member.used(), 0, "{:?}", member.container());
    }
    // No slot is stuck: there is room for as many as there ever was.
    let all: Vec<_> = (0..1024).map(|_| storm.region.join("all", None).expect("a slot for everybody")).collect();
    storm.region.join("all", None).expect_err("there are no more slots");
    drop(all);
    let drafts: Vec<_> =
        std::fs::read_dir(&dir).expect("the directory").map(|it| it.expect("a file").file_name()).collect();
    assert_eq!(drafts.len(), 1, "{drafts:?}");
}

#[test]
fn any_number_may_make_a_region_at_once() {
    const CHILDREN: usize = 8;
    for attempt in 0..20 {
        let scratch = Scratch::new("making");
        scratch.open_to_all();
        let (dir, board) = (scratch.regions(), board());
        let children: Vec<_> = (0..CHILDREN)
            .map(|number| {
                let dir = dir.clone();
                fork(move || {
                    // Whoever comes first, all others find what it made.
                    if (number + attempt) % 2 == 1 {
                        become_nobody();
                    }
                    board.takings.fetch_add(1, SeqCst);
                    while board.takings.load(SeqCst) < CHILDREN as u64 {
                        std::hint::spin_loop();
                    }
                    let region = Region::open(&dir, &GPU).expect("a region, mine or another's");
                    let member = region.join(NAMES[number % 2], Some(100)).expect("room");
                    member.reserve(1 + number as u64).expect("room");
                    std::mem::forget(member);
                })
            })
            .collect();
        for child in children {
            assert_eq!(wait(child), 0, "a process did not end well");
        }
        // All of them were in one region, and have died in it without leaving.
        let region = Region::open(&dir, &GPU).expect("the region");
        let mut used: Vec<(String, u64)> = region.containers().map(|it| (it.name.to_string(), it.used())).collect();
        used.sort();
        assert_eq!(used, [("team/even".to_owned(), 1 + 3 + 5 + 7), ("team/odd".to_owned(), 2 + 4 + 6 + 8)]);
        assert_eq!(std::fs::read_dir(&dir).expect("the directory").count(), 1, "no draft is left");
        let modes = [&dir, &file_in(&dir)].map(|path| {
            let about = std::fs::metadata(path).expect("it is there");
            std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o7777
        });
        assert_eq!(modes, [0o1777, 0o666], "open to all, whoever made it");
    }
}

/// The keepers among this process's threads.
fn keepers() -> usize {
    let look = || {
        let threads = std::fs::read_dir("/proc/self/task").expect("the threads").flatten();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        names.filter(|name| name.trim_end() == "ration-keeper").count()
    };
    // While threads end, the list of them may leave out others: so the most of several looks.
    let looks = (0..5).map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        look()
    });
    looks.max().unwrap_or(0)
}

#[test]
fn however_many_threads_join_at_once_there_is_one_keeper() {
    const THREADS: usize = 12;
    let scratch = Scratch::new("keeper");
    let dir = scratch.regions();
    for _ in 0..20 {
        let child = fork(|| {
            let start = std::sync::Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let region = Region::open(&dir, &GPU).expect("the region");
                        start.wait();
                        std::mem::forget(region.join("box", Some(100)).expect("room"));
                    });
                }
            });
            assert_eq!(keepers(), 1);
        });
        assert_eq!(wait(child), 0, "the child found something wrong");
    }
}

#[test]
fn a_child_has_its_own_life() {
    let scratch = Scratch::new("fork");
    for region in [Region::open(&scratch.regions(), &GPU).expect("a region"), Region::private(&GPU)] {
        let mine = region.join("box", Some(100)).expect("room");
        mine.reserve(60).expect("room");
        let child = fork(|| {
            assert!(!mine.is_mine());
            assert!(mine.reserve(1).is_err());
            mine.charge(1000);
            mine.refund(1000);
            let own = region.join("box", None).expect("room");
            assert_eq!(own.cap(), Some(100));
            own.reserve(41).expect_err("the parent has 60");
            own.reserve(40).expect("that is left");
            // A child of the child, with the mapping that it inherited twice.
            let grandchild = fork(|| {
                let own = region.join("box", None).expect("room");
                own.charge(5);
                assert_eq!(own.used(), 105);
                std::mem::forget(own);
            });
            assert_eq!(wait(grandchild), 0);
            assert_eq!(own.reap(&mut |dead| dead.pid == grandchild as u32), 5);
            assert_eq!(own.used(), 100);
            std::mem::forget(own);
        });
        assert_eq!(wait(child), 0, "the child found something wrong");
        assert!(mine.is_mine());
        assert_eq!((mine.held(), mine.used()), (60, 100), "the child has died without leaving");
        assert_eq!(mine.reap(&mut |_| false), 0);
        assert_eq!(mine.reap(&mut |dead| dead.pid == child as u32), 40);
        assert_eq!(mine.used(), 60);
    }
}

#[test]
fn a_process_that_is_stopped_is_waited_for_and_not_for_ever() {
    let scratch = Scratch::new("stop");
    let region = Region::open(&scratch.regions(), &GPU).expect("a region");
    let mine = region.join("box", Some(100)).expect("room");
    let dir = scratch.regions();
    let child = fork(|| {
        let region = Region::open(&dir, &GPU).expect("the region");
        let member = region.join("box", None).expect("room");
        loop {
            if member.reserve(60).is_ok() {
                member.refund(60);
            }
        }
    });
    let begun = Instant::now();
    while mine.others().count() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the child does not come");
    }
    let mut in_the_way = 0;
    for _ in 0..50 {
        std::thread::sleep(Duration::from_micros(300));
        // SAFETY: a child of this process.
        unsafe { libc::kill(child, libc::SIGSTOP) };
        let mut status = 0;
        // SAFETY: waits until the child has stopped.
        unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status));
        // Wherever it was stopped, nobody waits for it for long. In the middle of a reservation, it is in the way.
        for bytes in [60, 40] {
            let begun = Instant::now();
            let got = mine.reserve(bytes);
            assert!(begun.elapsed() < Duration::from_secs(2), "waited for {:?}", begun.elapsed());
            match got {
                Ok(()) => mine.refund(bytes),
                Err(full) => assert!(full.used <= 100, "{full}"),
            }
            in_the_way += usize::from(bytes == 40 && got.is_err());
        }
        // SAFETY: as above.
        unsafe { libc::kill(child, libc::SIGCONT) };
        mine.reserve(40).expect("there is always room for that beside the other's 60");
        mine.refund(40);
    }
    println!("{in_the_way} of 50 times it was stopped in the middle of a reservation");
    kill(child);
    wait(child);
}

/// Cuts the region's file short under a member of it, and goes on using it.
fn cut_short(dir: &Path) {
    let region = Region::open(dir, &GPU).expect("the region");
    let (mine, other) = (region.join("box", Some(100)).expect("room"), region.join("box", None).expect("room"));
    mine.reserve(60).expect("room");
    assert!(!mine.is_lost());
    std::fs::OpenOptions::new()
        .write(true)
        .open(file_in(dir))
        .and_then(|file| file.set_len(0))
        .expect("a shorter file");
    assert!(mine.is_lost());
    mine.reserve(1).expect_err("nothing is left to take from");
    mine.refund(60);
    mine.charge(5);
    assert_eq!(region.containers().count(), 0);
    drop((mine, other));
    // The keeper has come to no harm.
    let alone = Region::private(&GPU).join("box", Some(100)).expect("room");
    alone.reserve(100).expect("room");
}

#[test]
fn a_file_that_is_cut_short_is_survived_by_whoever_has_a_handler() {
    extern "C" fn handler(_: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel says which address could not be read; `abort` ends the process.
        unsafe {
            if !ration_region::rescue((*about).si_addr()) {
                libc::abort();
            }
        }
    }
    let scratch = Scratch::new("short");
    let dir = scratch.regions();
    let child = fork(|| cut_short(&dir));
    assert_eq!(libc::WTERMSIG(wait(child)), libc::SIGBUS, "as docs/region.md says, without a handler");
    std::fs::remove_file(file_in(&dir)).expect("the file");
    let child = fork(|| {
        // SAFETY: a set of flags and numbers, for which zero is a value, and a handler that makes one system call.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
        }
        cut_short(&dir);
    });
    assert_eq!(wait(child), 0, "with a handler that calls `rescue`");
}
