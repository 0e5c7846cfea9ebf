//! A context's way onto the timeline: order between its streams, and what becomes of finished work.
//!
//! Streams are spread over the hardware queues of the context's channel. Queue 0 is the legacy default stream's: what goes in
//! there waits for all blocking streams, and they wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sim_world::World;
use sim_world::channel::{Kind, NewOp, Seq, WHOLE};
use sim_world::layout::QUEUES;

use crate::channels::Channels;

/// How a stream orders itself against the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// It is the legacy default stream.
    Legacy,
    /// It waits for that one and is waited for.
    Blocking,
    /// It does neither.
    NonBlocking,
}

/// When a piece of work was done. Outlives the queue entry it came from.
pub(crate) struct Mark {
    pub seq: Seq,
    pub lane: Arc<Lane>,
    done_ns: AtomicU64,
}

impl Mark {
    /// Simulated time at which it was done, if it is; `None` also when the timeline was not brought up to it yet.
    pub(crate) fn done_ns(&self) -> Option<u64> {
        if let done @ 1.. = self.done_ns.load(Ordering::Acquire) {
            return Some(done);
        }
        if self.lane.world.is_done(self.seq) {
            self.lane.harvest(self.seq.queue());
            // A destroyed context's work counts as done when it was dropped.
            return Some(self.done_ns.load(Ordering::Acquire).max(1));
        }
        None
    }

    /// The same, after bringing the timeline up to now.
    pub(crate) fn poll(&self) -> bool {
        self.done_ns().is_some() || {
            self.lane.world.advance();
            self.done_ns().is_some()
        }
    }
}

/// A piece of work for the timeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub kind: Kind,
    pub duration: u64,
    pub width: u16,
    pub priority: u8,
    /// Kernels of the client's that it stands for.
    pub kernels: u32,
}

impl Piece {
    pub(crate) const MARKER: Piece = Piece { kind: Kind::Marker, duration: 0, width: 0, priority: 0, kernels: 0 };
    pub(crate) const GATE: Piece = Piece { kind: Kind::Gate, duration: 0, width: 0, priority: 0, kernels: 0 };

    /// Work of the driver's own that fills the GPU for so long: a copy within the device, a fill.
    pub(crate) fn filling(duration: u64) -> Piece {
        Piece { kind: Kind::Kernel, duration, width: WHOLE, priority: 0, kernels: 0 }
    }
}

pub(crate) struct Lane {
    pub world: &'static World,
    pub chan: usize,
    /// What the kernel module has of it, if there is one.
    channels: Mutex<Option<Channels>>,
    sides: Mutex<Sides>,
}

struct Sides {
    /// Marks still to be harvested, oldest first, by queue.
    marks: [VecDeque<Arc<Mark>>; QUEUES],
    /// The newest piece in each queue.
    last: [Option<Seq>; QUEUES],
    /// The newest piece of a blocking stream in each queue.
    last_blocking: [Option<Seq>; QUEUES],
}

impl Lane {
    pub(crate) fn new(world: &'static World, gpu: usize) -> Option<Arc<Lane>> {
        let chan = world.claim_channel(gpu)?;
        let sides = Sides {
            marks: std::array::from_fn(|_| VecDeque::new()),
            last: [None; QUEUES],
            last_blocking: [None; QUEUES],
        };
        let channels = Mutex::new(Channels::new(world, gpu, chan));
        Some(Arc::new(Lane { world, chan, channels, sides: Mutex::new(sides) }))
    }

    /// Puts work in behind everything that must come before it, and behind `after`. Waits while the queue is full.
    pub(crate) fn submit(&self, queue: usize, order: Order, piece: Piece, after: &[Seq]) -> Seq {
        self.put(queue, order, piece, after, |_, seq| seq)
    }

    /// The same, and keeps a mark of when it is done.
    pub(crate) fn submit_marked(
        self: &Arc<Self>,
        queue: usize,
        order: Order,
        piece: Piece,
        after: &[Seq],
    ) -> Arc<Mark> {
        self.submit_noted(queue, order, piece, after, Arc::clone)
    }

    /// The same. The mark is noted before the GPU hears of the work, which is the last thing that a call does: whoever
    /// reads the clock when it returns knows when that was.
    pub(crate) fn submit_noted<T>(
        self: &Arc<Self>,
        queue: usize,
        order: Order,
        piece: Piece,
        after: &[Seq],
        note: impl FnOnce(&Arc<Mark>) -> T,
    ) -> T {
        self.put(queue, order, piece, after, |sides, seq| {
            let mark = Arc::new(Mark { seq, lane: Arc::clone(self), done_ns: AtomicU64::new(0) });
            let noted = note(&mark);
            sides.marks[queue].push_back(mark);
            noted
        })
    }

    fn put<T>(
        &self,
        queue: usize,
        order: Order,
        piece: Piece,
        after: &[Seq],
        before: impl FnOnce(&mut Sides, Seq) -> T,
    ) -> T {
        let mut sides = self.sides.lock();
        let mut waits: [Option<Seq>; QUEUES] = [None; QUEUES];
        let mut count = 0;
        {
            let mut wait = |seq: Seq| {
                // An earlier piece of the same queue is before us anyway.
                let same = seq.chan() == self.chan && seq.queue() == queue;
                if !same && !self.world.is_done(seq) && count < QUEUES {
                    waits[count] = Some(seq);
                    count += 1;
                }
            };
            match order {
                Order::Legacy => sides.last_blocking.iter().copied().flatten().for_each(&mut wait),
                Order::Blocking => sides.last[0].into_iter().for_each(&mut wait),
                Order::NonBlocking => {}
            }
        }
        let implicit = waits[..count].iter().copied().flatten();
        let explicit = after.iter().copied().filter(|seq| !self.world.is_done(*seq));
        let mut waits: Vec<Seq> = Vec::new(); // does not allocate while empty
        waits.extend(implicit.chain(explicit));
        while waits.len() > 2 {
            let pair = [waits.pop(), waits.pop()];
            self.push(&mut sides, queue, &Piece::MARKER, pair, |_, _| ());
        }
        let pair = [waits.pop(), waits.pop()];
        self.push(&mut sides, queue, &piece, pair, |sides, seq| {
            sides.last[queue] = Some(seq);
            if order == Order::Blocking {
                sides.last_blocking[queue] = Some(seq);
            }
            before(sides, seq)
        })
    }

    fn push<T>(
        &self,
        sides: &mut parking_lot::MutexGuard<'_, Sides>,
        queue: usize,
        piece: &Piece,
        after: [Option<Seq>; 2],
        before: impl FnOnce(&mut Sides, Seq) -> T,
    ) -> T {
        let Piece { kind, duration, width, priority, kernels } = *piece;
        let op = NewOp { kind, duration, width, priority, kernels, after };
        let next = loop {
            harvest_queue(self.world, sides, queue);
            if let Some(next) = self.world.next(self.chan, queue) {
                break next;
            }
            // Other threads' launches, and those who look at marks, must not wait for our room.
            parking_lot::MutexGuard::unlocked(sides, || self.world.wait_for_room(self.chan, queue));
        };
        let result = before(sides, next);
        // There is room: it only becomes more, but for us.
        self.world.push(self.chan, queue, &op);
        result
    }

    /// Notes when finished work was done, before its queue entry is used again.
    pub(crate) fn harvest(&self, queue: usize) {
        harvest_queue(self.world, &mut self.sides.lock(), queue);
    }

    /// The newest piece of every queue; for waiting until a context is idle.
    pub(crate) fn newest(&self) -> Vec<Seq> {
        self.sides.lock().last.iter().copied().flatten().collect()
    }

    /// Everything a piece at the end of this queue would have to wait for.
    pub(crate) fn pending(&self, queue: usize, order: Order) -> Vec<Seq> {
        let sides = self.sides.lock();
        let mut all: Vec<Seq> = sides.last[queue].into_iter().collect();
        match order {
            Order::Legacy => all.extend(sides.last_blocking.iter().copied().flatten()),
            Order::Blocking => all.extend(sides.last[0]),
            Order::NonBlocking => {}
        }
        all.retain(|seq| !self.world.is_done(*seq));
        all
    }

    /// Gives the channel back; what is still queued is dropped.
    pub(crate) fn close(&self) {
        drop(self.channels.lock().take());
        self.world.release_channel(self.chan);
        for queue in 0..QUEUES {
            self.harvest(queue);
        }
    }
}

fn harvest_queue(world: &World, sides: &mut Sides, queue: usize) {
    while let Some(mark) = sides.marks[queue].front() {
        if !world.is_done(mark.seq) {
            return;
        }
        mark.done_ns.store(world.done_at(mark.seq).max(1), Ordering::Release);
        sides.marks[queue].pop_front();
    }
}
