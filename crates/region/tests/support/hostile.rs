//! A region whose bytes mean harm, and a process that does everything with it all the same.
//!
//! Used by tests/hostile.rs, for some seconds, and by the example `fuzz`, for as long as one likes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ration_policy::Bucket;
use ration_policy::Priority;
use ration_policy::Share;
use ration_region::{Facts, Gpu, Heard, Home, JoinError, Member, ProcessView, Region, forget_in_child, rescue};

#[path = "dice.rs"]
mod dice;
use dice::Dice;

/// The GPU of these regions.
pub const GPU: Gpu = Gpu { uuid: *b"a hostile region", total: 80 << 30 };
const FILE: &str = "gpu-6120686f-7374-696c-6520-726567696f6e.region";
const PUBLIC: &str = "gpu-6120686f-7374-696c-6520-726567696f6e.public";

/// What a region is made of: include/ration.h.
const SIZE: usize = 331_776;
const CONTAINERS: (usize, usize, usize) = (4096, 64, 1024);
const PROCESSES: (usize, usize, usize) = (69_632, 1024, 256);
const LOCK: usize = 128;
/// And a public file, of which the words that matter come first.
const PUBLIC_SIZE: usize = 36_864;
const SAID_AND_LEASES: usize = 128 + 64 * 16;
const DIED: u64 = 0x4000_0000;

/// No operation may take longer, on a machine that does other things too. Joining waits for the lock, for about a second.
const LONGEST_JOIN: Duration = Duration::from_secs(6);
const LONGEST: Duration = Duration::from_secs(3);

/// What somebody does who means harm, and what somebody asks for who does not care.
trait Harm {
    fn bytes(&mut self) -> u64;
    fn word(&mut self) -> u64;
    fn place(&mut self) -> usize;
}

impl Harm for Dice {
    /// Bytes to ask for or to give back.
    fn bytes(&mut self) -> u64 {
        match self.below(4) {
            0 => self.roll(),
            1 => self.pick(&[0, 1, u64::MAX, u64::MAX - 1, 1 << 48, (1 << 48) - 1]),
            _ => self.roll() >> (16 + self.below(48)),
        }
    }

    /// What somebody would write who knows what it stands for.
    fn word(&mut self) -> u64 {
        let thread = u64::from(std::process::id()) + self.roll() % 3;
        match self.below(8) {
            0 => self.roll(),
            1 => 0,
            2 => u64::MAX,
            3 => DIED,
            4 => thread,
            5 => (self.roll() % 3 + 1) << 32 | (self.roll() % 65),
            6 => self.roll() % 5,
            _ => 1 << self.below(64),
        }
    }

    /// A place to write it to: somewhere in a slot that is likely to be in use.
    fn place(&mut self) -> usize {
        let (first, number, size) = if self.once_in(2) { CONTAINERS } else { PROCESSES };
        match self.below(16) {
            // While the lock is taken all wait a second, and nothing else is tried.
            0 if self.once_in(20) => LOCK,
            0 => self.below(64) * 4,
            1 => self.below(SIZE / 4) * 4,
            2..6 => first + self.below(number) * size + self.below(size / 4) * 4,
            // The words that matter: the first lines of the first slots.
            _ => first + self.below(4) * size + self.pick(&[0, 0, 4, 8, 12, 64, 68, 72, 76, 80, 84, 320, 448, 456]),
        }
    }
}

/// Writes something somewhere.
fn scribble(file: &File, dice: &mut Dice) {
    let (word, place) = (dice.word().to_le_bytes(), dice.place());
    let _ = file.write_at(&word[..dice.pick(&[4, 4, 8])], place as u64);
}

/// Writes something somewhere into a public file.
fn scribble_public(file: &File, dice: &mut Dice) {
    let (word, place) = (dice.word().to_le_bytes(), dice.pick(&[64, SAID_AND_LEASES, 4096 + 512, PUBLIC_SIZE]));
    let _ = file.write_at(&word, (dice.below(place / 8) * 8) as u64);
}

/// The directory in which neighbours' lie.
fn others(dir: &Path) -> PathBuf {
    dir.with_file_name("others")
}

/// Neighbours that mean harm: what they tell is noise, more or less. Their public files, and the region's own.
fn neighbours(dir: &Path, dice: &mut Dice) -> Vec<PathBuf> {
    let others = others(dir);
    let _ = std::fs::remove_dir_all(&others);
    let mut files = vec![dir.join(PUBLIC)];
    for number in 0..dice.below(4) {
        let own = others.join(format!("{number}"));
        std::fs::create_dir_all(&own).expect("a directory");
        let region = Region::open_at(&Home::given(&own, &others), &GPU).expect("a region");
        let member = region.join("other", None).expect("there is room");
        member.compute().says(&Heard::new(), &Facts::default(), 1);
        drop(member);
        let file = own.join(PUBLIC);
        let open = OpenOptions::new().write(true).open(&file).expect("it was made just now");
        (0..dice.pick(&[0, 10, 1000])).for_each(|_| scribble_public(&open, dice));
        if dice.once_in(8) {
            let _ = open.set_len(dice.pick(&[0, 64, 2000, 4096, 5000]));
        }
        files.push(file);
    }
    files
}

/// Puts some file into the place of the region's.
fn prepare(dir: &Path, dice: &mut Dice) {
    let path = dir.join(FILE);
    let fresh = || drop(Region::open(dir, &GPU));
    let write = |bytes: &[u8]| std::fs::write(&path, bytes).expect("room for a file");
    let noise = |dice: &mut Dice, length: usize| -> Vec<u8> {
        (0..length.div_ceil(8)).flat_map(|_| dice.roll().to_le_bytes()).take(length).collect()
    };
    match dice.below(16) {
        0 => write(&[]),
        1 => {
            let length = dice.pick(&[1, 8, 15, 16, 4095, 4096, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE]);
            write(&noise(dice, length));
        }
        2 => {
            let aim = dice.pick(&["/dev/null", "/dev/zero", "/proc/self/mem", FILE, "nowhere", "/"]);
            symlink(aim, &path).expect("a link");
        }
        3 => std::fs::create_dir(&path).expect("a directory"),
        4 => {
            let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
            // SAFETY: a path that ends in NUL.
            assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0, "a fifo");
        }
        5 => {
            // A good one, cut short or made longer, or that may not be read or written.
            fresh();
            let file = OpenOptions::new().write(true).open(&path).expect("the region");
            let length = dice.pick(&[0, 8, 16, 4096, SIZE / 2, SIZE - 1, SIZE, SIZE + 1, 10 * SIZE]);
            file.set_len(length as u64).expect("another length");
            let mode = dice.pick(&[0o000, 0o444, 0o222, 0o666]);
            file.set_permissions(std::fs::Permissions::from_mode(mode)).expect("another mode");
        }
        6..8 => {
            // A good header, and noise behind it.
            fresh();
            let file = OpenOptions::new().write(true).open(&path).expect("the region");
            file.write_all_at(&noise(dice, SIZE - 4096), 4096).expect("room");
            if dice.once_in(2) {
                file.write_all_at(&noise(dice, 4096 - 192), 192).expect("room");
            }
        }
        _ => {
            // A good one, with something written into it here and there.
            fresh();
            let file = OpenOptions::new().write(true).open(&path).expect("the region");
            for _ in 0..dice.pick(&[0, 1, 3, 10, 100, 3000]) {
                scribble(&file, dice);
            }
        }
    }
}

/// Measures how long each thing takes that is done.
struct Watch {
    longest: (Duration, &'static str),
}

impl Watch {
    fn time<T>(&mut self, what: &'static str, limit: Duration, deed: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = deed();
        let took = begun.elapsed();
        assert!(took < limit, "{what} took {took:?}");
        if took > self.longest.0 {
            self.longest = (took, what);
        }
        value
    }
}

/// Does everything that can be done with a region.
fn everything(dir: &Path, dice: &mut Dice, watch: &mut Watch) {
    let home = if dice.once_in(3) { Home::alone(dir) } else { Home::given(dir, &others(dir)) };
    let Ok(region) = watch.time("open", LONGEST_JOIN, || Region::open_at(&home, &GPU)) else { return };
    let mut members: Vec<Member> = Vec::new();
    let mut joins = true;
    for _ in 0..dice.pick(&[3, 10, 60]) {
        if members.is_empty() && !joins {
            return;
        }
        match dice.below(20) {
            0..3 if joins => {
                let name = dice.pick(&["a", "b", "some/other/container", ""]);
                let name = if dice.once_in(8) { "x".repeat(dice.below(300)) } else { name.to_owned() };
                let cap = if dice.once_in(3) { None } else { Some(dice.bytes()) };
                match watch.time("join", LONGEST_JOIN, || region.join(&name, cap)) {
                    Ok(member) => members.push(member),
                    Err(JoinError::Busy) => joins = false,
                    Err(_) => {}
                }
            }
            3 if dice.once_in(8) => in_a_child(&region, dice),
            4 => {
                let about = watch.time("containers", LONGEST, || {
                    region.containers().map(|it| format!("{it:?} {:?}", it.members().count())).collect::<String>()
                });
                assert!(about.len() < 1 << 20);
                watch.time("total", LONGEST, || region.total());
            }
            5 if !members.is_empty() => {
                let member = members.swap_remove(dice.below(members.len()));
                watch.time("drop", LONGEST, || drop(member));
            }
            _ if !members.is_empty() => {
                let number = dice.below(members.len());
                use_it(&members[number], dice, watch);
            }
            _ => {}
        }
    }
    if dice.once_in(2) {
        drop(region);
    }
    watch.time("drop", LONGEST * 2, || members.clear());
}

fn use_it(member: &Member, dice: &mut Dice, watch: &mut Watch) {
    let bytes = dice.bytes();
    match dice.below(15) {
        0..3 => drop(watch.time("reserve", LONGEST, || member.reserve(bytes))),
        3 => drop(watch.time("reserve_within", LONGEST, || member.reserve_within(bytes, dice.bytes()))),
        4 => watch.time("charge", LONGEST, || member.charge(bytes)),
        5..7 => watch.time("refund", LONGEST, || member.refund(bytes)),
        7 => drop(watch.time("reap", LONGEST, || member.reap(&mut |_| dice.once_in(2)))),
        8 => drop(watch.time("others", LONGEST, || member.others().fold(0u64, |sum, it| sum.wrapping_add(it.held)))),
        9 => watch.time("set_cap", LONGEST, || {
            member.set_cap(if dice.once_in(4) { None } else { Some(bytes) });
            member.set_driver_pid(bytes as u32);
        }),
        10 => drop(watch.time("used", LONGEST, || (member.held(), member.used(), member.cap(), member.drift()))),
        11 => watch.time("share", LONGEST, || share_it(member, bytes, dice)),
        12 | 13 => watch.time("compute", LONGEST, || compute(member, dice)),
        _ => drop(watch.time("debug", LONGEST, || format!("{member:?} {} {}", member.is_lost(), member.is_mine()))),
    }
}

/// Is charged for its use of the GPU, says what is so, and passes leases, whatever the words say.
fn compute(member: &Member, dice: &mut Dice) {
    let (compute, now, heard) = (member.compute(), 1 + dice.bytes() / 2, Heard::new());
    match dice.below(10) {
        0 | 1 => {
            let facts = Facts { usage: dice.bytes() as u32, wants: true, fills: dice.once_in(2), ..Facts::default() };
            compute.says(&heard, &facts, now);
        }
        2 => compute.says_nothing(&heard, now),
        3 => compute.charge(Bucket::new(compute.limit()), dice.bytes(), now, dice.bytes()),
        4 => compute.launched(dice.bytes(), 1),
        5 => {
            let among = compute.neighbourhood(&heard, now);
            let lease = compute.lease(&among, now);
            compute.takes_turns(&among, true);
            compute.pass_lease(among.next(dice.bytes() as usize).unwrap_or(dice.bytes() as usize), lease.number);
        }
        6 => {
            let among = compute.neighbourhood(&heard, now);
            compute.wait_for_lease(&compute.lease(&among, now), now, now);
        }
        7 => {
            compute.held_for(dice.bytes(), Share::from_ppm(dice.bytes() as u32));
            compute.switched(dice.bytes());
            compute.was_off(dice.bytes(), dice.once_in(2));
        }
        8 => {
            compute.set_limit(Share::from_ppm(dice.bytes() as u32), now);
            compute.set_request(Some(Share::from_ppm(dice.bytes() as u32)));
            compute.set_priority(dice.pick(&[Priority::Batch, Priority::Normal, Priority::Latency]));
        }
        _ => drop((compute.is_leader(&heard, now), Bucket::new(compute.limit()).free_at(compute.used_until(), now))),
    }
    let _ = (compute.limit(), compute.priority(), compute.gpu_time());
}

/// What is done about memory that crosses processes.
fn share_it(member: &Member, bytes: u64, dice: &mut Dice) {
    match dice.below(7) {
        0 => member.lend(bytes, dice.bytes()),
        1 => member.set_lent(bytes),
        2 => member.holds_beside(bytes),
        3 => member.held_beside(bytes),
        4 => member.exports_as((bytes, dice.bytes())),
        5 => member.has_seen(member.found()),
        _ => member.find(|| Some(|_: &ProcessView| (!dice.once_in(4)).then(|| dice.bytes()))),
    }
    if dice.once_in(4) {
        member.all().take(2).collect::<Vec<_>>().iter().for_each(|other| member.lends_at_most(other, bytes));
    }
}

/// A forked child joins too, in the mapping that it inherited, and ends in some way.
fn in_a_child(region: &Region, dice: &mut Dice) {
    let fate = dice.roll();
    // SAFETY: the child does what a child may that was forked of a process with threads, as glibc has it: it may allocate.
    match unsafe { libc::fork() } {
        -1 => {}
        0 => {
            forget_in_child();
            let mut dice = Dice(fate);
            let members: Vec<_> = (0..2).filter_map(|_| region.join(dice.pick(&["a", "b"]), Some(100)).ok()).collect();
            let mut watch = Watch { longest: (Duration::ZERO, "") };
            for _ in 0..5 {
                members.iter().for_each(|member| use_it(member, &mut dice, &mut watch));
            }
            if dice.once_in(2) {
                drop(members);
            }
            // SAFETY: ends the child there and then.
            unsafe { libc::_exit(0) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child from above.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert!(waited == child && status == 0, "a child ended with {status:#x}");
        }
    }
}

/// Somebody cuts files short: with this, whoever reads them goes on.
fn survive_truncation() {
    extern "C" fn handler(_: libc::c_int, about: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel says which address could not be read.
        if !rescue(unsafe { (*about).si_addr() }) {
            // SAFETY: not ours; the default action ends the process when the access is made again.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        }
    }
    // SAFETY: a set of flags and numbers, for which zero is a value, and a handler that makes one system call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// One region, from its making to its end. Returns what took longest. Panics, hangs or crashes if something is wrong; the
/// same seed does the same again, as far as threads do.
pub fn round(seed: u64, dir: &Path) -> (Duration, &'static str) {
    survive_truncation();
    let dice = &mut Dice(seed);
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir(dir).expect("a directory");
    prepare(dir, dice);
    let public = neighbours(dir, dice);
    let mut watch = Watch { longest: (Duration::ZERO, "") };
    let (done, path) = (AtomicBool::new(false), dir.join(FILE));
    std::thread::scope(|scope| {
        let scribbler = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let scribbler = scribbler.ok().filter(|file| file.metadata().is_ok_and(|about| about.is_file()));
        if let Some(file) = scribbler.filter(|_| dice.once_in(2)) {
            let (done, mut dice) = (&done, Dice(dice.roll()));
            scope.spawn(move || {
                let cuts = dice.once_in(5);
                while !done.load(Ordering::Relaxed) {
                    (0..dice.below(20)).for_each(|_| scribble(&file, &mut dice));
                    if cuts && dice.once_in(50) {
                        let length = dice.pick(&[0, 4096, 8192, SIZE / 2, SIZE]);
                        let _ = file.set_len(length as u64);
                    }
                    std::thread::sleep(Duration::from_micros(dice.roll() % 50));
                }
            });
        }
        if dice.once_in(2) {
            let (done, mut dice) = (&done, Dice(dice.roll()));
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    if let Ok(file) = OpenOptions::new().write(true).open(&public[dice.below(public.len())]) {
                        (0..dice.below(30)).for_each(|_| scribble_public(&file, &mut dice));
                        if dice.once_in(20) {
                            let _ = file.set_len(dice.pick(&[0, 1000, 4096, 4096 + 256, PUBLIC_SIZE as u64]));
                        }
                    }
                    std::thread::sleep(Duration::from_micros(dice.roll() % 100));
                }
            });
        }
        // Ends the scribblers also when this panics.
        let _done = Done(&done);
        for _ in 0..1 + dice.below(2) {
            everything(dir, dice, &mut watch);
        }
    });
    std::fs::remove_dir_all(dir).expect("it was ours");
    let _ = std::fs::remove_dir_all(others(dir));
    watch.longest
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
