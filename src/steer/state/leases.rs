//! Leases: whether the container takes them, whether it has one, and when it passes it on.

use ration_policy::steer::{self, TUNING};
use ration_region::{Compute, Lease, Neighbourhood};

use super::{LONGEST_OFF, MS, Off, State, WAITING};

/// Who has something under way for this part of the time may fill the GPU.
const FILLING: f64 = 0.9;
/// Who uses less of a lease than this, in per cent, does not: one that waits for each kernel uses 75 or more, a network that waits
/// once a step 40.
const NOT_FILLING: u64 = 55;
/// It is asked again after so long, or twice that after each time, up to the longest: a lease that is not used costs everybody
/// some 20 ms.
pub const ASKED_AGAIN: u64 = 1_000 * MS;
const LONGEST_REST: u64 = 8_000 * MS;
/// A holder with nothing to do passes the lease on after so long.
const IDLE: u64 = 2 * MS;
/// The next one needs so long to come on.
const SOON: u64 = 300_000;

/// A lease that the container has.
pub struct Held {
    pub since: u64,
    pub until: u64,
    /// How much of it could be used, and how much was, in nanoseconds.
    pub usable: u64,
    pub used: u64,
}

impl Held {
    fn new(now: u64, length: u64) -> Held {
        Held { since: now, until: now + length, usable: 0, used: 0 }
    }

    /// It was had for long enough to tell that it is not used.
    fn is_wasted(&self) -> bool {
        self.usable >= 2 * TUNING.least_lease && self.used * 100 < self.usable * NOT_FILLING
    }
}

impl State {
    /// Whether it takes leases: told by its demand, and corrected by what it does with one.
    pub fn fills_or_not(&mut self, now: u64) {
        if self.account.pending() < WAITING {
            // It rests, and may be another when it is back.
            (self.fills, self.asked_again, self.rest) = (false, 0, ASKED_AGAIN);
        } else if self.fills && self.held.as_ref().is_some_and(Held::is_wasted) {
            self.fills = false;
            self.asked_again = now + self.rest;
            self.rest = (2 * self.rest).min(LONGEST_REST);
        } else {
            let may = self.fills || self.account.pending() > FILLING && now >= self.asked_again;
            self.fills = may && self.demand.fills().unwrap_or(self.fills);
        }
    }

    /// Whether it may be on, as far as leases are concerned; the newest lease, where it waits for one; and when its own ends.
    pub fn lease(&mut self, compute: &Compute<'_>, among: &Neighbourhood, now: u64) -> (bool, Option<Lease>, u64) {
        let own = among.get(among.own).copied();
        let takes = own.is_some_and(|it| it.peer.takes_leases() && it.peer.wants);
        let others_want = among.wanting().any(|it| it.index != among.own);
        if !takes {
            self.is_in = false;
        }
        if !takes || !others_want {
            if let Some(held) = self.held.take()
                && compute.is_leader(now)
            {
                // It may have been stopped, and for that long others have had the GPU.
                compute.held_for(now.min(held.until).saturating_sub(held.since), compute.weight());
                if others_want {
                    self.pass(compute, among, now);
                }
            }
            return (true, None, u64::MAX);
        }
        if !std::mem::replace(&mut self.is_in, true) {
            compute.joins(among);
        }
        let weight = compute.weight();
        let lease = compute.lease(among, now);
        let length = steer::lease(weight, among.weights());
        let is_mine = lease.holder == Some(among.own);
        if is_mine && self.held.is_none() {
            self.held = Some(Held::new(now, length));
        }
        if lease.holder.is_none() && among.next(usize::MAX) == Some(among.own) && compute.is_leader(now) {
            compute.pass_lease(among.own, lease.number);
            self.held = Some(Held::new(now, length));
            return (true, Some(lease), now + length);
        }
        if !is_mine {
            self.held = None;
            if self.off == Some(Off::Others) && now > self.since + LONGEST_OFF {
                self.free_until = now + TUNING.lease;
            }
            // Where nobody holds the GPU, nobody makes way.
            return (now < self.free_until || lease.holder.is_none(), Some(lease), u64::MAX);
        }
        let Some(held) = &mut self.held else { return (true, Some(lease), u64::MAX) };
        let is_idle = self.idle_since.is_some_and(|since| now >= since.max(held.since) + IDLE);
        // The next one needs a moment to come on.
        if (now + SOON >= held.until || is_idle) && compute.is_leader(now) {
            compute.held_for(now.min(held.until).saturating_sub(held.since), weight);
            let next = compute.neighbourhood(now).next(among.own);
            if next.is_none_or(|next| next == among.own) {
                (held.since, held.until) = (now, now + length);
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
        let after = compute.neighbourhood(now);
        if let Some(next) = after.next(among.own).filter(|next| *next != among.own) {
            compute.pass_lease(next, compute.lease(&after, now).number);
        }
    }
}
