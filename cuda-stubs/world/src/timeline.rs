//! What the GPUs do, and when: a discrete simulation that whoever holds the lock brings up to the present.
//!
//! A GPU's compute engine serves one context at a time. While more than one has kernels ready they take turns of one slice;
//! going from one to another costs a switch, during which nothing runs, and then a short while in which caches refill and
//! nothing gets done. A context with nothing ready is passed over, and leaving one that ran dry costs the same switch, hidden
//! when nobody waits. Inside a context, kernels of different queues run side by side while they fit the GPU. Copy engines
//! serve one copy at a time in each direction, whichever context it comes from, beside the compute engine.

use std::sync::atomic::Ordering;

use crate::channel::{Kind, Seq, WHOLE};
use crate::layout::{CHANS, Chan, DEPTH, Gpu, HISTORY, HISTORY_NS, Op, QUEUES, Queue, TRACE, WorldFile};
use crate::life;
use crate::lock::Tx;

/// Brings everything up to simulated time `to`.
pub fn advance(tx: &Tx<'_>, to: u64) {
    let file = tx.file();
    bury_idle_dead(tx);
    let gpus = file.settings.gpus as usize;
    let mut now = file.clock.get();
    loop {
        let mut next = to.max(now);
        while settle(tx, now, &mut next) {}
        let mut running = [Running::default(); crate::layout::GPUS];
        for (gpu, run) in running.iter_mut().enumerate().take(gpus) {
            *run = dispatch(tx, gpu, now, &mut next);
        }
        tx.commit();
        if now >= to {
            return;
        }
        let until = next.max(now + 1).min(to);
        for (gpu, run) in running.iter().enumerate().take(gpus) {
            progress(tx, gpu, run, until - now);
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
            for queue in bits_of(u64::from(channel.active.load(Ordering::Acquire))) {
                changed |= settle_queue(tx, gpu_index, channel, &channel.queues[queue], now, next);
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

fn settle_queue(tx: &Tx<'_>, gpu: usize, channel: &Chan, q: &Queue, now: u64, next: &mut u64) -> bool {
    let file = tx.file();
    let mut changed = false;
    while q.done.get() != q.pushed.get() {
        let op = &q.ops[(q.done.get() % DEPTH) as usize];
        if op.submitted.get() > now {
            *next = (*next).min(op.submitted.get());
            break;
        }
        if !ready(file, op, now) {
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

fn finish(tx: &Tx<'_>, q: &Queue, op: &Op, now: u64) {
    tx.set(&op.done_at, now);
    tx.set(&q.begun, 0);
    tx.set(&q.left, 0);
    tx.add(&q.done, 1);
    tx.commit();
}

/// What runs on a GPU from now on, until something changes.
#[derive(Debug, Clone, Copy, Default)]
struct Running {
    /// Channel + 1.
    chan: usize,
    /// Its queues whose first operation runs.
    queues: u32,
    /// Whether it gets anything done.
    progress: bool,
    /// Whether the engine is between contexts.
    switching: bool,
}

/// Decides who has the compute engine at `now`.
fn dispatch(tx: &Tx<'_>, gpu_index: usize, now: u64, next: &mut u64) -> Running {
    let file = tx.file();
    let gpu = &file.gpus[gpu_index];
    let settings = &file.settings;
    let mut soon = |at: u64| *next = (*next).min(at);
    if gpu.switch_until.get() > now {
        soon(gpu.switch_until.get());
        return Running { switching: true, ..Running::default() };
    }
    if gpu.switch_until.get() != 0 {
        tx.set(&gpu.switch_until, 0);
        begin_slice(tx, gpu, now, true);
    }
    let resident = gpu.resident.get() as usize;
    let kernels_of = |chan: usize| ready_kernels(file, chan, now);
    let own = if resident == 0 { 0 } else { kernels_of(resident - 1) };
    let other = next_with_kernels(gpu, resident, &kernels_of);
    match (own, other) {
        (0, None) => {
            if resident != 0 && gpu.drained_at.get() == 0 {
                end_run(tx, gpu_index, now);
                tx.set(&gpu.drained_at, now);
            }
            return Running::default();
        }
        (0, Some(other)) => {
            if resident == 0 {
                tx.set(&gpu.resident, other as u64 + 1);
                begin_slice(tx, gpu, now, false);
                return run(tx, gpu_index, other, kernels_of(other), now, next);
            }
            if gpu.drained_at.get() == 0 {
                end_run(tx, gpu_index, now);
                tx.set(&gpu.drained_at, now);
            }
            let until = gpu.drained_at.get() + settings.switch;
            tx.set(&gpu.resident, other as u64 + 1);
            tx.set(&gpu.drained_at, 0);
            if until > now {
                tx.set(&gpu.switch_until, until);
                soon(until);
                return Running { switching: true, ..Running::default() };
            }
            begin_slice(tx, gpu, now, true);
            return run(tx, gpu_index, other, kernels_of(other), now, next);
        }
        (_, Some(other)) if now >= gpu.slice_start.get() + settings.slice => {
            end_run(tx, gpu_index, now);
            tx.set(&gpu.resident, other as u64 + 1);
            tx.set(&gpu.drained_at, 0);
            if settings.switch == 0 {
                begin_slice(tx, gpu, now, true);
                return run(tx, gpu_index, other, kernels_of(other), now, next);
            }
            tx.set(&gpu.switch_until, now + settings.switch);
            soon(now + settings.switch);
            return Running { switching: true, ..Running::default() };
        }
        _ => {}
    }
    if gpu.drained_at.get() != 0 {
        tx.set(&gpu.drained_at, 0);
    }
    let elapsed = now.saturating_sub(gpu.slice_start.get());
    if elapsed >= settings.slice {
        // Alone: the slice is renewed, and its rhythm goes on.
        tx.set(&gpu.slice_start, now - elapsed % settings.slice);
    }
    run(tx, gpu_index, resident - 1, own, now, next)
}

fn begin_slice(tx: &Tx<'_>, gpu: &Gpu, now: u64, cold: bool) {
    tx.set(&gpu.slice_start, now);
    tx.set(&gpu.warm_until, if cold { now + tx.file().settings.refill } else { 0 });
}

/// Queues of a channel whose first operation is a kernel that may run or runs.
fn ready_kernels(file: &WorldFile, chan: usize, now: u64) -> u32 {
    let channel = &file.chans[chan];
    let mut mask = 0;
    for queue in bits_of(u64::from(channel.active.load(Ordering::Acquire))) {
        let q = &channel.queues[queue];
        if q.done.get() != q.pushed.get() {
            let op = &q.ops[(q.done.get() % DEPTH) as usize];
            // Something that becomes ready later is an event of `settle`, which sees the same operation.
            if Kind::of(op.kind.get()) == Kind::Kernel && ready(file, op, now) {
                mask |= 1 << queue;
            }
        }
    }
    mask
}

fn next_with_kernels(gpu: &Gpu, resident: usize, kernels_of: &impl Fn(usize) -> u32) -> Option<usize> {
    // Round robin: those after the resident one first. `resident` is channel + 1, so it is the first index after it.
    let mut wrapped = None;
    for chan in active_channels(gpu) {
        if chan + 1 == resident || (chan < resident && wrapped.is_some()) || kernels_of(chan) == 0 {
            continue;
        }
        if chan >= resident {
            return Some(chan);
        }
        wrapped = Some(chan);
    }
    wrapped
}

/// Puts as many of a channel's ready kernels on the engine as fit, begun ones first, then by priority and age.
fn run(tx: &Tx<'_>, gpu_index: usize, chan: usize, ready: u32, now: u64, next: &mut u64) -> Running {
    let file = tx.file();
    let gpu = &file.gpus[gpu_index];
    let channel = &file.chans[chan];
    let mut order: [(bool, u8, u64, usize); QUEUES] = [(false, 0, 0, 0); QUEUES];
    let mut count = 0;
    for queue in bits_of(u64::from(ready)) {
        let q = &channel.queues[queue];
        let op = &q.ops[(q.done.get() % DEPTH) as usize];
        order[count] = (q.begun.get() == 0, 255 - (op.kind.get() >> 24) as u8, op.submitted.get(), queue);
        count += 1;
    }
    let order = &mut order[..count];
    order.sort_unstable();
    let warm = gpu.warm_until.get() <= now;
    let start = if warm { now } else { gpu.warm_until.get() };
    *next = (*next).min(gpu.slice_start.get() + file.settings.slice);
    let (mut width, mut queues) = (0, 0);
    for (fresh, _, _, queue) in &*order {
        let q = &channel.queues[*queue];
        let op = &q.ops[(q.done.get() % DEPTH) as usize];
        let wide = (op.kind.get() >> 8) as u16;
        if width != 0 && width + wide > WHOLE {
            continue;
        }
        width += wide;
        if *fresh {
            tx.set(&q.begun, 1);
            tx.set(&q.left, op.duration.get());
            tx.set(&op.began_at, now);
        }
        queues |= 1 << queue;
        *next = (*next).min(start + q.left.get());
    }
    if !warm {
        *next = (*next).min(gpu.warm_until.get());
    }
    if gpu.run_since.get() == 0 {
        tx.set(&gpu.run_since, now);
    }
    Running { chan: chan + 1, queues, progress: warm, switching: false }
}

/// Lets time pass for what runs.
fn progress(tx: &Tx<'_>, gpu_index: usize, running: &Running, time: u64) {
    let file = tx.file();
    let gpu = &file.gpus[gpu_index];
    if running.switching {
        tx.add(&gpu.switching, time);
    }
    if running.chan == 0 {
        return;
    }
    let channel = &file.chans[running.chan - 1];
    let account = &file.procs[channel.proc.get() as usize].gpu[gpu_index];
    tx.add(&gpu.busy, time);
    tx.add(&account.busy, time);
    if running.progress {
        tx.add(&account.work, time);
        for queue in bits_of(u64::from(running.queues)) {
            tx.take(&channel.queues[queue].left, time);
        }
    }
}

/// The resident context leaves the engine, or ran dry.
fn end_run(tx: &Tx<'_>, gpu_index: usize, now: u64) {
    let file = tx.file();
    let gpu = &file.gpus[gpu_index];
    let (since, resident) = (gpu.run_since.get(), gpu.resident.get());
    if since == 0 || resident == 0 {
        return;
    }
    let proc = file.chans[resident as usize - 1].proc.get();
    let entry = &file.trace[file.trace_len.get() as usize % TRACE];
    tx.set(&entry.who, (gpu_index as u64) << 32 | proc);
    tx.set(&entry.start, since);
    tx.set(&entry.end, now);
    tx.add(&file.trace_len, 1);
    tx.add(&file.procs[proc as usize].gpu[gpu_index].slices, 1);
    tx.set(&gpu.run_since, 0);
}

/// Drops all that a channel still has to do and frees it: its context was destroyed, or its process is gone.
pub(crate) fn abandon(tx: &Tx<'_>, chan: usize) {
    let file = tx.file();
    let channel = &file.chans[chan];
    let gpu_index = channel.gpu.get() as usize;
    let gpu = &file.gpus[gpu_index];
    if gpu.resident.get() == chan as u64 + 1 {
        let now = file.clock.get();
        end_run(tx, gpu_index, now);
        tx.set(&gpu.drained_at, now.max(1));
    }
    for q in &channel.queues {
        if q.done.get() != q.pushed.get() {
            tx.set(&q.done, q.pushed.get());
            tx.set(&q.begun, 0);
            tx.set(&q.left, 0);
        }
    }
    tx.set(&channel.state, 0);
    tx.commit();
    channel.active.store(0, Ordering::SeqCst);
    gpu.active[chan / 64].fetch_and(!(1 << (chan % 64)), Ordering::SeqCst);
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
