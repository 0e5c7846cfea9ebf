//! The layout, byte by byte. docs/region.md draws it and include/ration.h declares it for others; the numbers here are the
//! ones that count, and `crate::listing` fails when they change without a new version.
//!
//! All of it is atomic words, for which every pattern of bits is a value: whatever another process writes, reading it is
//! defined. Nothing in it is a pointer, and nothing in it is trusted.

use crate::sync::{AtomicU32, AtomicU64, SeqCst};

/// The first eight bytes of a region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rationRG");
/// The first eight bytes of a public file.
pub const PUBLIC_MAGIC: u64 = u64::from_le_bytes(*b"rationPG");
/// Regions of another major version are laid out differently: not for us.
pub const MAJOR: u16 = 2;
/// Counts what was given a meaning in bytes that were reserved before.
pub const MINOR: u16 = 0;

#[cfg(not(all(loom, test)))]
mod counts {
    pub const CONTAINERS: usize = 64;
    pub const PROCESSES: usize = 1024;
    pub const NAME_WORDS: usize = 32;
    pub const COMPUTE: usize = 64;
    /// How many words are reserved at a place.
    pub const fn reserved(words: usize) -> usize {
        words
    }
}
/// A model's region is as small as it can be, or trying every order would take years.
#[cfg(all(loom, test))]
mod counts {
    pub const CONTAINERS: usize = 2;
    pub const PROCESSES: usize = 3;
    pub const NAME_WORDS: usize = 1;
    pub const COMPUTE: usize = 0;
    pub const fn reserved(_: usize) -> usize {
        0
    }
}
use counts::{COMPUTE, NAME_WORDS, reserved};
pub use counts::{CONTAINERS, PROCESSES};

/// Words of a set of processes.
pub const SET: usize = PROCESSES.div_ceil(64);
/// The longest name of a container, in bytes: as long as a name may be in Kubernetes.
pub const LONGEST_NAME: usize = if NAME_WORDS == 32 { 253 } else { 8 * NAME_WORDS };
/// The room for a name, in bytes.
pub const NAME_BYTES: usize = 8 * NAME_WORDS;
/// The cap of a container that has none.
pub const NO_CAP: u64 = u64::MAX;

/// At the start of the file.
#[repr(C, align(64))]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Major in the low half, minor in the high one.
    pub version: AtomicU32,
    /// Bytes of this header.
    pub header_size: AtomicU32,
    /// Bytes of it all.
    pub size: AtomicU64,
    /// How many containers there is room for.
    pub containers: AtomicU32,
    /// Bytes of a container's slot.
    pub container_size: AtomicU32,
    /// How many processes there is room for.
    pub processes: AtomicU32,
    /// Bytes of a process's slot.
    pub process_size: AtomicU32,
    /// The GPU's UUID, as bytes in order.
    pub uuid: [AtomicU64; 2],
    /// The GPU's memory, in bytes, as whoever made the region saw it.
    pub total: AtomicU64,
    /// Which boot of the kernel it is from; zeros: not known. Nobody who was in it before this boot is there any more.
    pub boot: [AtomicU64; 2],
    pub(crate) reserved: [AtomicU64; reserved(6)],
    /// A robust lock: the thread that changes who is in, 0: nobody.
    pub lock: AtomicU32,
    /// Where the search for a free slot begins, so that a slot rests for as long as possible before it is used again.
    pub claim_from: AtomicU32,
    pub(crate) rest: [AtomicU64; reserved(495)],
}

/// No container.
pub const FREE: u32 = 0;
/// A container.
pub const LIVE: u32 = 1;
/// A container that is being made or removed, under the lock.
pub const CHANGING: u32 = 2;

/// What is known of a container.
#[repr(C, align(64))]
pub struct Container {
    /// [`FREE`], [`LIVE`] or [`CHANGING`].
    pub state: AtomicU32,
    /// Bytes of the name.
    pub name_length: AtomicU32,
    /// How often this slot was given to a container; never 0 in one that is used.
    pub generation: AtomicU32,
    pub(crate) reserved: AtomicU32,
    /// The name, in UTF-8, filled up with zeros.
    pub name: [AtomicU64; NAME_WORDS],
    pub(crate) reserved_too: [AtomicU64; reserved(6)],
    /// Which processes are in it, one bit each.
    pub members: [AtomicU64; SET],
    /// Bytes that all of them together may hold; [`NO_CAP`]: as many as there are.
    pub cap: AtomicU64,
    /// Who goes first when several ask for the last bytes at once.
    pub tie: AtomicU64,
    /// Reservations that did not fit.
    pub refused: AtomicU64,
    /// Bytes given back beyond what was held, by processes that have left.
    pub drift: AtomicU64,
    /// How often memory passed from one of them to another: see [`crate::ledger`].
    pub passed: AtomicU64,
    /// The most bytes that its processes held together. For people alone: nobody decides by it.
    pub peak: AtomicU64,
    pub(crate) reserved_three: [AtomicU64; reserved(2)],
    /// For the shares of compute.
    pub compute: [AtomicU64; COMPUTE],
}

/// Bits of [`Process::pending`] that are bytes: 256 TiB, a thousand times what a GPU has.
pub const PENDING_BITS: u32 = 48;

/// What is known of a process.
#[repr(C, align(64))]
pub struct Process {
    /// A robust futex: 0: the slot is free; the number of the process's keeper thread; or the kernel's mark that it is gone.
    pub life: AtomicU32,
    /// The minor version that the process speaks.
    pub minor: AtomicU32,
    /// How often the slot was freed.
    pub generation: AtomicU64,
    /// The process's number, as it sees itself.
    pub pid: AtomicU32,
    /// Its number as the driver sees it; 0: not known.
    pub driver_pid: AtomicU32,
    /// The PID namespace that it lives in, by the number of its inode; 0: not known.
    pub pid_namespace: AtomicU64,
    /// Of the bytes that it holds, those that the driver does not have in the process's figure: managed memory, and what lives
    /// on in files after it was freed.
    pub beside: AtomicU64,
    pub(crate) reserved: [AtomicU64; reserved(3)],
    /// The container that it is in: index plus one in the low half, the container's generation in the high one.
    pub member: AtomicU64,
    /// Bytes that it holds.
    pub held: AtomicU64,
    /// Bytes that it is asking for right now, and may yet not get, in the low [`PENDING_BITS`]; above them, how often it took
    /// something.
    pub pending: AtomicU64,
    /// Bytes that it gave back beyond what it held.
    pub drift: AtomicU64,
    /// Bytes that others found it to hold beyond what it says: shared memory that became its own when another let go.
    pub found: AtomicU64,
    /// Bytes that it made and let go of, and that descriptors keep.
    pub lent: AtomicU64,
    /// The file that those are descriptors of, by device and inode. Zeros: it never exported anything.
    pub node: [AtomicU64; 2],
    /// For the shares of compute.
    pub compute: [AtomicU64; COMPUTE / 8],
    pub(crate) reserved_three: [AtomicU64; COMPUTE / 8],
}

/// All of a region.
#[repr(C)]
pub struct Table {
    /// What it is.
    pub header: Header,
    /// The containers.
    pub containers: [Container; CONTAINERS],
    /// The processes.
    pub processes: [Process; PROCESSES],
}

/// Bytes of a region.
pub const SIZE: usize = size_of::<Table>();

/// At the start of a public file, which lies beside a region: what its containers tell everybody. They alone write to it, and everybody
/// may read it.
#[repr(C, align(64))]
pub struct PublicHeader {
    /// [`PUBLIC_MAGIC`].
    pub magic: AtomicU64,
    /// As a region's.
    pub version: AtomicU32,
    /// Bytes of this header.
    pub header_size: AtomicU32,
    /// Bytes of it all.
    pub size: AtomicU64,
    /// How many pages there are: one for each container of the region, at the same index.
    pub pages: AtomicU32,
    /// Bytes of a page.
    pub page_size: AtomicU32,
    /// The GPU's UUID, as bytes in order.
    pub uuid: [AtomicU64; 2],
    /// As a region's.
    pub boot: [AtomicU64; 2],
    pub(crate) reserved: [AtomicU64; reserved(8)],
    /// When each container last said something, by its own clock, in nanoseconds; 0: it is not there.
    pub said: [AtomicU64; CONTAINERS],
    /// Each container's lease word: how many leases there had been, and to whom the last of them went. See [`crate::steering`].
    pub lease: [AtomicU64; CONTAINERS],
    pub(crate) rest: [AtomicU64; reserved(368)],
}

/// What a container tells everybody.
#[repr(C, align(64))]
pub struct Page {
    /// How often its slot was given to a container. Another number: the page is another container's.
    pub generation: AtomicU64,
    /// Bytes of the name.
    pub name_length: AtomicU64,
    /// The name, in UTF-8, filled up with zeros.
    pub name: [AtomicU64; NAME_WORDS],
    /// What it weighs among others, in millionths.
    pub weight: AtomicU64,
    /// What it asked for, in millionths; 0: nothing.
    pub request: AtomicU64,
    /// What it may have at most, in millionths.
    pub limit: AtomicU64,
    /// 0: normal, 1: latency, 2: batch.
    pub priority: AtomicU64,
    /// See [`crate::steering`].
    pub flags: AtomicU64,
    /// What it uses of the GPU's time, in millionths.
    pub usage: AtomicU64,
    /// What it would use of it if it had the GPU for itself.
    pub demand: AtomicU64,
    /// How long its answers take, in nanoseconds.
    pub burst: AtomicU64,
    /// When it last had something under way, by its own clock.
    pub worked: AtomicU64,
    /// What it has had of leases, over its weight, in nanoseconds.
    pub virtual_time: AtomicU64,
    /// How many of its processes use the GPU.
    pub processes: AtomicU64,
    pub(crate) reserved: [AtomicU64; reserved(19)],
}

/// All of a public file.
#[repr(C)]
pub struct Public {
    /// What it is, and what is read most often.
    pub header: PublicHeader,
    /// The containers' pages.
    pub pages: [Page; CONTAINERS],
}

/// Bytes of a public file.
pub const PUBLIC_SIZE: usize = size_of::<Public>();

#[cfg(not(all(loom, test)))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Header>() == 4096 && size_of::<Container>() == 1024 && size_of::<Process>() == 256);
    assert!(offset_of!(Header, lock) == 128 && offset_of!(Header, rest) == 136);
    assert!(offset_of!(Container, members) == 320 && offset_of!(Container, compute) == 512);
    assert!(offset_of!(Process, member) == 64 && offset_of!(Process, compute) == 128);
    assert!(offset_of!(Table, containers) == 4096 && offset_of!(Table, processes) == 69_632 && SIZE == 331_776);
    assert!(size_of::<PublicHeader>() == 4096 && size_of::<Page>() == 512 && PUBLIC_SIZE == 36_864);
    assert!(offset_of!(PublicHeader, said) == 128 && offset_of!(PublicHeader, lease) == 640);
    assert!(offset_of!(Page, weight) == 272 && offset_of!(Page, reserved) == 360);
    assert!(SIZE.is_multiple_of(4096) && PUBLIC_SIZE.is_multiple_of(4096));
    assert!(PROCESSES.is_multiple_of(64) && LONGEST_NAME <= 8 * NAME_WORDS);
};

/// Words that are all zero.
fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Header {
    /// One that describes nothing yet.
    pub fn new() -> Header {
        let (small, large) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        Header {
            magic: large(),
            version: small(),
            header_size: small(),
            size: large(),
            containers: small(),
            container_size: small(),
            processes: small(),
            process_size: small(),
            uuid: zeros(),
            total: large(),
            boot: zeros(),
            reserved: zeros(),
            lock: small(),
            claim_from: small(),
            rest: zeros(),
        }
    }

    /// Describes this layout, for a region that is being made.
    pub fn describe(&self, uuid: &[u8; 16], total: u64, boot: [u64; 2]) {
        self.magic.store(MAGIC, SeqCst);
        self.version.store(version(MAJOR, MINOR), SeqCst);
        self.header_size.store(size_of::<Header>() as u32, SeqCst);
        self.size.store(SIZE as u64, SeqCst);
        self.containers.store(CONTAINERS as u32, SeqCst);
        self.container_size.store(size_of::<Container>() as u32, SeqCst);
        self.processes.store(PROCESSES as u32, SeqCst);
        self.process_size.store(size_of::<Process>() as u32, SeqCst);
        for (word, bytes) in self.uuid.iter().zip(uuid.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), SeqCst);
        }
        self.total.store(total, SeqCst);
        self.set_boot(boot);
    }

    /// Which boot it is from.
    pub fn boot(&self) -> [u64; 2] {
        [self.boot[0].load(SeqCst), self.boot[1].load(SeqCst)]
    }

    /// Says which boot it is from.
    pub fn set_boot(&self, boot: [u64; 2]) {
        for (word, half) in self.boot.iter().zip(boot) {
            word.store(half, SeqCst);
        }
    }

    /// The GPU's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        for (word, bytes) in self.uuid.iter().zip(uuid.as_chunks_mut().0) {
            *bytes = word.load(SeqCst).to_le_bytes();
        }
        uuid
    }

    /// Whether slots lie where we look for them.
    pub fn is_laid_out_as_ours(&self) -> bool {
        self.header_size.load(SeqCst) == size_of::<Header>() as u32
            && self.size.load(SeqCst) >= SIZE as u64
            && self.containers.load(SeqCst) == CONTAINERS as u32
            && self.container_size.load(SeqCst) == size_of::<Container>() as u32
            && self.processes.load(SeqCst) == PROCESSES as u32
            && self.process_size.load(SeqCst) == size_of::<Process>() as u32
    }
}

impl PublicHeader {
    /// One that describes nothing yet.
    pub fn new() -> PublicHeader {
        let (small, large) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        PublicHeader {
            magic: large(),
            version: small(),
            header_size: small(),
            size: large(),
            pages: small(),
            page_size: small(),
            uuid: zeros(),
            boot: zeros(),
            reserved: zeros(),
            said: zeros(),
            lease: zeros(),
            rest: zeros(),
        }
    }

    /// Describes this layout, for a file that is being made.
    pub fn describe(&self, uuid: &[u8; 16], boot: [u64; 2]) {
        self.magic.store(PUBLIC_MAGIC, SeqCst);
        self.version.store(version(MAJOR, MINOR), SeqCst);
        self.header_size.store(size_of::<PublicHeader>() as u32, SeqCst);
        self.size.store(PUBLIC_SIZE as u64, SeqCst);
        self.pages.store(CONTAINERS as u32, SeqCst);
        self.page_size.store(size_of::<Page>() as u32, SeqCst);
        for (word, bytes) in self.uuid.iter().zip(uuid.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), SeqCst);
        }
        for (word, half) in self.boot.iter().zip(boot) {
            word.store(half, SeqCst);
        }
    }
}

impl Page {
    /// Nobody's.
    pub fn clear(&self) {
        let single = [&self.generation, &self.name_length, &self.weight, &self.request, &self.limit, &self.priority];
        let more =
            [&self.flags, &self.usage, &self.demand, &self.burst, &self.worked, &self.virtual_time, &self.processes];
        for word in single.into_iter().chain(more).chain(&self.name).chain(&self.reserved) {
            word.store(0, SeqCst);
        }
    }
}

/// A version as one word.
pub const fn version(major: u16, minor: u16) -> u32 {
    major as u32 | (minor as u32) << 16
}

impl Table {
    /// A model's region: loom's words are made one by one.
    #[cfg(all(loom, test))]
    pub fn new() -> Table {
        Table {
            header: Header::new(),
            containers: std::array::from_fn(|_| Container::new()),
            processes: std::array::from_fn(|_| Process::new()),
        }
    }

    /// Nobody is in it, whatever it says.
    pub fn wipe(&self) {
        for container in &self.containers {
            container.state.store(FREE, SeqCst);
            container.clear();
            container.set_name(&[]);
        }
        for process in &self.processes {
            process.clear();
            process.life.store(0, SeqCst);
        }
        self.header.lock.store(0, SeqCst);
    }
}

impl Container {
    #[cfg(all(loom, test))]
    fn new() -> Container {
        let (small, large) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        Container {
            state: small(),
            name_length: small(),
            generation: small(),
            reserved: small(),
            name: zeros(),
            reserved_too: zeros(),
            members: zeros(),
            cap: large(),
            tie: large(),
            refused: large(),
            drift: large(),
            passed: large(),
            peak: large(),
            reserved_three: zeros(),
            compute: zeros(),
        }
    }

    /// The word by which a process says that it is in this container, whose index is given.
    pub fn membership(&self, index: usize) -> u64 {
        (index as u64 + 1) | u64::from(self.generation.load(SeqCst)) << 32
    }

    /// Whether it has this name.
    pub fn is_called(&self, name: &[u8]) -> bool {
        self.name_length.load(SeqCst) as usize == name.len() && {
            let mut buffer = [0; NAME_BYTES];
            self.copy_name(&mut buffer) == name
        }
    }

    /// Copies the name out, however long it says it is.
    pub fn copy_name<'a>(&self, buffer: &'a mut [u8; NAME_BYTES]) -> &'a [u8] {
        for (word, bytes) in self.name.iter().zip(buffer.as_chunks_mut().0) {
            *bytes = word.load(SeqCst).to_le_bytes();
        }
        &buffer[..(self.name_length.load(SeqCst) as usize).min(LONGEST_NAME)]
    }

    /// Writes the name; at most [`LONGEST_NAME`] bytes of it.
    pub fn set_name(&self, name: &[u8]) {
        let mut buffer = [0; NAME_BYTES];
        let name = &name[..name.len().min(LONGEST_NAME)];
        buffer[..name.len()].copy_from_slice(name);
        for (word, bytes) in self.name.iter().zip(buffer.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), SeqCst);
        }
        self.name_length.store(name.len() as u32, SeqCst);
    }

    /// All but state, name and generation back to zero, also what a newer minor version keeps there.
    pub fn clear(&self) {
        let single = [&self.cap, &self.tie, &self.refused, &self.drift, &self.passed, &self.peak];
        let words = self.reserved_too.iter().chain(&self.members).chain(single).chain(&self.reserved_three);
        for word in words.chain(&self.compute) {
            word.store(0, SeqCst);
        }
        self.reserved.store(0, SeqCst);
    }

    /// The processes whose bit is set, by index.
    pub fn members(&self) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().flat_map(|(word, bits)| Bits(bits.load(SeqCst)).map(move |bit| 64 * word + bit))
    }

    /// Adds a process or takes it away.
    pub fn set_member(&self, process: usize, is: bool) {
        if let Some(word) = self.members.get(process / 64) {
            let bit = 1 << (process % 64);
            if is {
                word.fetch_or(bit, SeqCst)
            } else {
                word.fetch_and(!bit, SeqCst)
            };
        }
    }

    /// Whether a process's bit is set.
    pub fn has_member(&self, process: usize) -> bool {
        self.members.get(process / 64).is_some_and(|word| word.load(SeqCst) >> (process % 64) & 1 != 0)
    }
}

impl Process {
    #[cfg(all(loom, test))]
    fn new() -> Process {
        let (small, large) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        Process {
            life: small(),
            minor: small(),
            generation: large(),
            pid: small(),
            driver_pid: small(),
            pid_namespace: large(),
            beside: large(),
            reserved: zeros(),
            member: large(),
            held: large(),
            pending: large(),
            drift: large(),
            found: large(),
            lent: large(),
            node: zeros(),
            compute: zeros(),
            reserved_three: zeros(),
        }
    }

    /// All but life and generation back to zero, also what a newer minor version keeps there.
    pub fn clear(&self) {
        for word in [&self.minor, &self.pid, &self.driver_pid] {
            word.store(0, SeqCst);
        }
        let single = [&self.pid_namespace, &self.beside, &self.member, &self.held, &self.pending, &self.drift];
        let words = single
            .into_iter()
            .chain([&self.found, &self.lent])
            .chain(&self.reserved)
            .chain(&self.node)
            .chain(&self.reserved_three);
        for word in words.chain(&self.compute) {
            word.store(0, SeqCst);
        }
    }
}

/// The numbers of the bits that are set.
pub struct Bits(pub u64);

impl Iterator for Bits {
    type Item = usize;
    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    }
}
