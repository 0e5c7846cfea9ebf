//! A context's end of the timeline: putting work in, and waiting for it.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::layout::{CHANS, Chan, DEPTH, QUEUES};
use crate::lock::Tx;
use crate::open::World;
use crate::{procs, shield, timeline};

/// What an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Takes no time: event records, joins.
    Marker = 0,
    /// Takes the compute engine.
    Kernel = 1,
    /// Takes the copy engine towards the device.
    CopyIn = 2,
    /// Takes the copy engine from the device.
    CopyOut = 3,
    /// Waits for the host: host functions, waits on values.
    Gate = 4,
}

impl Kind {
    pub(crate) fn of(word: u64) -> Kind {
        match word & 0xff {
            1 => Kind::Kernel,
            2 => Kind::CopyIn,
            3 => Kind::CopyOut,
            4 => Kind::Gate,
            _ => Kind::Marker,
        }
    }
}

/// The whole of a GPU, as the width of a kernel.
pub const WHOLE: u16 = 1000;

/// An operation to put in.
#[derive(Debug, Clone, Copy)]
pub struct NewOp {
    /// What it is.
    pub kind: Kind,
    /// GPU time, ns.
    pub duration: u64,
    /// How much of the GPU a kernel fills, in thousandths: kernels of one context run side by side while they fit.
    pub width: u16,
    /// Larger goes first among a context's ready kernels.
    pub priority: u8,
    /// How many kernels of the record it stands for: 1, or all of a graph's that run as one, or none for a copy.
    pub kernels: u32,
    /// Operations of any queue that must be finished before.
    pub after: [Option<Seq>; 2],
}

/// Names one operation of the world for ever: channel, queue, and its number in the queue, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seq(u64);

impl Seq {
    fn new(chan: usize, queue: usize, number: u64) -> Seq {
        Seq((chan as u64) << 54 | (queue as u64) << 48 | number)
    }

    /// As a word; never 0.
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// The other way.
    pub fn from_word(word: u64) -> Option<Seq> {
        let seq = Seq(word);
        (seq.number() != 0 && seq.chan() < CHANS && seq.queue() < QUEUES).then_some(seq)
    }

    /// Which channel.
    pub fn chan(self) -> usize {
        (self.0 >> 54) as usize
    }

    /// Which queue.
    pub fn queue(self) -> usize {
        (self.0 >> 48) as usize & (QUEUES - 1)
    }

    /// Its number in the queue, from 1: it is finished when the queue has finished so many.
    pub fn number(self) -> u64 {
        self.0 & ((1 << 48) - 1)
    }
}

const _: () = assert!(CHANS <= 1024 && QUEUES <= 64 && QUEUES.is_power_of_two());

impl World {
    /// A channel for a new context on a GPU.
    pub fn claim_channel(&self, gpu: usize) -> Option<usize> {
        let tx = self.lock();
        let find = || tx.file().chans.iter().position(|c| c.state.get() == 0);
        let chan = find().or_else(|| {
            procs::reap(&tx);
            find()
        })?;
        let channel = &tx.file().chans[chan];
        for q in &channel.queues {
            tx.set(&q.done, q.pushed.get());
            tx.set(&q.copied, 0);
        }
        tx.set(&channel.slice, tx.file().settings.slice);
        tx.set(&channel.off, 0);
        tx.set(&channel.saved, 0);
        tx.set(&channel.proc, self.slot() as u64);
        tx.set(&channel.gpu, gpu as u64);
        tx.set(&channel.state, 1);
        Some(chan)
    }

    /// Drops a channel and all work left in it.
    pub fn release_channel(&self, chan: usize) {
        let tx = self.lock();
        timeline::advance(&tx, self.now());
        timeline::abandon(&tx, chan);
    }

    /// Sets a context's time slice, ns: in force from its next one on, or at once if the running one is longer already.
    pub fn set_slice(&self, chan: usize, slice: u64) {
        let tx = self.lock();
        timeline::advance(&tx, self.now());
        timeline::set_slice(&tx, chan, slice);
    }

    /// Takes contexts off the compute engine, also in the middle of a kernel, or puts them back on. Copies go on.
    pub fn set_off(&self, chans: impl IntoIterator<Item = usize>, off: bool) {
        let tx = self.lock();
        timeline::advance(&tx, self.now());
        for chan in chans {
            timeline::set_off(&tx, chan, off);
        }
    }

    /// The channel.
    pub fn chan(&self, chan: usize) -> &'static Chan {
        &self.file().chans[chan]
    }

    /// Where the next operation will be, if there is room for it.
    #[inline]
    pub fn next(&self, chan: usize, queue: usize) -> Option<Seq> {
        let q = &self.chan(chan).queues[queue];
        let number = q.pushed.get();
        (number - q.done.get() < DEPTH).then(|| Seq::new(chan, queue, number + 1))
    }

    /// Puts an operation in, or says that the queue is full. One thread at a time per channel, and only by its owner.
    #[inline]
    pub fn push(&self, chan: usize, queue: usize, op: &NewOp) -> Option<Seq> {
        self.put(chan, queue, op, || self.now())
    }

    /// The same with the time given.
    #[inline]
    pub fn push_at(&self, chan: usize, queue: usize, op: &NewOp, now: u64) -> Option<Seq> {
        self.put(chan, queue, op, || now)
    }

    #[inline]
    fn put(&self, chan: usize, queue: usize, op: &NewOp, now: impl FnOnce() -> u64) -> Option<Seq> {
        let channel = self.chan(chan);
        let q = &channel.queues[queue];
        let number = q.pushed.get();
        if number - q.done.get() >= DEPTH {
            return None;
        }
        let at = &q.ops[(number % DEPTH) as usize];
        at.duration.publish(op.duration);
        let (width, priority) = (u64::from(op.width), u64::from(op.priority));
        at.kind.publish(op.kind as u64 | width << 8 | priority << 24 | u64::from(op.kernels) << 32);
        for (word, seq) in at.after.iter().zip(op.after) {
            word.publish(seq.map_or(0, Seq::to_word));
        }
        at.gate.publish(0);
        at.done_at.publish(0);
        // The GPU hears of it when all is written.
        at.submitted.publish(now());
        q.pushed.publish(number + 1);
        // The timeline clears these bits and then looks at `pushed` again; we move `pushed` and then look at the bits. The
        // fence keeps the two from missing each other.
        fence(Ordering::SeqCst);
        if channel.active.load(Ordering::Relaxed) & 1 << queue == 0 {
            channel.active.fetch_or(1 << queue, Ordering::SeqCst);
        }
        let bits = &self.file().gpus[channel.gpu.get() as usize].active[chan / 64];
        if bits.load(Ordering::Relaxed) & 1 << (chan % 64) == 0 {
            bits.fetch_or(1 << (chan % 64), Ordering::SeqCst);
        }
        Some(Seq::new(chan, queue, number + 1))
    }

    /// Whether it is known to be finished, without bringing the timeline up to now.
    #[inline]
    pub fn is_done(&self, seq: Seq) -> bool {
        self.chan(seq.chan()).queues[seq.queue()].done.get() >= seq.number()
    }

    /// Whether it is finished now.
    pub fn poll(&self, seq: Seq) -> bool {
        self.is_done(seq) || {
            self.advance();
            self.is_done(seq)
        }
    }

    /// When it was finished. Only valid until DEPTH further operations were put in.
    pub fn done_at(&self, seq: Seq) -> u64 {
        self.op(seq).done_at.get()
    }

    /// Whether the timeline has come to this gate.
    pub fn gate_reached(&self, seq: Seq) -> bool {
        let q = &self.chan(seq.chan()).queues[seq.queue()];
        q.done.get() + 1 == seq.number() && q.begun.get() != 0
    }

    /// Opens a gate.
    pub fn open_gate(&self, seq: Seq) {
        self.op(seq).gate.publish(1);
    }

    fn op(&self, seq: Seq) -> &'static crate::layout::Op {
        &self.chan(seq.chan()).queues[seq.queue()].ops[((seq.number() - 1) % DEPTH) as usize]
    }

    /// Brings the timeline up to now.
    pub fn advance(&self) -> u64 {
        let tx = self.lock();
        let now = self.now();
        timeline::advance(&tx, now);
        now
    }

    /// Real time that must at least pass before `seq` can be finished; zero when it may be finished already.
    pub fn at_least(&self, seq: Seq) -> Duration {
        let tx = self.lock();
        timeline::advance(&tx, self.now());
        self.real(lower_bound(&tx, seq))
    }

    /// Waits until it is finished.
    pub fn wait(&self, seq: Seq) {
        while !self.is_done(seq) {
            let nap = self.at_least(seq);
            if self.is_done(seq) {
                return;
            }
            nap_for(nap);
        }
    }

    /// Waits until the queue has room for one more.
    pub fn wait_for_room(&self, chan: usize, queue: usize) {
        let q = &self.chan(chan).queues[queue];
        let oldest = q.pushed.get().saturating_sub(DEPTH) + 1;
        // A quarter of the queue, so that a producer that is ahead sleeps rather than steps.
        let target = (oldest + DEPTH / 4).min(q.pushed.get());
        self.wait(Seq::new(chan, queue, oldest));
        if !self.is_done(Seq::new(chan, queue, target)) {
            let nap = self.at_least(Seq::new(chan, queue, target));
            nap_for(nap.min(Duration::from_millis(5)));
        }
    }
}

/// What is off comes on by a call, which takes longer than this.
const OFF_NAP: u64 = 100_000;

/// Sleeps about so long; never so short that the waiting itself becomes work, never so long that a surprise is missed.
pub fn nap_for(time: Duration) {
    let time = time.clamp(Duration::from_micros(20), Duration::from_millis(20));
    // A sleep ends some 60 us late on an idle machine; start early and come round again.
    let early = Duration::from_micros(50);
    shield::wait(|| std::thread::sleep(if time > 2 * early { time - early } else { time / 2 }));
}

fn lower_bound(tx: &Tx<'_>, seq: Seq) -> u64 {
    let q = &tx.file().chans[seq.chan()].queues[seq.queue()];
    let done = q.done.get();
    if done >= seq.number() {
        return 0;
    }
    let mut sum = 0u64;
    for number in done..seq.number() {
        let op = &q.ops[(number % DEPTH) as usize];
        match Kind::of(op.kind.get()) {
            Kind::Kernel if number == done && q.begun.get() != 0 => sum += q.left.get(),
            Kind::CopyIn | Kind::CopyOut if number == done && q.begun.get() != 0 => {
                sum += q.left.get().saturating_sub(tx.file().clock.get());
            }
            Kind::Kernel | Kind::CopyIn | Kind::CopyOut => sum = sum.saturating_add(op.duration.get()),
            Kind::Marker | Kind::Gate => {}
        }
    }
    if tx.file().chans[seq.chan()].off.get() != 0 { sum.max(OFF_NAP) } else { sum }
}
