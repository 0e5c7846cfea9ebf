//! Who is next where several want more than there is.
//!
//! Each container has a *virtual time*: the time for which it held the GPU, divided by its [weight](crate::Share::weight).
//! Whoever is furthest behind is next. So over time each holds the GPU in proportion to its weight, and for no less than its
//! request where requests add up to no more than the GPU; and time that one does not want goes to the others.
//!
//! **What is charged is the time of holding**, from the hand-over before to the hand-over after: the switch, the gaps between
//! pieces, and the wait until the last piece is done. Nobody else could use that time, and a program that leaves gaps leaves
//! them when it is alone, too: at a share of 30% it holds the GPU for 30% of the time and runs at 30% of its own speed.
//! It also needs nothing but the clock: whoever takes over from a holder that was killed charges it. A container that works
//! without a turn, because it leaves the GPU idle most of the time or because it lost its turn in the middle of a kernel, is
//! charged the GPU time that it was measured to use, by the same [`charged`]. Time for which a turn could have been taken from a
//! holder that [is stopped](Queue::is_stalled) or quiet, and nobody was there to take it, is charged to nobody: where a whole
//! machine stands still, the holder is not to blame ([`Rules::silence`]).
//!
//! **The clock** is the virtual time at which those who want the GPU are served: that of whoever of them is furthest behind;
//! where nobody else wants it, or only `batch`, the holder's. Who comes back after a while starts from the clock: what it did
//! not want then is not owed to it now. So requests need not add up to anything, time alone on the GPU costs nothing
//! afterwards, and no old account can starve anybody. What a container is behind, up to a turn of its own, is forgotten as
//! time passes in which it wants nothing: after a pause of a millisecond nearly all of it is still owed.
//!
//! **A turn** lasts [`Rules::turn`], or the container's part of [`Rules::round`] where that is shorter, and goes on for as
//! long as the holder is the one furthest behind. Who comes back within another's turn and is behind shortens it by as much
//! as it is owed. A `latency` container that is within its due does not wait for a turn to end; a `batch` container is next
//! when nobody else wants to be, or when it has waited long enough.
//!
//! # How it is used
//!
//! Nobody decides for the others. Everything here is computed from words that all can read:
//!
//! | of | word | written |
//! |---|---|---|
//! | a container | virtual time | at the hand-overs to it and from it, by whoever makes them |
//! | | since when it wants the GPU | by itself when it begins to wait; stays through its turn, unless it is quiet for [`Rules::idle`]; at the end of that, if it still wants the GPU, it is [`Grant::since`] |
//! | | when its last turn ended | at the hand-over from it |
//! | | heard of | by itself, now and then, while it waits ([`Rules::is_heard`]), and in its turn ([`Turn::seen`]); 0 by whoever takes the turn of one that [is stopped](Queue::is_stalled) |
//! | the GPU | holder, when its turn began | by compare-and-swap, at a hand-over |
//! | | quiet since, heard of | by the holder: [`Turn`] |
//! | | the clock | raised at a hand-over |
//!
//! Whoever waits makes a [`Queue`] of them, sees when to look again ([`Queue::over_at`], [`Queue::lost_at`]), and sleeps until
//! then. The holder looks before it starts a piece of work; when its turn is over it starts nothing more, and when all is
//! done it hands over. A turn that is lost is taken by whoever waits. Either changes the holder by a compare-and-swap to
//! whom [`Queue::next`] names, and the winner then does what the [`Grant`] says. Words that were read while another changed them
//! make a turn a little longer or shorter, no more: charges are added, and clocks only go forwards.
//!
//! A holder that is quiet stays the holder until somebody else wants the GPU. One that lost its turn while its work goes on is
//! charged for the rest when that is done, with [`charged`] and what was measured; until then it does not wait for another
//! turn, in which it could start nothing, and which it would only lose again.
//!
//! Whoever changes the request or the limit of the holder makes its virtual time [fit](reweighed); whoever changes the
//! priority of one that waits makes it wait since then, or what it waited for as `batch` would be owed to it.

use crate::{Bucket, Flight, Share};

pub use crate::priority::Priority;

/// A container that wants the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contender {
    /// What it is called by whoever asks.
    pub index: usize,
    /// What it weighs: [`Share::weight`].
    pub weight: Share,
    /// Its priority.
    pub priority: Priority,
    /// Its virtual time.
    pub virtual_time: u64,
    /// Since when it has wanted the GPU and not had it. A holder keeps it up to the end of its turn, or until it has been
    /// quiet for [`Rules::idle`].
    pub since: u64,
    /// When its last turn ended; 0: it had none.
    pub served: u64,
    /// From when its ceiling lets it work at all: [`Bucket::free_at`](crate::Bucket::free_at); 0 without a ceiling.
    pub free: u64,
    /// From when its ceiling lets it work for a turn that is worth a switch: [`Bucket::ready_at`](crate::Bucket::ready_at) of
    /// [`Rules::worth`]. As `free` for a `latency` container that its ceiling did not keep from working when it began to wait,
    /// `free` ≤ `since`: its turns are as short as its requests. But one that is at its ceiling would interrupt others for
    /// each piece, and cost more in switches than it uses. Both of a bucket that was
    /// [kept waiting](crate::Bucket::kept_waiting) from `since` until now, or until its turn began.
    pub ready: u64,
}

/// That somebody holds the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// Who.
    pub holder: Contender,
    /// When it was handed over.
    pub began: u64,
    /// Since when all that the holder had started is done, where it has nothing more to start or its ceiling does not let it;
    /// `None` while it works, and while only the end of its turn keeps it from going on.
    pub quiet: Option<u64>,
    /// When the holder last did anything, or when what it has started is expected to be done, if that is later.
    pub heard: u64,
    /// When any of its threads was last there: one that wants to start something, or one that sees how far the GPU has got.
    pub seen: u64,
}

/// What a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long a turn lasts while others wait, at most, unless the holder is still the one furthest behind.
    pub turn: u64,
    /// In so much time everybody has a turn: where many wait, or somebody with a small share, turns are shorter.
    pub round: u64,
    /// A turn that is cut short by somebody who is behind lasts at least this long, so that switches do not eat it up.
    pub least: u64,
    /// A holder that does nothing for so long has given its turn away: as long as it takes to switch to another and back.
    pub idle: u64,
    /// The same for a `latency` holder, which does not wait long when it comes back.
    pub idle_latency: u64,
    /// A holder that works on for so long after all that it has started should be done, or its turn was over, has lost it; and who
    /// waits and is not heard of for so long does not wait any more.
    pub lost: u64,
    /// A holder that does not say that it rests, and is not seen for so long after all that it has started should be done, has lost
    /// its turn: its threads are stopped, or have no processor.
    pub stalled: u64,
    /// A holder that is to hand over to a `latency` container, and does not for so long after all that it has started should
    /// be done, has lost its turn: its threads are stopped, or the machine has no processor for them.
    pub late: u64,
    /// Nobody that is within its due waits much longer than this, whatever its priority: then it goes before all others.
    pub patience: u64,
    /// How far ahead of the others, in virtual time, a `latency` container may be and still be in a hurry.
    pub ahead: u64,
    /// Who wanted the GPU within this time may come back at any moment, and then waits for what is in flight.
    pub recent: u64,
}

impl Rules {
    /// For an H200, where a switch between busy contexts takes 0.15 ms. The [crate's page](crate) says how they follow.
    pub const USUAL: Rules = Rules {
        turn: 22_000_000,
        round: 200_000_000,
        least: 2_000_000,
        idle: 300_000,
        idle_latency: 100_000,
        lost: 60_000_000,
        stalled: 3_000_000,
        late: 200_000,
        patience: 400_000_000,
        ahead: 50_000_000,
        recent: 1_000_000_000,
    };

    /// How much a container may have in flight because of the others, of each of which is given its priority and when it
    /// last had or wanted a turn (now, if it waits for one; 0, if it never did). `None`: as much as it likes.
    ///
    /// Who wanted the GPU a moment ago may come back at any time and then waits for what is in flight; and so may a
    /// `latency` container after any time. Who waits already waits for the end of the turn.
    pub fn flight(&self, others: impl Iterator<Item = (Priority, u64)>, now: u64) -> Option<Flight> {
        let mut bound = None;
        for (priority, wanted) in others.filter(|(_, wanted)| *wanted != 0) {
            match now.saturating_sub(wanted) {
                _ if priority == Priority::Latency => return Some(Flight::SHORT),
                0 => bound = bound.or(Some(Flight::AWAITED)),
                ago if ago < self.recent => bound = Some(Flight::USUAL),
                _ => {}
            }
        }
        bound
    }

    /// Whether a container that waits, and was last heard of then, still counts among those [who wait](Queue::waiting). Who
    /// waits looks again now and then, and says so; one whose processes are stopped does not, and would be given turns only
    /// to lose them. When it goes on it has not been waiting meanwhile: it wants the GPU since then.
    #[inline]
    pub fn is_heard(&self, heard: u64, now: u64) -> bool {
        now.saturating_sub(heard) < self.lost
    }

    /// How much of the time in which nothing was seen of a holder does not count as part of its turn, if it has that when it is back:
    /// nobody was there to take it. `last`: when it was last seen, or all that it had started should have been done.
    pub fn silence(&self, last: u64, now: u64) -> u64 {
        now.saturating_sub(last).saturating_sub(self.stalled)
    }

    /// For how long a turn is kept for a holder that does nothing.
    #[inline]
    pub fn kept_for(&self, holder: Priority) -> u64 {
        if holder == Priority::Latency { self.idle_latency } else { self.idle }
    }

    /// How much of a turn must be due to a container before its ceiling lets it take one from others: three quarters, since
    /// who must wait for all of it is late when limits add up to the whole GPU.
    pub fn worth(&self, weight: Share, together: u64) -> u64 {
        self.length(weight, together) / 4 * 3
    }

    /// How long a turn lasts for somebody of this weight, where all who want the GPU weigh so much together, in millionths.
    pub fn length(&self, weight: Share, together: u64) -> u64 {
        let together = u128::from(together.max(u64::from(weight.ppm())));
        let part = u128::from(self.round) * u128::from(weight.ppm()) / together;
        u64::try_from(part).unwrap_or(u64::MAX).min(self.turn).max(self.least)
    }
}

/// A container's virtual time after it held the GPU for so long, or used so much GPU time without holding it.
#[inline]
pub fn charged(virtual_time: u64, time: u64, weight: Share) -> u64 {
    virtual_time.saturating_add(weight.wall(time))
}

/// The holder's virtual time after its weight became another while it held the GPU for so long. A turn is charged when it
/// ends, at the weight that the holder has then; whoever changes a request or a limit does this, so that what was held before
/// counts at the weight of then. Otherwise who is given a tenth of what it had would owe ten times what it held.
pub fn reweighed(virtual_time: u64, held: u64, from: Share, to: Share) -> u64 {
    charged(virtual_time, held, from.max(SMALL)).saturating_sub(to.max(SMALL).wall(held))
}

/// Alone, a container could hold the GPU for years, and its virtual time must not run out: a small weight counts as more.
const SMALL: Share = Share::from_ppm(50_000);

impl Contender {
    /// From when it could have worked for a turn, if it had had the GPU.
    fn wants_from(&self) -> u64 {
        self.could_from().max(self.ready)
    }

    /// The same where the GPU does nothing otherwise, so that a short turn is better than none.
    fn could_from(&self) -> u64 {
        self.since.max(self.free)
    }

    /// Its virtual time where those who want the GPU are served at `clock`: it may be behind by a turn of its own, less the
    /// time for which it was away.
    fn joined(&self, clock: u64, rules: &Rules) -> u64 {
        let away = self.wants_from().saturating_sub(self.served);
        let owed = self.weight.wall(rules.turn).min(rules.round).saturating_sub(away);
        self.virtual_time.max(clock.saturating_sub(owed))
    }
}

/// A turn so far, for all who look at it at the same time.
struct Course {
    turn: Turn,
    /// Until when nobody else wanted the GPU: when the turn began, or later.
    alone_until: u64,
    /// The holder's virtual time then.
    met: u64,
}

impl Course {
    /// The holder's virtual time at a time when others wait.
    fn reached(&self, at: u64) -> u64 {
        charged(self.met, at.saturating_sub(self.alone_until), self.turn.holder.weight)
    }

    /// When the holder's virtual time is at least that: the inverse of `reached`, to the nanosecond, or two who look at the
    /// same turn would not agree on whose it is.
    fn reaches(&self, virtual_time: u64) -> u64 {
        let held = match virtual_time.saturating_sub(self.met) {
            0 => 0,
            more => self.turn.holder.weight.gpu(more - 1).saturating_add(1),
        };
        self.alone_until.saturating_add(held)
    }

    /// When the holder has had so much of its turn.
    fn after(&self, held: u64) -> u64 {
        self.turn.began.saturating_add(held)
    }
}

/// A GPU's turns, as somebody sees them.
#[derive(Debug, Clone, Copy)]
pub struct Queue<'a, W> {
    /// The clock's word.
    pub clock: u64,
    /// Who holds the GPU. It stays the holder when it is quiet; `None` if it is dead, or nobody ever was.
    pub turn: Option<Turn>,
    /// Who else wants it, also those whose ceiling does not let them yet. Nobody twice, and not the holder.
    pub waiting: W,
    /// The time.
    pub now: u64,
    /// The rules.
    pub rules: &'a Rules,
}

/// What changes with a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Who holds the GPU from now on.
    pub index: usize,
    /// Its virtual time is raised to this.
    pub virtual_time: u64,
    /// So much is added to the virtual time of the holder before.
    pub charge: u64,
    /// Whether the holder before was quiet, or has had a turn worth the name. If not, it was sent away, and has been waiting
    /// since when it was before; or somebody who comes at the wrong moments, again and again, would make it wait for ever.
    pub was_served: bool,
    /// Since when the holder before wants the GPU, if it still does: now, or as it was before where it was not served. Where
    /// it has a ceiling and was sent away early, as far back as it takes to find again what is due to it; but not so far
    /// that it would be overdue within a round.
    pub since: u64,
    /// The clock is raised to this.
    pub clock: u64,
}

impl<W: Iterator<Item = Contender> + Clone> Queue<'_, W> {
    /// When the holder's turn is over, so that another may have it, as things are; it may be in the past. `None`: it is not,
    /// whatever time it is, and one looks again when somebody else wants the GPU.
    pub fn over_at(&self) -> Option<u64> {
        self.taken_by(|_, _| true)
    }

    /// Whether the holder's turn is over: it starts nothing more, and hands over when all is done.
    pub fn is_over(&self) -> bool {
        self.over_at().is_some_and(|at| at <= self.now)
    }

    /// Whether the holder is stopped, as far as can be told.
    pub fn is_stalled(&self) -> bool {
        self.stalled_at().is_some_and(|at| at <= self.now)
    }

    /// From when, if nothing is seen of it until then.
    fn stalled_at(&self) -> Option<u64> {
        let turn = self.turn.filter(|turn| turn.quiet.is_none())?;
        Some(turn.seen.max(turn.heard).max(turn.began).saturating_add(self.rules.stalled))
    }

    /// When the holder has lost its turn, so that another takes it without waiting for the holder to hand it over. `None`
    /// where nobody waits.
    pub fn lost_at(&self) -> Option<u64> {
        let heard = self.turn.map(|turn| turn.heard.max(turn.began))?;
        let first = self.waiting.clone().map(|it| it.could_from()).min()?;
        let over = self.over_at()?;
        let overdue = over.min(heard).saturating_add(self.rules.lost);
        let lost = self.stalled_at().map_or(overdue, |stalled| stalled.min(overdue)).max(first);
        let is_hurried = |it: &Contender, holder: &Contender| {
            it.priority == Priority::Latency && holder.priority != Priority::Latency
        };
        let late = self.taken_by(is_hurried).map(|at| at.max(heard).saturating_add(self.rules.late));
        Some(late.map_or(lost, |late| late.min(lost)))
    }

    /// Who is next when the holder hands over, or has lost its turn, or is gone. `None` where nobody could work now.
    pub fn next(&self) -> Option<Grant> {
        let course = self.course();
        let clock = self.clock(course.as_ref());
        let free = self.waiting.clone().filter(|it| it.could_from() <= self.now);
        let least = self.least(clock)?;
        let rank = |it: &Contender| {
            let virtual_time = it.joined(clock, self.rules);
            let class = match it.priority {
                _ if self.is_due(it, clock) && self.now >= self.overdue_at(it) => 0,
                Priority::Latency if virtual_time <= least.saturating_add(self.rules.ahead) => 1,
                Priority::Latency | Priority::Normal => 2,
                Priority::Batch => 3,
            };
            (it.wants_from() > self.now, class, virtual_time, it.since, it.index)
        };
        let next = free.clone().min_by_key(rank)?;
        // The clock follows whoever is furthest behind and wants the GPU, so that nobody is lifted who waits.
        let counts = |it: &Course| {
            it.turn.quiet.is_none() && (it.turn.holder.priority != Priority::Batch || next.priority == Priority::Batch)
        };
        let before = course.as_ref().filter(|course| counts(course));
        let before = before.map(|course| course.reached(self.held_until(course)));
        let virtual_time = next.joined(clock, self.rules);
        let charge = |it: &Course| it.reached(self.held_until(it)).saturating_sub(it.turn.holder.virtual_time);
        let was_served = |it: &Course| it.turn.quiet.is_some() || self.now >= it.after(self.rules.least);
        Some(Grant {
            index: next.index,
            virtual_time,
            charge: course.as_ref().map_or(0, charge),
            was_served: course.as_ref().is_some_and(was_served),
            since: course.as_ref().map_or(self.now, |it| self.waits_since(it, was_served(it))),
            clock: clock.max(before.map_or(least, |before| before.min(least))),
        })
    }

    fn course(&self) -> Option<Course> {
        let turn = self.turn?;
        // Batch waits for what is left: next to it, others are as good as alone.
        let counts = |it: &Contender| it.priority != Priority::Batch || turn.holder.priority == Priority::Batch;
        let first = self.waiting.clone().filter(counts).map(|it| it.wants_from()).fold(self.now, u64::min);
        let alone_until = first.max(turn.began);
        let met = charged(turn.holder.virtual_time, alone_until - turn.began, turn.holder.weight.max(SMALL));
        Some(Course { turn, alone_until, met })
    }

    /// Until when the holder has held the GPU for itself: now, or when another could have taken it from one that does nothing.
    fn held_until(&self, course: &Course) -> u64 {
        let kept = |since: u64| since.saturating_add(self.rules.kept_for(course.turn.holder.priority));
        let could_be_taken = course.turn.quiet.map(kept).or(self.stalled_at());
        could_be_taken.map_or(self.now, |at| at.min(self.now)).max(course.turn.began)
    }

    /// How long the holder's turn lasts, if it is not the one furthest behind.
    fn length(&self, course: &Course) -> u64 {
        let weigh = |it: Contender| u64::from(it.weight.ppm());
        let together = self.waiting.clone().map(weigh).fold(weigh(course.turn.holder), u64::saturating_add);
        self.rules.length(course.turn.holder.weight, together)
    }

    /// Since when the holder wants the GPU, if it still does when its turn ends now.
    fn waits_since(&self, course: &Course, was_served: bool) -> u64 {
        let holder = &course.turn.holder;
        if !was_served {
            return holder.since;
        }
        if course.turn.quiet.is_some() || holder.free == 0 || self.now >= course.after(self.length(course)) {
            return self.now;
        }
        // A bucket that was kept waiting since then reaches back to `free`.
        let reaches_back = holder.free.saturating_add(Bucket::USUAL_BURST);
        let overdue_in_a_round = self.now.saturating_sub(self.rules.patience.saturating_sub(self.rules.round));
        reaches_back.max(holder.since).max(overdue_in_a_round).min(self.now)
    }

    /// The virtual time at which those who want the GPU are served.
    fn clock(&self, course: Option<&Course>) -> u64 {
        match course {
            Some(course) if course.alone_until > course.turn.began => self.clock.max(course.met),
            _ => self.clock,
        }
    }

    /// The virtual time of whoever of those that wait is furthest behind. A batch container waits without end: unless there
    /// are no others, it does not count, and holds neither the clock back nor anybody in a hurry.
    fn least(&self, clock: u64) -> Option<u64> {
        let free = self.waiting.clone().filter(|it| it.could_from() <= self.now);
        let rank = |it: Contender| (it.priority == Priority::Batch, it.joined(clock, self.rules));
        free.map(rank).min().map(|(_, virtual_time)| virtual_time)
    }

    /// When the first of those who wait, and are such next to the holder, may take the GPU from it.
    fn taken_by(&self, is_such: impl Fn(&Contender, &Contender) -> bool) -> Option<u64> {
        let course = self.course()?;
        let clock = self.clock(Some(&course));
        let length = self.length(&course);
        let least = self.least(clock).unwrap_or(u64::MAX);
        let such = self.waiting.clone().filter(|it| is_such(it, &course.turn.holder));
        such.map(|candidate| self.taken_at(&course, &candidate, length, clock, least)).min()
    }

    /// When this one may take the GPU from the holder.
    fn taken_at(&self, course: &Course, candidate: &Contender, length: u64, clock: u64, least: u64) -> u64 {
        let (turn, holder, rules) = (&course.turn, &course.turn.holder, self.rules);
        let virtual_time = candidate.joined(clock, rules);
        // In order of virtual time: not before the turn has lasted, nor before the holder has caught up; and sooner by as much
        // as the candidate was behind when it came.
        let in_order = |virtual_time: u64| match course.met.checked_sub(virtual_time) {
            None | Some(0) => course.after(length).max(course.reaches(virtual_time)),
            Some(behind) => course.after(length.saturating_sub(candidate.weight.gpu(behind)).max(rules.least)),
        };
        // What others left is taken back at once; but who had waited for too long has a turn of its own, or a part of it.
        let was_overdue = turn.began >= self.overdue_at(holder);
        let left_over = course.after(if was_overdue { length } else { rules.least });
        let protected = course.after(if was_overdue { rules.least } else { 0 });
        // In a hurry is who is within its due, next to the holder and to all who wait.
        let in_a_hurry = match holder.priority {
            _ if virtual_time > least.saturating_add(rules.ahead) => u64::MAX,
            Priority::Batch => protected,
            _ => course.reaches(virtual_time.saturating_sub(rules.ahead)).max(protected),
        };
        let by_rank = match (candidate.priority, holder.priority) {
            (Priority::Latency, Priority::Normal) => in_a_hurry.min(in_order(virtual_time)),
            (Priority::Latency, Priority::Batch) => in_a_hurry.min(left_over),
            (Priority::Normal, Priority::Batch) => left_over,
            (Priority::Normal, Priority::Latency) => in_order(virtual_time.saturating_add(rules.ahead)),
            (Priority::Batch, Priority::Normal | Priority::Latency) => u64::MAX,
            (Priority::Latency, Priority::Latency)
            | (Priority::Normal, Priority::Normal)
            | (Priority::Batch, Priority::Batch) => in_order(virtual_time),
        };
        let by_patience = match self.is_due(candidate, clock) {
            true => self.overdue_at(candidate).max(course.after(length)),
            false => u64::MAX,
        };
        let by_quiet = turn.quiet.map_or(u64::MAX, |since| {
            let idle = rules.kept_for(holder.priority);
            // Who has come to its ceiling is not waited for: it would go on piece by piece, and leave the rest of the time.
            if holder.free > since { since } else { since.saturating_add(idle) }
        });
        by_rank.min(by_patience).max(candidate.wants_from()).min(by_quiet.max(candidate.could_from()))
    }

    /// Whether it has had no more than its due, or little more: who waits for long has not, but for those whose pieces are
    /// longer than their turns.
    fn is_due(&self, it: &Contender, clock: u64) -> bool {
        it.joined(clock, self.rules) <= clock.saturating_add(self.rules.round)
    }

    /// From when it has been waiting for too long.
    fn overdue_at(&self, it: &Contender) -> u64 {
        it.wants_from().saturating_add(self.rules.patience)
    }
}

#[cfg(test)]
mod tests;
