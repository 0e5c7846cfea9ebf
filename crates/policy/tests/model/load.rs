//! What a program in a container wants of the GPU.

use crate::gpu::{MS, US};

/// Numbers that look random and are the same each time.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        if limit == 0 { 0 } else { self.0 % limit }
    }
}

/// Batches of pieces.
#[derive(Clone, Debug)]
pub struct Load {
    /// How long pieces take; one of these each time.
    pub pieces: Vec<u64>,
    /// How many pieces are started without waiting for one of them.
    pub batch: usize,
    pub pace: Pace,
    /// From when to when it wants anything, from the start of the run; always if empty.
    pub active: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// One batch after the other, without waiting.
    Endless,
    /// So long after the last one is done.
    After(u64),
    /// At times so far apart, give or take the other.
    Every(u64, u64),
}

impl Load {
    /// Always more, in pieces of these lengths.
    pub fn endless(pieces: &[u64]) -> Load {
        Load { pieces: pieces.to_vec(), batch: 1, pace: Pace::Endless, active: Vec::new() }
    }

    /// Always more, but so long after each piece for looking at what it did.
    pub fn syncing(piece: u64, gap: u64) -> Load {
        Load { pace: Pace::After(gap), ..Load::endless(&[piece]) }
    }

    /// Requests of 20 kernels, 2.6 ms, some 20 ms apart.
    pub fn inference() -> Load {
        Load { batch: 20, pace: Pace::Every(20 * MS, 2 * MS), ..Load::endless(&[130 * US]) }
    }

    /// The same, but only then.
    pub fn during(self, active: &[(u64, u64)]) -> Load {
        Load { active: active.to_vec(), ..self }
    }
}

/// A load, as far as it got.
pub struct Work {
    load: Load,
    started: u64,
    random: Random,
    kind: usize,
    left: usize,
    /// When the batch was or will be asked for; `u64::MAX`: when the last one is done.
    asked: u64,
    /// When those under way were.
    under_way: Vec<u64>,
}

impl Work {
    pub fn new(load: &Load, now: u64, seed: u64) -> Work {
        let mut random = Random::new(seed);
        let mut work = Work {
            load: load.clone(),
            started: now,
            kind: random.below(load.pieces.len() as u64) as usize,
            left: load.batch,
            asked: now,
            under_way: Vec::new(),
            random,
        };
        work.asked = work.within(now);
        work
    }

    /// The first time from then on at which it wants anything.
    fn within(&self, at: u64) -> u64 {
        if self.load.active.is_empty() || at == u64::MAX {
            return at;
        }
        let since = at - self.started;
        let next = self.load.active.iter().find(|(_, until)| since < *until);
        next.map_or(u64::MAX, |(from, _)| self.started + since.max(*from))
    }

    /// When the next piece can be started.
    pub fn available_at(&self) -> u64 {
        self.asked
    }

    pub fn next_kind(&self) -> usize {
        self.kind
    }

    /// Starts it: its kind, its length, and whether it is the last of its batch.
    pub fn take(&mut self, now: u64) -> (usize, u64, bool) {
        let kind = self.kind;
        self.kind = self.random.below(self.load.pieces.len() as u64) as usize;
        self.left -= 1;
        let last = self.left == 0;
        if last {
            self.left = self.load.batch;
            self.under_way.push(self.asked);
            self.asked = match self.load.pace {
                Pace::Endless => self.within(now),
                Pace::After(_) => u64::MAX,
                Pace::Every(period, jitter) => {
                    let next = self.asked + period - jitter + self.random.below(2 * jitter);
                    self.within(next)
                }
            };
        }
        (kind, self.load.pieces[kind], last)
    }

    /// The oldest batch is done. Returns when it was asked for.
    pub fn batch_ended(&mut self, at: u64) -> u64 {
        if let Pace::After(gap) = self.load.pace {
            self.asked = self.within(at + gap);
        }
        self.under_way.remove(0)
    }
}
