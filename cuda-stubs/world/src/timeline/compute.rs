//! A GPU's compute engine: which context has it, and what of that context runs.
//!
//! The decision is [`sim_scheduler::Engine`]'s, the same that unit tests use in virtual time; its state lies in the world, so
//! that every process sees and moves the same one. Inside a context, kernels of different queues run side by side while they
//! fit the GPU.

use std::sync::atomic::Ordering;

use sim_scheduler::{Doing, Engine, Groups};

use super::{active_channels, bits_of, ready, takes_no_time};
use crate::channel::{Kind, WHOLE};
use crate::layout::{Chan, DEPTH, Gpu, QUEUES, TRACE, WorldFile};
use crate::lock::Tx;

/// What runs on a GPU from now on, until something changes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Running {
    /// Channel + 1.
    chan: usize,
    /// Its queues whose first operation runs.
    queues: u32,
    /// Whether it is being restored.
    restoring: bool,
    /// Whether the engine is between contexts.
    switching: bool,
}

impl Running {
    /// Whether a context is on the engine that has nothing to do there but what takes no time.
    pub(super) fn is_for_no_time(&self) -> bool {
        self.chan != 0 && self.queues == 0 && !self.restoring
    }
}

/// The contexts of a GPU, as the engine sees them.
struct View<'t, 'w> {
    tx: &'t Tx<'w>,
    gpu: &'w Gpu,
    now: u64,
}

impl View<'_, '_> {
    fn chan(&self, group: usize) -> &Chan {
        &self.tx.file().chans[group]
    }
}

impl Groups for View<'_, '_> {
    fn has_work(&self, group: usize) -> bool {
        let (kernels, at_once) = ready_work(self.tx.file(), group, self.now);
        kernels | at_once != 0
    }

    fn is_on(&self, group: usize) -> bool {
        self.chan(group).off.get() == 0
    }

    fn slice(&self, group: usize) -> u64 {
        self.chan(group).slice.get()
    }

    fn next_after(&self, group: Option<usize>) -> Option<usize> {
        let after = group.map_or(0, |group| group + 1);
        let mut wrapped = None;
        for chan in active_channels(self.gpu) {
            let skipped = Some(chan) == group || (chan < after && wrapped.is_some());
            if skipped || !self.is_on(chan) || !self.has_work(chan) {
                continue;
            }
            if chan >= after {
                return Some(chan);
            }
            wrapped = Some(chan);
        }
        wrapped
    }

    fn is_saved(&self, group: usize) -> bool {
        self.chan(group).saved.get() != 0
    }

    fn set_saved(&mut self, group: usize, saved: bool) {
        self.tx.set(&self.chan(group).saved, u64::from(saved));
    }
}

fn load(gpu: &Gpu) -> Engine {
    Engine {
        resident: (gpu.resident.get() as usize).checked_sub(1),
        used: gpu.slice_used.get(),
        granted: gpu.granted.get(),
        left_at: gpu.left_at.get(),
        restored_at: gpu.restored_at.get(),
        dry_at: gpu.dry_at.get(),
    }
}

fn store(tx: &Tx<'_>, gpu: &Gpu, engine: &Engine) {
    let words = [
        (&gpu.resident, engine.resident.map_or(0, |chan| chan as u64 + 1)),
        (&gpu.slice_used, engine.used),
        (&gpu.granted, engine.granted),
        (&gpu.left_at, engine.left_at),
        (&gpu.restored_at, engine.restored_at),
        (&gpu.dry_at, engine.dry_at),
    ];
    for (word, value) in words {
        if word.get() != value {
            tx.set(word, value);
        }
    }
}

/// Whether a context's work can run at `now`.
pub(super) fn is_on_engine(gpu: &Gpu, channel: &Chan, chan: usize, now: u64) -> bool {
    let there = gpu.resident.get() == chan as u64 + 1 && channel.off.get() == 0;
    there && now >= gpu.left_at.get() && now >= gpu.restored_at.get()
}

/// Decides who has the compute engine at `now`.
pub(super) fn dispatch(tx: &Tx<'_>, gpu_index: usize, now: u64, next: &mut u64) -> Running {
    let file = tx.file();
    let gpu = &file.gpus[gpu_index];
    let mut engine = load(gpu);
    let before = engine.resident;
    let doing = engine.decide(now, file.settings.costs(), &mut View { tx, gpu, now });
    if engine.resident != before || doing == Doing::Idle {
        end_run(tx, gpu_index, now);
    }
    store(tx, gpu, &engine);
    match doing {
        Doing::Idle => Running::default(),
        Doing::Switching { until } => {
            *next = (*next).min(until);
            Running { switching: true, ..Running::default() }
        }
        Doing::Restoring { group, until } => {
            *next = (*next).min(until);
            begin_run(tx, gpu, now);
            Running { chan: group + 1, restoring: true, ..Running::default() }
        }
        Doing::Running { group, until } => match ready_work(file, group, now) {
            (0, _) => Running { chan: group + 1, ..Running::default() },
            (kernels, _) => {
                *next = (*next).min(until);
                run(tx, gpu, group, kernels, now, next)
            }
        },
    }
}

/// Queues of a channel whose first operation may run or runs: those where it is a kernel, and those where it takes no time.
fn ready_work(file: &WorldFile, chan: usize, now: u64) -> (u32, u32) {
    let channel = &file.chans[chan];
    let (mut kernels, mut at_once) = (0, 0);
    for queue in bits_of(u64::from(channel.active.load(Ordering::Acquire))) {
        let q = &channel.queues[queue];
        if q.done.get() != q.pushed.get() {
            let op = &q.ops[(q.done.get() % DEPTH) as usize];
            // Something that becomes ready later is an event of `settle`, which sees the same operation.
            if !ready(file, op, now) {
                continue;
            }
            if takes_no_time(q, op) {
                at_once |= 1 << queue;
            } else if Kind::of(op.kind.get()) == Kind::Kernel {
                kernels |= 1 << queue;
            }
        }
    }
    (kernels, at_once)
}

/// Puts as many of a channel's ready kernels on the engine as fit, begun ones first, then by priority and age.
fn run(tx: &Tx<'_>, gpu: &Gpu, chan: usize, ready: u32, now: u64, next: &mut u64) -> Running {
    let file = tx.file();
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
        *next = (*next).min(now + q.left.get());
    }
    begin_run(tx, gpu, now);
    Running { chan: chan + 1, queues, ..Running::default() }
}

/// Lets time pass for what runs.
pub(super) fn progress(tx: &Tx<'_>, gpu_index: usize, running: &Running, time: u64) {
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
    if running.restoring {
        return;
    }
    tx.add(&gpu.slice_used, time);
    tx.add(&account.work, time);
    for queue in bits_of(u64::from(running.queues)) {
        tx.take(&channel.queues[queue].left, time);
    }
}

fn begin_run(tx: &Tx<'_>, gpu: &Gpu, now: u64) {
    if gpu.run_since.get() == 0 {
        tx.set(&gpu.run_since, now);
    }
}

/// The resident context leaves the engine, or ran dry. To be called before another becomes resident.
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

/// Sets a context's time slice, ns; the hardware knows none below a microsecond.
pub fn set_slice(tx: &Tx<'_>, chan: usize, slice: u64) {
    tx.set(&tx.file().chans[chan].slice, slice.max(1000));
}

/// Takes a context off the compute engine, or puts it back on.
pub fn set_off(tx: &Tx<'_>, chan: usize, off: bool) {
    let file = tx.file();
    let channel = &file.chans[chan];
    if channel.off.get() != u64::from(off) {
        tx.set(&channel.off, u64::from(off));
        tx.add(&file.procs[channel.proc.get() as usize].gpu[channel.gpu.get() as usize].switches, 1);
    }
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
        let mut engine = load(gpu);
        engine.forget(chan, now);
        store(tx, gpu, &engine);
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
