//! Whether a program is bound by the GPU: whether it does little but wait for it.
//!
//! One that does gains from a larger share of the GPU's time, and loses to a neighbour that queues more: it has to take turns
//! with the others. One that sends its work more slowly than the GPU does it would only be held up by that.
//!
//! To wait is to be in a call that waits for the GPU, to be held up in a launch because enough is queued already, or to have
//! work under way and launch nothing.

use super::sent::{Sent, WAITS, faded};

/// How long a program has waited, since when.
pub struct Waits {
    since: u64,
    waited: u64,
    /// Threads that wait right now.
    waiting: u32,
    looked: u64,
    launched: Sent,
    /// How long it took to send what before that, of which the last counts most. What is sent in one window may be done in the next,
    /// and a program that waits for all of a window sends nothing in it.
    sent: (u64, Sent),
    /// The same in turns, and for how long those lasted.
    in_turns: (u64, u64, Sent),
    /// When turns were last wanted to find out what its work takes, or could have been.
    tried: u64,
    /// Turns are wanted for that reason only.
    is_try: bool,
    /// When the program last did anything here.
    seen: u64,
}

/// It takes so long to see what a program does.
const WINDOW: u64 = 10_000_000;
/// And so long to have a first idea.
const GLANCE: u64 = 1_000_000;
/// A program with work under way that launches nothing for so long waits for it.
const PAUSE: u64 = 200_000;
/// In turns of so long together it shows all of its sides.
const IN_TURNS: u64 = 60_000_000;
/// If turns are wanted to find out what its work takes, then not again for so long.
const BETWEEN_TRIES: u64 = 1_000_000_000;
/// Of one that is not seen for so long it is not known what it does.
const AWAY: u64 = 3_000_000;

impl Waits {
    /// Not at all.
    pub const fn new() -> Waits {
        let nothing = Sent::NOTHING;
        Waits {
            since: 0,
            waited: 0,
            waiting: 0,
            looked: 0,
            launched: nothing,
            sent: (0, nothing),
            in_turns: (0, 0, nothing),
            tried: 0,
            is_try: false,
            seen: 0,
        }
    }

    /// Counts from now on.
    pub fn start(&mut self, now: u64) {
        (self.since, self.waited, self.looked, self.launched) = (now, 0, now, Sent::NOTHING);
    }

    /// The program asks, or has launched something, or has waited. Time in which it did nothing of that says nothing about it: it
    /// may have been stopped, or the whole machine.
    pub fn is_there(&mut self, now: u64) {
        let away = now.saturating_sub(self.seen.max(self.since));
        if away > AWAY && self.waiting == 0 {
            self.since += away;
        }
        self.seen = now;
    }

    /// Something was launched for which the GPU takes so long, if that is known of such work.
    pub fn launched(&mut self, takes: Option<u64>) {
        let (time, unknown) = (takes.unwrap_or(0), u64::from(takes.is_none()));
        self.launched = self.launched.and(Sent { time, unknown, launches: 1 });
    }

    /// A launch took the driver so long, with others before it that the GPU is not done with. It waits where the hardware's queue is
    /// full; but for long only to load code.
    pub fn called(&mut self, length: u64, now: u64) {
        const LOADS: u64 = 10_000_000;
        if (WAITS..LOADS).contains(&length) {
            self.held_up(length, now);
        }
    }

    /// A launch was held up for so long.
    pub fn held_up(&mut self, length: u64, now: u64) {
        self.waited(length, now);
        self.seen = now;
    }

    /// It has waited for so long until now: for no longer than is counted.
    fn waited(&mut self, length: u64, now: u64) {
        self.waited = self.waited.saturating_add(length.min(now.saturating_sub(self.since)));
    }

    /// A thread begins to wait for the GPU.
    pub fn begin(&mut self) {
        self.waiting += 1;
    }

    /// It has waited for so long.
    pub fn end(&mut self, length: u64, now: u64) {
        self.waiting = self.waiting.saturating_sub(1);
        self.waited(length, now);
        self.seen = now;
    }

    /// Whether a thread waits right now.
    pub fn go_on(&self) -> bool {
        self.waiting > 0
    }

    /// There is work under way, and the last launch was so long ago. Time that counts here is not taken for time away: of one that
    /// pauses between launches it would count twice. (Who is stopped is not looked at meanwhile, either.)
    pub fn look(&mut self, paused: u64, now: u64) {
        let passed = now.saturating_sub(self.looked.max(self.since));
        if self.waiting == 0 && paused > PAUSE && passed <= AWAY {
            self.waited(passed.min(paused), now);
            self.seen = now;
        }
        self.looked = now;
    }

    /// Whether the program waits for most of the time, and would if it were alone. It is counted anew after a while.
    ///
    /// `expected`: how long the GPU takes for so many launches of which it is not known by itself, as far as can be told from
    /// others. Who takes longer to send its work than the GPU to do it would not wait if it were alone: it waits because others
    /// have the GPU by turns of the hardware's, and to be held up to a turn of its own, which it cannot fill, would make it
    /// wait more. Where that is only what it seems to be, a turn tells.
    pub fn are_many(&mut self, expected: impl FnOnce(u64) -> Option<u64>, now: u64) -> bool {
        let passed = now.saturating_sub(self.since);
        if passed < WINDOW {
            return false;
        }
        let (may_try, is_slow) = (self.may_try(now), self.sends_slowly(expected, now));
        if may_try {
            self.tried = now;
        }
        self.is_try = may_try && is_slow;
        let many = self.waited > passed / 10 * 6 && (may_try || !is_slow);
        // A window in which nothing was sent tells nothing about how it is. What one that trains a network sends in the last few of
        // them, before it waits, is not what it sends in all of a step.
        if self.launched.launches > 0 {
            let (sending, sent) = self.sent_until(now);
            self.sent = (faded(sending), sent.faded());
        }
        self.start(now);
        many
    }

    /// Whether the program takes longer to send its work than the GPU takes to do it. `expected` as above: where nothing is known,
    /// or was sent, nothing is said.
    pub fn sends_slowly(&self, expected: impl FnOnce(u64) -> Option<u64>, now: u64) -> bool {
        let (sending, launched) = self.sent_until(now);
        now.saturating_sub(self.since) >= GLANCE && launched.takes(expected).is_some_and(|gpu| gpu < sending)
    }

    /// Whether all that it sent lately, and not only the last of it, takes the GPU half as long as it took to send, or longer.
    pub fn takes_much(&self, expected: impl FnOnce(u64) -> Option<u64>, now: u64) -> bool {
        let (sending, sent) = self.sent_until(now);
        sent.takes(expected).is_some_and(|gpu| gpu >= sending / 2)
    }

    /// Whether it may be worth a turn to find out what its work takes.
    pub fn may_try(&self, now: u64) -> bool {
        let (_, sent) = self.sent_until(now);
        sent.is_unknown() && now.saturating_sub(self.tried) > BETWEEN_TRIES
    }

    /// How long it took to send what.
    fn sent_until(&self, now: u64) -> (u64, Sent) {
        let (sending, launched) = self.sent;
        let passed = now.saturating_sub(self.since);
        (sending.saturating_add(passed.saturating_sub(self.waited)), launched.and(self.launched))
    }

    /// Nothing was launched for a while: what comes next may be sent otherwise.
    pub fn rest(&mut self) {
        self.sent = (0, Sent::NOTHING);
    }

    /// Whether it seems to have waited for little of the time, though it is too early to be sure of it.
    pub fn seem_few(&self, now: u64) -> bool {
        let passed = now.saturating_sub(self.since);
        passed >= GLANCE && self.waiting == 0 && self.waited < passed / 10 * 3
    }

    /// A turn has ended. Whether turns are of no use: in the last few the program took longer to send its work than the GPU to do
    /// it, or much longer in this one. A program that trains a network does so for a part of each step.
    pub fn were_few_in_turn(&mut self, expected: impl Fn(u64) -> Option<u64>, now: u64) -> bool {
        let passed = now.saturating_sub(self.since);
        let (sending, sent) = (passed.saturating_sub(self.waited), self.launched);
        let (before, sending_before, sent_before) = self.in_turns;
        let (sending_all, sent_all) = (sending_before + sending, sent_before.and(sent));
        let all = before + passed;
        self.in_turns = (faded(all), faded(sending_all), sent_all.faded());
        let is_less = |sent: Sent, time: u64| sent.takes(&expected).is_none_or(|gpu| gpu < time);
        // A turn may end early: a short one tells nothing.
        let is_telling = passed >= WINDOW / 2;
        let few = is_telling && self.waited < passed / 10 * 3;
        // Some of the time in which nothing was sent, the program may have had no processor.
        let many_sides = all >= IN_TURNS && is_less(sent_all, sending_all / 4 * 3);
        // Each launch of a kind that is not known is waited for: a program with new ones all the time is better off without turns.
        let is_in_vain = is_telling && self.is_try && before > 0 && sent.is_unknown();
        self.start(now);
        is_in_vain || few && (is_less(sent, sending / 2) || many_sides)
    }

    /// Turns are of no more use, or were not there before.
    pub fn forget_turns(&mut self) {
        self.in_turns = (0, 0, Sent::NOTHING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_waits_for_every_kernel_is_bound_and_who_launches_all_the_time_is_not() {
        let (mut waiter, mut launcher) = (Waits::new(), Waits::new());
        waiter.start(MS);
        launcher.start(MS);
        for at in 1..=20 {
            let now = MS + at * MS / 2;
            waiter.begin();
            waiter.end(MS / 2, now);
            launcher.held_up(MS / 20, now);
        }
        assert!(!waiter.are_many(|_| None, 10 * MS), "too early to tell");
        assert!(waiter.are_many(|_| None, 12 * MS) && !launcher.are_many(|_| None, 12 * MS));
        assert!(!waiter.are_many(|_| None, 13 * MS), "counted anew");
    }

    #[test]
    fn who_waits_only_because_others_are_there_is_not_bound() {
        // Ten launches in 12 ms, of which it waited for 8: it takes 0.4 ms to send one.
        for (each, is_bound) in [(MS / 10 * 3, false), (MS / 2, true)] {
            let mut waits = Waits::new();
            waits.start(MS);
            (0..10).for_each(|_| waits.launched(None));
            waits.held_up(8 * MS, 13 * MS);
            assert_eq!(waits.sends_slowly(|launches| Some(launches * each), 13 * MS), !is_bound);
            assert!(!waits.sends_slowly(|_| Some(0), MS + MS / 2), "too early to tell");
            assert_eq!(waits.are_many(|launches| Some(launches * each), 13 * MS), is_bound);
        }
    }

    #[test]
    fn who_sends_for_some_time_and_then_waits_is_not_bound() {
        const EACH: u64 = 14_000;
        // Each of 512 launches takes 30 us to send; then it waits for as long, while others have the GPU.
        let until_bound = |sending: u64, for_long: u64| {
            let mut waits = Waits::new();
            let (mut now, mut is_bound) = (MS, false);
            waits.start(now);
            while now < for_long {
                for _ in 0..512 {
                    now += sending;
                    waits.is_there(now);
                    waits.launched(None);
                    is_bound |= waits.are_many(|launches| Some(launches * EACH), now);
                }
                for _ in 0..15 {
                    now += MS;
                    waits.held_up(MS, now);
                    is_bound |= waits.are_many(|launches| Some(launches * EACH), now);
                }
                if is_bound {
                    return Some(now);
                }
            }
            None
        };
        assert_eq!(until_bound(30_000, 900 * MS), None, "but for a try, after a second");
        assert!(until_bound(5_000, 900 * MS) <= Some(50 * MS), "one that sends them in less than they take");
    }

    #[test]
    fn short_launches_do_not_hide_long_ones() {
        // Each takes 25 us to send; most take the GPU 12 us, and as much as that is thought of those that are not known.
        let is_bound = |long: Option<u64>| {
            let mut waits = Waits::new();
            waits.start(MS);
            (0..60).for_each(|_| waits.launched(Some(12_000)));
            (0..20).for_each(|_| waits.launched(long));
            waits.held_up(8 * MS, 11 * MS);
            waits.are_many(|launches| Some(launches * 12_000), 11 * MS)
        };
        assert!(is_bound(Some(MS / 2)) && !is_bound(Some(12_000)) && !is_bound(None));
        let mut waits = Waits::new();
        waits.start(MS);
        waits.launched(Some(12_000));
        waits.launched(None);
        waits.held_up(8 * MS, 11 * MS);
        assert!(waits.are_many(|_| None, 11 * MS), "where some is not known at all, nothing is said");
    }

    #[test]
    fn who_has_sent_nothing_for_long_is_what_it_was() {
        const EACH: u64 = 500_000;
        // Each of sixteen launches takes so long to send; then it waits for hundreds of milliseconds, as long as the hardware has
        // others' work to do.
        let is_bound = |sending: u64, windows: u64| {
            let mut waits = Waits::new();
            let mut now = MS;
            waits.start(now);
            for _ in 0..16 {
                now += sending;
                waits.is_there(now);
                waits.launched(None);
            }
            (0..windows)
                .map(|_| {
                    // All but a microsecond.
                    now += 10 * MS;
                    waits.held_up(10 * MS - 1_000, now);
                    waits.are_many(|launches| Some(launches * EACH), now)
                })
                .last()
        };
        for windows in [1, 2, 5, 30] {
            assert_eq!(is_bound(10_000, windows), Some(true), "after {windows}");
            assert_eq!(is_bound(600_000, windows), Some(false), "after {windows}");
        }
        let mut waits = Waits::new();
        waits.start(MS);
        waits.held_up(9 * MS, 11 * MS);
        assert!(waits.are_many(|launches| Some(launches * EACH), 11 * MS), "one that has sent nothing at all");
    }

    #[test]
    fn who_has_something_else_to_do_in_between_is_not_bound() {
        const EACH: u64 = 14_000;
        // Hundred launches, each of which takes so long to send, and then something else for 6 ms, with work under way.
        let is_bound = |sending: u64| {
            let mut waits = Waits::new();
            let mut now = MS;
            waits.start(now);
            (0..100).any(|_| {
                let mut is_bound = false;
                for _ in 0..100 {
                    now += sending;
                    waits.is_there(now);
                    waits.launched(None);
                    is_bound |= waits.are_many(|launches| Some(launches * EACH), now);
                }
                for paused in 1..=6 {
                    now += MS;
                    waits.look(paused * MS, now);
                    is_bound |= waits.are_many(|launches| Some(launches * EACH), now);
                }
                is_bound
            })
        };
        assert!(!is_bound(30_000));
        assert!(is_bound(5_000), "it sends them in less than they take, and may be asking all the time");
    }

    #[test]
    fn who_asks_again_and_again_waits_too() {
        let mut waits = Waits::new();
        waits.start(MS);
        for at in 2..13 {
            waits.look(MS, at * MS);
        }
        assert!(waits.are_many(|_| None, 12 * MS));
        // But not twice for one who is in a call that waits.
        waits.begin();
        for at in 13..24 {
            waits.look(MS, at * MS);
        }
        assert!(!waits.are_many(|_| None, 23 * MS));
    }

    #[test]
    fn a_first_idea_comes_soon() {
        let mut waits = Waits::new();
        waits.start(MS);
        assert!(!waits.seem_few(MS + MS / 2), "too early even for that");
        waits.begin();
        assert!(!waits.seem_few(3 * MS), "it waits just now");
        waits.end(MS / 10, 2 * MS);
        assert!(waits.seem_few(3 * MS));
        waits.held_up(MS, 3 * MS);
        assert!(!waits.seem_few(3 * MS));
    }

    #[test]
    fn who_was_stopped_has_not_launched_meanwhile() {
        let mut waits = Waits::new();
        waits.start(MS);
        for at in [1, 2, 40, 41] {
            waits.is_there(at * MS);
        }
        assert!(!waits.were_few_in_turn(|_| None, 41 * MS), "38 ms are gone");
        waits.start(38 * MS);
        [38, 39, 77, 78].iter().for_each(|at| waits.is_there(at * MS));
        (79..83).for_each(|at| waits.is_there(at * MS));
        assert!(waits.were_few_in_turn(|_| None, 83 * MS), "and these are not");
        // Whoever was to look at it was stopped, too.
        waits.start(50 * MS);
        waits.is_there(50 * MS);
        (51..=52).for_each(|at| waits.look(at * MS - 50 * MS, at * MS));
        waits.look(40 * MS, 90 * MS);
        waits.is_there(91 * MS);
        (92..=96).for_each(|at| waits.is_there(at * MS));
        assert!(
            waits.were_few_in_turn(|_| None, 97 * MS),
            "2 ms of 7 it had work under way and launched nothing, and 39 do not count"
        );
        // One that is in a call that waits is not away.
        waits.start(50 * MS);
        waits.begin();
        waits.end(20 * MS, 70 * MS);
        waits.is_there(70 * MS);
        assert!(waits.are_many(|_| None, 71 * MS));
    }

    #[test]
    fn no_more_was_waited_for_than_time_has_passed() {
        // It was held up for 20 ms, and for 6 of them since that is counted; then it sends three launches a millisecond.
        let mut waits = Waits::new();
        waits.start(14 * MS);
        waits.held_up(20 * MS, 20 * MS);
        for at in 20..26 {
            waits.is_there(at * MS);
            (0..3).for_each(|_| waits.launched(None));
        }
        assert!(waits.sends_slowly(|launches| Some(launches * MS / 4), 26 * MS), "6 ms for what takes 4.5");
        assert!(!waits.sends_slowly(|launches| Some(launches * MS / 2), 26 * MS));
        // Nor was it away while it was held up.
        waits.held_up(6 * MS, 32 * MS);
        waits.is_there(32 * MS);
        assert!(waits.are_many(|_| None, 32 * MS), "12 of 18 ms");
    }

    #[test]
    fn a_turn_in_which_little_was_waited_for_was_not_needed() {
        let mut waits = Waits::new();
        waits.start(MS);
        assert!(!waits.were_few_in_turn(|_| None, 2 * MS), "too short to tell");
        waits.held_up(10 * MS, 20 * MS);
        assert!(!waits.were_few_in_turn(|_| None, 20 * MS));
        assert!(waits.were_few_in_turn(|_| None, 40 * MS));
    }

    #[test]
    fn who_waits_in_the_driver_waits() {
        // Each of hundred launches takes the driver so long, and the program 10 us.
        let waits = |length: u64| {
            let mut waits = Waits::new();
            waits.start(MS);
            let now = (0..100).fold(MS, |now, _| {
                let now = now + 10_000 + length;
                waits.launched(Some(50_000));
                waits.called(length, now);
                now
            });
            waits.waited * 100 / (now - MS)
        };
        assert_eq!((waits(4_000), waits(90_000)), (0, 90), "one that finds the queue full");
        assert_eq!(waits(50 * MS), 0, "but not one that loads code");
    }

    #[test]
    fn who_sends_long_ones_too_takes_much() {
        // Windows of work of so much in 11 ms, the last first; and 0.1 ms of work in the 2 since then.
        let takes_much = |before: [u64; 6]| {
            let mut waits = Waits::new();
            let end = before.iter().rev().fold(MS, |now, sent| {
                waits.start(now);
                waits.launched(Some(sent * MS));
                let end = now + 11 * MS;
                waits.are_many(|_| None, end);
                end
            });
            waits.launched(Some(MS / 10));
            waits.takes_much(|_| None, end + 2 * MS)
        };
        assert!(takes_much([2, 2, 2, 24, 24, 24]) && !takes_much([2, 2, 2, 5, 5, 5]));
        assert!(!Waits::new().takes_much(|_| Some(MS), MS), "of one that sent nothing, nothing is known");
    }

    #[test]
    fn turns_are_judged_by_all_sides_of_a_program() {
        // In every other turn it sends work of 16 ms in 20, and in the others work of 30 in 10 of 20, or of less.
        let until_over = |much: u64| {
            let mut waits = Waits::new();
            (0..100u64).find(|turn| {
                let at = turn * 50 * MS;
                waits.start(at);
                let (sent, waited) = if turn % 2 == 0 { (16 * MS, 0) } else { (much, 10 * MS) };
                waits.launched(Some(sent));
                waits.held_up(waited, at + 20 * MS);
                waits.were_few_in_turn(|_| None, at + 20 * MS)
            })
        };
        assert_eq!(until_over(30 * MS), None);
        assert_eq!(until_over(MS), Some(4), "not before it has had a few");
        let mut waits = Waits::new();
        waits.start(0);
        waits.launched(Some(9 * MS));
        assert!(waits.were_few_in_turn(|_| None, 20 * MS), "where the GPU is idle for most of a turn, it is the last");
    }

    #[test]
    fn a_step_that_ends_slowly_is_judged_as_a_whole() {
        // It sends work of so much in each of two windows, and 4 ms in each of the next four; then it waits for all of it.
        let is_bound = |quickly: u64| {
            let (mut waits, mut now) = (Waits::new(), MS);
            waits.start(now);
            (0..6).any(|_| {
                let sent = [quickly, quickly, 4, 4, 4, 4].into_iter().chain([0; 8]);
                sent.fold(false, |is_bound, sent| {
                    now += 11 * MS;
                    waits.launched(Some(sent * MS));
                    waits.held_up(if sent == 0 { 11 * MS } else { 0 }, now);
                    is_bound || waits.are_many(|_| None, now)
                })
            })
        };
        assert!(is_bound(60) && !is_bound(4));
    }

    #[test]
    fn a_turn_is_tried_where_most_of_the_work_is_not_known() {
        let slow = |launches: u64| Some(launches * 1_000);
        let mut waits = Waits::new();
        let mut window = |from: u64, known: u64, waited: u64| {
            waits.rest();
            waits.start(from);
            (0..100).for_each(|launch| waits.launched((launch < known).then_some(1_000)));
            waits.held_up(waited, from + 11 * MS);
            waits.are_many(slow, from + 11 * MS)
        };
        let second = 1000 * MS;
        assert!(!window(2 * second, 100, 8 * MS), "all of it is known, and takes the program longer to send");
        assert!(window(2 * second, 50, 8 * MS));
        assert!(!window(3 * second, 50, 8 * MS), "not again and again");
        assert!(!window(4 * second, 50, MS), "nor if it does not wait");
        assert!(!window(5 * second, 50, 8 * MS) && window(6 * second, 50, 8 * MS));
        // In the turns that follow all of it is known, or as little as before.
        let mut turn = |at: u64, lasts: u64, known: u64| {
            let end = 6 * second + (at + lasts) * MS;
            waits.start(6 * second + at * MS);
            (0..100).for_each(|launch| waits.launched((launch < known).then_some(MS)));
            waits.held_up(lasts / 4 * 3 * MS, end);
            waits.were_few_in_turn(slow, end)
        };
        assert!(!turn(100, 20, 50), "in the first it is found out");
        assert!(!turn(200, 20, 90) && !turn(250, 4, 50), "and one that ends early tells nothing");
        assert!(turn(300, 20, 50));
    }
}
