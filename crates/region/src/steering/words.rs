//! What containers say, as one of them hears it: who is there, what each page says, whose the newest lease is, and when any of it was
//! said by the clock of who listens.

use std::cell::{Cell, RefCell};
use std::mem::offset_of;

use ration_policy::steer::{self, Peer};
use ration_policy::tuning::FRESH;
use ration_policy::{Priority, Share};

use super::{BATCHES, FILLS, IS_ON, URGENT, WANTS};
use crate::layout::Page;
use crate::neighbours::Neighbours;
use crate::sync::{AtomicU64, SeqCst};

/// A container that is there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Present {
    /// Which one: a number that no other one has.
    pub index: usize,
    /// What it says.
    pub peer: Peer,
    /// See [`steer::virtual_time`].
    pub virtual_time: u64,
    /// Any of its processes is on the GPU.
    pub is_on: bool,
    /// When it last said anything, by the caller's clock.
    pub said: u64,
}

impl Present {
    /// As its page has it.
    pub(crate) fn read(index: usize, said: &Said, told: &Told, now: u64) -> Present {
        let part = |word: u64| u32::try_from(word).unwrap_or(u32::MAX).min(1_000_000);
        let flags = told.flags;
        Present {
            index,
            peer: Peer {
                // Whoever says that it weighs nothing says that it is not there.
                weight: Share::from_ppm(part(told.weight).max(1)),
                priority: if flags & URGENT != 0 { Priority::Latency } else { Priority::Normal },
                usage: part(told.usage),
                demand: part(told.demand),
                wants: flags & WANTS != 0,
                fills: flags & FILLS != 0,
                burst: told.burst,
                quiet: said.quiet(told.worked, now),
                batches: flags & BATCHES != 0,
            },
            virtual_time: told.virtual_time,
            is_on: flags & IS_ON != 0,
            said: said.ours,
        }
    }
}

/// What a page says of its container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    weight: u64,
    flags: u64,
    usage: u64,
    demand: u64,
    burst: u64,
    worked: u64,
    virtual_time: u64,
}

impl Told {
    /// In a copy of a page.
    pub fn copied(words: &[u64]) -> Told {
        let word = |offset: usize| words.get(offset / 8).copied().unwrap_or(0);
        Told {
            weight: word(offset_of!(Page, weight)),
            flags: word(offset_of!(Page, flags)),
            usage: word(offset_of!(Page, usage)),
            demand: word(offset_of!(Page, demand)),
            burst: word(offset_of!(Page, burst)),
            worked: word(offset_of!(Page, worked)),
            virtual_time: word(offset_of!(Page, virtual_time)),
        }
    }

    pub fn of(page: &Page) -> Told {
        let read = |word: &AtomicU64| word.load(SeqCst);
        Told {
            weight: read(&page.weight),
            flags: read(&page.flags),
            usage: read(&page.usage),
            demand: read(&page.demand),
            burst: read(&page.burst),
            worked: read(&page.worked),
            virtual_time: read(&page.virtual_time),
        }
    }
}

/// A container's lease word, and where it can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseWord {
    pub word: u64,
    pub writer: usize,
    pub at: usize,
}

/// Bits of a lease word that say who has it.
pub(super) const WHO_BITS: u32 = 30;

impl LeaseWord {
    /// How many leases there had been.
    pub fn number(&self) -> u64 {
        self.word >> WHO_BITS
    }

    /// The same, for [`steer::ahead`].
    pub fn in_order(&self) -> u64 {
        self.word & !((1 << WHO_BITS) - 1)
    }

    /// To whom the last of them went.
    pub fn named(&self) -> Option<usize> {
        (self.number() != 0).then_some((self.word & ((1 << WHO_BITS) - 1)) as usize)
    }
}

/// The number by which everybody knows a container: that of its public file's inode, as far as there is room for it, and its page.
pub(crate) fn identity(file: u64, slot: usize) -> usize {
    (file as usize & 0xff_ffff) << 6 | slot & 0x3f
}

/// All containers that are there.
pub struct Neighbourhood {
    pub(super) all: Vec<Present>,
    /// The lease words, also of those that are silent; not the caller's own.
    pub(super) leases: Vec<LeaseWord>,
    /// Since when the newest of them all stands there, as far as the caller knows.
    pub(super) named_since: u64,
    /// Which of them is the caller's.
    pub own: usize,
    /// How many processes of that one are there.
    pub processes: u32,
    /// How many of those have something under way.
    pub siblings: u32,
    /// There are others whose library tells them in other words.
    pub are_strange: bool,
}

impl Neighbourhood {
    /// They, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Present> {
        self.all.iter()
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<&Present> {
        self.all.iter().find(|it| it.index == index)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The others.
    pub fn others(&self) -> impl Iterator<Item = &Present> {
        self.iter().filter(|it| it.index != self.own)
    }

    /// Those that want a lease.
    pub fn wanting(&self) -> impl Iterator<Item = &Present> {
        self.iter().filter(|it| it.peer.takes_leases() && it.peer.wants)
    }

    /// The weights of those, in millionths.
    pub fn weights(&self) -> u64 {
        self.wanting().map(|it| u64::from(it.peer.weight.ppm())).sum()
    }

    /// Who is next to hold the GPU.
    pub fn next(&self, last: usize) -> Option<usize> {
        steer::next(self.wanting().map(|it| (it.index, it.virtual_time)), last)
    }
}

/// When others said what they say, by the clock of who listens.
///
/// Theirs may be another one: containers have time namespaces, and a word may say anything. Where it is the same one, what they wrote
/// is it.
pub struct Heard {
    /// The container's own processes; and the containers of its region. Made when something is heard: programs are short of stack, and this
    /// is made on it.
    pub(super) processes: RefCell<Vec<Word>>,
    pub(super) beside: RefCell<Vec<Word>>,
    /// Those elsewhere.
    pub(super) neighbours: RefCell<Neighbours>,
    /// The newest lease word, and since when it stands there.
    pub(super) newest: Cell<(u64, u64)>,
    /// When it was last looked whether the own page can still be read by others.
    pub(super) looked: Cell<u64>,
}

/// When somebody last said something: by its clock, and by the listener's.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    theirs: u64,
    pub ours: u64,
}

impl Word {
    /// Never.
    pub const NONE: Word = Word { theirs: 0, ours: 0 };

    /// When somebody spoke who says that it last did so at `theirs`; 0: nobody knows.
    pub fn heard(&mut self, theirs: u64, now: u64) -> u64 {
        let before = self.theirs;
        if before != theirs {
            let is_near = theirs <= now && now - theirs < FRESH;
            let ours = match before {
                _ if is_near => theirs,
                // It may have been dead for long: it is heard of when it says something else.
                0 => 0,
                _ => now,
            };
            *self = Word { theirs, ours };
        }
        self.ours
    }
}

impl Heard {
    /// Nothing yet.
    pub const fn new() -> Heard {
        Heard {
            processes: RefCell::new(Vec::new()),
            beside: RefCell::new(Vec::new()),
            neighbours: RefCell::new(Neighbours::new()),
            newest: Cell::new((0, 0)),
            looked: Cell::new(0),
        }
    }
}

/// When somebody spoke, of so many.
pub(super) fn heard(words: &RefCell<Vec<Word>>, (which, of): (usize, usize), theirs: u64, now: u64) -> u64 {
    let Ok(mut words) = words.try_borrow_mut() else { return 0 };
    if words.is_empty() {
        words.resize(of, Word::NONE);
    }
    words.get_mut(which).map_or(0, |word| word.heard(theirs, now))
}

impl Default for Heard {
    fn default() -> Heard {
        Heard::new()
    }
}

/// When somebody said what it says: by the listener's clock, and by its own.
pub(crate) struct Said {
    pub ours: u64,
    pub theirs: u64,
}

impl Said {
    /// For how long it has had nothing under way that last had at `worked`, by its own clock.
    pub(super) fn quiet(&self, worked: u64, now: u64) -> u64 {
        let (since, before) = (worked.saturating_sub(self.theirs), self.theirs.saturating_sub(worked));
        now.saturating_sub(self.ours).saturating_add(before).saturating_sub(since)
    }
}
