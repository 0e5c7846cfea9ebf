//! Does what a state has decided: off, on, and how long a slice is.

use ration_policy::steer::Peer;
use ration_policy::tuning::{OFF_LATER, OVERLAP, REST, SLICE};
use ration_region::{Compute, Lease, Neighbourhood};

use crate::state::State;
use crate::{Fault, Off, Process};

/// The containers that are there, and which of them is the caller's.
pub fn peers(among: &Neighbourhood) -> (usize, Vec<Peer>) {
    let own = among.iter().position(|present| present.index == among.own);
    (own.unwrap_or(usize::MAX), among.iter().map(|present| present.peer).collect())
}

impl State {
    /// On before off, so that no time is lost between the two: whether it waits for the next one to come on.
    pub fn makes_way(&self, process: &impl Process, compute: &Compute<'_>, lease: Option<&Lease>, now: u64) -> bool {
        let Some(next) = lease.and_then(|lease| lease.holder) else { return false };
        let may_wait = self.off.is_none() && process.switch().is_prompt() && now < self.passed + OVERLAP;
        may_wait && compute.neighbourhood(&self.heard, now).get(next).is_some_and(|it| !it.is_on)
    }

    /// Off or on, unless it is so already.
    pub fn switch(&mut self, process: &impl Process, compute: &Compute<'_>, off: Option<Off>) {
        let is_new = off.is_some() && self.off.is_some() && process.switch().generation() != self.generation;
        if off.is_some() == self.off.or(self.draining).is_some() && self.draining.is_none() && !is_new {
            self.off = off;
            process.is_off(off);
            return;
        }
        self.put(process, compute, off);
    }

    /// Puts the process on or off.
    pub fn put(&mut self, process: &impl Process, compute: &Compute<'_>, off: Option<Off>) {
        let began = process.now();
        let is_waited_for = process.is_waited_for();
        self.generation = process.switch().generation();
        let result = process.switch().put(off.is_none(), self.under_way);
        let ended = process.now();
        let at = match result {
            // It was not off yet, and is not to be any more.
            Ok(_) if off.is_none() && self.draining.take().is_some() => return,
            Ok(Some(at)) => at,
            Ok(None) => return self.draining = off,
            Err(Fault::Slow) => {
                self.was_slow(ended);
                ended
            }
            Err(Fault::Broken(why)) => return self.goes_over(process, compute, why),
        };
        self.draining = None;
        compute.switched(ended - began);
        compute.is_switched_by_channels(!process.is_by_launches());
        if let Some(was) = self.off.take() {
            let time = at.saturating_sub(self.since);
            self.kept_waiting = if was == Off::Others { time } else { 0 };
            compute.was_off(time, was == Off::Limit);
            self.epoch += 1;
            self.off_before = self.off_in_all;
            self.off_in_all += began.saturating_sub(self.off_since);
            self.is_back = true;
            self.resumed = is_waited_for;
            if let Some(held) = &mut self.held {
                // It is for the time on the GPU.
                let lost = at.saturating_sub(held.since.max(self.since));
                held.until += lost;
                held.latest += lost;
                held.since += if held.since >= self.since { lost } else { 0 };
            }
            self.since = at;
        } else {
            self.since = at;
            // What ran until then was not looked at yet.
            let time = self.since.saturating_sub(self.looked);
            let rest = time * u64::from(self.exclusive) / 1_000_000;
            if rest > 0 {
                compute.charge(self.bucket(), self.looked, self.since, rest);
                self.account.is_charged(rest);
            } else {
                self.account.passed(time);
            }
            // The container's other processes may be a call later.
            let others = if self.has_siblings { time + OFF_LATER } else { 0 };
            self.debt.used(self.bucket(), self.looked, self.since, rest, others, compute.used_until());
            self.looked = self.since;
            if off == Some(Off::Others) && self.passed != 0 {
                compute.held_longer(self.since.saturating_sub(self.passed).min(2 * OVERLAP), compute.weight());
            }
        }
        self.passed = 0;
        self.off = off;
        self.off_since = ended;
        process.is_off(off);
        let facts = self.facts(!matches!(off, Some(Off::Limit | Off::Due)));
        compute.says(&self.heard, &facts, ended);
    }

    /// A call took too long. Others make contexts, say, and hold the module's lock: then not again soon. If it happens once, the
    /// process may have been stopped in the middle of it.
    fn was_slow(&mut self, now: u64) {
        if now < self.was_slow + REST {
            self.rests_until = now + REST;
        }
        self.was_slow = now;
    }

    /// Whether the switch works; once by trying. Before much is queued, because that could not be held back any more.
    pub fn try_switch(&mut self, process: &impl Process) -> Result<(), &'static str> {
        let tried = process.switch().is_usable().and_then(|()| {
            let is_first = self.off.is_none() && !std::mem::replace(&mut self.is_tried, true);
            if is_first { process.switch().put(true, false).map(|_| ()) } else { Ok(()) }
        });
        match tried {
            Err(Fault::Broken(why)) => Err(why),
            Ok(()) | Err(Fault::Slow) => Ok(()),
        }
    }

    /// Channels cannot be driven: launches are what is switched from now on. Its channels are on, and the next look decides.
    pub fn goes_over(&mut self, process: &impl Process, compute: &Compute<'_>, why: &'static str) {
        process.goes_over(why);
        process.is_off(None);
        compute.is_switched_by_channels(false);
        let now = process.now();
        if let Some(was) = self.off.take() {
            compute.was_off(now.saturating_sub(self.since), was == Off::Limit);
            self.epoch += 1;
            self.is_back = true;
        }
        (self.since, self.written, self.drains_queue) = (now, SLICE, true);
    }

    /// Whatever was decided, on: the program needs the GPU to end something.
    pub fn put_on(&mut self, process: &impl Process, compute: &Compute<'_>) {
        if self.off.or(self.draining).is_some() {
            self.put(process, compute, None);
        }
    }

    /// Gives it a slice of this length.
    pub fn set_slice(&mut self, process: &impl Process, compute: &Compute<'_>, length: u64, now: u64) {
        if now < self.rests_until {
            return;
        }
        // A change of less than a tenth is not worth the call.
        if length.abs_diff(self.written) * 10 > self.written {
            match process.switch().set_slice(length) {
                Ok(()) => {
                    self.written = length;
                    compute.is_switched_by_channels(!process.is_by_launches());
                }
                Err(Fault::Slow) => {
                    self.written = length;
                    self.was_slow(process.now());
                }
                Err(Fault::Broken(why)) => self.goes_over(process, compute, why),
            }
        }
    }
}
