//! The hardware: contexts that start pieces of work, of which one at a time is worked on.
//!
//! As long as one context has work, its pieces follow each other. Where several have some, which the rules avoid and trouble
//! brings about, they have slices of the time in turn. The rules see of it what a program sees: that a piece is done, when it
//! began, and when it ended.

use std::collections::VecDeque;

use crate::outcome::Record;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Time begins here, so that no word is 0 by chance.
pub const START: u64 = SECOND;

/// A switch between busy contexts, as measured on an H200.
const SWITCH: u64 = 150 * US;
/// How long one context works while others have work too.
const SLICE: u64 = 2_090 * US;

/// A piece of work that was started.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Which kernel it is.
    pub kind: usize,
    /// What its container expects it to take.
    pub counted: u64,
    /// Whether it is the last of what the program waits for.
    pub batch_ends: bool,
    /// When it is there to be worked on.
    pub arrives: u64,
    /// How much of it is still to be done.
    pub left: u64,
    /// When it began; `u64::MAX`: not yet.
    pub begins: u64,
    /// When it ended.
    pub ends: u64,
    /// The [shared time](Gpu::shared_time) when it began and when it ended.
    pub shared: (u64, u64),
}

/// A context's work.
#[derive(Debug, Default)]
struct Context {
    /// Under way, in order.
    pieces: VecDeque<Piece>,
    /// How much that is.
    left: u64,
    /// Done, and nobody has looked at it yet.
    done: VecDeque<Piece>,
}

/// One GPU.
pub struct Gpu {
    contexts: Vec<Context>,
    /// All that happens until then has happened.
    at: u64,
    shared_time: u64,
    /// Who worked last, and since when without anybody else.
    last: Option<usize>,
    slice_began: u64,
}

impl Gpu {
    pub fn new(contexts: usize) -> Gpu {
        let contexts = (0..contexts).map(|_| Context::default()).collect();
        Gpu { contexts, at: START, shared_time: START, last: None, slice_began: START }
    }

    /// Starts a piece.
    pub fn start(&mut self, context: usize, piece: Piece) {
        let context = &mut self.contexts[context];
        context.left += piece.left;
        context.pieces.push_back(piece);
    }

    /// The oldest piece that is done and was not looked at.
    pub fn look(&mut self, context: usize) -> Option<Piece> {
        self.contexts[context].done.pop_front()
    }

    /// The piece of a context that is worked on, or is next.
    pub fn front(&self, context: usize) -> Option<&Piece> {
        self.contexts[context].pieces.front()
    }

    /// Whether all is done that a context started.
    pub fn is_drained(&self, context: usize) -> bool {
        self.contexts[context].pieces.is_empty()
    }

    /// A context is gone, and its work with it.
    pub fn destroy(&mut self, context: usize) {
        self.contexts[context] = Context::default();
    }

    /// Time in which several contexts had work counts only for each one's part of it, as it does to whoever sees on the
    /// timeline that they had, and not who was worked on when.
    pub fn shared_time(&self) -> u64 {
        self.shared_time
    }

    /// When it is worth looking at what a context has started: no later than when all of it is done, and for the last two
    /// pieces exactly when each is; but a little later where another context has work.
    pub fn worth_looking_at(&self, context: usize) -> Option<u64> {
        let others_work = self.contexts.iter().filter(|context| !context.pieces.is_empty()).nth(1).is_some();
        let context = &self.contexts[context];
        let front = context.pieces.front()?;
        let left = if context.pieces.len() <= 2 { front.left } else { context.left };
        Some(self.at.max(front.arrives) + if others_work { left.max(SLICE / 8) } else { left })
    }

    /// Works until then.
    pub fn advance(&mut self, now: u64, record: &mut Record) {
        while self.at < now {
            let ready = |context: &Context| context.pieces.front().is_some_and(|piece| piece.arrives <= self.at);
            let busy = self.contexts.iter().filter(|context| ready(context)).count();
            let later = self.contexts.iter().filter_map(|context| context.pieces.front().map(|piece| piece.arrives));
            let later = later.filter(|arrives| *arrives > self.at).min().unwrap_or(u64::MAX);
            if busy == 0 {
                self.pass(later.min(now), 1);
                continue;
            }
            let slice_is_over = busy > 1 && self.at >= self.slice_began + SLICE;
            let stays = self.last.filter(|last| !slice_is_over && ready(&self.contexts[*last]));
            let Some(index) = stays else {
                let (count, after) = (self.contexts.len(), self.last.map_or(0, |last| last + 1));
                let next = (0..count).map(|step| (after + step) % count).find(|index| ready(&self.contexts[*index]));
                if next != self.last {
                    self.pass(self.at + SWITCH, busy);
                }
                (self.last, self.slice_began) = (next, self.at);
                continue;
            };
            let slice_ends = if busy > 1 { self.slice_began + SLICE } else { u64::MAX };
            let context = &mut self.contexts[index];
            let piece = context.pieces.front_mut().expect("it is ready");
            if piece.begins == u64::MAX {
                (piece.begins, piece.shared.0) = (self.at, self.shared_time);
            }
            let until = (self.at + piece.left).min(slice_ends).min(later).min(now);
            let worked = until - self.at;
            (piece.left, context.left) = (piece.left - worked, context.left - worked);
            record.worked(index, self.at, until);
            self.pass(until, busy);
            let context = &mut self.contexts[index];
            if let Some(mut piece) = context.pieces.pop_front_if(|piece| piece.left == 0) {
                (piece.ends, piece.shared.1) = (self.at, self.shared_time);
                context.done.push_back(piece);
            }
        }
    }

    fn pass(&mut self, until: u64, busy: usize) {
        self.shared_time += (until - self.at) / busy as u64;
        self.at = until;
    }
}
