//! Leases: whether the container takes them, whether it has one, and when it passes it on.

use ration_policy::steer;
use ration_policy::tuning::{
    BELIEVES, DISBELIEVES, IDLE, LEASE, LONG_ANSWER, LONGEST_OFF, LOOK, ROUND, SOON, TIMES_OFF, WAITING,
};
use ration_region::{Compute, Lease, Neighbourhood};

use crate::Off;
use crate::state::State;

/// A lease that the container has.
pub struct Held {
    pub since: u64,
    pub until: u64,
    /// And when it does at the latest, where an answer of a `latency` container is not to be interrupted by the change.
    pub latest: u64,
    /// What it was good for, in nanoseconds: its time, or what was used of it beside light ones.
    pub had: u64,
}

impl Held {
    fn new(now: u64, length: u64) -> Held {
        Held { since: now, until: now + length, latest: now + length + LONG_ANSWER, had: 0 }
    }

    /// What it counts for, when it ends now: the time; beside light ones, what was had of it. A part of it at least, in any case.
    /// (Who was stopped did not have it for longer than it was meant to.)
    fn costs(&self, now: u64) -> u64 {
        let time = now.min(self.until).saturating_sub(self.since);
        self.had.max(time / 4).min(time)
    }
}

/// How often it was kept off by others' leases for as long as can be.
#[derive(Default)]
pub struct KeptOff {
    times: u32,
    since: u64,
}

impl KeptOff {
    pub const NEW: KeptOff = KeptOff { times: 0, since: 0 };

    /// Once more: for how long others' leases do not count.
    fn again(&mut self, compute: &Compute<'_>, now: u64) -> u64 {
        if self.times == 0 || now > self.since + BELIEVES {
            *self = KeptOff { times: 0, since: now };
        }
        self.times += 1;
        if self.times < TIMES_OFF {
            return LEASE;
        }
        self.times = 0;
        compute.believes_nobody();
        DISBELIEVES
    }
}

impl State {
    /// Whether it fills the GPU, told by its demand; a `latency` container, while it gives long answers.
    pub fn fills_or_not(&mut self, is_latency: bool) {
        let may = if is_latency { self.streak.is_long() } else { self.account.pending() > WAITING };
        self.fills = may && self.demand.fills().unwrap_or(self.fills);
    }

    /// Whether it may be on, as far as leases are concerned; the newest lease, where it waits for one; and when its own ends.
    /// `is_over`: it is at its limit, and will be off in any case.
    pub fn lease(
        &mut self,
        compute: &Compute<'_>,
        among: &Neighbourhood,
        is_over: bool,
        now: u64,
    ) -> (bool, Option<Lease>, u64) {
        let own = among.get(among.own).copied();
        let takes = own.is_some_and(|it| it.peer.takes_leases() && it.peer.wants);
        let others_want = among.wanting().any(|it| it.index != among.own);
        if !takes {
            self.is_in = false;
        }
        if !takes || !others_want {
            if let Some(held) = self.held.take()
                && compute.is_leader(&self.heard, now)
            {
                // It may have been stopped, and for that long others have had the GPU.
                compute.held_for(held.costs(now), compute.weight());
                if others_want {
                    self.pass(compute, among, now);
                }
            }
            return (true, None, u64::MAX);
        }
        let is_new = !std::mem::replace(&mut self.is_in, true);
        compute.takes_turns(among, is_new);
        let weight = compute.weight();
        let lease = compute.lease(among, now);
        let length = steer::lease(weight, among.weights());
        let is_mine = lease.holder == Some(among.own);
        if is_mine && self.held.is_none() {
            (self.held, self.passed) = (Some(Held::new(now, length)), 0);
        }
        if lease.holder.is_none() && among.next(usize::MAX) == Some(among.own) && compute.is_leader(&self.heard, now) {
            compute.pass_lease(among.own, lease.number);
            (self.held, self.passed) = (Some(Held::new(now, length)), 0);
            return (true, Some(lease), now + length);
        }
        if !is_mine {
            self.held = None;
            if self.off == Some(Off::Others) && now > self.since + LONGEST_OFF {
                // One that asked for next to nothing is off for that long at most times.
                let round = u128::from(length) * u128::from(among.weights()) / u128::from(weight.ppm().max(1));
                let is_short = round <= u128::from(ROUND);
                self.free_until = now + if is_short { self.kept_off.again(compute, now) } else { LEASE };
            }
            // Where nobody holds the GPU, nobody makes way.
            return (now < self.free_until || lease.holder.is_none(), Some(lease), u64::MAX);
        }
        let Some(held) = &mut self.held else { return (true, Some(lease), u64::MAX) };
        let is_idle = self.idle_since.is_some_and(|since| now >= since.max(held.since) + IDLE);
        let answers = among.others().any(|it| it.peer.is_answering());
        if answers && !is_idle && !is_over && now + SOON >= held.until && now < held.latest {
            held.until = now + SOON + LOOK / 2;
        }
        // The next one needs a moment to come on.
        if (now + SOON >= held.until || is_idle || is_over) && compute.is_leader(&self.heard, now) {
            compute.held_for(held.costs(now), weight);
            let next = compute.neighbourhood(&self.heard, now).next(among.own);
            if next.is_none_or(|next| next == among.own) {
                *held = Held::new(now, length);
                return (true, Some(lease), held.until);
            }
            self.held = None;
            self.passed = now;
            self.pass(compute, among, now);
            return (false, Some(compute.lease(among, now)), u64::MAX);
        }
        (true, Some(lease), held.until.saturating_sub(SOON))
    }

    fn pass(&self, compute: &Compute<'_>, among: &Neighbourhood, now: u64) {
        let after = compute.neighbourhood(&self.heard, now);
        if let Some(next) = after.next(among.own).filter(|next| *next != among.own) {
            compute.pass_lease(next, compute.lease(&after, now).number);
        }
    }
}
