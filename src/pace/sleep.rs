//! How a launch waits. To be woken takes some fifty microseconds, so the last of a wait is spent awake.

use std::sync::atomic::{AtomicU64, Ordering};

use ration_policy::Waking;
use ration_policy::turns::Priority;
use ration_region::Compute;

use crate::sys;

/// How early this process's threads ask to be woken: a [`Waking`].
static WAKING: AtomicU64 = AtomicU64::new(Waking::LEAST);

/// Sleeps until then or until the bell rings, and is awake for the last of it. It may return early.
fn to_the_point(compute: &Compute<'_>, bell: u32, until: u64, now: u64) {
    let waking = Waking::from_word(WAKING.load(Ordering::Relaxed));
    let asked = until.saturating_sub(waking.awake());
    let sleeps = asked > now + Waking::LEAST / 2;
    if sleeps {
        let _errno = sys::Errno::kept();
        compute.wait_for_bell(bell, asked, now);
    } else {
        while_awake(compute, bell, until);
    }
    let late = if sleeps { sys::nanoseconds().saturating_sub(asked) } else { 0 };
    if compute.bell() == bell {
        WAKING.store(waking.woken(late).awake(), Ordering::Relaxed);
    }
}

/// Waits until then or until the bell rings, without sleeping.
fn while_awake(compute: &Compute<'_>, bell: u32, until: u64) {
    // Not by yielding: where there is much to do, the processor would be gone for milliseconds.
    while sys::nanoseconds() < until && compute.bell() == bell {
        (0..16).for_each(|_| std::hint::spin_loop());
    }
}

/// Sleeps until then, when there is room for more in flight, or until somebody in a hurry rings the bell. `in_a_hurry`: there
/// is such a one, so that little is in flight, and the GPU runs dry if the thread is late.
pub fn while_ahead(compute: &Compute<'_>, bell: u32, in_a_hurry: bool, until: u64, now: u64) {
    if in_a_hurry {
        to_the_point(compute, bell, until, now);
    } else if until > now + Waking::LEAST + Waking::LEAST / 2 {
        let _errno = sys::Errno::kept();
        compute.wait_for_bell(bell, until - Waking::LEAST, now);
    } else {
        sys::sleep_until(until, now);
    }
}

/// Sleeps until the bell rings, or until then. A container in a hurry sleeps only where the wait is long; and so does one that
/// waits for the end of a request.
pub fn until_turn(compute: &Compute<'_>, bell: u32, until: u64, now: u64) {
    const SHORT: u64 = 120_000;
    const HURRY: u64 = 600_000;
    /// It takes its time to say that it has ended.
    const LATE: u64 = 100_000;
    let _errno = sys::Errno::kept();
    let is_in_a_hurry = compute.priority() == Priority::Latency;
    let ends = compute.request_ends().unwrap_or(0).saturating_add(LATE);
    if !is_in_a_hurry && ends > now {
        to_the_point(compute, bell, ends.min(until.saturating_add(Waking::LEAST)), now);
        return;
    }
    if until > now + SHORT && !is_in_a_hurry {
        compute.wait_for_bell(bell, until - SHORT / 2, now);
        return;
    }
    let end = until.min(now + if is_in_a_hurry { HURRY } else { SHORT });
    while_awake(compute, bell, end);
    let now = sys::nanoseconds();
    if now < until && compute.bell() == bell {
        compute.wait_for_bell(bell, until, now);
    }
}
