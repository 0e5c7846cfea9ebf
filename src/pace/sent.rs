//! What a program has sent to the GPU, as far as it is known what that takes.

/// A call to launch something that takes longer waits for the GPU, which has been told by then.
pub const WAITS: u64 = 20_000;

/// What was launched: how long the GPU takes for what is known, and how much is not.
#[derive(Clone, Copy)]
pub struct Sent {
    pub time: u64,
    pub unknown: u64,
    pub launches: u64,
}

impl Sent {
    /// Nothing.
    pub const NOTHING: Sent = Sent { time: 0, unknown: 0, launches: 0 };

    /// Both.
    pub fn and(self, more: Sent) -> Sent {
        Sent {
            time: self.time.saturating_add(more.time),
            unknown: self.unknown.saturating_add(more.unknown),
            launches: self.launches.saturating_add(more.launches),
        }
    }

    /// After a while, in which it came to count for less. In the end nothing is left of it.
    pub fn faded(self) -> Sent {
        Sent { time: faded(self.time), unknown: faded(self.unknown), launches: faded(self.launches) }
    }

    /// Whether so much of it is not known that nothing can be said of all.
    pub fn is_unknown(self) -> bool {
        self.unknown > self.launches / 8
    }

    /// How long the GPU takes for all of it; nothing, if that cannot be told.
    pub fn takes(self, expected: impl FnOnce(u64) -> Option<u64>) -> Option<u64> {
        match self {
            Sent { launches: 0, .. } => None,
            Sent { unknown: 0, time, .. } => Some(time),
            Sent { unknown, time, .. } => Some(time.saturating_add(expected(unknown)?)),
        }
    }
}

/// What is left of so much time, or of so many launches: three quarters.
pub fn faded(much: u64) -> u64 {
    much - much.div_ceil(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_known_is_forgotten_like_the_rest() {
        let mut sent = Sent { time: 1_000_000, unknown: 3, launches: 100 };
        let is_known = |sent: &Sent| sent.unknown == 0 && sent.launches > 0;
        let windows = (0..20).find(|_| {
            sent = sent.faded();
            is_known(&sent)
        });
        assert!(windows < Some(3), "{windows:?}");
        (0..100).for_each(|_| sent = sent.faded());
        assert!(sent.takes(|_| None).is_none() && sent.launches == 0);
    }
}
