//! How urgent a container's work is.

use crate::Share;

/// How urgent a container's work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Takes what others leave: beside those that are not like it, it weighs a tenth of what it asked for.
    Batch,
    /// In between.
    Normal,
    /// Is not kept waiting.
    Latency,
}

/// Beside a `normal` container that asks for the same, one of `batch` has a twelfth or less, and does not starve.
const BATCH_PART: u32 = 10;

impl Priority {
    /// What a container weighs that asked for so much.
    pub fn weight(self, asked: Share) -> Share {
        match self {
            Priority::Batch => Share::from_ppm(asked.ppm() / BATCH_PART),
            Priority::Normal | Priority::Latency => asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_weighs_a_tenth() {
        let half = Share::from_ppm(500_000);
        let weights = [Priority::Batch, Priority::Normal, Priority::Latency].map(|it| it.weight(half).ppm());
        assert_eq!(weights, [50_000, 500_000, 500_000]);
        assert_eq!(Priority::Batch.weight(Share::from_ppm(1)).ppm(), 1);
    }
}
