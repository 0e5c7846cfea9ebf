//! What the controller does about one GPU at each look: account, limit, lease, slice, switch.

use ration_policy::steer;
use ration_policy::tuning::{
    CALM, DRAINED, DRAINING, FRESH, GONE, GONE_LATENCY, LONGEST_OFF, LOOK, MS, OVERLAP, SLICE, WAITING, WINDOW,
};
use ration_policy::{Bucket, Debt, Priority, Share};
use ration_region::{Compute, Facts, Heard, Lease, Neighbourhood, Present};

use crate::account::{Account, Look};
use crate::demand::Demand;
use crate::leases::{Held, KeptOff};
use crate::room::{Room, Streak};
use crate::switching::peers;
use crate::{Off, Process};

/// What is remembered of one GPU. The controller's, but for [`State::put_on`].
pub struct State {
    pub(crate) account: Account,
    pub(crate) demand: Demand,
    /// When others last said something.
    pub(crate) heard: Heard,
    /// What was done since the last look.
    pub(crate) done: u64,
    pub(crate) launches: u32,
    /// Whether something is under way; as it was seen, and as it counts since the last look.
    pub(crate) seen_pending: bool,
    pub(crate) seen_blocked: bool,
    pub(crate) pending: bool,
    pub(crate) continuous: bool,
    /// Whether anything was under way at this look, besides launches that wait in their calls.
    pub(crate) under_way: bool,
    /// The part of the time that counts as used by who keeps the GPU busy, in millionths; 0: it does not.
    pub(crate) exclusive: u32,
    pub(crate) looked: u64,
    /// For how long something has been under way of which nothing was charged yet.
    pub(crate) unpaid: u64,
    /// Launches passed that were not counted, and a thread has been waiting since.
    pub(crate) is_uncounted: bool,
    pub(crate) launched: u64,
    /// Off, why, and since when; or on since when. (By when the GPU does it, not by when it is called for.)
    pub(crate) off: Option<Off>,
    pub(crate) since: u64,
    /// It came on in the last look.
    pub(crate) is_back: bool,
    /// Counts the times on the GPU.
    pub(crate) epoch: u64,
    /// For how long it was off in all, at least; before the last time, too; and from when on it is now.
    pub(crate) off_in_all: u64,
    pub(crate) off_before: u64,
    pub(crate) off_since: u64,
    pub(crate) generation: u64,
    pub(crate) slice: steer::Slice,
    /// What it may have of the GPU: its limit, or less where others are short.
    pub(crate) limit: Share,
    /// How far its container has used that up; and whether other processes of it are there.
    pub(crate) debt: Debt,
    pub(crate) has_siblings: bool,
    pub(crate) due: steer::Due,
    pub(crate) batch: steer::Batch,
    /// Its launches go in batches.
    pub(crate) batches: bool,
    /// How long it waited for its last lease, if it had something to do since.
    pub(crate) kept_waiting: u64,
    pub(crate) written: u64,
    pub(crate) fills: bool,
    /// It is among those that take leases.
    pub(crate) is_in: bool,
    pub(crate) held: Option<Held>,
    /// Of the time of this lease, what was seen idle.
    pub(crate) idle_since: Option<u64>,
    pub(crate) burst: u64,
    pub(crate) burst_now: u64,
    /// It is to be off when what is under way is done: by launches.
    pub(crate) draining: Option<Off>,
    /// Threads that have something under way, and what that costs until their next marks are done.
    pub(crate) lanes: u32,
    pub(crate) next: u64,
    /// The switch was tried.
    pub(crate) is_tried: bool,
    /// It is by launches since now, and what was queued before is not done: that counts for nothing.
    pub(crate) drains_queue: bool,
    /// It came on, and launches were waiting for that.
    pub(crate) resumed: bool,
    /// No switching before: the kernel module is slow.
    pub(crate) rests_until: u64,
    /// When a call last took too long.
    pub(crate) was_slow: u64,
    /// It waited for too long, and is on until then, whatever others say.
    pub(crate) free_until: u64,
    pub(crate) kept_off: KeptOff,
    pub(crate) streak: Streak,
    pub(crate) is_urgent: bool,
    pub(crate) room: Room,
    /// When it passed its last lease on: until it is off, it holds the GPU. 0: it is off, or holds none.
    pub(crate) passed: u64,
}

/// One of a process's times on the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch {
    /// They are counted. 0: it is not known which one it is.
    pub number: u64,
    /// For how long the process was off before, in all: at least, and at most. No longer than it really was.
    pub off: [u64; 2],
}

/// What was seen of the process, on all GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// It has launched something since the last look, on this GPU or nobody knows on which.
    pub launches: bool,
    /// One of its threads waits for the GPU, or is in a launch.
    pub away: bool,
    /// How long it usually takes from its first launch until it has waited for it; 0: it never waits.
    pub answer: u64,
}

/// When to look again, and what to sleep on until then.
pub struct Next {
    /// When.
    pub at: u64,
    /// A lease that it waits for the next of.
    pub lease: Option<Lease>,
    /// There are others on the GPU.
    pub is_beside_others: bool,
    /// There are some who tell it otherwise: with them it is shared as the hardware does it.
    pub are_strange: bool,
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

impl State {
    /// Of a process that has launched nothing.
    pub const fn new() -> State {
        State {
            heard: Heard::new(),
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
            unpaid: 0,
            is_uncounted: false,
            launched: 0,
            off: None,
            since: 0,
            is_back: false,
            epoch: 1,
            off_in_all: 0,
            off_before: 0,
            off_since: 0,
            generation: 0,
            slice: steer::Slice::NEW,
            limit: Share::WHOLE,
            debt: Debt::NONE,
            has_siblings: false,
            due: steer::Due::NEW,
            batch: steer::Batch::NEW,
            batches: false,
            kept_waiting: 0,
            written: SLICE,
            fills: false,
            is_in: false,
            held: None,
            idle_since: None,
            burst: 0,
            burst_now: 0,
            draining: None,
            lanes: 0,
            next: 0,
            is_tried: false,
            drains_queue: false,
            resumed: false,
            rests_until: 0,
            was_slow: 0,
            free_until: 0,
            kept_off: KeptOff::NEW,
            streak: Streak::NEW,
            is_urgent: false,
            room: Room::NEW,
            passed: 0,
        }
    }

    /// Whether it is off.
    pub fn is_off(&self) -> bool {
        self.off.is_some()
    }

    /// Which of its times on the GPU this is. Where it was off since the last look, what is done now may have been done before.
    pub fn epoch(&self) -> Epoch {
        let is_known = self.off.is_none() && !self.is_back;
        let before = if is_known { self.off_in_all } else { self.off_before };
        Epoch { number: if is_known { self.epoch } else { 0 }, off: [before, self.off_in_all] }
    }

    /// So much was done.
    pub fn did(&mut self, work: u64, launches: u32) {
        self.done += work;
        self.launches = self.launches.saturating_add(launches);
        self.burst_now += work;
    }

    /// Something is under way, in a thread; and was at the last look; and a thread waits for it. `next`: what it costs until its next
    /// mark is done; `u64::MAX`: that is not known.
    pub fn is_pending(&mut self, continuous: bool, blocked: bool, next: u64) {
        self.lanes += 1;
        self.next = self.next.saturating_add(next);
        self.seen_pending = true;
        self.seen_blocked |= blocked;
        self.continuous |= continuous;
    }

    /// Nothing is, it may be, but launches wait in their calls.
    pub fn is_waited_for(&mut self) {
        (self.seen_pending, self.seen_blocked) = (true, true);
    }

    /// Looks, does what is to be done, and says when to look again.
    pub fn look(&mut self, process: &impl Process, compute: &Compute<'_>, seen: &Seen, now: u64) -> Next {
        self.is_back = false;
        // What was launched before it was counted is under way for as long as somebody waits for it.
        self.is_uncounted = seen.launches || self.is_uncounted && seen.away;
        let works = self.seen_pending || self.is_uncounted;
        if works {
            self.launched = now;
        }
        self.streak.look(works, now);
        self.is_urgent = compute.priority() == Priority::Latency && !self.streak.is_endless(now);
        let is_urgent = self.is_urgent;
        process.is_awaited(is_urgent);
        let gone = if is_urgent { GONE_LATENCY } else { GONE };
        let is_there = self.launched != 0 && now < self.launched + gone;
        let among = compute.neighbourhood(&self.heard, now);
        let is_alone = among.others().next().is_none();
        self.account(compute, &among, seen.away, !is_urgent || works, now);
        self.tell_burst(seen.answer);
        self.fills_or_not(is_urgent);
        // Who takes leases wants one as long as something is under way. Of the others, those that wait for the GPU want more.
        let waits = if self.fills { self.account.pending() } else { self.account.blocked() };
        let wants = waits > WAITING && !matches!(self.off, Some(Off::Limit | Off::Due));
        let facts = self.facts(wants);
        if is_there {
            compute.says(&self.heard, &facts, now);
        } else {
            compute.says_nothing(&self.heard, now);
        }
        // What was just said counts for this look, too.
        let among = compute.neighbourhood(&self.heard, now);
        let (own, peers) = peers(&among);
        self.limit = compute.limit().min(self.due.next(own, &peers, now));
        let limit = self.limit;
        let together = self.batch.next(own, &peers, now);
        self.batches = process.batches(together.filter(|_| is_there));
        // By launches, who comes would wait for all that is queued.
        // Who is not there now may launch a second's work before the next look.
        let counts = !(is_alone && limit.is_whole()) || is_there && process.is_by_launches();
        process.counts(counts);
        // Where there is nothing to hold, it is not tried, and nothing is said.
        let counts = counts && is_there;
        if counts && let Err(why) = self.try_switch(process) {
            self.goes_over(process, compute, why);
        }
        let lanes = std::mem::take(&mut self.lanes);
        self.under_way = lanes > 0;
        self.drains_queue &= self.under_way && now < self.since + DRAINED;
        let ends = self.held.as_ref().map_or(u64::MAX, |held| held.until);
        process.has_room(lanes * among.siblings.max(1), is_alone && limit.is_whole(), ends, now);
        let by_limit = self.is_over(limit, now);
        let (has_lease, lease, lease_ends) = self.lease(compute, &among, by_limit, now);
        let needing = among.others().find(|it| !is_urgent && it.peer.needs_room());
        let makes_room = self.room.is_made(needing.map(|it| it.peer.weight), now);
        let off = if process.is_leaving() || now < self.rests_until {
            None
        } else if by_limit {
            Some(if limit < compute.limit() { Off::Due } else { Off::Limit })
        } else if !has_lease || makes_room || self.drains_queue {
            Some(Off::Others)
        } else {
            None
        };
        let makes_way = off.is_some() && self.makes_way(process, compute, lease.as_ref(), now);
        if !makes_way {
            self.switch(process, compute, off);
        }
        let slice = if is_there { self.slice.next(own, &peers, now) } else { SLICE };
        self.set_slice(process, compute, slice, now);
        let at = match self.off {
            None if makes_way => now + OVERLAP / 15,
            None if self.draining.is_some() => now + DRAINING,
            Some(Off::Limit | Off::Due) => self.debt.free_at(self.bucket(), now).clamp(now + MS / 2, now + 20 * MS),
            Some(Off::Others) if makes_room => now + LOOK,
            Some(Off::Others) => now + 5 * MS,
            None if counts && now < self.launched + CALM => {
                (now + self.look_after(limit, is_alone, now)).min(lease_ends.max(now + MS / 10))
            }
            None => now + if is_there { CALM } else { 5 * CALM },
        };
        Next {
            at,
            lease: lease.filter(|_| self.off == Some(Off::Others)),
            is_beside_others: !is_alone,
            are_strange: among.are_strange,
        }
    }

    fn account(&mut self, compute: &Compute<'_>, among: &Neighbourhood, away: bool, is_asked: bool, now: u64) {
        // Launches that waited for it went when it came on.
        self.continuous |= std::mem::take(&mut self.resumed) && self.lanes > 0;
        // Nothing was before the first look.
        let before = std::mem::replace(&mut self.looked, now);
        let time = if before == 0 { 1 } else { now.saturating_sub(before).max(1) };
        // Who was stopped comes anew: what it missed is not owed to it.
        self.is_in &= time < FRESH;
        // A container's processes have it together. Beside light ones a holder has what they leave, but part of that goes into
        // switching between them, and is nobody's.
        let shares = |it: &Present| if it.peer.takes_leases() { it.is_on } else { it.peer.usage > 0 };
        let is_shared = among.others().any(shares);
        let holds = self.held.is_some() || self.passed != 0;
        let has_it = self.off.is_none() && (among.others().next().is_none() || holds && !is_shared);
        let others = || among.others().map(|it| if it.is_on { it.peer.usage } else { 0 });
        let left = 1_000_000_u32.saturating_sub(others().fold(0, u32::saturating_add));
        let next = std::mem::take(&mut self.next);
        let exclusive = if has_it { 1_000_000 / among.siblings.max(1) } else { 0 };
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
        let look = Look { time, on, done, launches, pending, blocked, continuous, next, exclusive, left };
        let used = self.account.look(&look, WINDOW);
        self.pending = pending;
        if is_asked {
            self.demand.look(time, used, launches, away && pending);
        }
        if before == 0 {
            self.debt = Debt::found(compute.used_until(), now, LONGEST_OFF);
        }
        // What became due while it was under way is not lost.
        let began = now.saturating_sub(time + self.unpaid);
        self.unpaid = if continuous && used == 0 { self.unpaid + time } else { 0 };
        if used > 0 {
            compute.charge(self.bucket(), began, now, used);
        }
        self.has_siblings = among.processes > 1;
        let others = if self.has_siblings { on } else { 0 };
        self.debt.used(self.bucket(), began, now, used, others, compute.used_until());
        if let Some(held) = &mut self.held {
            held.had += if exclusive > 0 { on } else { used };
        }
        self.idle_since = if pending { None } else { self.idle_since.or(Some(now)) };
        if !pending {
            self.kept_waiting = 0;
        }
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

    /// Its ceiling. What became due while others had the GPU is not lost.
    pub(crate) fn bucket(&self) -> Bucket {
        Bucket { limit: self.limit, burst: Bucket::USUAL_BURST + self.kept_waiting }
    }

    /// What it says of itself.
    pub(crate) fn facts(&self, wants: bool) -> Facts {
        Facts {
            usage: self.account.usage(),
            demand: self.demand.ppm(),
            wants,
            fills: self.fills,
            burst: self.burst,
            is_on: self.off.is_none(),
            // Between two steps of an answer nothing may be under way when it is looked at.
            pending: self.pending || self.is_urgent && self.launched == self.looked,
            urgent: self.is_urgent,
            batches: self.batches,
        }
    }

    /// After how long the next look is due, while on: asking the driver takes a lock that launches take too.
    fn look_after(&self, limit: Share, is_alone: bool, now: u64) -> u64 {
        if is_alone {
            // It cannot be at its limit before it has used all that is due, and what it may owe.
            let left = (now + steer::off_time(limit)).saturating_sub(self.debt.free_at(self.bucket(), now));
            let rest = 1_000_000 - u64::from(limit.ppm()).min(999_999);
            return (left / 2 * u64::from(limit.ppm()) / rest).clamp(LOOK, CALM);
        }
        if self.fills { LOOK } else { 2 * LOOK }
    }

    fn is_over(&self, limit: Share, now: u64) -> bool {
        if limit.is_whole() {
            return false;
        }
        let free = self.debt.free_at(self.bucket(), now);
        if matches!(self.off.or(self.draining), Some(Off::Limit | Off::Due)) {
            free > now
        } else {
            free > now + steer::off_time(limit)
        }
    }
}
