//! Marks on descriptors of memory, by which anybody can tell whether such a descriptor is still open anywhere.
//!
//! Memory that was exported outlives its handle: a descriptor keeps it, in nobody's figure, wherever the descriptor goes.
//! Whether one is still open is a question for the kernel. All of them are of the same file (the driver's node,
//! `/dev/nvidiactl`), so when one is made, some bytes of that file are locked through it: a lock that belongs to the open
//! file, goes with it to other processes, and is gone when its last copy is closed. Anybody who opens the node can ask.
//! The bytes that are locked say whose memory it is and how much: there is a range for each process in each region, and in it
//! as many bytes are locked as the memory has blocks. So what a dead process left behind can be added up by whoever comes
//! after it.
//!
//! A program that unlocks them hides from its container what it keeps: like everything here, it is for programs that do not
//! know of it.

use std::ffi::{CString, c_int, c_long};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

use super::Slice;
use super::slice::BLOCK;
use crate::sys::Errno;
use crate::thread::Guarded;

/// A file, by device and inode.
pub type FileId = (u64, u64);

/// Bytes of the node that are locked for one piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    start: i64,
    blocks: i64,
    node: FileId,
}

/// Bytes of a process's range, in bits: so many blocks can be lent at a time.
const RANGE_BITS: u32 = 24;
const RANGE: i64 = 1 << RANGE_BITS;

/// Where a process's range begins: beyond what anybody else locks, by GPU and region, slot and use of the slot.
fn range(uuid: &[u8; 16], home: FileId, (slot, generation): (usize, u64)) -> i64 {
    let words = [home.0.to_le_bytes(), home.1.to_le_bytes()];
    let hash = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let place = uuid.iter().chain(words.as_flattened()).fold(0xcbf2_9ce4_8422_2325, hash);
    // The low bits of such a sum hang together with those of the last byte alone. With a bit more it would be too large.
    let place = (place ^ place >> 16 ^ place >> 32 ^ place >> 48) & 0x7fff;
    let number = 1 << 38 | place << 22 | (slot as u64 & 0x3ff) << 12 | generation & 0xfff;
    (number << RANGE_BITS) as i64
}

/// What tells regions of one GPU apart: the directory that one lies in, or the process that has it alone.
pub fn home(directory: Option<&Path>) -> FileId {
    let directory = directory.and_then(Path::to_str);
    // SAFETY: takes nothing and always succeeds.
    directory.and_then(at).unwrap_or_else(|| (u64::MAX, unsafe { libc::getpid() } as u64))
}

fn lock(file: c_long, command: c_int, kind: c_int, start: i64, length: i64) -> Option<libc::flock> {
    let _errno = Errno::kept();
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: a descriptor, and a description of a lock that outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_fcntl, file, command, &raw mut lock) };
    (result == 0).then_some(lock)
}

/// Which file is open.
pub fn identity(file: c_int) -> Option<FileId> {
    let _errno = Errno::kept();
    // SAFETY: numbers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a place to write to, in the kernel's form, which is the C library's too.
    let result = unsafe { libc::syscall(libc::SYS_fstat, c_long::from(file), &raw mut about) };
    (result == 0).then_some((about.st_dev, about.st_ino))
}

/// The file that a path leads to.
pub fn at(path: &str) -> Option<FileId> {
    let path = CString::new(path).ok()?;
    let _errno = Errno::kept();
    // SAFETY: numbers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a path that ends in NUL, and a place to write to, in the kernel's form, which is the C library's too.
    let result = unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut about, 0) };
    (result == 0).then_some((about.st_dev, about.st_ino))
}

/// The names in a directory.
pub fn names(path: &str) -> Vec<String> {
    let mut names = Vec::new();
    let Ok(path) = CString::new(path) else { return names };
    let _errno = Errno::kept();
    // SAFETY: a path that ends in NUL; entries are read until there are no more, and each is valid until the next.
    unsafe {
        let directory = libc::opendir(path.as_ptr());
        if directory.is_null() {
            return names;
        }
        loop {
            let entry = libc::readdir(directory);
            if entry.is_null() {
                break;
            }
            names.push(std::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast()).to_string_lossy().into_owned());
        }
        libc::closedir(directory);
    }
    names
}

/// The node, opened for a moment: locks are seen through another opening than the one that has them.
pub struct Node(c_long);

impl Node {
    /// `None`: it cannot be reached from here.
    pub fn open(node: FileId) -> Option<Node> {
        /// Where it was found last.
        static LAST: AtomicI32 = AtomicI32::new(0);
        // The driver has it open in every process that uses it. What its path leads to here may be another one.
        let mut there = LAST.load(Ordering::Relaxed);
        if identity(there) != Some(node) {
            let open = names("/proc/self/fd").into_iter().filter_map(|name| name.parse::<c_int>().ok());
            there = open.into_iter().find(|file| identity(*file) == Some(node))?;
            LAST.store(there, Ordering::Relaxed);
        }
        let path = CString::new(format!("/proc/self/fd/{there}")).ok()?;
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
        let _errno = Errno::kept();
        // SAFETY: a path that ends in NUL.
        let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        (file >= 0).then_some(Node(file))
    }

    /// A lock on some of these bytes that is within the range which begins at `base`. One that is not is none of ours; and
    /// what it hides is not known.
    fn a_lock(&self, base: i64, start: i64, end: i64) -> Option<(i64, i64)> {
        let found = lock(self.0, libc::F_OFD_GETLK, libc::F_WRLCK, start, end - start)?;
        let is_ours = found.l_start >= base && found.l_len > 0 && found.l_start + found.l_len <= base + RANGE;
        (c_int::from(found.l_type) != libc::F_UNLCK && is_ours)
            .then(|| (found.l_start.max(start), (found.l_start + found.l_len).min(end)))
    }

    /// How many bytes of a range are locked. Of several locks the kernel shows any, so what lies before it and behind it is
    /// asked for in turn. Where there are too many to count, all of it may be.
    fn locked(&self, base: i64) -> i64 {
        const MANY: usize = 1 << 14;
        let (mut locked, mut open) = (0, vec![(base, base + RANGE)]);
        for _ in 0..MANY {
            let Some((start, end)) = open.pop() else { return locked };
            if start < end
                && let Some((from, to)) = self.a_lock(base, start, end)
            {
                locked += to - from;
                open.push((start, from));
                open.push((to, end));
            }
        }
        RANGE
    }

    /// Whether a descriptor with this mark is open anywhere.
    pub fn has(&self, mark: &Mark) -> bool {
        let base = mark.start & !(RANGE - 1);
        self.a_lock(base, mark.start, mark.start + mark.blocks).is_some()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _errno = Errno::kept();
        // SAFETY: the descriptor that was opened for it, and is nobody else's.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// What descriptors keep of the memory of a process of the slice's region, at most. `None`: that cannot be known from here.
pub fn of_process(slice: &Slice, slot: (usize, u64), node: FileId) -> Option<u64> {
    let blocks = Node::open(node)?.locked(range(&slice.uuid, slice.home, slot));
    Some(u64::try_from(blocks).unwrap_or(0).saturating_mul(BLOCK))
}

/// What is free in this process's range.
struct Next {
    at: i64,
    /// It has been all through the range, and what is ahead may be locked.
    again: bool,
}

static NEXT: Guarded<Next> = Guarded::new(Next { at: 0, again: false });

/// Bytes for a piece of memory.
fn claim(base: i64, blocks: i64, node: FileId) -> i64 {
    const TRIES: usize = 64;
    NEXT.with(|next| {
        for _ in 0..TRIES {
            if next.at + blocks > RANGE {
                *next = Next { at: 0, again: true };
            }
            let start = base + next.at;
            let taken = if next.again { Node::open(node) } else { None };
            match taken.and_then(|node| node.a_lock(base, start, start + blocks)) {
                Some((_, end)) => next.at = end - base,
                None => break,
            }
        }
        let start = base + next.at;
        next.at += blocks;
        start
    })
}

/// Marks a descriptor of memory of the slice's. `known`: its mark, where it was exported before.
pub fn mark(slice: &Slice, file: c_int, bytes: u64, known: Option<Mark>) -> Option<Mark> {
    let node = identity(file)?;
    let mark = known.filter(|mark| mark.node == node).or_else(|| {
        let blocks = i64::try_from(bytes / BLOCK).ok().filter(|blocks| (1..RANGE).contains(blocks))?;
        Some(Mark { start: claim(range(&slice.uuid, slice.home, slice.slot_to_mark()), blocks, node), blocks, node })
    })?;
    slice.exports_as(node);
    put(file, &mark).then_some(mark)
}

/// The same for a further descriptor of the same memory.
pub fn put(file: c_int, mark: &Mark) -> bool {
    lock(file.into(), libc::F_OFD_SETLK, libc::F_RDLCK, mark.start, mark.blocks).is_some()
}

impl Mark {
    /// The file that it is on.
    pub fn node(&self) -> FileId {
        self.node
    }
}

// ---------------------------------------------------------------------------------------------- copies of descriptors

/// Descriptors that this library has open itself; -1: none.
static COPIES: [AtomicI32; 256] = [const { AtomicI32::new(-1) }; 256];

/// A copy of a descriptor, which stays open when the program closes its own: it is kept for as long as this process has what it
/// is of, and has the same marks.
pub struct Copy {
    place: &'static AtomicI32,
    of: FileId,
}

impl Copy {
    /// `None`: there are too many, or the process may have no more open.
    pub fn of(file: c_int) -> Option<Copy> {
        /// Programs know the numbers of their first ones.
        const FROM: c_int = 512;
        let of = identity(file)?;
        let place =
            COPIES.iter().find(|it| it.compare_exchange(-1, -2, Ordering::AcqRel, Ordering::Relaxed).is_ok())?;
        let _errno = Errno::kept();
        let copied = [FROM, 3].into_iter().find_map(|from| {
            // SAFETY: copies a descriptor, to a number that is free.
            let copy = unsafe { libc::syscall(libc::SYS_fcntl, c_long::from(file), libc::F_DUPFD_CLOEXEC, from) };
            c_int::try_from(copy).ok().filter(|copy| *copy >= 0)
        });
        place.store(copied.unwrap_or(-1), Ordering::Release);
        copied.map(|_| Copy { place, of })
    }

    /// Its number. `None`: the program has closed it.
    pub fn file(&self) -> Option<c_int> {
        let file = self.place.load(Ordering::Acquire);
        (file >= 0 && identity(file) == Some(self.of)).then_some(file)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(file) = self.file() {
            close(file);
        }
        self.place.store(-1, Ordering::Release);
    }
}

fn close(file: c_int) {
    let _errno = Errno::kept();
    // SAFETY: a descriptor of our own, which nobody else closes.
    unsafe { libc::syscall(libc::SYS_close, c_long::from(file)) };
}

/// In a forked child: it has nothing that the copies are of, and they would outlive its parent's.
pub fn forget_the_parent() {
    for place in &COPIES {
        let file = place.swap(-1, Ordering::AcqRel);
        if file >= 0 {
            close(file);
        }
    }
    NEXT.renew(Next { at: 0, again: false });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file of a descriptor, opened once more.
    fn opened(file: c_int) -> c_int {
        let path = CString::new(format!("/proc/self/fd/{file}")).expect("no NUL");
        // SAFETY: a path that ends in NUL.
        let opened = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        assert!(opened >= 0);
        opened
    }

    #[test]
    fn a_mark_is_there_until_the_last_copy_of_its_descriptor_is_closed() {
        // SAFETY: a name that ends in NUL.
        let file = unsafe { libc::memfd_create(c"node".as_ptr(), libc::MFD_CLOEXEC) };
        let node = identity(file).expect("it is open");
        let base = range(&[7; 16], (1, 2), (3, 4));
        // Two that touch, one of which two descriptors have; one that is apart; one of another process's.
        let marks = [(0, 5), (5, 9), (100, 1)].map(|(at, blocks)| Mark { start: base + at, blocks, node });
        let beside = Mark { start: base + RANGE, blocks: 50, node };
        let files = [opened(file), opened(file), opened(file), opened(file), opened(file)];
        for (file, mark) in files.iter().zip([&marks[0], &marks[1], &marks[1], &marks[2], &beside]) {
            assert!(put(*file, mark));
        }
        // SAFETY: copies a descriptor of our own.
        let copy = unsafe { libc::dup(files[0]) };
        let left = || {
            let node = Node::open(node).expect("it is open here");
            (node.locked(base), marks.map(|mark| node.has(&mark)))
        };
        assert_eq!(left(), (15, [true; 3]));
        close(files[0]);
        close(files[1]);
        assert_eq!(left(), (15, [true; 3]), "a copy of the one is open, and another descriptor of the other");
        close(copy);
        assert_eq!(left(), (10, [false, true, true]));
        close(files[2]);
        close(files[3]);
        assert_eq!(left(), (0, [false; 3]));
        close(files[4]);
        close(file);
        assert!(Node::open(node).is_none());
    }

    #[test]
    fn no_two_processes_have_the_same_range() {
        let mut bases = std::collections::BTreeSet::new();
        for (uuid, slot, generation) in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 1023, 4095), (2, 1023, 4095)] {
            for home in [(0, 1), (0, 2), (1, 1), (u64::MAX, 1)] {
                let base = range(&[uuid; 16], home, (slot, generation));
                assert!(base > 0 && base.checked_add(RANGE).is_some() && base % RANGE == 0);
                assert!(bases.insert(base), "{uuid} {home:?} {slot} {generation}");
            }
        }
    }
}
