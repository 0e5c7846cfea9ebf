//! What the GPUs do, and when: a discrete simulation that whoever holds the lock brings up to the present.
//!
//! Who has a GPU's compute engine is decided in `compute`. Copy engines serve one copy at a time in each direction, whichever
//! context it comes from, beside the compute engine. What takes no time (an event, a join) is done when all before it in its
//! queue is, and its context is on the compute engine; behind a copy it is the copy engine's.

use std::sync::atomic::Ordering;

use crate::channel::{Kind, Seq};
use crate::layout::{CHANS, Chan, DEPTH, Gpu, HISTORY, HISTORY_NS, Op, Queue, WorldFile};
use crate::life;
use crate::lock::Tx;

mod compute;

use compute::Running;
pub(crate) use compute::abandon;
pub use compute::{set_off, set_slice};

/// Brings everything up to simulated time `to`.
pub fn advance(tx: &Tx<'_>, to: u64) {
    let file = tx.file();
    bury_idle_dead(tx);
    let gpus = file.settings.gpus as usize;
    let mut now = file.clock.get();
    loop {
        let mut next = to.max(now);
        let mut running = [Running::default(); crate::layout::GPUS];
        loop {
            while settle(tx, now, &mut next) {}
            for (gpu, run) in running.iter_mut().enumerate().take(gpus) {
                *run = compute::dispatch(tx, gpu, now, &mut next);
            }
            tx.commit();
            // One that came onto the engine with what takes no time is done with it at once.
            if !running.iter().any(Running::is_for_no_time) {
                break;
            }
        }
        if now >= to {
            return;
        }
        let until = next.max(now + 1).min(to);
        for (gpu, run) in running.iter().enumerate().take(gpus) {
            compute::progress(tx, gpu, run, until - now);
        }
        tx.set(&file.clock, until);
        write_history(tx, until);
        tx.commit();
        now = until;
    }
}

/// A dead process's queued work must not run on: those that have work are looked at every time.
fn bury_idle_dead(tx: &Tx<'_>) {
    let file = tx.file();
    for gpu in &file.gpus[..file.settings.gpus as usize] {
        for chan in active_channels(gpu) {
            let proc = file.chans[chan].proc.get() as usize;
            if life::is_over(&file.procs[proc].life) {
                crate::procs::reap(tx);
                return;
            }
        }
    }
}

fn active_channels(gpu: &Gpu) -> impl Iterator<Item = usize> + '_ {
    gpu.active
        .iter()
        .enumerate()
        .flat_map(|(i, bits)| bits_of(bits.load(Ordering::Acquire)).map(move |bit| i * 64 + bit))
}

fn bits_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    })
}

/// Finishes everything that can be finished at `now` without time passing. True when something was, so that something else
/// may now be ready.
fn settle(tx: &Tx<'_>, now: u64, next: &mut u64) -> bool {
    let file = tx.file();
    let mut changed = false;
    for (gpu_index, gpu) in file.gpus[..file.settings.gpus as usize].iter().enumerate() {
        for chan in active_channels(gpu) {
            let channel = &file.chans[chan];
            let is_on_engine = compute::is_on_engine(gpu, channel, chan, now);
            for queue in bits_of(u64::from(channel.active.load(Ordering::Acquire))) {
                changed |= settle_queue(tx, gpu_index, channel, &channel.queues[queue], is_on_engine, now, next);
                let q = &channel.queues[queue];
                if q.done.get() == q.pushed.get() {
                    channel.active.fetch_and(!(1 << queue), Ordering::SeqCst);
                    if q.done.get() != q.pushed.get() {
                        channel.active.fetch_or(1 << queue, Ordering::SeqCst);
                    }
                }
            }
            if channel.active.load(Ordering::SeqCst) == 0 {
                let (bits, bit) = (&gpu.active[chan / 64], 1 << (chan % 64));
                bits.fetch_and(!bit, Ordering::SeqCst);
                if channel.active.load(Ordering::SeqCst) != 0 {
                    bits.fetch_or(bit, Ordering::SeqCst);
                }
            }
        }
    }
    changed
}

fn settle_queue(
    tx: &Tx<'_>,
    gpu: usize,
    channel: &Chan,
    q: &Queue,
    is_on_engine: bool,
    now: u64,
    next: &mut u64,
) -> bool {
    let file = tx.file();
    let mut changed = false;
    while q.done.get() != q.pushed.get() {
        let op = &q.ops[(q.done.get() % DEPTH) as usize];
        if op.submitted.get() > now {
            *next = (*next).min(op.submitted.get());
            break;
        }
        if !ready(file, op, now) || (!is_on_engine && takes_no_time(q, op)) {
            break;
        }
        match Kind::of(op.kind.get()) {
            Kind::Marker => {
                if q.begun.get() == 0 {
                    tx.set(&op.began_at, now);
                }
            }
            Kind::Gate => {
                if q.begun.get() == 0 {
                    tx.set(&q.begun, 1);
                    tx.set(&op.began_at, now);
                }
                if op.gate.get() == 0 {
                    break;
                }
            }
            kind @ (Kind::CopyIn | Kind::CopyOut) => {
                let engine = &file.gpus[gpu].copy_until[usize::from(kind == Kind::CopyOut)];
                if q.begun.get() == 0 {
                    if engine.get() > now {
                        *next = (*next).min(engine.get());
                        break;
                    }
                    tx.set(&q.begun, 1);
                    tx.set(&op.began_at, now);
                    tx.set(&q.left, now + op.duration.get());
                    tx.set(engine, now + op.duration.get());
                    tx.add(&file.procs[channel.proc.get() as usize].gpu[gpu].copying, op.duration.get());
                }
                if q.left.get() > now {
                    *next = (*next).min(q.left.get());
                    break;
                }
            }
            Kind::Kernel => {
                if op.duration.get() == 0 {
                    tx.set(&op.began_at, now);
                } else if q.begun.get() == 0 || q.left.get() > 0 {
                    break; // the engine's, not ours
                }
                tx.add(&file.procs[channel.proc.get() as usize].gpu[gpu].kernels, op.kind.get() >> 32);
            }
        }
        finish(tx, q, op, now);
        changed = true;
    }
    changed
}

fn ready(file: &WorldFile, op: &Op, now: u64) -> bool {
    op.submitted.get() <= now
        && op
            .after
            .iter()
            .filter_map(|word| Seq::from_word(word.get()))
            .all(|seq| file.chans[seq.chan()].queues[seq.queue()].done.get() >= seq.number())
}

/// Whether it needs the compute engine, but no time on it.
fn takes_no_time(q: &Queue, op: &Op) -> bool {
    match Kind::of(op.kind.get()) {
        Kind::Kernel => op.duration.get() == 0,
        Kind::Marker => q.copied.get() == 0,
        Kind::Gate => q.copied.get() == 0 && q.begun.get() == 0,
        Kind::CopyIn | Kind::CopyOut => false,
    }
}

fn finish(tx: &Tx<'_>, q: &Queue, op: &Op, now: u64) {
    match Kind::of(op.kind.get()) {
        Kind::Kernel => tx.set(&q.copied, 0),
        Kind::CopyIn | Kind::CopyOut => tx.set(&q.copied, 1),
        Kind::Marker | Kind::Gate => {}
    }
    tx.set(&op.done_at, now);
    tx.set(&q.begun, 0);
    tx.set(&q.left, 0);
    tx.add(&q.done, 1);
    tx.commit();
}

fn write_history(tx: &Tx<'_>, until: u64) {
    let file = tx.file();
    let tick = until / HISTORY_NS;
    let last = file.history_tick.get();
    if tick == last {
        return;
    }
    let gpus = file.settings.gpus as usize;
    for missed in (last + 1).max(tick.saturating_sub(HISTORY as u64 - 1))..=tick {
        let at = missed as usize % HISTORY;
        for (index, gpu) in file.gpus[..gpus].iter().enumerate() {
            tx.set(&gpu.history[at], gpu.busy.get());
            for proc in file.procs.iter().filter(|p| p.state.get() == crate::layout::PROC_LIVE) {
                proc.gpu[index].history[at].publish(proc.gpu[index].busy.get());
            }
        }
    }
    tx.set(&file.history_tick, tick);
}

const _: () = assert!(CHANS.is_multiple_of(64));
