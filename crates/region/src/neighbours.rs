//! What others tell everybody: found, and read.
//!
//! Whoever wrote it may write anything, cut the file short, or take it away, at any time. So nothing that lies there is believed,
//! followed or waited for, and nothing is read from a mapping: the kernel copies it, and says where there is nothing. It is mapped all
//! the same, to be copied from without a descriptor, and to sleep on.

use std::ffi::{CString, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;

use ration_policy::tuning::{FRESH, MS};

use crate::around::Around;
use crate::file::region_name;
use crate::layout::{CONTAINERS, MAGIC, MAJOR, PUBLIC_MAGIC, PUBLIC_SIZE, Page, Public, PublicHeader};
use crate::life::DIED;
use crate::steering::{LeaseWord, Present, Said, Told, Word, identity};
use crate::sys::{Clock, Directory, File, boot, copy_own};

/// The directory is looked at so often for whether it has changed: a newcomer has to be known within a second, and its first leases
/// last 30 ms. And anew, changed or not, so often: a file may come into a directory that was there.
const LOOK: u64 = 50 * MS;
const LOOK_ANYWAY: u64 = 1_000 * MS;
/// Whoever makes a directory makes the files in it soon after: with its first words, some milliseconds later on a host that is not busy.
const UNSETTLED: u64 = 300 * MS;
/// So many times as long as it takes to look, it is not looked again: whoever fills the directory keeps nobody busy.
const RESTS: u64 = 100;
/// So many neighbours are listened to, and so many names looked at: a GPU has no more containers than that, and who makes more names
/// than that keeps nobody busy with them.
const MOST: usize = 512;
const MOST_NAMES: usize = 4096;

/// Words of a header that are read each time.
const WORDS: usize = offset_of!(PublicHeader, rest) / 8;
const SAID: usize = offset_of!(PublicHeader, said) / 8;
const LEASE: usize = offset_of!(PublicHeader, lease) / 8;
const PAGE: usize = size_of::<Page>() / 8;

/// One directory's public file.
struct Neighbour {
    /// The number of its inode.
    number: u64,
    path: CString,
    /// Where it is mapped, to be read only.
    at: *mut c_void,
    heard: [Word; CONTAINERS],
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and nobody keeps a pointer into it but to sleep there.
        unsafe { libc::munmap(self.at, PUBLIC_SIZE) };
    }
}

/// The neighbours of a container.
pub struct Neighbours {
    all: Vec<Neighbour>,
    /// When the directory was looked at for a change; when it was read; when it had changed, and how it was then.
    looked: u64,
    read: u64,
    changed: u64,
    /// How long to let it be after that.
    rest: u64,
    mtime: (i64, i64),
    /// The kernel does not copy for us: files are read.
    by_files: bool,
    /// When they were last listened to, and what was said.
    at: u64,
    present: Vec<Present>,
    leases: Vec<LeaseWord>,
    buffer: Vec<u64>,
    /// Somebody is there whose files are laid out otherwise.
    pub are_strange: bool,
}

// SAFETY: the pointers are to mappings of the process's.
unsafe impl Send for Neighbours {}

impl Neighbours {
    /// None yet.
    pub const fn new() -> Neighbours {
        Neighbours {
            all: Vec::new(),
            looked: 0,
            read: 0,
            changed: 0,
            rest: 0,
            mtime: (0, 0),
            by_files: false,
            at: 0,
            present: Vec::new(),
            leases: Vec::new(),
            buffer: Vec::new(),
            are_strange: false,
        }
    }

    /// What they say now: who is there, and their lease words.
    pub fn listen(&mut self, around: &Around, own: u64, now: u64) -> (&[Present], &[LeaseWord]) {
        if self.at != now {
            self.at = now;
            if now >= self.looked.saturating_add(LOOK.max(self.rest)) || now < self.looked {
                let clock = Clock::start();
                self.look(around, own, now);
                self.rest = RESTS * clock.passed().as_nanos() as u64;
            }
            self.hear(now);
        }
        (&self.present, &self.leases)
    }

    /// Finds who came and who went.
    fn look(&mut self, around: &Around, own: u64, now: u64) {
        self.looked = now;
        let Some(among) = &around.among else { return };
        let Ok(directory) = Directory::open(among) else { return };
        let mtime = directory.mtime();
        if mtime != self.mtime {
            (self.mtime, self.changed) = (mtime, now);
        } else if now >= self.changed + UNSETTLED && now < self.read + LOOK_ANYWAY {
            return;
        }
        self.read = now;
        let mut before = std::mem::take(&mut self.all);
        self.are_strange = is_used_by_older_ones(&directory, &around.gpu);
        for name in directory.names(MOST_NAMES) {
            if name.as_bytes().starts_with(b".") || self.all.len() == MOST {
                continue;
            }
            let Ok(inner) = directory.inner(&name) else { continue };
            let Ok(file) = inner.file(&around.file) else { continue };
            let Ok(number) = file.number() else { continue };
            if number == own || self.all.iter().any(|it| it.number == number) {
                continue;
            }
            match before.iter().position(|it| it.number == number) {
                Some(at) => self.all.push(before.swap_remove(at)),
                None => match Neighbour::open(&file, number, path(among, &name, &around.file), &around.gpu) {
                    Some(neighbour) => self.all.push(neighbour),
                    None => self.are_strange |= is_of_another_version(&file),
                },
            }
        }
    }

    fn hear(&mut self, now: u64) {
        self.present.clear();
        self.leases.clear();
        self.copy(now);
        // Those that were cut short are looked for again.
        let mut pages: Vec<(usize, usize)> = Vec::new();
        for (index, neighbour) in self.all.iter_mut().enumerate() {
            let words = &self.buffer[index * WORDS..][..WORDS];
            for slot in 0..CONTAINERS {
                let (said, lease) = (words[SAID + slot], words[LEASE + slot]);
                if lease != 0 {
                    let at = neighbour.at as usize + 8 * (LEASE + slot);
                    self.leases.push(LeaseWord { word: lease, writer: identity(neighbour.number, slot), at });
                }
                let at = if said == 0 { 0 } else { neighbour.heard[slot].heard(said, now) };
                if at != 0 && now.saturating_sub(at) < FRESH && pages.len() < MOST {
                    pages.push((index, slot));
                }
            }
        }
        if pages.is_empty() {
            return;
        }
        let first = self.all.len() * WORDS;
        self.buffer.resize(first + pages.len() * PAGE, 0);
        let places: Vec<(usize, usize)> = pages.iter().map(|(index, slot)| (*index, place_of_page(*slot))).collect();
        let read = self.read_all(&places, first, PAGE);
        for (at, (index, slot)) in pages.iter().enumerate().filter(|(at, _)| read[*at]) {
            let words = &self.buffer[first + at * PAGE..][..PAGE];
            let (neighbour, said) = (&self.all[*index], self.buffer[index * WORDS + SAID + slot]);
            let said = Said { theirs: said, ours: neighbour.heard[*slot].ours };
            let told = Told::copied(words);
            self.present.push(Present::read(identity(neighbour.number, *slot), &said, &told, now));
        }
    }

    /// Copies all headers into the buffer; who has none any more is not listened to.
    fn copy(&mut self, now: u64) {
        self.buffer.clear();
        self.buffer.resize(self.all.len() * WORDS, 0);
        let places: Vec<(usize, usize)> = (0..self.all.len()).map(|index| (index, 0)).collect();
        let read = self.read_all(&places, 0, WORDS);
        if read.iter().all(|is| *is) {
            return;
        }
        let mut at = 0;
        self.all.retain(|_| {
            at += 1;
            read[at - 1]
        });
        let mut rest = Vec::with_capacity(self.all.len() * WORDS);
        for (index, _) in read.iter().enumerate().filter(|(_, is)| **is) {
            rest.extend_from_slice(&self.buffer[index * WORDS..][..WORDS]);
        }
        self.buffer = rest;
        self.changed = now;
    }

    /// Copies parts of the neighbours' files into the buffer, from `first` on, each `length` words. Says which could be.
    fn read_all(&mut self, places: &[(usize, usize)], first: usize, length: usize) -> Vec<bool> {
        let mut read = vec![false; places.len()];
        let mut from = 0;
        while from < places.len() {
            let wanted: Vec<usize> =
                places[from..].iter().map(|(index, at)| self.all[*index].at as usize + at).collect();
            let buffer = &mut self.buffer[first + from * length..first + places.len() * length];
            if !self.by_files {
                match copy_own(buffer, &wanted, 8 * length) {
                    Ok(bytes) => {
                        let whole = bytes / (8 * length);
                        read[from..from + whole].fill(true);
                        // The one after those could not be.
                        from += whole + 1;
                        continue;
                    }
                    Err(libc::EFAULT) => {
                        from += 1;
                        continue;
                    }
                    Err(_) => self.by_files = true,
                }
            }
            let (index, at) = places[from];
            let bytes = &mut self.buffer[first + from * length..][..length];
            read[from] = self.all[index].read(bytes, at);
            from += 1;
        }
        read
    }
}

impl Neighbour {
    /// `None`: it is not laid out as ours, another GPU's, or from another boot of the machine, when clocks were others.
    fn open(file: &File, number: u64, path: CString, gpu: &[u8; 16]) -> Option<Neighbour> {
        let (is_plain, size) = file.kind().ok()?;
        let mut begin = [0; 64];
        let there = file.read(&mut begin).ok()?;
        let word = |at: usize| begin[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let is_ours = is_plain
            && size >= PUBLIC_SIZE as u64
            && there == begin.len()
            && word(0) == PUBLIC_MAGIC
            && word(8) as u16 == MAJOR
            && word(24) == (CONTAINERS as u64 | (size_of::<Page>() as u64) << 32)
            && begin[32..48] == *gpu
            && [word(48), word(56)] == boot();
        if !is_ours {
            return None;
        }
        // SAFETY: a fresh mapping at a place of the kernel's choosing, which is never read from.
        let at = unsafe { libc::mmap(null_mut(), PUBLIC_SIZE, libc::PROT_READ, libc::MAP_SHARED, file.0, 0) };
        (at != libc::MAP_FAILED).then_some(Neighbour { number, path, at, heard: [Word::NONE; CONTAINERS] })
    }

    /// Reads it by its path.
    fn read(&self, words: &mut [u64], at: usize) -> bool {
        let Ok(file) = File::open(&self.path, libc::O_RDONLY | libc::O_NOFOLLOW) else { return false };
        file.number() == Ok(self.number) && file.read_words(words, at)
    }
}

fn place_of_page(slot: usize) -> usize {
    offset_of!(Public, pages) + slot * size_of::<Page>()
}

fn is_of_another_version(file: &File) -> bool {
    let mut begin = [0; 16];
    let there = file.kind().is_ok_and(|(is_plain, _)| is_plain) && file.read(&mut begin) == Ok(begin.len());
    there && begin.starts_with(&PUBLIC_MAGIC.to_le_bytes()) && u16::from_le_bytes([begin[8], begin[9]]) != MAJOR
}

/// Whether living processes are in a region of the first major version: all containers had one together, in this directory.
fn is_used_by_older_ones(directory: &Directory, gpu: &[u8; 16]) -> bool {
    /// Where processes' slots were, how many, and how long each was.
    const PROCESSES: (usize, usize, usize) = (69_632, 1024, 256);
    let Ok(name) = CString::new(region_name(gpu)) else { return false };
    let Ok(file) = directory.file(&name) else { return false };
    let (mut begin, mut slots) = ([0; 10], vec![0; 64 * PROCESSES.2 / 8]);
    let is_one = file.kind().is_ok_and(|(is_plain, _)| is_plain)
        && file.read_words(&mut begin, 0)
        && begin[0] == MAGIC
        && begin[1] as u16 == 1
        && [begin[8], begin[9]] == boot();
    is_one
        && (0..PROCESSES.1 / 64).any(|part| {
            file.read_words(&mut slots, PROCESSES.0 + part * 64 * PROCESSES.2)
                && slots.iter().step_by(PROCESSES.2 / 8).any(|life| matches!(*life as u32, 1..DIED))
        })
}

fn path(among: &CString, name: &CString, file: &CString) -> CString {
    let path = [among.as_bytes(), name.as_bytes(), file.as_bytes()].join(&b'/');
    CString::new(path).unwrap_or_default()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Facts, Gpu, Heard, Home, Member, Region};

    const GPU: Gpu = Gpu { uuid: [7; 16], total: 1 << 30 };
    const NOW: u64 = 1_000 * MS;

    fn member(among: &std::path::Path, name: &str) -> Member {
        Region::open_at(&Home::among(among, name), &GPU).expect("a region").join(name, None).expect("room")
    }

    /// What is copied from mappings is what is read from files, also of one that is cut short or gone.
    #[test]
    fn neighbours_are_heard_by_either_way() {
        let among = std::env::temp_dir().join(format!("ration-neighbours-{}", std::process::id()));
        let all = ["one", "two", "three"].map(|name| member(&among, name));
        let says = |it: &Member, usage: u32, now: u64| {
            it.compute().says(&Heard::new(), &Facts { usage, wants: true, ..Facts::default() }, now);
        };
        all.iter().zip([100_000, 200_000, 300_000]).for_each(|(it, usage)| says(it, usage, NOW));
        all[2].compute().pass_lease(all[1].compute().index(), 41);
        let around = Around::of(&Home::among(&among, "one"), &among.join("one"), &GPU);
        let own = all[0].compute().index() as u64 >> 6;
        let heard = |by_files: bool, now: u64| {
            let mut neighbours = Neighbours { by_files, ..Neighbours::new() };
            let (present, leases) = neighbours.listen(&around, own, now);
            let mut usage: Vec<u32> = present.iter().map(|it| it.peer.usage).collect();
            usage.sort_unstable();
            (usage, leases.iter().map(|it| (it.number(), it.named())).collect::<Vec<_>>())
        };
        let named = Some(all[1].compute().index());
        for by_files in [false, true] {
            assert_eq!(heard(by_files, NOW), (vec![200_000, 300_000], vec![(42, named)]), "by files: {by_files}");
            assert_eq!(heard(by_files, NOW + FRESH), (vec![], vec![(42, named)]), "their words are old");
        }
        // One is cut short: in the middle of its page, then altogether.
        let home = Home::among(&among, "three").find().expect("it is there");
        let public = home.join(around.file.to_str().expect("text"));
        for (length, expected) in [(4096 + 100, vec![(42, named)]), (100, vec![]), (0, vec![])] {
            let mut before = Neighbours::new();
            before.listen(&around, own, NOW);
            std::fs::OpenOptions::new().write(true).open(&public).and_then(|it| it.set_len(length)).expect("ours");
            for by_files in [false, true] {
                before.by_files = by_files;
                before.at = 0;
                let (present, leases) = before.listen(&around, own, NOW + 1);
                let leases: Vec<_> = leases.iter().map(|it| (it.number(), it.named())).collect();
                let is_half = length == 4096 + 100 && !by_files;
                // The kernel has whole pages of a file whose last page is only begun; a file has not.
                assert_eq!(present.len(), 1 + usize::from(is_half), "{length} bytes, by files: {by_files}");
                assert_eq!(leases, expected, "{length} bytes, by files: {by_files}");
            }
        }
        drop(all);
        std::fs::remove_dir_all(&among).expect("it was ours");
    }
}
