//! How a launch waits. To be woken takes some fifty microseconds, so the last of a wait is spent awake.

use ration_policy::turns::Priority;
use ration_region::Compute;

use crate::sys;

/// Sleeps until then, when there is room for more in flight, or until somebody in a hurry rings the bell.
pub fn while_ahead(compute: &Compute<'_>, bell: u32, until: u64, now: u64) {
    const AWAKE: u64 = 70_000;
    if until > now + AWAKE + AWAKE / 2 {
        let _errno = sys::Errno::kept();
        compute.wait_for_bell(bell, until - AWAKE, now);
    } else {
        sys::sleep_until(until, now);
    }
}

/// Sleeps until the bell rings, or until then. A container in a hurry sleeps only where the wait is long.
pub fn until_turn(compute: &Compute<'_>, bell: u32, until: u64, now: u64) {
    const SHORT: u64 = 120_000;
    const HURRY: u64 = 600_000;
    let _errno = sys::Errno::kept();
    let awake = if compute.priority() == Priority::Latency { HURRY } else { SHORT };
    if until > now + SHORT && awake == SHORT {
        compute.wait_for_bell(bell, until - SHORT / 2, now);
        return;
    }
    let end = until.min(now + awake);
    let mut time = now;
    while time < end && compute.bell() == bell {
        sys::sleep_until(time + 1_000, time);
        time = sys::nanoseconds();
    }
    if time < until && compute.bell() == bell {
        compute.wait_for_bell(bell, until, time);
    }
}
