//! What the controller does about one GPU at each look: account, limit, lease, slice, switch.

use ration_policy::Share;
use ration_policy::steer::{self, Peer, TUNING};
use ration_region::{Compute, Facts, Lease, Neighbourhood};

use super::Steer;
use super::account::{Account, Look};
use super::demand::Demand;
use super::lane::{Done, Epoch};
use super::sounding::Sounding;
use crate::channels::{self, Trouble};
use crate::ledger::Slice;
use crate::{log, sys};
use std::sync::atomic::Ordering;

mod leases;

use leases::{ASKED_AGAIN, Held};

const MS: u64 = 1_000_000;

/// How often the controller looks while something is to be steered, and while not.
const BUSY: u64 = MS;
const CALM: u64 = 10 * MS;
/// Who launched nothing for so long is not there for others; a `latency` container is, for longer: its next request is to be
/// answered at once. But short slices for its sake cost programs that share the GPU half of it.
const GONE: u64 = 100 * MS;
const GONE_LATENCY: u64 = 1_000 * MS;
/// Who waits for less of the time than this does not want more: alone, a program that waits for each kernel does, too.
const WAITING: f64 = 0.3;
/// Nobody stays off for longer, whatever others say: twice the longest round.
const LONGEST_OFF: u64 = 2 * TUNING.round;
/// How often it is looked whether all is done, before it is off by launches.
const DRAINING: u64 = MS / 5;
/// Who passed a lease on goes off when the next one is on, or after so long.
const OVERLAP: u64 = 1_500_000;

/// After a call that took too long, so long without any but to put the channels on: the time in which a few contexts are made.
const REST: u64 = 500 * MS;

/// Why the channels are off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Off {
    Limit,
    Others,
    /// To learn what its launches cost.
    Sounding,
}

/// What is remembered of one GPU. The controller's, but for [`State::put_on`].
pub struct State {
    account: Account,
    demand: Demand,
    /// What was done since the last look.
    done: u64,
    launches: u32,
    /// Whether something is under way; as it was seen, and as it counts since the last look.
    seen_pending: bool,
    seen_blocked: bool,
    pending: bool,
    continuous: bool,
    /// Whether anything was under way at this look, besides launches that wait in their calls.
    under_way: bool,
    /// The part of the time that counts as used by who keeps the GPU busy, in millionths; 0: it does not.
    exclusive: u32,
    looked: u64,
    launched: u64,
    /// Nobody else was on the GPU at the last look.
    is_by_itself: bool,
    /// Off, why, and since when; or on since when. (By when the GPU does it, not by when it is called for.)
    off: Option<Off>,
    since: u64,
    /// Counts the times on the GPU.
    epoch: u64,
    generation: u64,
    slice: steer::Slice,
    written: u64,
    fills: bool,
    /// It did not fill the GPU when it had it: not asked again before, and the rest doubles each time.
    asked_again: u64,
    rest: u64,
    /// It is among those that take leases.
    is_in: bool,
    held: Option<Held>,
    /// Of the time of this lease, what was seen idle.
    idle_since: Option<u64>,
    burst: u64,
    burst_now: u64,
    /// It is to be off when what is under way is done: by launches.
    draining: Option<Off>,
    /// Threads that have something under way.
    lanes: u32,
    /// The switch was tried.
    is_tried: bool,
    /// It is by launches since now, and what was queued before is not done: that counts for nothing.
    drains_queue: bool,
    /// It came on, and launches were waiting for that.
    resumed: bool,
    /// No switching before: the kernel module is slow.
    rests_until: u64,
    /// It waited for too long, and is on until then, whatever others say.
    free_until: u64,
    sounding: Sounding,
    /// When it passed its last lease on: until it is off, it holds the GPU.
    passed: u64,
}

/// What was seen of the process, on all GPUs.
pub struct Seen {
    /// It has launched something since the last look.
    pub launches: bool,
    /// What it has launched in all, by cost, and what of it by a bound of its cost.
    pub launched: (u64, u64),
    /// One of its threads waits for the GPU.
    pub blocked: bool,
    /// Or is in a launch.
    pub away: bool,
    /// How long it usually takes from its first launch until it has waited for it; 0: it never waits.
    pub answer: u64,
}

/// When to look again, and what to sleep on until then.
pub struct Next {
    pub at: u64,
    pub lease: Option<Lease>,
}

impl State {
    pub const fn new() -> State {
        State {
            account: Account::new(),
            demand: Demand::NEW,
            done: 0,
            launches: 0,
            seen_pending: false,
            seen_blocked: false,
            pending: false,
            continuous: false,
            under_way: false,
            exclusive: 0,
            looked: 0,
            launched: 0,
            is_by_itself: false,
            off: None,
            since: 0,
            epoch: 1,
            generation: 0,
            slice: steer::Slice::NEW,
            written: TUNING.default_slice,
            fills: false,
            asked_again: 0,
            rest: ASKED_AGAIN,
            is_in: false,
            held: None,
            idle_since: None,
            burst: 0,
            burst_now: 0,
            draining: None,
            lanes: 0,
            is_tried: false,
            drains_queue: false,
            resumed: false,
            rests_until: 0,
            free_until: 0,
            sounding: Sounding::NEW,
            passed: 0,
        }
    }

    /// Which of its times on the GPU this is.
    pub fn epoch(&self) -> Epoch {
        let number = if self.off.is_some() { 0 } else { self.epoch };
        Epoch { number, longest: if self.is_by_itself { u64::MAX } else { self.written } }
    }

    /// So much was done.
    pub fn did(&mut self, done: &Done) {
        self.done += done.work;
        self.launches = self.launches.saturating_add(done.launches);
        self.burst_now += done.work;
    }

    /// Something is under way; and was at the last look; and a thread waits for it.
    pub fn is_pending(&mut self, continuous: bool, blocked: bool) {
        self.lanes += 1;
        self.seen_pending = true;
        self.seen_blocked |= blocked;
        self.continuous |= continuous;
    }

    /// Nothing is, it may be, but launches wait in their calls.
    pub fn is_waited_for(&mut self) {
        (self.seen_pending, self.seen_blocked) = (true, true);
    }

    /// Looks, does what is to be done, and says when to look again.
    pub fn look(&mut self, steer: &Steer, slice: &Slice, seen: &Seen, now: u64) -> Next {
        let compute = slice.compute();
        let touched = steer.touched.swap(false, Ordering::Relaxed);
        if touched || self.seen_pending || seen.launches {
            self.launched = now;
        }
        let priority_keeps = compute.priority() == ration_policy::Priority::Latency;
        steer.is_awaited.store(priority_keeps, Ordering::Relaxed);
        let gone = if priority_keeps { GONE_LATENCY } else { GONE };
        let is_there = self.launched != 0 && now < self.launched + gone;
        let among = compute.neighbourhood(now);
        let limit = compute.limit();
        let is_alone = among.others().next().is_none();
        self.account(&compute, &among, is_alone, seen.away, now);
        self.tell_burst(seen.answer);
        self.fills_or_not(now);
        // Who takes leases wants one as long as something is under way. Of the others, those that wait for the GPU want more.
        let waits = if self.fills { self.account.pending() } else { self.account.blocked() };
        let wants = waits > WAITING && self.off != Some(Off::Limit);
        let facts = Facts {
            usage: self.account.usage(),
            wants,
            fills: self.fills,
            burst: self.burst,
            is_on: self.off.is_none(),
            pending: self.pending,
        };
        if is_there {
            compute.says(&facts, now);
        } else {
            compute.says_nothing();
        }
        // What was just said counts for this look, too.
        let among = compute.neighbourhood(now);
        // By launches, who comes would wait for all that is queued.
        let counts = is_there && (!(is_alone && limit.is_whole()) || steer.by_launches.load(Ordering::Relaxed));
        steer.counts(counts);
        // Where there is nothing to hold, it is not tried, and nothing is said.
        if counts && let Err(trouble) = self.try_switch(steer, slice) {
            self.goes_over(steer, slice, &compute, trouble);
        }
        let lanes = std::mem::take(&mut self.lanes);
        self.under_way = lanes > 0;
        self.drains_queue &= self.under_way && now < self.since + LONGEST_OFF;
        let ends = self.held.as_ref().map_or(u64::MAX, |held| held.until);
        steer.gate.is_looked_at(lanes * among.siblings.max(1), is_alone && limit.is_whole(), ends, now);
        let by_limit = self.is_over(&compute, limit, now);
        let (has_lease, lease, lease_ends) = self.lease(&compute, &among, now);
        let by_launches = steer.by_launches.load(Ordering::Relaxed);
        let may_sound = counts && !priority_keeps && !self.fills && !by_limit && has_lease && !by_launches;
        let sounds = self.sounding.is_on(may_sound, seen.launched, seen.blocked, now);
        let off = if steer.leaving.load(Ordering::SeqCst) > 0 || now < self.rests_until {
            None
        } else if by_limit {
            Some(Off::Limit)
        } else if !has_lease || self.drains_queue {
            Some(Off::Others)
        } else if sounds {
            Some(Off::Sounding)
        } else {
            None
        };
        self.switch(steer, slice, &compute, &among, off, lease.as_ref(), now);
        self.set_slice(steer, slice, &compute, &among, is_there, now);
        let at = match self.off {
            None if self.draining.is_some() => now + DRAINING,
            Some(Off::Limit) => compute.free_at(now).clamp(now + MS / 2, now + 20 * MS),
            Some(Off::Others) => now + 5 * MS,
            Some(Off::Sounding) => now + MS / 2,
            None if counts && now < self.launched + CALM => {
                (now + self.look_after(&compute, limit, is_alone, now)).min(lease_ends.max(now + MS / 10))
            }
            None => now + if is_there { CALM } else { 5 * CALM },
        };
        Next { at, lease: lease.filter(|_| self.off == Some(Off::Others)) }
    }

    fn account(&mut self, compute: &Compute<'_>, among: &Neighbourhood, is_alone: bool, away: bool, now: u64) {
        // Launches that waited for it went when it came on.
        self.continuous |= std::mem::take(&mut self.resumed) && self.lanes > 0;
        // Nothing was before the first look.
        let before = std::mem::replace(&mut self.looked, now);
        let time = if before == 0 { 1 } else { now.saturating_sub(before).max(1) };
        // A container's processes have it together. Beside light ones a holder has what they leave, but part of that goes into
        // switching between them, and is nobody's.
        let has_lights = among.others().any(|it| !it.peer.takes_leases() && it.peer.usage > 0);
        let exclusive = match (&self.held, self.off) {
            (_, None) if is_alone => 1_000_000,
            (Some(_), None) if !has_lights => 1_000_000,
            _ => 0,
        } / among.siblings.max(1);
        self.is_by_itself = is_alone || exclusive > 0;
        let mut done = std::mem::take(&mut self.done);
        if self.drains_queue {
            (done, self.continuous) = (0, false);
        }
        self.exclusive = if self.continuous { exclusive } else { 0 };
        let launches = std::mem::take(&mut self.launches);
        let blocked = std::mem::take(&mut self.seen_blocked);
        let (pending, continuous) = (std::mem::take(&mut self.seen_pending), std::mem::take(&mut self.continuous));
        // Of a look in which it came on, the time since then; of one in which it went off, what came before was looked at then.
        let on = if self.off.is_some() { 0 } else { time.min(now.saturating_sub(self.since)) };
        let look = Look { time: on.max(1), done, launches, pending, blocked, continuous, exclusive };
        let used = if on > 0 || done > 0 { self.account.look(&look, TUNING.window) } else { 0 };
        if on < time {
            let rest =
                Look { time: time - on, done: 0, launches: 0, pending, blocked, continuous: false, exclusive: 0 };
            self.account.look(&rest, TUNING.window);
        }
        self.pending = pending;
        self.demand.look(time, used, launches, away && pending);
        if used > 0 {
            compute.charge(now - time, now, used);
        }
        if let Some(held) = &mut self.held {
            // Beside light ones, what is lost to switching says nothing of the holder.
            held.usable += on * u64::from(exclusive) / 1_000_000;
            held.used += used;
        }
        self.idle_since = if pending { None } else { self.idle_since.or(Some(now)) };
    }

    /// How long its answers take, alone; or, where it does not wait for any, how much work comes at a time: what is done between
    /// two pauses.
    fn tell_burst(&mut self, answer: u64) {
        if answer != 0 {
            self.burst = answer;
            return;
        }
        if !self.pending && self.burst_now > 0 {
            let burst = std::mem::take(&mut self.burst_now);
            self.burst = if self.burst == 0 { burst } else { (7 * self.burst + burst) / 8 };
        }
    }

    /// After how long the next look is due, while on: asking the driver takes a lock that launches take too.
    fn look_after(&self, compute: &Compute<'_>, limit: Share, is_alone: bool, now: u64) -> u64 {
        if is_alone {
            // It cannot be at its limit before it has used all that is due, and what it may owe.
            let left = (now + steer::off_time(limit)).saturating_sub(compute.free_at(now));
            let rest = 1_000_000 - u64::from(limit.ppm()).min(999_999);
            return (left / 2 * u64::from(limit.ppm()) / rest).clamp(BUSY, CALM);
        }
        if self.fills { BUSY } else { 2 * BUSY }
    }

    fn is_over(&self, compute: &Compute<'_>, limit: Share, now: u64) -> bool {
        if limit.is_whole() {
            return false;
        }
        let free = compute.free_at(now);
        if self.off.or(self.draining) == Some(Off::Limit) { free > now } else { free > now + steer::off_time(limit) }
    }

    /// Does what was decided.
    #[allow(clippy::too_many_arguments, reason = "all that a switch depends on")]
    fn switch(
        &mut self,
        steer: &Steer,
        slice: &Slice,
        compute: &Compute<'_>,
        among: &Neighbourhood,
        off: Option<Off>,
        lease: Option<&Lease>,
        now: u64,
    ) {
        let generation = steer.with_switch(slice.device, |it| it.generation());
        let is_new = off.is_some() && self.off.is_some() && generation != self.generation;
        if off.is_some() == self.off.or(self.draining).is_some() && self.draining.is_none() && !is_new {
            self.off = off;
            self.holds(steer);
            return;
        }
        if off == Some(Off::Others)
            && steer.with_switch(slice.device, |it| it.is_prompt())
            && let Some(next) = lease.and_then(|lease| lease.holder)
        {
            // On before off, so that no time is lost between the two.
            let end = now + OVERLAP;
            let mut at = now;
            while at < end && !compute.neighbourhood(at).get(next).is_none_or(|it| it.is_on || it.index == among.own) {
                sys::sleep_until(at + 80_000, at);
                at = sys::nanoseconds();
            }
        }
        self.put(steer, slice, compute, off);
    }

    /// Puts the process on or off.
    fn put(&mut self, steer: &Steer, slice: &Slice, compute: &Compute<'_>, off: Option<Off>) {
        let began = sys::nanoseconds();
        let is_waited_at = steer.gate.is_waited_at();
        let (generation, result) =
            steer.with_switch(slice.device, |it| (it.generation(), it.put(off.is_none(), self.under_way)));
        self.generation = generation;
        let ended = sys::nanoseconds();
        let at = match result {
            // It was not off yet, and is not to be any more.
            Ok(_) if off.is_none() && self.draining.take().is_some() => return,
            Ok(Some(at)) => at,
            Ok(None) => return self.draining = off,
            // Others make contexts, say, and hold the module's lock: it is done, and not again soon.
            Err(Trouble::Slow) => {
                self.rests_until = ended + REST;
                ended
            }
            Err(trouble) => return self.goes_over(steer, slice, compute, trouble),
        };
        self.draining = None;
        compute.switched(ended - began);
        compute.is_switched_by_channels(!steer.by_launches.load(Ordering::Relaxed));
        if let Some(was) = self.off.take() {
            match was {
                Off::Limit => compute.was_off(at.saturating_sub(self.since), true),
                Off::Others => compute.was_off(at.saturating_sub(self.since), false),
                Off::Sounding => {}
            }
            self.since = at;
            self.epoch += 1;
            self.resumed = is_waited_at;
            if let Some(held) = &mut self.held {
                // It is for the time on the GPU.
                held.until += at.saturating_sub(held.since);
                held.since = at;
            }
        } else {
            self.since = at;
            // What ran until then was not looked at yet.
            let rest = self.since.saturating_sub(self.looked) * u64::from(self.exclusive) / 1_000_000;
            if rest > 0 {
                compute.charge(self.looked, self.since, rest);
                self.account.is_charged(rest);
            }
            self.looked = self.since;
            if off == Some(Off::Others) && self.passed != 0 {
                compute.held_longer(self.since.saturating_sub(self.passed).min(2 * OVERLAP), compute.weight());
            }
        }
        self.passed = 0;
        self.off = off;
        self.holds(steer);
        steer.is_off.store(off.is_some(), Ordering::Relaxed);
        let mut facts = Facts { usage: self.account.usage(), fills: self.fills, burst: self.burst, ..Facts::default() };
        (facts.wants, facts.is_on, facts.pending) = (off != Some(Off::Limit), off.is_none(), self.pending);
        compute.says(&facts, ended);
    }

    /// Where channels are driven, launches wait while the container is at its limit.
    fn holds(&self, steer: &Steer) {
        if !steer.by_launches.load(Ordering::Relaxed) {
            steer.gate.holds(self.off == Some(Off::Limit));
        }
    }

    /// Whether the switch works; once by trying. Before much is queued, because that could not be held back any more.
    fn try_switch(&mut self, steer: &Steer, slice: &Slice) -> Result<(), Trouble> {
        steer.with_switch(slice.device, |it| {
            it.is_usable()?;
            if self.off.is_none() && !std::mem::replace(&mut self.is_tried, true) {
                it.put(true, false)
                    .map(|_| ())
                    .or_else(|trouble| if trouble == Trouble::Slow { Ok(()) } else { Err(trouble) })?;
            }
            Ok(())
        })
    }

    /// Channels cannot be driven: launches are what is switched from now on. Its channels are on, and the next look decides.
    fn goes_over(&mut self, steer: &Steer, slice: &Slice, compute: &Compute<'_>, trouble: Trouble) {
        let why = super::why(trouble);
        log::warn!(
            "channels of GPU {} cannot be driven: {why}; launches are held in their calls instead",
            slice.device
        );
        let _ = channels::put(slice.device, true);
        let _ = channels::set_slice(slice.device, TUNING.default_slice / 1_000);
        steer.gate.holds(false);
        steer.by_launches.store(true, Ordering::Relaxed);
        steer.is_off.store(false, Ordering::Relaxed);
        compute.is_switched_by_channels(false);
        let now = sys::nanoseconds();
        if let Some(was) = self.off.take() {
            compute.was_off(now.saturating_sub(self.since), was == Off::Limit);
            self.epoch += 1;
        }
        (self.since, self.written, self.drains_queue) = (now, TUNING.default_slice, true);
    }

    /// Whatever was decided, on: the program needs the GPU to end something.
    pub fn put_on(&mut self, steer: &Steer, slice: &Slice, _now: u64) {
        if self.off.or(self.draining).is_some() {
            self.put(steer, slice, &slice.compute(), None);
        }
    }

    fn set_slice(
        &mut self,
        steer: &Steer,
        slice: &Slice,
        compute: &Compute<'_>,
        among: &Neighbourhood,
        is_there: bool,
        now: u64,
    ) {
        if now < self.rests_until {
            return;
        }
        let peers: Vec<Peer> = among.iter().map(|present| present.peer).collect();
        let own = among.iter().position(|present| present.index == among.own).unwrap_or(0);
        let length = if is_there { self.slice.next(own, &peers, now) } else { TUNING.default_slice };
        // A change of less than a tenth is not worth the call.
        if length.abs_diff(self.written) * 10 > self.written {
            match steer.with_switch(slice.device, |it| it.set_slice(length)) {
                Ok(()) => {
                    self.written = length;
                    compute.is_switched_by_channels(!steer.by_launches.load(Ordering::Relaxed));
                }
                Err(Trouble::Unseen) => {}
                Err(Trouble::Slow) => (self.written, self.rests_until) = (length, now + REST),
                Err(trouble) => self.goes_over(steer, slice, compute, trouble),
            }
        }
    }
}
