//! Launches that nobody holds up, and when that ends: see [`super::wish`].

use std::sync::atomic::Ordering;

use ration_policy::turns::Priority;
use ration_region::Compute;

use super::Pace;
use super::marks::Events;
use super::samples::Samples;
use super::state::{Asked, PATIENCE, State, Step};

/// No more than this is queued: what others wait for when they come, or when they are there.
pub const DEEPEST_ALONE: u64 = 50_000_000;
const DEEPEST_IN_COMPANY: u64 = 4_000_000;
/// How long a launch waits for one in another stream to show what such launches take.
const BRIEFLY: u64 = 50_000_000;

impl State {
    /// Nobody holds it up, but what is queued must not grow without end.
    pub fn step_freely(&mut self, pace: &Pace, compute: &Compute<'_>, asked: &Asked, now: u64) -> Step {
        self.leave_stretch(compute, now);
        let context = self.samples.context();
        let events = self.events.entry(context).or_insert(Events::new());
        let in_company = pace.in_company.load(Ordering::Relaxed);
        let age = self.samples.age(events, in_company, now);
        // One that waits for what is launched after it is not waited for. In another stream that is more likely, and little is
        // let through while nothing is known.
        let patience = if self.samples.are_known() || self.samples.is_in(asked.stream) { PATIENCE } else { BRIEFLY };
        let most = if in_company { DEEPEST_IN_COMPANY } else { DEEPEST_ALONE };
        if !self.samples.admits(most) && age <= patience {
            // Where so much is queued, nobody is late who comes back when some of it is done.
            return Step::Wait(now + if self.samples.are_known() { most / 16 } else { 20_000 });
        }
        let events = self.events.entry(asked.context).or_insert(Events::new());
        self.probes.before(asked.context, asked.stream, asked.work, events, now);
        Step::Go(None)
    }

    /// Whether a program that has company, and is not held up, is one whose work is done as fast as it sends it, or would be if
    /// it were alone: to look at each launch would cost it more than it costs others if it is not looked at until the pacer says
    /// so again. And each mark takes the GPU as long as a short kernel does.
    pub fn may_look_away(&self, now: u64) -> bool {
        const IN_HAND: u64 = 2_000_000;
        let is_done_at_once =
            self.wish.waits.seem_few(now) && self.samples.are_quick() && self.samples.left() < IN_HAND;
        let is_quick = || Samples::is_quick(self.probes.expected(1));
        let expected = |launches| self.probes.expected(launches);
        let is_slow = || self.wish.waits.sends_slowly(expected, now) && !self.wish.waits.may_try(now);
        // The last ones may be short, and those that come next long.
        let is_much = || self.wish.waits.takes_much(expected, now);
        self.asking == 0 && (is_done_at_once || is_quick() && is_slow()) && !is_much()
    }

    /// Whether the GPU takes less for a launch than the program takes to make it: then each look counts for much to the program,
    /// and little happens before the next one. Longer ones have to be measured more often to know how long the GPU works on them.
    pub fn are_launches_quick(&self) -> bool {
        Samples::is_quick(self.samples.found().or_else(|| self.probes.expected(1)))
    }

    /// A process that does little but wait for the GPU takes turns with others, if there are any.
    pub fn want_if_bound(&mut self, pace: &Pace, compute: &Compute<'_>, now: u64) {
        let in_company = pace.in_company.load(Ordering::Relaxed);
        let expected = |launches| self.probes.expected(launches);
        let takes_turns = || compute.is_wanted_by_others();
        if self.wish.consider(in_company, takes_turns, compute.priority(), expected, now) {
            compute.wants_no_more();
        }
    }

    /// Whether it is of no use to want turns: for a while nobody else did, nor is likely to.
    pub fn is_uncontested(&mut self, pace: &Pace, compute: &Compute<'_>, now: u64) -> bool {
        let is_contested = compute.priority() == Priority::Latency || pace.bound(compute).is_some();
        self.wish.is_uncontested(is_contested, now)
    }

    /// Nothing was launched for a while. A program that has done a few short things, to set itself up, and then sends long ones is
    /// not to be taken for one that sends short ones: a thousand of them would be queued before the first is done.
    pub fn rest(&mut self) {
        if self.asking == 0 && !self.wish.waits.go_on() {
            self.samples.rest(self.events.entry(self.samples.context()).or_insert(Events::new()));
            self.probes.rest();
            self.wish.waits.rest();
        }
    }

    /// The process has launched so many more, as the counters have it.
    pub fn meter(&mut self, compute: &Compute<'_>, launches: u64, now: u64) {
        // A launch that waits has been counted already, so where any may wait the counters are not to be believed.
        if self.wish.is_there() || self.stretch.is_some() || !compute.limit().is_whole() {
            self.probes.pass(now);
        } else {
            compute.has_used(self.probes.meter(launches, now));
        }
    }
}
