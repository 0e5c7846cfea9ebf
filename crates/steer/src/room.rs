//! Room for a `latency` container that answers in many steps, each of which fills the GPU: a model that decodes token by token,
//! with a graph for each.
//!
//! Between two steps its queue is empty for a moment, and whoever else is on gets the GPU for a slice, and two switches. So the
//! others go off until the answer is complete. Where answers are one step, or mostly the host's, short slices do better.

use ration_policy::Share;
use ration_policy::tuning::{AT_WORK, ENDLESS, LONG_ANSWER, LONGEST_ROOM};

/// How long a container is at work at a time.
pub struct Streak {
    since: u64,
    last: u64,
    usual: u64,
}

impl Streak {
    pub const NEW: Streak = Streak { since: 0, last: 0, usual: 0 };

    /// Whether it is at work now.
    pub fn look(&mut self, works: bool, now: u64) {
        if self.since != 0 && !works && now > self.last + AT_WORK {
            let length = self.last - self.since;
            self.usual = if self.usual == 0 { length } else { (3 * self.usual + length) / 4 };
            self.since = 0;
        }
        if works {
            self.last = now;
            if self.since == 0 {
                self.since = now;
            }
        }
    }

    /// Whether it has been at work for too long.
    pub fn is_endless(&self, now: u64) -> bool {
        self.since != 0 && now > self.since + ENDLESS
    }

    /// Whether its answers are long.
    pub fn is_long(&self) -> bool {
        self.usual >= LONG_ANSWER
    }
}

/// When others were made room for.
pub struct Room {
    since: Option<u64>,
    share: Share,
    next: u64,
}

impl Room {
    pub const NEW: Room = Room { since: None, share: Share::WHOLE, next: 0 };

    /// Whether to make room, where somebody needs it who asked for such a share: for no larger part of the time than that.
    pub fn is_made(&mut self, needed: Option<Share>, now: u64) -> bool {
        self.share = needed.unwrap_or(self.share);
        match self.since {
            None if needed.is_some() && now >= self.next => self.since = Some(now),
            Some(since) if needed.is_none() || now >= since + LONGEST_ROOM => {
                self.since = None;
                self.next = now + self.share.wall(now - since) - (now - since);
            }
            _ => {}
        }
        self.since.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ration_policy::tuning::MS;

    #[test]
    fn streaks_of_many_steps_are_long() {
        let mut streak = Streak::NEW;
        for now in 0..1000 {
            streak.look(now % 250 < 19, now * MS + 1);
        }
        assert!(streak.is_long());
        for now in 1000..2000 {
            streak.look(now % 20 < 3, now * MS);
        }
        assert!(!streak.is_long());
    }

    #[test]
    fn room_is_made_for_a_part_of_the_time() {
        let (mut room, mut made) = (Room::NEW, [0; 2]);
        for now in 0..10_000 {
            // First for answers of 20 ms, then for one without end.
            let needs = now >= 5_000 || now % 250 < 20;
            let is_made = room.is_made(needs.then_some(Share::from_ppm(300_000)), now * MS);
            made[usize::from(now >= 5_000)] += u32::from(is_made);
        }
        assert!(made[0] == 400 && (1400..=1600).contains(&made[1]), "{made:?}");
    }
}
