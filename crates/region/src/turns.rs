//! Turns between containers: who may use the GPU while several want more than there is of it.
//!
//! The rules are [`ration_policy::turns`], which says what each word is for. The words of the GPU are in the header, those of a
//! container in its slot ([`crate::compute`]). Nobody decides for the others: whoever waits and whoever holds the GPU read the
//! same words, and come to the same end; the holder changes by a compare-and-swap, and whoever wins it writes what changes
//! with it. A word that is wrong, because somebody has damaged it or was killed halfway, makes a turn longer or shorter, and
//! nobody waits for ever: each who waits looks again after a few milliseconds.

use std::time::Duration;

use ration_policy::turns::{Contender, Grant, Priority, Queue, Rules, Turn, reweighed};
use ration_policy::{Bucket, Flight, Share};

use crate::compute::{Compute, word};
use crate::layout::{Bits, CONTAINERS, LIVE};
use crate::life::is_held;
use crate::sync::{AtomicU64, SeqCst};
use crate::sys::{futex_wait_shared, futex_wake_shared};

/// What each of the GPU's words is.
mod gpu {
    /// The container whose turn it is: its index plus one, and its generation in the high half; and [`super::RESTS`]. 0: nobody's.
    pub const HOLDER: usize = 0;
    /// When it was handed over.
    pub const BEGAN: usize = 1;
    /// Since when the holder has nothing under way, if it rests.
    pub const QUIET: usize = 2;
    /// When the holder last did anything.
    pub const HEARD: usize = 3;
    /// The virtual time at which those who want the GPU are served.
    pub const CLOCK: usize = 4;
    /// Rings (its low half is a futex) when any of this changes in a way that somebody may be waiting for.
    pub const BELL: usize = 5;
    /// The containers that want the GPU, one bit each.
    pub const WANTING: usize = 6;
}

/// In the holder's word: it has nothing under way. Who begins again and who takes the turn meanwhile change the same word, so that
/// only one of them does.
const RESTS: u64 = 1 << 31;
const RULES: Rules = Rules::USUAL;
/// Whoever waits looks again after so long, whatever it is told.
const LOOK: u64 = 2_000_000;
/// A container is there for the others if it was active within this time.
const PRESENT: u64 = 1_000_000_000;

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// This container's, for so many nanoseconds yet, as things are. 0: it is to start nothing more, and to hand over when all is
    /// done.
    Mine(u64),
    /// Another's. One looks again at this time, or when the bell rings.
    Others(u64),
}

/// The turns as somebody sees them.
struct View {
    waiting: [Contender; CONTAINERS],
    count: usize,
    turn: Option<Turn>,
    clock: u64,
    now: u64,
}

impl View {
    fn queue(&self) -> Queue<'static, std::iter::Copied<std::slice::Iter<'_, Contender>>> {
        let waiting = self.waiting[..self.count].iter().copied();
        Queue { clock: self.clock, turn: self.turn, waiting, now: self.now, rules: &RULES }
    }
}

/// The container of a holder's word.
fn index_of(token: u64) -> Option<usize> {
    ((token & !RESTS) as u32).checked_sub(1).map(|index| index as usize)
}

/// How a priority is written.
pub(crate) fn priority(word: u64) -> Priority {
    match word {
        1 => Priority::Latency,
        2 => Priority::Batch,
        _ => Priority::Normal,
    }
}

/// Another container that is there.
#[derive(Clone, Copy)]
struct Other {
    priority: Priority,
    takes_turns: bool,
    /// It waits for one, or will have to when this one ends.
    waits: bool,
    /// When its last turn ended; 0: it had none.
    served: u64,
}

fn priority_word(priority: Priority) -> u64 {
    match priority {
        Priority::Normal => 0,
        Priority::Latency => 1,
        Priority::Batch => 2,
    }
}

impl Compute<'_> {
    fn gpu(&self, which: usize) -> &AtomicU64 {
        &self.table.header.turns[which]
    }

    fn of(&self, container: usize, which: usize) -> &AtomicU64 {
        &self.table.containers[container].compute[which]
    }

    fn bit(&self) -> u64 {
        1 << (self.place.container % 64)
    }

    fn read(&self, container: usize, which: usize) -> u64 {
        self.of(container, which).load(SeqCst)
    }

    fn limit_of(&self, container: usize) -> Share {
        match self.read(container, word::LIMIT) {
            0 => Share::WHOLE,
            ppm => Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX)),
        }
    }

    fn weight_of(&self, container: usize) -> Share {
        let request = u32::try_from(self.read(container, word::REQUEST)).unwrap_or(u32::MAX);
        Share::weight(request, self.limit_of(container))
    }

    /// What a container's words say; `holds_since` if the GPU is its own.
    fn contender(&self, index: usize, holds_since: Option<u64>, together: u64, now: u64) -> Contender {
        let (limit, weight) = (self.limit_of(index), self.weight_of(index));
        let priority = priority(self.read(index, word::PRIORITY));
        // A holder that does not say since when it wants the GPU has not been waiting.
        let since = match self.read(index, word::SINCE) {
            0 => now,
            since => since.min(now),
        };
        let (mut free, mut ready) = (0, 0);
        if !limit.is_whole() {
            let bucket = Bucket::new(limit).kept_waiting(holds_since.unwrap_or(now).saturating_sub(since));
            let used_until = self.read(index, word::USED_UNTIL);
            free = bucket.free_at(used_until, now);
            ready = match priority {
                // One at its ceiling would interrupt others for each piece.
                Priority::Latency if free <= since => free,
                _ => bucket.ready_at(used_until, now, RULES.worth(weight, together)),
            };
        }
        let (virtual_time, served) = (self.read(index, word::VIRTUAL_TIME), self.read(index, word::SERVED).min(now));
        Contender { index, weight, priority, virtual_time, since, served, free, ready }
    }

    /// Whether anybody in a container is alive.
    fn is_alive(&self, container: usize) -> bool {
        self.table.members_of(container).any(|(_, process)| is_held(&process.life))
    }

    /// The container of a holder's word, if there is such a one and anybody in it is alive.
    fn holder(&self, token: u64) -> Option<usize> {
        let index = index_of(token)?;
        let container = self.table.containers.get(index)?;
        let is_there = container.state.load(SeqCst) == LIVE && container.membership(index) == token & !RESTS;
        (is_there && (index == self.place.container || self.is_alive(index))).then_some(index)
    }

    fn view(&self, token: u64, now: u64) -> View {
        let holder = self.holder(token);
        let wanting = self.gpu(gpu::WANTING).load(SeqCst);
        let is_waiting = |index: &usize| {
            *index < CONTAINERS
                && Some(*index) != holder
                && self.read(*index, word::SINCE) != 0
                && self.table.containers[*index].state.load(SeqCst) == LIVE
                && (*index == self.place.container
                    || RULES.is_heard(self.read(*index, word::HEARD), now) && self.is_alive(*index))
        };
        let weights = |it: usize| u64::from(self.weight_of(it).ppm());
        let together = Bits(wanting).filter(is_waiting).chain(holder).map(weights).fold(0, u64::saturating_add);
        const NOBODY: Contender = Contender {
            index: 0,
            weight: Share::WHOLE,
            priority: Priority::Normal,
            virtual_time: 0,
            since: 0,
            served: 0,
            free: 0,
            ready: 0,
        };
        let mut view = View { waiting: [NOBODY; CONTAINERS], count: 0, turn: None, clock: 0, now };
        for index in Bits(wanting).filter(is_waiting) {
            view.waiting[view.count] = self.contender(index, None, together, now);
            view.count += 1;
        }
        view.clock = self.gpu(gpu::CLOCK).load(SeqCst);
        view.turn = holder.map(|index| {
            let began = self.gpu(gpu::BEGAN).load(SeqCst).min(now);
            let quiet = self.gpu(gpu::QUIET).load(SeqCst);
            Turn {
                holder: self.contender(index, Some(began), together, now),
                began,
                quiet: (token & RESTS != 0).then_some(quiet),
                heard: self.gpu(gpu::HEARD).load(SeqCst),
                seen: self.read(index, word::HEARD).min(now),
            }
        });
        view
    }

    /// The container wants the GPU: from now on, unless it has wanted it before.
    pub fn wants(&self, now: u64) {
        let own = self.place.container;
        self.is_seen(now);
        if self.read(own, word::SINCE) == 0 {
            self.of(own, word::SINCE).store(now.max(1), SeqCst);
        }
        if self.gpu(gpu::WANTING).load(SeqCst) & self.bit() == 0 {
            self.gpu(gpu::WANTING).fetch_or(self.bit(), SeqCst);
            self.ring();
        }
    }

    /// A thread of the container is there. If nothing was seen of it for long, and nobody has taken its turn meanwhile, the whole
    /// machine stood still: that is no part of the turn.
    fn is_seen(&self, now: u64) {
        let began = self.gpu(gpu::BEGAN).load(SeqCst);
        let seen = self.of(self.place.container, word::HEARD).swap(now, SeqCst);
        if self.gpu(gpu::HOLDER).load(SeqCst) == self.own_token() {
            let last = seen.max(began).max(self.gpu(gpu::HEARD).load(SeqCst));
            let silence = RULES.silence(last, now);
            if silence > 0 {
                // If another takes the turn right now, that one says when it began.
                let _ = self.gpu(gpu::BEGAN).compare_exchange(began, began.saturating_add(silence), SeqCst, SeqCst);
            }
        }
    }

    /// It does not any more.
    pub fn wants_no_more(&self) {
        if self.gpu(gpu::WANTING).load(SeqCst) & self.bit() != 0 {
            self.gpu(gpu::WANTING).fetch_and(!self.bit(), SeqCst);
            self.of(self.place.container, word::SINCE).store(0, SeqCst);
        }
    }

    /// Whether any other container wants the GPU.
    pub fn is_wanted_by_others(&self) -> bool {
        self.gpu(gpu::WANTING).load(SeqCst) & !self.bit() != 0
    }

    /// Whose turn it is. It is taken if it is free and this container is next.
    pub fn whose_turn(&self, now: u64) -> Whose {
        let token = self.gpu(gpu::HOLDER).load(SeqCst);
        if token & !RESTS == self.own_token() {
            let over_at = if self.is_wanted_by_others() { self.view(token, now).queue().over_at() } else { None };
            return Whose::Mine(over_at.map_or(u64::MAX, |at| at.saturating_sub(now)));
        }
        let view = self.view(token, now);
        let queue = view.queue();
        let (over, lost) = (queue.over_at(), queue.lost_at());
        let is_quiet = view.turn.is_none_or(|turn| turn.quiet.is_some());
        let by_itself = if is_quiet { over.unwrap_or(now) } else { u64::MAX };
        let free_at = by_itself.min(lost.unwrap_or(u64::MAX));
        if free_at <= now
            && let Some(grant) = queue.next()
            && self.hand(token, &grant, view.turn.as_ref(), now)
        {
            if queue.is_stalled()
                && let Some(turn) = view.turn
            {
                // It is not given another before it is heard of again.
                self.of(turn.holder.index, word::HEARD).store(0, SeqCst);
            }
            if grant.index == self.place.container {
                return Whose::Mine(u64::MAX);
            }
        }
        Whose::Others(free_at.max(now + 20_000).min(now + LOOK))
    }

    /// All that this container had started is done, and its turn is over: to whoever is next.
    pub fn hand_over(&self, now: u64) {
        let token = self.gpu(gpu::HOLDER).load(SeqCst);
        let view = self.view(token, now);
        if view.turn.is_some_and(|turn| turn.holder.index == self.place.container)
            && let Some(grant) = view.queue().next()
        {
            self.hand(token, &grant, view.turn.as_ref(), now);
        }
    }

    fn hand(&self, from: u64, grant: &Grant, before: Option<&Turn>, now: u64) -> bool {
        let to = self.table.containers[grant.index].membership(grant.index);
        // First, because whoever sees the new holder is to see a turn that begins.
        let starts = [gpu::BEGAN, gpu::HEARD].map(|which| (self.gpu(which), self.gpu(which).swap(now, SeqCst)));
        if self.gpu(gpu::HOLDER).compare_exchange(from, to, SeqCst, SeqCst).is_err() {
            // The holder has just gone on, and its turn with it; or another was quicker, and has written over this.
            for (word, before) in starts {
                let _ = word.compare_exchange(now, before, SeqCst, SeqCst);
            }
            return false;
        }
        self.gpu(gpu::CLOCK).fetch_max(grant.clock, SeqCst);
        self.of(grant.index, word::VIRTUAL_TIME).fetch_max(grant.virtual_time, SeqCst);
        self.of(grant.index, word::TURNS).fetch_add(1, SeqCst);
        let since = self.read(grant.index, word::SINCE);
        if since != 0 {
            self.of(grant.index, word::WAITED).fetch_add(now.saturating_sub(since), SeqCst);
        }
        if let Some(Turn { holder, quiet, .. }) = before {
            // One that is quiet because of its ceiling still wants the GPU.
            let wants_nothing = quiet.is_some() && holder.free <= now;
            self.of(holder.index, word::VIRTUAL_TIME).fetch_add(grant.charge, SeqCst);
            self.of(holder.index, word::SERVED).store(now, SeqCst);
            if wants_nothing {
                self.of(holder.index, word::SINCE).store(0, SeqCst);
                self.gpu(gpu::WANTING).fetch_and(!(1 << (holder.index % 64)), SeqCst);
            } else {
                self.of(holder.index, word::SINCE).store(grant.since.max(1), SeqCst);
            }
            if !grant.was_served {
                self.of(holder.index, word::PREEMPTED).fetch_add(1, SeqCst);
            }
        }
        self.ring();
        true
    }

    /// The container works, in its turn, and what it has started should be done by then. `false`: it has no turn; while it rested
    /// another may have taken that.
    pub fn works(&self, until: u64) -> bool {
        let (holder, own) = (self.gpu(gpu::HOLDER), self.own_token());
        if holder.load(SeqCst) & !RESTS != own {
            return false;
        }
        // First, because whoever sees that it does not rest is to see that it is there. (If another takes the turn right now, that
        // one says when it is done with what it starts.)
        self.gpu(gpu::HEARD).store(until, SeqCst);
        loop {
            match holder.load(SeqCst) {
                seen if seen == own => return true,
                seen if seen & !RESTS != own => return false,
                resting => {
                    let _ = holder.compare_exchange(resting, own, SeqCst, SeqCst);
                }
            }
        }
    }

    /// What the container has started in its turn is still not done, and a thread of it has just seen that.
    pub fn still_works(&self, now: u64) {
        if self.is_holder() {
            self.is_seen(now);
        }
    }

    /// It has nothing under way.
    pub fn rests(&self, now: u64) {
        if self.pauses(now) && self.is_wanted_by_others() {
            self.ring();
        }
    }

    /// The same where it will most likely have nothing for longer than a turn is kept for it: the others need not wait that long.
    pub fn rests_for_long(&self, now: u64) {
        self.rests(now.saturating_sub(self.keeps_turn_for()));
    }

    /// The same as [`Compute::rests`] where it will most likely go on within a moment. Nobody is woken for that: whoever pauses for
    /// longer than [`Compute::pauses_until`] hands over then.
    pub fn pauses(&self, now: u64) -> bool {
        let (holder, own) = (self.gpu(gpu::HOLDER), self.own_token());
        if holder.load(SeqCst) != own {
            return false;
        }
        // First, because whoever sees that it rests is to see since when.
        self.gpu(gpu::QUIET).store(now, SeqCst);
        holder.compare_exchange(own, own | RESTS, SeqCst, SeqCst).is_ok()
    }

    /// If the container has the turn and nothing under way: until when it is kept for it.
    pub fn pauses_until(&self) -> Option<u64> {
        let rests = self.gpu(gpu::HOLDER).load(SeqCst) == self.own_token() | RESTS;
        rests.then(|| self.gpu(gpu::QUIET).load(SeqCst).saturating_add(self.keeps_turn_for()))
    }

    /// For how long a turn is kept for the container while it has nothing under way.
    pub fn keeps_turn_for(&self) -> u64 {
        RULES.kept_for(self.priority())
    }

    /// For how long the container has waited for the turn that it has, or waits for one.
    pub(crate) fn kept_waiting(&self, now: u64) -> u64 {
        let until = if self.is_holder() { self.gpu(gpu::BEGAN).load(SeqCst).min(now) } else { now };
        match self.read(self.place.container, word::SINCE) {
            0 => 0,
            since => until.saturating_sub(since),
        }
    }

    /// If it is the turn of a `latency` container that works: when all that it has started should be done.
    pub fn request_ends(&self) -> Option<u64> {
        let token = self.gpu(gpu::HOLDER).load(SeqCst);
        let holder = index_of(token)?;
        let is_urgent = holder < CONTAINERS && priority(self.read(holder, word::PRIORITY)) == Priority::Latency;
        (is_urgent && token & RESTS == 0).then(|| self.gpu(gpu::HEARD).load(SeqCst))
    }

    /// When the turn began that somebody has.
    pub fn turn_began(&self) -> u64 {
        self.gpu(gpu::BEGAN).load(SeqCst)
    }

    /// The container has work under way that it lost its turn for: the GPU does it beside that of others.
    pub fn is_late(&self, now: u64) {
        self.of(self.place.container, word::LATE).fetch_max(now, SeqCst);
    }

    /// Whether any other container has had such work under way since then.
    pub fn was_beside_others(&self, since: u64) -> bool {
        self.other_containers().any(|index| self.read(index, word::LATE) >= since)
    }

    /// Nanoseconds that the GPU has worked for all other containers, as far as it is accounted for.
    pub fn gpu_time_of_others(&self) -> u64 {
        self.other_containers().map(|index| self.read(index, word::GPU_TIME)).fold(0, u64::saturating_add)
    }

    fn other_containers(&self) -> impl Iterator<Item = usize> {
        let others = (0..CONTAINERS).filter(|index| *index != self.place.container);
        others.filter(|index| self.table.containers[*index].state.load(SeqCst) == LIVE)
    }

    /// Whether it is this container's turn.
    pub fn is_holder(&self) -> bool {
        self.gpu(gpu::HOLDER).load(SeqCst) & !RESTS == self.own_token()
    }

    /// The word of a holder that is this container.
    fn own_token(&self) -> u64 {
        self.table.containers[self.place.container].membership(self.place.container)
    }

    /// The container has launched something of late.
    pub fn is_active(&self, now: u64) {
        self.of(self.place.container, word::ACTIVE).store(now, SeqCst);
    }

    /// Other containers that are there.
    fn others(&self, now: u64) -> impl Iterator<Item = Other> {
        let wanting = self.gpu(gpu::WANTING).load(SeqCst);
        let others = (0..CONTAINERS).filter(|index| *index != self.place.container);
        others.filter_map(move |index| {
            let active = self.read(index, word::ACTIVE);
            let priority = priority(self.read(index, word::PRIORITY));
            let is_recent = active != 0 && (priority == Priority::Latency || now.saturating_sub(active) < PRESENT);
            if !is_recent || self.table.containers[index].state.load(SeqCst) != LIVE || !self.is_alive(index) {
                return None;
            }
            let takes_turns = wanting >> (index % 64) & 1 != 0;
            let waits = takes_turns && self.read(index, word::SINCE) != 0;
            Some(Other { priority, takes_turns, waits, served: self.read(index, word::SERVED) })
        })
    }

    /// Whether other containers use the GPU too, and, where some of them take turns, how much may be in flight.
    pub fn company(&self, now: u64) -> (bool, Option<Flight>) {
        let is_shared = self.others(now).next().is_some();
        let wanted = |it: Other| match it {
            Other { waits: true, .. } => now,
            // It has nothing to do at present, and may be back in a moment.
            Other { takes_turns: true, .. } => now.saturating_sub(1),
            Other { served, .. } => served.min(now.saturating_sub(1)),
        };
        let others = self.others(now).map(|it| (it.priority, wanted(it)));
        (is_shared, is_shared.then(|| RULES.flight(others, now)).flatten())
    }

    /// Whether any of them does not want turns at present: the GPU does what they send, whosever turn it is.
    pub fn is_beside_free_ones(&self, now: u64) -> bool {
        self.others(now).any(|it| !it.takes_turns)
    }

    /// What the container asks for, and how urgently; where nobody has said so yet.
    pub fn begin_with_request(&self, request: Option<Share>, urgency: Priority) {
        let begin = |which: usize, value: u64| {
            let _ = self.of(self.place.container, which).compare_exchange(0, value, SeqCst, SeqCst);
        };
        if let Some(request) = request {
            begin(word::REQUEST, request.ppm().into());
        }
        begin(word::PRIORITY, priority_word(urgency));
    }

    /// Another limit, for all of the container's processes, at once. What is owed or saved up becomes due at the new rate.
    pub fn set_limit(&self, limit: Share, now: u64) {
        let (own, before) = (self.place.container, self.limit());
        let weight = self.weight_of(own);
        self.of(own, word::LIMIT).store(limit.ppm().into(), SeqCst);
        let used_until = self.of(own, word::USED_UNTIL);
        let old = used_until.load(SeqCst);
        let new = Bucket::new(before).changed(Bucket::new(limit), old, now);
        // Whoever charges something in between has done so at the one rate or the other.
        let _ = used_until.compare_exchange(old, new, SeqCst, SeqCst);
        self.reweigh(weight, now);
    }

    /// Another request.
    pub fn set_request(&self, request: Option<Share>, now: u64) {
        let weight = self.weight_of(self.place.container);
        self.of(self.place.container, word::REQUEST).store(request.map_or(0, |share| share.ppm().into()), SeqCst);
        self.reweigh(weight, now);
    }

    /// Another priority. What it has waited for so far was waited for with the one before.
    pub fn set_priority(&self, urgency: Priority, now: u64) {
        self.of(self.place.container, word::PRIORITY).store(priority_word(urgency), SeqCst);
        if self.read(self.place.container, word::SINCE) != 0 {
            self.of(self.place.container, word::SINCE).store(now.max(1), SeqCst);
        }
        self.ring();
    }

    /// The turn so far counts at the weight that it began with.
    fn reweigh(&self, from: Share, now: u64) {
        let own = self.place.container;
        if self.is_holder() {
            let held = now.saturating_sub(self.gpu(gpu::BEGAN).load(SeqCst));
            let virtual_time = self.read(own, word::VIRTUAL_TIME);
            self.of(own, word::VIRTUAL_TIME).store(reweighed(virtual_time, held, from, self.weight_of(own)), SeqCst);
        }
        self.ring();
    }

    /// How urgent its work is.
    pub fn priority(&self) -> Priority {
        priority(self.read(self.place.container, word::PRIORITY))
    }

    /// How often the bell has rung.
    pub fn bell(&self) -> u32 {
        self.gpu(gpu::BELL).load(SeqCst) as u32
    }

    /// Sleeps until the bell has rung once more than it had, or until then.
    pub fn wait_for_bell(&self, bell: u32, until: u64, now: u64) {
        let time = Duration::from_nanos(until.saturating_sub(now).min(LOOK));
        futex_wait_shared(self.gpu(gpu::BELL), bell, time);
    }

    fn ring(&self) {
        self.gpu(gpu::BELL).fetch_add(1, SeqCst);
        futex_wake_shared(self.gpu(gpu::BELL));
    }
}
