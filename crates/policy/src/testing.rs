//! What the tests of several modules use.

use proptest::prelude::*;

/// A millisecond.
pub const MS: u64 = 1_000_000;

/// Times that mean something, and those at the ends of what a word holds.
pub fn any_time() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..20_000 * MS,
        2 => any::<u64>(),
        1 => 0..1000u64,
        1 => (0..1000u64).prop_map(|before| u64::MAX - before),
    ]
}
