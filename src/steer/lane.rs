//! What a thread has launched, and how much of it the GPU has done: events of ours as marks in the program's streams.
//!
//! A lane belongs to one thread, which alone records marks, into streams that it is using; the controller alone looks at them.
//! So neither waits for the other. A mark carries the cost of what was launched since the one before it.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use ration_policy::tuning::{GAP, GAP_HELD, MARKED, PAUSE, WORK};

use ration_steer::Epoch;

use super::ahead::Ahead;
use super::costs::Entry;
use super::latch::Latch;
use super::mark::{Slot, elapsed, measured};
use crate::abi::cuda::{CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUcontext, CUdevice, CUevent};
use crate::driver::{Stream, calls, current_context};
use crate::sys;
use crate::thread::Thread;

/// Marks that may be under way. A program can queue some seconds of work: the more of them there are, the further they are apart,
/// twice as far after each twelve.
const SIZE: u64 = 128;
const DOUBLES: u64 = 12;

/// A thread's lane.
pub struct Lane {
    slots: [Slot; SIZE as usize],
    /// Marks recorded, by the thread.
    head: AtomicU64,
    /// Marks that are done, by the controller; and those that were recorded when it last looked.
    tail: AtomicU64,
    looked: AtomicU64,
    /// The thread's own: what it launched since its last mark, how much of that is enough for another, where it was, and whether the
    /// GPU is behind.
    work: Cell<u64>,
    enough: Cell<u64>,
    launches: Cell<u32>,
    unknown: Cell<u32>,
    kind: Cell<*mut Entry>,
    stream: AtomicUsize,
    context: AtomicUsize,
    device: Cell<CUdevice>,
    behind: Cell<bool>,
    /// What it launched since its last mark, as it counts for what may be under way.
    pub(super) weight: Cell<u64>,
    pub(super) ahead: Ahead,
    /// How many it has launched while the gate was closed, and which word that had.
    queued: Cell<(u32, u32)>,
    /// Launches that were begun, times two; odd while one is in the driver. And what the controller last saw of it.
    calls: AtomicU64,
    calls_seen: AtomicU64,
    /// What was launched in all, by cost.
    total: AtomicU64,
    /// Holds the stream for what is measured, and for what is kept back: how many launches, and since when.
    latch: Latch,
    kept: Cell<(u32, u64)>,
    /// When the GPU would be done with all of it, if it had nothing else to do; and how long the pauses before launches are that
    /// count as used, on average.
    free: Cell<u64>,
    pauses: Cell<u64>,
    /// The thread's own: when it launched the first that it has not waited for; 0: there is none.
    asked: Cell<u64>,
    total_asked: Cell<u64>,
    /// And when it began to wait.
    waits: Cell<u64>,
    /// How long it would take from there to the end of the wait, without anybody else, and when it last did.
    answer: AtomicU64,
    answered: AtomicU64,
    next: AtomicPtr<Lane>,
}

// SAFETY: its cells are touched by its own thread alone, or where that is gone or does not exist yet.
unsafe impl Sync for Lane {}

/// All lanes. Only ever added to; a thread block that is used again brings its lane with it.
static ALL: AtomicPtr<Lane> = AtomicPtr::new(null_mut());

/// What a launch takes besides its kernel, however far it is from the one before: others leave caches cold.
static BESIDE_OTHERS: AtomicU64 = AtomicU64::new(0);

/// Whether others use the GPU, too.
pub fn is_beside_others(is: bool) {
    BESIDE_OTHERS.store(if is { GAP_HELD } else { 0 }, Ordering::Relaxed);
}

/// All lanes.
pub fn all() -> impl Iterator<Item = &'static Lane> {
    // SAFETY: null, or a lane that is never freed.
    let first = unsafe { ALL.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |lane| unsafe { lane.next.load(Ordering::Acquire).as_ref() })
}

fn has_passed(event: usize) -> bool {
    // SAFETY: an event of ours. An error is as good as an end: nobody waits for what is not there.
    calls::without_breaking_captures(|| unsafe { calls::cuEventQuery(event as CUevent) }) != CUDA_ERROR_NOT_READY
}

/// The pause before something that is launched now, where the GPU is done with what came before it at `free`, as far as it counts as
/// used; and when it starts. Between two kernels of a backlog there is a gap; nobody else could have the GPU in a pause of some
/// microseconds.
fn pause_before(now: u64, free: u64) -> (u64, u64) {
    let start = now.max(free + GAP);
    (if start - free <= PAUSE { start - free } else { 0 }, start)
}

/// What is done, as the controller finds it.
pub struct Done {
    pub device: CUdevice,
    pub work: u64,
    pub launches: u32,
}

impl Lane {
    /// The calling thread's.
    #[inline]
    pub fn of_this_thread() -> Option<&'static Lane> {
        let thread = Thread::attached()?;
        let lane = thread.lane.load(Ordering::Relaxed);
        if lane.is_null() {
            return Lane::make(thread);
        }
        // SAFETY: made below, and never freed.
        unsafe { lane.as_ref() }
    }

    #[cold]
    fn make(thread: &Thread) -> Option<&'static Lane> {
        let lane = Box::into_raw(Box::new(Lane {
            slots: std::array::from_fn(|_| Slot::default()),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            work: Cell::new(0),
            enough: Cell::new(WORK),
            launches: Cell::new(0),
            unknown: Cell::new(0),
            kind: Cell::new(null_mut()),
            stream: AtomicUsize::new(0),
            context: AtomicUsize::new(0),
            device: Cell::new(0),
            behind: Cell::new(false),
            weight: Cell::new(0),
            ahead: Ahead::default(),
            queued: Cell::new((0, 0)),
            calls: AtomicU64::new(0),
            calls_seen: AtomicU64::new(0),
            total: AtomicU64::new(0),
            latch: Latch::new(),
            kept: Cell::new((0, 0)),
            free: Cell::new(0),
            pauses: Cell::new(0),
            asked: Cell::new(0),
            total_asked: Cell::new(0),
            waits: Cell::new(0),
            answer: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            next: AtomicPtr::new(null_mut()),
        }));
        thread.lane.store(lane, Ordering::Relaxed);
        let mut first = ALL.load(Ordering::Acquire);
        loop {
            // SAFETY: just made.
            unsafe { &*lane }.next.store(first, Ordering::Relaxed);
            match ALL.compare_exchange(first, lane, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: just made, and never freed.
                Ok(_) => return unsafe { lane.as_ref() },
                Err(now) => first = now,
            }
        }
    }

    /// What is done for a launch, our own events included, which wait for room in the queue as it does.
    #[inline]
    pub fn launching<T>(&self, work: impl FnOnce() -> T) -> T {
        let calls = self.calls.load(Ordering::Relaxed);
        self.calls.store(calls | 1, Ordering::Relaxed);
        let result = work();
        self.calls.store((calls | 1) + 1, Ordering::Relaxed);
        result
    }

    /// Its thread has left a launch without returning from it.
    pub fn leaves(&self) {
        let calls = self.calls.load(Ordering::Relaxed);
        if calls & 1 != 0 {
            self.calls.store(calls + 1, Ordering::Relaxed);
            self.latch.open();
        }
    }

    /// What holds its stream.
    pub(super) fn latch(&self) -> &Latch {
        &self.latch
    }

    /// What was launched in all, by cost.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Launches are kept back from now on.
    pub fn keeps_from(&self, now: u64) {
        self.kept.set((1, now));
    }

    /// One more is launched: how many are kept back with it, and since when, if they are.
    pub fn keeps_one_more(&self) -> Option<(u32, u64)> {
        let (count, since) = self.kept.get();
        self.kept.set((count + 1, since));
        self.latch.keeps().then_some((count + 1, since))
    }

    /// Whether what is queued now and runs later costs no more than if it ran as it comes: pauses are shorter in a backlog, but
    /// those of programs that launch seldom do not count.
    #[inline]
    pub fn may_be_packed(&self) -> bool {
        self.pauses.get() > GAP
    }

    /// Whether it may launch one more while the gate's word is this: of so many.
    #[inline]
    pub fn queues(&self, word: u32, most: u32) -> bool {
        let (was, count) = self.queued.get();
        let count = if was == word { count + 1 } else { 1 };
        self.queued.set((word, count.min(most + 1)));
        count <= most
    }

    /// Counts its launches.
    pub fn sent(&self) -> u64 {
        self.calls.load(Ordering::Relaxed) >> 1
    }

    /// Whether a launch is in the driver.
    pub fn is_launching(&self) -> bool {
        self.calls.load(Ordering::Relaxed) & 1 != 0
    }

    /// By the controller: whether a launch is in the driver that was there at the last look. It waits for room in the queue.
    pub fn is_stuck(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        self.calls_seen.swap(calls, Ordering::Relaxed) == calls && calls & 1 != 0
    }

    /// A launch that is to be measured is about to go: it needs a mark just before it, that the GPU has not passed when the launch
    /// is queued. Where it is not behind, the stream is held there until then, and [`Lane::launched`]; not for the first of its kind
    /// (`is_new`), which may load the kernel, and wait for the GPU to do so.
    pub fn before_measured(&self, is_new: bool, stream: Stream, context: CUcontext, device: CUdevice) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        let is_behind = || {
            head > self.tail.load(Ordering::Relaxed)
                && !has_passed(self.slots[((head - 1) % SIZE) as usize].event.load(Ordering::Relaxed))
        };
        self.latch.begin(!is_new && !is_behind(), stream, context);
        self.mark(stream, context, device, None) || {
            self.latch.open();
            false
        }
    }

    /// Something was launched that costs so much. `measured`: it is measured, and [`Lane::before_measured`] said that it can be.
    /// If it is the first since the thread last waited, when that was.
    #[inline]
    pub fn launched(
        &self,
        entry: &'static Entry,
        measured: bool,
        stream: Stream,
        context: CUcontext,
        device: CUdevice,
    ) -> Option<u64> {
        let cost = entry.cost();
        let pause = self.pause(cost);
        self.work.set(self.work.get() + pause);
        if entry.is_known() {
            self.work.set(self.work.get() + cost);
        } else {
            // It may be, when it is done: a program can queue a second's worth before the first of it is.
            self.unknown.set(self.unknown.get() + 1);
            self.kind.set(std::ptr::from_ref(entry).cast_mut());
        }
        let total = self.total() + cost + pause;
        self.total.store(total, Ordering::Relaxed);
        self.launches.set(self.launches.get() + 1);
        let first = (self.asked.get() == 0).then(sys::nanoseconds);
        if let Some(now) = first {
            self.asked.set(now);
            self.total_asked.set(total);
        }
        self.weight.set(self.weight.get() + entry.ahead());
        if measured || self.work.get() >= self.enough.get() || self.launches.get() >= MARKED {
            self.mark(stream, context, device, measured.then_some(entry));
            self.latch.open();
        } else {
            self.is_at(stream, context, device);
        }
        first
    }

    /// The pause before a launch of this cost, as far as it counts as used.
    #[inline]
    fn pause(&self, cost: u64) -> u64 {
        if self.latch.keeps() {
            return GAP_HELD;
        }
        if self.behind.get() {
            return GAP;
        }
        let (pause, start) = pause_before(sys::nanoseconds(), self.free.get());
        self.free.set(start + cost);
        self.pauses.set((7 * self.pauses.get() + pause) / 8);
        pause.max(BESIDE_OTHERS.load(Ordering::Relaxed))
    }

    fn is_at(&self, stream: Stream, context: CUcontext, device: CUdevice) {
        self.stream.store(stream.handle() as usize + 1, Ordering::Relaxed);
        self.context.store(context as usize, Ordering::Relaxed);
        self.device.set(device);
    }

    /// The thread is about to wait for the GPU: what it waits for is marked.
    pub fn before_wait(&self) {
        if self.asked.get() != 0 {
            self.waits.set(sys::nanoseconds());
        }
        let stream = self.stream.load(Ordering::Relaxed);
        if self.launches.get() == 0 || stream == 0 {
            return;
        }
        let stream = Stream::given((stream - 1) as _, false);
        let context = self.context.load(Ordering::Relaxed) as CUcontext;
        if current_context() == Some(context) && stream.can_be_marked() {
            self.mark(stream, context, self.device.get(), None);
        }
    }

    /// The thread has waited for the GPU.
    pub fn after_wait(&self) {
        let asked = self.asked.replace(0);
        if asked == 0 {
            return;
        }
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        // The last is from just before the wait: it may be behind what was waited for.
        let last = self.slots[(head.wrapping_sub(2) % SIZE) as usize].event.load(Ordering::Relaxed);
        if head > tail + 1 && last != 0 && !has_passed(last) {
            // More is under way: it keeps so far ahead of the GPU, and waits for no answer.
            self.answer.store(0, Ordering::Relaxed);
            return;
        }
        let (now, usual) = (sys::nanoseconds(), self.answer.load(Ordering::Relaxed));
        let launching = self.waits.get().saturating_sub(asked);
        let work = self.total() - self.total_asked.get();
        // Alone, it waits for no more than its own work: for how long it waits beside others says nothing of it. While the host
        // works, the GPU may lag behind: an answer that is mostly the host's can bear longer waits.
        let took = launching.max(work) + launching.saturating_sub(work);
        // What is longer may have had to wait for others all the same, which is not to make it wait for longer.
        let answer = match usual {
            0 => took,
            usual if took < usual => usual - (usual - took) / 2,
            usual => usual + (took - usual).min(usual) / 64,
        };
        self.answer.store(answer, Ordering::Relaxed);
        self.answered.store(now, Ordering::Relaxed);
    }

    /// When it last waited for something, and how long that usually takes from its first launch on.
    pub fn answer(&self) -> (u64, u64) {
        (self.answered.load(Ordering::Relaxed), self.answer.load(Ordering::Relaxed))
    }

    /// Records a mark. False: there is no room, or the driver would not.
    fn mark(&self, stream: Stream, context: CUcontext, device: CUdevice, measured: Option<&'static Entry>) -> bool {
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Acquire));
        // The one that was done last stays, for what is measured from it.
        if head - tail >= SIZE - 1 {
            self.behind.set(true);
            self.enough.set(self.work.get() + (WORK << (SIZE / DOUBLES)));
            return false;
        }
        self.enough.set(WORK << ((head - tail) / DOUBLES));
        let slot = &self.slots[(head % SIZE) as usize];
        let mut event = slot.event.load(Ordering::Relaxed);
        if event == 0 || slot.context.load(Ordering::Relaxed) != context as usize {
            let mut made: CUevent = null_mut();
            // SAFETY: a place to write to, in the context that the caller launches in.
            if unsafe { calls::cuEventCreate(&raw mut made, 0) } != CUDA_SUCCESS {
                return false;
            }
            event = made as usize;
            slot.event.store(event, Ordering::Relaxed);
            slot.context.store(context as usize, Ordering::Relaxed);
        }
        // SAFETY: an event of ours in the context of a stream that the caller uses.
        if unsafe { calls::cuEventRecord(event as CUevent, stream.handle()) } != CUDA_SUCCESS {
            return false;
        }
        let before = &self.slots[(head.wrapping_sub(1) % SIZE) as usize];
        let is_same = head > 0
            && self.stream.load(Ordering::Relaxed) == stream.handle() as usize + 1
            && before.context.load(Ordering::Relaxed) == context as usize;
        let sealed = is_same && head > tail && !has_passed(before.event.load(Ordering::Relaxed));
        self.behind.set(sealed);
        slot.device.store(device as u32, Ordering::Relaxed);
        slot.work.store(self.work.get(), Ordering::Relaxed);
        slot.launches.store(self.launches.get(), Ordering::Relaxed);
        slot.unknown.store(self.unknown.take(), Ordering::Relaxed);
        slot.kind.store(self.kind.get(), Ordering::Relaxed);
        slot.weight.store(self.weight.take(), Ordering::Relaxed);
        slot.sealed.store(sealed, Ordering::Relaxed);
        let measured = measured.filter(|_| is_same).map_or(null_mut(), |entry| std::ptr::from_ref(entry).cast_mut());
        slot.measured.store(measured, Ordering::Relaxed);
        slot.is_done_in(Epoch::default());
        self.work.set(0);
        self.launches.set(0);
        self.is_at(stream, context, device);
        // Last: the controller sees all of the above.
        self.head.store(head + 1, Ordering::Release);
        true
    }

    /// Up to which mark all are done. Asking the driver takes a lock that launches take too, so it is asked by halves: marks of
    /// one stream are done in order, and a thread that uses several at a time has them done in about that order.
    fn done_until(&self, tail: u64, head: u64) -> u64 {
        let is_done = |mark: u64| {
            let event = self.slots[(mark % SIZE) as usize].event.load(Ordering::Relaxed);
            event == 0 || has_passed(event)
        };
        if tail == head || is_done(head - 1) {
            return head;
        }
        let (mut low, mut high) = (tail, head - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_done(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// By its thread: up to which mark all are done that are in a context; and what the marks from there on count for, in order.
    pub(super) fn under_way(&self, context: CUcontext) -> (u64, impl Iterator<Item = u64>) {
        let (head, tail) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Acquire));
        let is_here = |slot: &Slot| slot.context.load(Ordering::Relaxed) == context as usize;
        // Others may be letting another context go, and our events with it.
        let here = (tail..head).rev().take_while(|mark| is_here(&self.slots[(mark % SIZE) as usize])).count();
        let done = self.done_until(head - here as u64, head);
        (done, (done..head).map(|mark| self.slots[(mark % SIZE) as usize].weight.load(Ordering::Relaxed)))
    }

    /// By the controller: what the GPU has done since it last looked.
    /// `frozen`: a bit for each GPU on which the channels are off. Nothing is done there, and the driver is not asked: another thread
    /// may wait in it, with a lock, until they are on, and who puts them on must not wait for that one.
    pub fn look(&self, frozen: u64, epoch: impl Fn(CUdevice) -> Epoch, mut done: impl FnMut(Done)) {
        let mut tail = self.tail.load(Ordering::Relaxed);
        let is_frozen = |mark: &u64| {
            let device = self.slots[(mark % SIZE) as usize].device.load(Ordering::Relaxed);
            frozen >> (device % 64) & 1 != 0
        };
        let head = self.head.load(Ordering::Acquire);
        let head = if frozen == 0 { head } else { (tail..head).find(is_frozen).unwrap_or(head) };
        let done_until = self.done_until(tail, head);
        while tail < done_until {
            let slot = &self.slots[(tail % SIZE) as usize];
            let event = slot.event.load(Ordering::Relaxed);
            let device = slot.device.load(Ordering::Relaxed) as CUdevice;
            let now = epoch(device);
            slot.is_done_in(now);
            let (work, launches) = (slot.work.load(Ordering::Relaxed), slot.launches.load(Ordering::Relaxed));
            // SAFETY: null, or an entry of the table, which is static.
            let entry = unsafe { slot.measured.load(Ordering::Relaxed).as_ref() };
            let before = &self.slots[(tail.wrapping_sub(1) % SIZE) as usize];
            let from = before.event.load(Ordering::Relaxed);
            if let Some(entry) = entry.filter(|_| event != 0 && from != 0)
                && let Some(took) = elapsed(from, event)
            {
                let (took, sealed) = measured(took, slot.sealed.load(Ordering::Relaxed), before.epoch(), now);
                entry.learn(took, sealed);
            }
            done(Done { device, work: work + slot.unknown().map_or(0, |(kind, count)| count * kind.cost()), launches });
            tail += 1;
            self.tail.store(tail, Ordering::Release);
        }
    }

    /// By the controller, after [`Lane::look`]: the GPU on which something is under way, whether that was so at the last look, and
    /// what it costs until the next mark is done; `u64::MAX`: that is not known.
    pub fn pending_on(&self) -> Option<(CUdevice, bool, u64)> {
        let (head, tail) = (self.head.load(Ordering::Acquire), self.tail.load(Ordering::Relaxed));
        let was_there = tail < self.looked.swap(head, Ordering::Relaxed);
        let slot = &self.slots[(tail % SIZE) as usize];
        (head > tail)
            .then(|| (slot.device.load(Ordering::Relaxed) as CUdevice, was_there, slot.costs().unwrap_or(u64::MAX)))
    }

    /// A stream goes away, or records a graph from now on: no mark goes into it any more.
    pub fn forget_stream(&self, stream: Stream) {
        let handle = stream.handle() as usize + 1;
        let _ = self.stream.compare_exchange(handle, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A context goes away, and our events with it. The controller does not look meanwhile.
    pub fn forget_context(&self, context: CUcontext) {
        for slot in self.slots.iter().filter(|slot| slot.context.load(Ordering::Relaxed) == context as usize) {
            slot.event.store(0, Ordering::Relaxed);
            slot.context.store(0, Ordering::Relaxed);
        }
        self.latch.forget_context(context);
        let _ = self.context.compare_exchange(context as usize, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// In a forked child: the events are its parent's.
    pub fn forget_the_parent(&self) {
        for slot in &self.slots {
            slot.event.store(0, Ordering::Relaxed);
        }
        self.tail.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
        self.stream.store(0, Ordering::Relaxed);
        self.work.set(0);
        self.launches.set(0);
        self.unknown.set(0);
        self.weight.set(0);
        self.ahead.forget();
        self.latch.forget_the_parent();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What of the pauses counts when kernels of this cost are launched so far apart.
    fn counted(apart: u64, cost: u64) -> u64 {
        let (mut free, mut sum) = (1_000_000, 0);
        for launch in 0..100 {
            let (pause, start) = pause_before(1_000_000 + launch * apart, free);
            (free, sum) = (start + cost, sum + pause);
        }
        sum / 100
    }

    #[test]
    fn pauses_that_nobody_could_use_count() {
        assert_eq!(counted(1_000, 2_000), GAP, "the GPU is behind");
        assert!((2_100..=2_200).contains(&counted(3_000, 800)), "as fast as the host can launch");
        assert!(counted(20_000, 2_000) < 100, "others can have the GPU in between");
    }
}
