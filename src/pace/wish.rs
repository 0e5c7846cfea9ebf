//! Whether a process's container is to take turns with others, as far as that process knows.
//!
//! It is to if it is bound by the GPU ([`super::bound`]) while others use it. Programs are looked at to find that out: all the
//! time in a turn, and else now and then.

use ration_policy::turns::Priority;

use super::bound::Waits;
use super::glances::Glances;

/// Whether turns are wanted, and what that is told from.
pub struct Wish {
    wanting: bool,
    /// Until when turns are to be wanted again at once, because they were until nothing was launched for a while.
    bound_until: u64,
    /// When anybody else last wanted any, or seemed about to.
    contested: u64,
    /// How much of its time the program waits for the GPU; in a turn, since that began.
    pub waits: Waits,
    /// How often launches are looked at that nobody holds up.
    pub glances: Glances,
}

impl Wish {
    /// None.
    pub const fn new() -> Wish {
        Wish { wanting: false, bound_until: 0, contested: 0, waits: Waits::new(), glances: Glances::new() }
    }

    /// Whether turns are wanted.
    pub fn is_there(&self) -> bool {
        self.wanting
    }

    /// The program is about to launch something.
    pub fn asks(&mut self, now: u64) {
        self.waits.is_there(now);
        if self.glances.begin() {
            self.waits.start(now);
        }
    }

    /// Finds out whether turns are wanted from now on, and says whether that is over. `takes_turns`: whether any of the others wants
    /// some. `expected`: how long the GPU takes for so many of its launches that it is not known of by itself, if that can be told.
    pub fn consider(
        &mut self,
        in_company: bool,
        takes_turns: impl FnOnce() -> bool,
        priority: Priority,
        expected: impl FnOnce(u64) -> Option<u64>,
        now: u64,
    ) -> bool {
        let begins = |wish: &mut Wish| {
            let is_back = now < wish.bound_until && takes_turns();
            priority == Priority::Latency || is_back || wish.waits.are_many(expected, now)
        };
        match (self.wanting, in_company) {
            (true, false) => {
                self.end(now);
                return true;
            }
            (false, true) if begins(self) => {
                (self.wanting, self.contested) = (true, now);
                self.glances.forget();
                self.waits.forget_turns();
                self.waits.start(now);
            }
            _ => {}
        }
        false
    }

    /// Turns are of no more use. How it waited in them says nothing about how it waits without.
    pub fn end(&mut self, now: u64) {
        (self.wanting, self.bound_until) = (false, 0);
        self.waits.start(now);
    }

    /// Nothing was launched for a while. The program may have been stopped, or the whole machine: its launches are not to come
    /// in between those of others until it is found out again what it is; unless it is known to be none that is bound.
    pub fn end_for_now(&mut self, expected: impl FnOnce(u64) -> Option<u64>, now: u64) {
        /// If it launches again within this time, it wants turns.
        const REMEMBERED: u64 = 200_000_000;
        let is_bound = !self.waits.sends_slowly(expected, now);
        (self.wanting, self.bound_until) = (false, if is_bound { now + REMEMBERED } else { 0 });
    }

    /// A turn has ended. Whether turns are of no use: the program does not wait for the GPU, though it has it. `expected` as above.
    pub fn is_over_with_turn(&mut self, priority: Priority, expected: impl Fn(u64) -> Option<u64>, now: u64) -> bool {
        self.waits.were_few_in_turn(expected, now) && priority != Priority::Latency
    }

    /// Whether turns are of no use because for a while nobody else wanted any. `is_contested`: somebody does, or may soon.
    pub fn is_uncontested(&mut self, is_contested: bool, now: u64) -> bool {
        const A_WHILE: u64 = 100_000_000;
        if is_contested {
            self.contested = now;
        }
        now.saturating_sub(self.contested) > A_WHILE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Whether turns are wanted at this time; it is said if that is over, and only then.
    fn wanted(wish: &mut Wish, in_company: bool, now: u64) -> bool {
        let before = wish.is_there();
        let is_over = wish.consider(in_company, || true, Priority::Normal, |_| None, now);
        assert_eq!(is_over, before && !wish.is_there());
        wish.is_there()
    }

    /// One that has waited for the GPU all the time, for so long.
    fn waiting(until: u64) -> Wish {
        let mut wish = Wish::new();
        wish.waits.start(0);
        wish.waits.held_up(until, until);
        wish
    }

    #[test]
    fn who_waits_for_the_gpu_wants_turns_while_there_are_others() {
        let mut wish = waiting(20 * MS);
        assert!(!wanted(&mut wish, false, 20 * MS), "alone");
        assert!(wanted(&mut wish, true, 20 * MS));
        assert!(wanted(&mut wish, true, 21 * MS), "still");
        assert!(!wanted(&mut wish, false, 22 * MS));
        assert!(!wanted(&mut wish, true, 23 * MS), "it has to be found out anew");
    }

    #[test]
    fn who_is_in_a_hurry_wants_them_at_once() {
        let mut wish = Wish::new();
        assert!(!wish.consider(true, || false, Priority::Latency, |_| None, 1) && wish.is_there());
        wish.waits.start(MS);
        assert!(!wish.is_over_with_turn(Priority::Latency, |_| None, 30 * MS), "however little of a turn it needs");
    }

    #[test]
    fn who_was_stopped_wants_them_when_it_is_back() {
        let mut wish = waiting(20 * MS);
        assert!(wanted(&mut wish, true, 20 * MS));
        let unknown = |_| None;
        wish.end_for_now(unknown, 50 * MS);
        assert!(!wish.is_there());
        assert!(wanted(&mut wish, true, 249 * MS));
        wish.end_for_now(unknown, 250 * MS);
        assert!(!wanted(&mut wish, true, 451 * MS), "but not for ever");
        wish.end_for_now(unknown, 460 * MS);
        assert!(!wish.consider(true, || false, Priority::Normal, unknown, 461 * MS));
        assert!(!wish.is_there(), "nor if nobody takes turns any more");
        wish.end(461 * MS);
        assert!(!wanted(&mut wish, true, 461 * MS), "nor if it is known that they are of no use");
    }

    #[test]
    fn who_wanted_them_by_mistake_does_not_when_it_is_back() {
        let mut wish = waiting(20 * MS);
        assert!(wanted(&mut wish, true, 20 * MS));
        wish.waits.held_up(80 * MS, 100 * MS);
        wish.end(110 * MS);
        assert!(!wanted(&mut wish, true, 110 * MS), "and by what it waited for in turns it is not judged");
        let mut wish = waiting(20 * MS);
        assert!(wanted(&mut wish, true, 20 * MS));
        (0..100).for_each(|_| wish.waits.launched(None));
        // In 10 ms it has sent what the GPU does in 1.
        wish.end_for_now(|launches| Some(launches * MS / 100), 30 * MS);
        assert!(!wanted(&mut wish, true, 35 * MS));
    }

    #[test]
    fn turns_that_are_not_needed_or_not_contested_are_of_no_use() {
        let mut wish = waiting(20 * MS);
        assert!(wanted(&mut wish, true, 20 * MS));
        wish.waits.held_up(10 * MS, 40 * MS);
        assert!(!wish.is_over_with_turn(Priority::Normal, |_| None, 40 * MS), "it waited for half of it");
        assert!(wish.is_over_with_turn(Priority::Normal, |_| None, 60 * MS), "and now for nothing");
        assert!(!wish.is_uncontested(false, 110 * MS), "not for long");
        assert!(wish.is_uncontested(false, 130 * MS));
        assert!(!wish.is_uncontested(true, 130 * MS));
    }
}
