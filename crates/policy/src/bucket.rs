//! The ceiling, as a bucket of GPU time in one word.
//!
//! The word says *until when the container has used up its due*. Using GPU time moves it into the future, by the wall time
//! that it takes until as much is due; waiting lets the present catch up. It may lie in the future, which is a debt: a kernel
//! that is longer than the allowance is paid back afterwards. And it counts as no further in the past than the burst, which is
//! what an idle container has saved up. So a bucket with a rate, a level and a time is one number, which processes can change
//! together without a lock.
//!
//! Whoever starts a piece of work only when [`Bucket::free_at`] is not in the future, and has what it took charged, uses in
//! any stretch of time no more than limit × (stretch + burst) and the one piece with which it ran into debt, and what else
//! was in flight then and not charged yet; and whoever always wants gets limit × stretch, less one piece.

use crate::Share;

/// A ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// What may be used on average.
    pub limit: Share,
    /// How much wall time's worth of its due a container may save up while it is idle.
    pub burst: u64,
}

impl Bucket {
    /// The burst unless somebody says otherwise, 30 ms: a container that was idle may first use, at full speed, the GPU time
    /// that is due to it in so much wall time. In the second after, it has up to 3% more than its limit; and a thread that is
    /// woken late by less than this has lost nothing.
    pub const USUAL_BURST: u64 = crate::tuning::BURST;

    /// The longest debt, ten minutes of waiting. More is forgiven, and a word that says much more is damage and no debt.
    pub const LONGEST_DEBT: u64 = 600_000_000_000;

    /// A ceiling with the usual burst.
    #[inline]
    pub const fn new(limit: Share) -> Bucket {
        Bucket { limit, burst: Bucket::USUAL_BURST }
    }

    /// The word after so much GPU time was used, up to now or a little before.
    #[inline]
    pub fn charged(self, used_until: u64, now: u64, gpu: u64) -> u64 {
        self.charged_from(used_until, now.saturating_sub(gpu), now, gpu)
    }

    /// The same where the work took longer than the GPU time that it used, because the GPU worked for others in between:
    /// it was under way from `began` to now or a little before. What was saved up counts from when it began, since the
    /// container was not idle after that; and what became due while the GPU worked for others is not lost.
    #[inline]
    pub fn charged_from(self, used_until: u64, began: u64, now: u64, gpu: u64) -> u64 {
        let began = began.min(now.saturating_sub(gpu));
        let word = self.settled(used_until, began).saturating_add(self.limit.wall(gpu));
        word.min(now.saturating_add(Bucket::LONGEST_DEBT))
    }

    /// When more may be used: at once if that is not in the future.
    #[inline]
    pub fn free_at(self, used_until: u64, now: u64) -> u64 {
        self.settled(used_until, now)
    }

    /// How much GPU time is due by now; 0 while there is a debt.
    #[inline]
    pub fn due(self, used_until: u64, now: u64) -> u64 {
        self.limit.gpu(now.saturating_sub(self.settled(used_until, now)))
    }

    /// The word after the ceiling became another: what was owed or saved up is so much GPU time, which takes a different
    /// time to become due. Whoever changes a limit does this, so that an old debt is not paid at the old rate.
    pub fn changed(self, to: Bucket, used_until: u64, now: u64) -> u64 {
        let settled = self.settled(used_until, now);
        let word = match settled.checked_sub(now) {
            Some(debt) => now.saturating_add(to.limit.wall(self.limit.gpu(debt))),
            None => now.saturating_sub(to.limit.wall(self.limit.gpu(now - settled))),
        };
        to.settled(word, now)
    }

    /// The word as it counts now.
    #[inline]
    fn settled(self, used_until: u64, now: u64) -> u64 {
        // Words are written by processes whose clocks were read a little later than ours: twice the longest debt is beyond
        // all of them. Nobody waits for what no use of ours can have written.
        let damaged = used_until > now.saturating_add(2 * Bucket::LONGEST_DEBT);
        // All of the GPU is no ceiling: nobody owes anything.
        let latest = if damaged || self.limit.is_whole() { now } else { now.saturating_add(Bucket::LONGEST_DEBT) };
        used_until.min(latest).max(now.saturating_sub(self.burst))
    }
}

/// What one process knows for itself of how far its container has used up its due. The word that the container's processes share
/// is believed as far as it can be true: others may have written to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Debt {
    /// What this process has used, and nobody else.
    own: u64,
    /// What the container has.
    all: u64,
}

impl Debt {
    /// Nothing was used.
    pub const NONE: Debt = Debt { own: 0, all: 0 };

    /// Of a process that comes new to a container which says so: that is believed for no longer than `most`.
    pub fn found(word: u64, now: u64, most: u64) -> Debt {
        Debt { own: 0, all: word.min(now.saturating_add(most)) }
    }

    /// Between `began` and now this process has used so much GPU time, and the container's others may have used so much at most;
    /// the shared word says this.
    pub fn used(&mut self, bucket: Bucket, began: u64, now: u64, own: u64, others: u64, word: u64) {
        // Nobody writes the word where nothing was used: what was saved up by then counts from when something is.
        let charged = |word: u64, gpu: u64| if gpu == 0 { word } else { bucket.charged_from(word, began, now, gpu) };
        self.own = charged(self.own, own);
        let most = charged(self.all, own.saturating_add(others));
        self.all = word.clamp(self.own, most.max(self.own));
    }

    /// When more may be used: at once if that is not in the future.
    #[inline]
    pub fn free_at(&self, bucket: Bucket, now: u64) -> u64 {
        bucket.free_at(self.all, now)
    }
}

#[cfg(test)]
mod tests;
