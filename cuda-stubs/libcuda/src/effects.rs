//! What work does besides taking time: moving bytes, running host functions, waiting for values in memory.
//!
//! An effect is done after its piece of work is done on the timeline, in the order of the timeline, by whichever thread looks
//! first: one that synchronises, or the process's own worker, so that a program which only watches its memory sees it change.
//! Host functions are the worker's alone. A gate's effect comes before its piece is done: it is what opens the gate.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use sim_world::channel::nap_for;
use sim_world::{World, life};

use crate::lane::Mark;

/// What is done, once.
type Act = Box<dyn FnOnce() + Send>;

/// Something to do.
pub(crate) enum Effect {
    /// Once the mark is done.
    After(Act),
    /// When the timeline stands at this gate: run it on the worker, then open the gate.
    Host(Act),
    /// Once the mark is done, but on the worker alone: functions of the client's that nobody waits for.
    OnWorker(Act),
    /// When the timeline stands at this gate: open it as soon as this says so.
    Until(Box<dyn FnMut() -> bool + Send>),
}

struct Pending {
    mark: Arc<Mark>,
    effect: Effect,
}

pub(crate) struct Effects {
    world: &'static World,
    pending: Mutex<Vec<Pending>>,
    /// Held while effects are done, so that they are done one at a time and in order.
    turn: Mutex<()>,
    work: Condvar,
    started: AtomicBool,
}

impl Effects {
    pub(crate) fn new(world: &'static World) -> Effects {
        Effects {
            world,
            pending: Mutex::new(Vec::new()),
            turn: Mutex::new(()),
            work: Condvar::new(),
            started: AtomicBool::new(false),
        }
    }

    /// Adds an effect; `self` is the process's own, which lives for ever.
    pub(crate) fn add(&'static self, mark: Arc<Mark>, effect: Effect) {
        if !self.started.swap(true, Ordering::Relaxed) {
            let spawned = life::block_signals(|| {
                std::thread::Builder::new().name("ration-sim-work".into()).spawn(move || self.worker())
            });
            if spawned.is_err() {
                eprintln!(
                    "ration-sim: no thread for host functions and copies; they are done at the next synchronisation"
                );
            }
        }
        self.pending.lock().push(Pending { mark, effect });
        self.work.notify_one();
    }

    /// Does everything whose time has come, host functions excepted. Called before a client is told that work is done.
    pub(crate) fn settle(&self) {
        if self.pending.lock().is_empty() {
            // An effect taken out by another thread may still be under way.
            drop(self.turn.lock());
            return;
        }
        let _turn = self.turn.lock();
        let mut ready: Vec<(u64, Act)> = Vec::new();
        {
            let mut pending = self.pending.lock();
            // The last is asked first: the timeline goes on meanwhile, and of two pieces of a stream the later one must not
            // be found done when the earlier one was not yet.
            let mut done: Vec<Option<u64>> = pending.iter().rev().map(|item| item.mark.done_ns()).collect();
            let mut kept = Vec::with_capacity(pending.len());
            for item in pending.drain(..) {
                match (item.effect, done.pop().flatten()) {
                    (Effect::After(act), Some(done)) => ready.push((done, act)),
                    // Its context was destroyed under it.
                    (Effect::Host(_) | Effect::Until(_), Some(_)) => {}
                    (effect, _) => kept.push(Pending { mark: item.mark, effect }),
                }
            }
            *pending = kept;
        }
        ready.sort_by_key(|(done, _)| *done); // stable: equal times stay in the order they were put in
        for (_, act) in ready {
            act();
        }
    }

    /// One function for the worker whose time has come, if there is one, and the gate that it holds.
    fn reached(&self) -> Option<(Option<Arc<Mark>>, Act)> {
        let mut pending = self.pending.lock();
        let at = pending.iter().position(|p| match p.effect {
            Effect::Host(_) => self.world.gate_reached(p.mark.seq),
            Effect::OnWorker(_) => p.mark.done_ns().is_some(),
            Effect::After(_) | Effect::Until(_) => false,
        })?;
        match pending.remove(at) {
            Pending { mark, effect: Effect::Host(act) } => Some((Some(mark), act)),
            Pending { effect: Effect::OnWorker(act), .. } => Some((None, act)),
            other => {
                pending.insert(at, other);
                None
            }
        }
    }

    fn check_values(&self) -> bool {
        let mut waiting = false;
        for item in self.pending.lock().iter_mut() {
            if let Effect::Until(holds) = &mut item.effect {
                waiting = true;
                if self.world.gate_reached(item.mark.seq) && holds() {
                    self.world.open_gate(item.mark.seq);
                }
            }
        }
        waiting
    }

    fn worker(&'static self) {
        loop {
            {
                let mut pending = self.pending.lock();
                while pending.is_empty() {
                    self.work.wait(&mut pending);
                }
            }
            self.world.advance();
            self.settle();
            let mut busy = self.check_values();
            while let Some((gate, act)) = self.reached() {
                // A panic in a client's function is the client's; it must not take the worker with it.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
                if let Some(gate) = gate {
                    self.world.open_gate(gate.seq);
                }
                busy = true;
                self.world.advance();
                self.settle();
            }
            let next = self.pending.lock().first().map(|p| p.mark.seq);
            let nap = next.map_or(Duration::ZERO, |seq| self.world.at_least(seq));
            nap_for(nap.min(Duration::from_micros(if busy { 100 } else { 1000 })));
        }
    }
}
