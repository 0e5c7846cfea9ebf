//! What a process has used of the GPU: by what was done, or by the time for which it kept the GPU busy.
//!
//! What was done is counted by the cost of each launch, when a mark behind it is done. A program that fills the GPU for a while
//! tells it more directly: where something is still under way that was at the last look, and nobody else is on the GPU, it has
//! used the time in between. That is also right where a kernel is longer than the time between two looks, or its cost is not
//! known; what is done in the end of it was paid for already. Where others are on the GPU and nothing is done for long, what they
//! leave of the time counts, for no more than what is under way costs, as far as that is known.

use ration_policy::tuning::{CALM, LONGEST_WORK};

/// The account of one process on one GPU. Times are nanoseconds.
pub struct Account {
    /// Charged by time for what is not done yet.
    ahead: u64,
    /// For how long nothing was done of what is under way.
    quiet: u64,
    /// Time on the GPU that was not used: what is done now may have been worked on then.
    slack: u64,
    /// What it uses of the time, in millionths, over the last window; and for which part of it something was
    /// under way, and a thread was blocked.
    usage: f64,
    pending: f64,
    blocked: f64,
}

/// What was seen since the last look.
pub struct Look {
    /// How long that is, and for how much of it it was on the GPU.
    pub time: u64,
    pub on: u64,
    /// What was done, by cost.
    pub done: u64,
    /// In how many launches.
    pub launches: u32,
    /// Something is under way.
    pub pending: bool,
    /// And a thread waits for it.
    pub blocked: bool,
    /// Something is under way that was at the last look, too.
    pub continuous: bool,
    /// What it costs until the next mark is done; `u64::MAX`: that is not known.
    pub next: u64,
    /// The part of the time for which the GPU worked for nobody else, in millionths; 0: that is not known.
    pub exclusive: u32,
    /// The part of the time that others leave by their own account, in millionths.
    pub left: u32,
}

impl Account {
    pub const fn new() -> Account {
        Account { ahead: 0, quiet: 0, slack: 0, usage: 0.0, pending: 0.0, blocked: 0.0 }
    }

    /// How much is to be charged.
    pub fn look(&mut self, look: &Look, window: u64) -> u64 {
        self.quiet = if look.continuous && look.launches == 0 { self.quiet + look.time } else { 0 };
        // No more than there was time for: where it says so, costs are too high. What was done before it went off may be seen now.
        let by_cost = (look.done - look.done.min(self.ahead)).min(look.on + self.slack);
        let by_time = look.on * u64::from(look.exclusive) / 1_000_000;
        let used = if look.continuous && look.exclusive > 0 {
            // What is done is paid for, whatever it costs: what is ahead is for what came after it.
            let most = if look.launches > 0 { by_time } else { u64::MAX };
            self.ahead = (self.ahead + by_time).saturating_sub(look.done).min(most).min(look.next);
            // Some of it may be from before: from when it was not on by itself.
            let used = by_time.max(by_cost);
            self.slack = if look.launches > 0 { 0 } else { self.slack };
            used
        } else if self.quiet > CALM {
            let used = (look.on * u64::from(look.left) / 1_000_000).min(look.next.saturating_sub(self.ahead));
            self.ahead += used;
            self.slack += look.on - used;
            used
        } else {
            // What is under way was paid for in part, also while it is off.
            self.ahead = if look.pending && look.launches == 0 { self.ahead.min(look.next) } else { 0 };
            // Some may have been worked on before: it is told of when it ends.
            let slack = look.on + self.slack - by_cost;
            let is_one = look.continuous && look.launches == 0;
            self.slack = if is_one { slack } else { slack.min(LONGEST_WORK) };
            by_cost
        };
        let part = (look.time as f64 / window as f64).min(1.0);
        // A kernel may have taken longer than from one look to the next.
        self.usage += part * (used as f64 / look.time.max(1) as f64 * 1e6 - self.usage);
        self.pending += part * (f64::from(u8::from(look.pending)) - self.pending);
        self.blocked += part * (f64::from(u8::from(look.blocked)) - self.blocked);
        used
    }

    /// So much time on the GPU passed without a look.
    pub fn passed(&mut self, time: u64) {
        self.slack = (self.slack + time).min(LONGEST_WORK);
    }

    /// So much more was charged by time, for what is under way.
    pub fn is_charged(&mut self, time: u64) {
        self.ahead += time;
    }

    /// For which part of the time a thread of it was blocked, waiting for the GPU.
    pub fn blocked(&self) -> f64 {
        self.blocked
    }

    /// What it uses of the time, in millionths.
    pub fn usage(&self) -> u32 {
        self.usage.min(1e6) as u32
    }

    /// For which part of the time something was under way.
    pub fn pending(&self) -> f64 {
        self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const ALL: u32 = 1_000_000;

    fn look(done: u64, continuous: bool, exclusive: u32) -> Look {
        let launches = u32::from(done > 0);
        let next = if continuous { u64::MAX } else { 0 };
        Look {
            time: MS,
            on: MS,
            done,
            launches,
            pending: continuous,
            blocked: false,
            continuous,
            next,
            exclusive,
            left: 0,
        }
    }

    #[test]
    fn who_fills_the_gpu_is_charged_for_the_time() {
        let mut account = Account::new();
        let charged: u64 = (0..100).map(|_| account.look(&look(0, true, ALL), 60 * MS)).sum();
        assert_eq!(charged, 100 * MS);
        assert!(account.usage() > 700_000 && account.pending() > 0.7);
    }

    #[test]
    fn who_pauses_is_charged_for_what_was_done() {
        let mut account = Account::new();
        let charged: u64 = (0..1000).map(|_| account.look(&look(300_000, false, ALL), 60 * MS)).sum();
        assert_eq!(charged, 300 * MS);
        assert!((290_000..310_000).contains(&account.usage()), "{}", account.usage());
    }

    #[test]
    fn beside_others_only_what_was_done_counts() {
        let mut account = Account::new();
        let charged: u64 = (0..100).map(|_| account.look(&look(100_000, true, 0), 60 * MS)).sum();
        assert_eq!(charged, 10 * MS);
    }

    #[test]
    fn a_kernel_longer_than_a_look_is_charged_once() {
        let mut account = Account::new();
        let mut charged = 0;
        for _ in 0..20 {
            // 5 ms of work, waited for, then some rest.
            charged += (0..4).map(|_| account.look(&look(0, true, ALL), 60 * MS)).sum::<u64>();
            charged += account.look(&look(5 * MS, false, ALL), 60 * MS);
            charged += (0..4).map(|_| account.look(&look(0, false, ALL), 60 * MS)).sum::<u64>();
        }
        assert_eq!(charged, 100 * MS);
    }

    #[test]
    fn kernel_that_is_interrupted_is_charged_once() {
        let mut account = Account::new();
        let mut charged = 0;
        for _ in 0..20 {
            // 5 ms of work, which is taken off the GPU for a while after 2 of them.
            charged += (0..2).map(|_| account.look(&look(0, true, ALL), 60 * MS)).sum::<u64>();
            charged += account.look(&Look { pending: true, time: 10 * MS, on: 0, ..look(0, false, 0) }, 60 * MS);
            charged += (0..2).map(|_| account.look(&look(0, true, ALL), 60 * MS)).sum::<u64>();
            charged += account.look(&look(5 * MS, false, ALL), 60 * MS);
        }
        assert_eq!(charged, 100 * MS);
    }

    #[test]
    fn kernel_of_a_second_beside_others_is_charged_when_it_ends() {
        let mut account = Account::new();
        let mut charged: u64 = (0..999).map(|_| account.look(&look(0, true, 0), 60 * MS)).sum();
        charged += account.look(&look(1000 * MS, false, 0), 60 * MS);
        assert_eq!(charged, 1000 * MS);
    }

    #[test]
    fn what_is_under_way_for_long_beside_others_is_charged_by_what_they_leave() {
        for (next, most) in [(u64::MAX, 36 * MS), (24 * MS, 24 * MS)] {
            let mut account = Account::new();
            let mut charge = |look: Look| account.look(&Look { next, left: 400_000, ..look }, 60 * MS);
            let ahead: u64 = (0..100).map(|_| charge(look(0, true, 0))).sum();
            assert_eq!(ahead, most, "from when nothing was done for 10 ms");
            assert_eq!(charge(look(24 * MS, false, 0)), (24 * MS).saturating_sub(most), "and not twice");
        }
    }

    #[test]
    fn what_was_worked_on_beside_others_is_charged_also_if_it_ends_when_they_are_gone() {
        let mut account = Account::new();
        let mut charged: u64 = (0..6).map(|_| account.look(&look(0, true, 0), 60 * MS)).sum();
        charged += account.look(&look(0, true, ALL), 60 * MS);
        charged += account.look(&look(8 * MS, true, ALL), 60 * MS);
        assert_eq!(charged, 8 * MS);
    }

    #[test]
    fn sync_each_is_charged_for_all_that_it_did() {
        let (mut account, mut charged, mut done) = (Account::new(), 0, 0);
        // Kernels of 0.5 ms, 30 us apart, which end now before a look and now behind it.
        for now in 1..=1000u64 {
            let launches = now * 1_060_000 / 530_000 - (now - 1) * 1_060_000 / 530_000;
            let launches = if now % 2 == 0 { launches + 1 } else { launches - 1 };
            let look = Look {
                time: 1_060_000,
                on: 1_060_000,
                launches: launches as u32,
                ..look(launches * 500_000, false, ALL)
            };
            done += look.done;
            charged += account.look(&look, 60 * MS);
        }
        assert_eq!(charged, done);
    }

    #[test]
    fn costs_that_are_too_low_are_not_paid_ahead() {
        let mut account = Account::new();
        (0..100).for_each(|_| _ = account.look(&look(10_000, true, ALL), 60 * MS));
        let charged: u64 = (0..100).map(|_| account.look(&look(300_000, true, 0), 60 * MS)).sum();
        assert!(charged >= 29 * MS, "{charged}");
    }

    #[test]
    fn costs_that_are_too_low_give_nothing_back() {
        let mut account = Account::new();
        let charged: u64 = (0..100).map(|_| account.look(&look(1_000, true, ALL), 60 * MS)).sum();
        assert_eq!(charged + account.look(&look(1_000, false, ALL), 60 * MS), 100 * MS);
    }
}
