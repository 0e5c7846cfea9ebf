//! What a program has sent to the GPU, as far as it is known what that takes.

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

    /// Without a part of it.
    pub fn without(self, less: Sent) -> Sent {
        Sent {
            time: self.time - less.time,
            unknown: self.unknown - less.unknown,
            launches: self.launches - less.launches,
        }
    }

    /// One of so many parts, and no less: without one again and again, nothing is left.
    pub fn part(self, of: u64) -> Sent {
        Sent { time: self.time.div_ceil(of), unknown: self.unknown.div_ceil(of), launches: self.launches.div_ceil(of) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_known_is_forgotten_like_the_rest() {
        let mut sent = Sent { time: 1_000_000, unknown: 3, launches: 100 };
        let is_known = |sent: &Sent| sent.unknown == 0 && sent.launches > 0;
        let windows = (0..20).find(|_| {
            sent = sent.without(sent.part(4));
            is_known(&sent)
        });
        assert!(windows < Some(3), "{windows:?}");
        (0..100).for_each(|_| sent = sent.without(sent.part(4)));
        assert!(sent.takes(|_| None).is_none() && sent.launches == 0);
    }
}
