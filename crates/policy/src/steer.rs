//! What a container does about its neighbours: how long its slice is, who holds the GPU next, and for how long.
//!
//! Everybody decides for itself, by these functions over the same words. Nothing is remembered here but one's own slice.

use crate::tuning::{
    AT_WORK, BUSY, HURRIED_SLICE, LEASE, LEAST_DUE, LEAST_LEASE, LEAST_SUM, LONGEST_SLICE, LOOK, MS, ROUND, SHORT,
    SHORTEST_SLICE, SIDE, SLICE, SLICES, SWITCH,
};
use crate::{Priority, Share};

/// What a container says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peer {
    /// What it asked for.
    pub weight: Share,
    /// How urgent its work is.
    pub priority: Priority,
    /// What it uses of the GPU's time, in millionths, over the last [`WINDOW`](crate::tuning::WINDOW).
    pub usage: u32,
    /// What it would use of it if it had the GPU for itself.
    pub demand: u32,
    /// It would use more.
    pub wants: bool,
    /// It uses all of the GPU when it has it.
    pub fills: bool,
    /// How long its answers take, in nanoseconds; 0: not known.
    pub burst: u64,
    /// For how long it has had nothing under way, in nanoseconds.
    pub quiet: u64,
    /// Its launches go in batches.
    pub batches: bool,
}

impl Peer {
    fn is_latency(&self) -> bool {
        self.priority == Priority::Latency
    }

    /// What it would use. Who fills the GPU does so as long as it has something to do, and who uses some would use that.
    fn demand(&self) -> u32 {
        let demand = match self.fills {
            _ if self.is_latency() => 0,
            true if self.wants => 1_000_000,
            _ => self.demand,
        };
        demand.max(self.usage)
    }

    /// Whether it needs the GPU for itself now: its answers are many steps, each of which fills the GPU, and one is under way.
    pub fn needs_room(&self) -> bool {
        self.is_latency() && self.fills && self.quiet < AT_WORK
    }

    /// Whether it answers now. It says so at each of its looks: every other one of those that fill the GPU.
    pub fn is_answering(&self) -> bool {
        self.is_latency() && self.quiet < AT_WORK + LOOK
    }

    /// Whether it is one of those that slip in whenever they have something to do.
    fn is_light(&self) -> bool {
        !self.fills && !self.is_latency()
    }

    /// Whether it waits for each of its kernels, or for a few of them: it leaves the GPU by itself, and soon.
    fn waits_for_each(&self) -> bool {
        self.burst != 0 && self.burst <= SLICE
    }

    /// Whether it takes leases: it fills the GPU, and is not to be waited for.
    pub fn takes_leases(&self) -> bool {
        self.fills && !self.is_latency()
    }
}

/// Who wants how much, as far as shares are concerned: a container, or all that take leases together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Group {
    weight: f64,
    usage: f64,
    demand: f64,
    share: f64,
}

impl Group {
    fn is_short(&self) -> bool {
        self.usage < self.share - SHORT
    }
}

/// The most containers that there can be.
const MOST: usize = 65;

/// Max-min fair: what each group should have of `capacity`, by weight, where nobody gets more than it asks for.
fn fair(groups: &mut [Group], capacity: f64) {
    let mut is_open = [true; MOST];
    let mut rest = capacity;
    // Each round settles at least one group, or ends.
    for _ in 0..groups.len() {
        let weight: f64 = groups.iter().zip(&is_open).filter(|(_, open)| **open).map(|(group, _)| group.weight).sum();
        let mut settled = 0.0;
        let mut any = false;
        for (group, open) in groups.iter_mut().zip(&mut is_open).filter(|(_, open)| **open) {
            group.share = rest * group.weight / weight.max(f64::MIN_POSITIVE);
            if group.demand <= group.share {
                group.share = group.demand;
                settled += group.demand;
                *open = false;
                any = true;
            }
        }
        rest -= settled;
        if !any {
            return;
        }
    }
}

/// How long the slice of a container is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice {
    length: f64,
    looked: u64,
}

impl Default for Slice {
    fn default() -> Slice {
        Slice::NEW
    }
}

impl Slice {
    /// The driver's.
    pub const NEW: Slice = Slice { length: SLICE as f64, looked: 0 };

    /// The slice that the container `own` has from now on among its peers, in nanoseconds.
    pub fn next(&mut self, own: usize, peers: &[Peer], now: u64) -> u64 {
        let Some(me) = peers.get(own).filter(|_| (2..MOST).contains(&peers.len())) else {
            *self = Slice::NEW;
            return SLICE;
        };
        if me.is_latency() && me.usage <= me.weight.ppm().max(500_000) {
            // It leaves the GPU by itself when it is done.
            return 1_000 * MS;
        }
        let is_hurried = |it: &Peer| it.is_latency() && it.quiet < BUSY;
        if !me.takes_leases() {
            // So does a light one, mostly.
            return if peers.iter().any(is_hurried) { HURRIED_SLICE } else { LONGEST_SLICE };
        }
        if peers.iter().all(Peer::takes_leases) {
            // Nobody slips in, and it matters only while the next one comes on: the holder keeps the GPU until it is off.
            return LEASE / 2;
        }
        let lights = peers.iter().filter(|it| it.is_light()).count();
        // Where light ones interrupt it, too, short slices cost who fills the GPU half of it: then only while they are needed.
        if peers.iter().any(|it| is_hurried(it) || it.is_latency() && lights == 0) {
            return SHORTEST_SLICE;
        }
        let in_batches = peers.iter().all(|it| it.takes_leases() || it.batches);
        let least = if in_batches { beside_batches(me) } else { SLICE };
        // Who comes seldom is to be served at once. Several that come each by itself cost more than all of them in a row, which come
        // when a slice is over.
        if in_batches && lights == 1 {
            return least;
        }
        // Of those that take leases one is on at a time, and stands for all of them: the light ones are served as often as if
        // each had its own slice, and no more time goes into switching.
        let usual = (SLICE * takers(peers).count().clamp(1, 8) as u64) as f64;
        if now >= self.looked + SLICES {
            self.looked = now;
            let shares = Shares::of(me, peers);
            let is_short = |at: usize| shares.groups[at].is_short();
            // Shorter ones serve the light ones more often, as long as there is time to lose.
            let can_be_shorter = shares.capacity >= LEAST_SUM && !is_short(0) && (1..shares.count).any(is_short);
            self.length *= if can_be_shorter { 0.9 } else { 1.1 };
        }
        self.length = self.length.clamp(least as f64, usual);
        self.length as u64
    }
}

/// What a container that does not fill the GPU may have, while those that do are short of their share: it would have more of it
/// than its own, because it is served whenever it has something to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    ppm: f64,
    looked: u64,
}

impl Due {
    /// All of the GPU.
    pub const NEW: Due = Due { ppm: 1e6, looked: 0 };

    /// What the container `own` may have among its peers. Moves by some per cent at each look.
    pub fn next(&mut self, own: usize, peers: &[Peer], now: u64) -> Share {
        let Some(me) = peers.get(own).filter(|it| peers.len() < MOST && !it.takes_leases() && !it.is_latency()) else {
            *self = Due::NEW;
            return Share::WHOLE;
        };
        if now >= self.looked + SLICES {
            self.looked = now;
            let shares = Shares::of(me, peers);
            let (takers, group) = (&shares.groups[0], &shares.groups[shares.own]);
            // Time that nobody fills would be lost.
            let is_missed = takers.demand > takers.usage && shares.groups[..shares.count].iter().any(Group::is_short);
            self.ppm = if is_missed && group.usage > group.share {
                (self.ppm.min(group.usage) * 0.9).max(group.share).max(LEAST_DUE)
            } else {
                (self.ppm * 1.02).min(1e6)
            };
        }
        Share::from_ppm(self.ppm as u32)
    }
}

/// The slice of one that fills the GPU, beside those whose launches go together. Who waits for each of its kernels leaves the GPU by
/// itself when it is done.
fn beside_batches(it: &Peer) -> u64 {
    if it.waits_for_each() { SLICE } else { SHORTEST_SLICE }
}

/// Those that want leases.
fn takers(peers: &[Peer]) -> impl Iterator<Item = &Peer> {
    peers.iter().filter(|it| it.takes_leases() && it.wants)
}

/// How long what is let go waits for the GPU. One that waits for each of its kernels keeps it for as long as one takes, and each is
/// worth going into: it is let go in time for that.
fn late(peers: &[Peer]) -> u64 {
    if takers(peers).all(Peer::waits_for_each) {
        return takers(peers).map(|it| it.burst).max().unwrap_or(0) + SWITCH;
    }
    SHORTEST_SLICE / 2
}

/// How launches go together. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// No more often than this.
    pub apart: u64,
    /// What is let go runs so long after that.
    pub late: u64,
    /// Once some went, the others follow as they come, until the program waits.
    pub flows: bool,
}

/// How often the launches of a container that does not fill the GPU go at most, beside those that do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batch {
    apart: f64,
    looked: u64,
}

impl Batch {
    /// As often as it likes.
    pub const NEW: Batch = Batch { apart: 0.0, looked: 0 };

    /// `None`: each as it comes.
    pub fn next(&mut self, own: usize, peers: &[Peer], now: u64) -> Option<Together> {
        let is_beside = peers.len() < MOST && peers.iter().any(|it| it.takes_leases() && it.wants);
        let Some(me) = peers.get(own).filter(|it| is_beside && !it.fills) else {
            *self = Batch::NEW;
            return None;
        };
        let late = late(peers);
        let flows = takers(peers).all(Peer::waits_for_each);
        if me.is_latency() {
            return Some(Together { apart: 0, late: 2 * SWITCH, flows: true });
        }
        if now >= self.looked + SLICES {
            self.looked = now;
            let shares = Shares::of(me, peers);
            let can_be_shorter = shares.capacity >= LEAST_SUM && shares.groups[shares.own].is_short();
            self.apart = if can_be_shorter { self.apart * 0.9 } else { self.apart * 1.1 + SWITCH as f64 };
        }
        self.apart = self.apart.min(turn(peers));
        Some(Together { apart: self.apart as u64, late, flows })
    }
}

/// How far apart the visits of light containers are if as much is lost by them as by plain time slicing. There all of them come
/// in a row: each round costs one change from and to those that fill the GPU, and one more for each. Here each visit costs both.
fn turn(peers: &[Peer]) -> f64 {
    let slice = |it: &Peer| if it.burst == 0 { SLICE } else { it.burst.min(SLICE) };
    let takers: u64 = peers.iter().filter(|it| it.takes_leases() && it.wants).map(|it| slice(it) + SWITCH).sum();
    let lights = peers.iter().filter(|it| it.is_light());
    let (count, usage) = lights.fold((0, 0), |(count, usage), it| (count + 1, usage + it.usage));
    let takers = takers - if count > 1 { SWITCH } else { 0 };
    takers as f64 / (1.0 - f64::from(usage.min(500_000)) / 1e6)
}

/// What each should have, and has.
struct Shares {
    /// The first is all that take leases together.
    groups: [Group; MOST],
    count: usize,
    /// Which of them is the container's own.
    own: usize,
    /// What all of them have.
    capacity: f64,
}

impl Shares {
    fn of(me: &Peer, peers: &[Peer]) -> Shares {
        let mut groups = [Group::default(); MOST];
        let (mut count, mut own) = (1, 0);
        for peer in peers {
            let at = if peer.takes_leases() { 0 } else { count };
            count += usize::from(at == count);
            if std::ptr::eq(peer, me) {
                own = at;
            }
            groups[at].weight += f64::from(peer.weight.ppm());
            groups[at].usage += f64::from(peer.usage);
            groups[at].demand += f64::from(peer.demand());
        }
        let capacity = groups[..count].iter().map(|group| group.usage).sum();
        fair(&mut groups[..count], capacity);
        Shares { groups, count, own, capacity }
    }
}

/// How long the lease of a container is, among those that take them: by its part of all weights, so that a round stays short.
pub fn lease(weight: Share, all: u64) -> u64 {
    let part = ROUND as u128 * u128::from(weight.ppm()) / u128::from(all.max(1));
    (part as u64).clamp(LEAST_LEASE, LEASE)
}

/// Virtual time for so much time held.
pub fn virtual_time(held: u64, weight: Share) -> u64 {
    weight.wall(held)
}

/// By how much a virtual time, or the number of a lease, is ahead of another. They may have begun anywhere, and go round: what one
/// container once said leaves none without a next.
pub fn ahead(one: u64, other: u64) -> i64 {
    one.wrapping_sub(other) as i64
}

/// Of those that want a lease, given by index and virtual time, who is next: the one that has had least; of equals, the first
/// after the one that had the last.
pub fn next(wanting: impl Iterator<Item = (usize, u64)>, last: usize) -> Option<usize> {
    let order = |one: &(usize, u64), other: &(usize, u64)| {
        ahead(one.1, other.1).cmp(&0).then_with(|| (one.0 <= last, one.0).cmp(&(other.0 <= last, other.0)))
    };
    wanting.min_by(order).map(|(index, _)| index)
}

/// What a container's virtual time becomes that joins others with these: no less than the least of them, for rest is not saved up, and
/// hardly more than any: what it had while they were not there is not held against it.
pub fn joined(had: u64, others: impl Iterator<Item = u64>, weight: Share) -> u64 {
    let Some((first, least, most)) = range(others) else { return had };
    let most = most.saturating_add_unsigned(virtual_time(LEASE, weight));
    first.wrapping_add_signed(ahead(had, first).clamp(least, most))
}

/// Whether it is farther from all of them than turns can bring it, of whom nobody weighs less than that: somebody once said what is not
/// so, or its own was lost. Each is apart by one lease of its own at most.
pub fn is_astray(had: u64, others: impl Iterator<Item = u64>, least: Share) -> bool {
    let apart = virtual_time(2 * LEASE, least);
    range(others).is_some_and(|(first, least, most)| {
        !(least.saturating_sub_unsigned(apart)..=most.saturating_add_unsigned(apart)).contains(&ahead(had, first))
    })
}

/// One of these, and by how much the least and the most of them are ahead of it.
fn range(times: impl Iterator<Item = u64>) -> Option<(u64, i64, i64)> {
    times.fold(None, |range, time| {
        let (first, least, most) = range.unwrap_or((time, 0, 0));
        let ahead = ahead(time, first);
        Some((first, ahead.min(least), ahead.max(most)))
    })
}

/// How long a container at its limit stays off the GPU at a time, in nanoseconds of wall time, and so how far into debt it may
/// go before: both sides of a period are long against a switch, 4 ms or more, and it lasts 30 ms or
/// more: the two calls of each take the calling thread 0.75 ms, 2.5% of a core.
pub fn off_time(limit: Share) -> u64 {
    let on = u64::from(limit.ppm());
    let off = 1_000_000 - on;
    let period = LEASE.max(SIDE * 1_000_000 / on.max(10_000)).max(SIDE * 1_000_000 / off.max(10_000));
    period / 1_000_000 * off
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(percent: u32, usage: u32, demand: u32, fills: bool) -> Peer {
        let weight = Share::from_ppm(10_000 * percent);
        Peer {
            weight,
            priority: Priority::Normal,
            usage: 10_000 * usage,
            demand: 10_000 * demand,
            wants: demand > usage,
            fills,
            burst: 0,
            quiet: 0,
            batches: false,
        }
    }

    fn shares(groups: &[(f64, f64)], capacity: f64) -> Vec<f64> {
        let of = |&(weight, demand): &(f64, f64)| Group { weight, demand, ..Group::default() };
        let mut groups: Vec<Group> = groups.iter().map(of).collect();
        fair(&mut groups, capacity);
        groups.iter().map(|group| group.share.round()).collect()
    }

    #[test]
    fn fair_shares_are_max_min() {
        assert_eq!(shares(&[(25.0, 100.0), (75.0, 100.0)], 100.0), [25.0, 75.0]);
        // Who wants less than its part leaves the rest to those who want it, by weight.
        assert_eq!(shares(&[(50.0, 10.0), (25.0, 100.0), (25.0, 60.0)], 100.0), [10.0, 45.0, 45.0]);
        // Who wants more than its part is held to it by those who want more, too.
        assert_eq!(shares(&[(50.0, 70.0), (50.0, 100.0)], 100.0), [50.0, 50.0]);
        assert_eq!(shares(&[(1.0, 0.0)], 0.0), [0.0]);
    }

    /// The slice of one after so many looks.
    fn slice_after(looks: u64, own: usize, peers: &[Peer]) -> u64 {
        let mut slice = Slice::NEW;
        (1..=looks).map(|look| slice.next(own, peers, look * SLICES)).last().expect("it looks")
    }

    #[test]
    fn slices_of_those_that_fill_the_gpu_are_longer_the_more_there_are() {
        let of = |light: u32| [peer(12, light, 25, false), peer(12, 40, 100, true), peer(12, 55 - light, 100, true)];
        assert_eq!(slice_after(50, 1, &of(25)), 2 * SLICE, "nobody is short");
        assert_eq!(slice_after(50, 1, &of(5)), SLICE, "the light one is");
        let mut loses = of(5);
        loses[1].usage = 300_000;
        assert_eq!(slice_after(50, 1, &loses), 2 * SLICE, "too much is lost already");
        assert_eq!(slice_after(1, 0, &of(5)), LONGEST_SLICE);
    }

    #[test]
    fn light_one_has_no_more_than_its_share_while_others_are_short() {
        let mut due = Due::NEW;
        let peers = [peer(50, 60, 70, false), peer(50, 35, 100, true)];
        let last = (1..=50).map(|look| due.next(0, &peers, look * SLICES)).last();
        assert_eq!(last.map(|it| it.ppm() / 10_000), Some(47));
        // As much as it likes when nobody misses it, some time later.
        let alone = [peer(50, 60, 70, false), peer(50, 35, 35, false)];
        let last = (51..=100).map(|look| due.next(0, &alone, look * SLICES)).last();
        assert_eq!(last, Some(Share::WHOLE));
        // Who takes leases is held to them.
        assert_eq!(due.next(1, &peers, 200 * SLICES), Share::WHOLE);
    }

    #[test]
    fn beside_a_latency_container_slices_are_short() {
        let mut latency = peer(30, 13, 13, false);
        latency.priority = Priority::Latency;
        let with = |others: &[Peer]| [&[latency][..], others].concat();
        assert_eq!(Slice::default().next(1, &with(&[peer(50, 85, 100, true)]), SLICES), SHORTEST_SLICE);
        assert_eq!(Slice::default().next(0, &with(&[peer(50, 85, 100, true)]), SLICES), 1_000 * MS);
        // Beside light ones, which interrupt them too, only while it is busy.
        latency.quiet = BUSY;
        let among = [latency, peer(20, 60, 100, true), peer(20, 20, 20, false)];
        assert_eq!(Slice::default().next(1, &among, SLICES), SLICE);
    }

    fn in_batches(mut it: Peer) -> Peer {
        it.batches = true;
        it
    }

    #[test]
    fn beside_one_whose_launches_go_together_slices_are_short() {
        let light = in_batches(peer(50, 20, 20, false));
        let mut taker = peer(50, 70, 100, true);
        assert_eq!(slice_after(1, 1, &[light, taker]), SHORTEST_SLICE);
        taker.burst = MS;
        assert_eq!(slice_after(1, 1, &[light, taker]), SLICE, "it leaves the GPU by itself");
        taker.burst = 0;
        // Beside several only while they are short, and there is time to lose.
        assert_eq!(slice_after(50, 2, &[light, light, taker]), SLICE);
        let short = in_batches(peer(50, 5, 30, false));
        assert_eq!(slice_after(50, 2, &[short, light, taker]), SHORTEST_SLICE);
    }

    #[test]
    fn launches_go_together_beside_those_that_fill_the_gpu() {
        let together = |own: usize, peers: &[Peer]| {
            let mut batch = Batch::NEW;
            (1..=50).map(|look| batch.next(own, peers, look * SLICES)).last().expect("it looks")
        };
        let (light, taker) = (peer(50, 20, 20, false), peer(50, 70, 100, true));
        assert_eq!(together(1, &[light, taker]), None, "it fills the GPU itself");
        assert_eq!(together(0, &[light, light]), None, "nobody fills it");
        // No more often than by plain time slicing: a slice and a change, and its own work.
        let usual = together(0, &[light, taker]).expect("it is light");
        assert_eq!((usual.apart, usual.flows), (((SLICE + SWITCH) as f64 / 0.8) as u64, false));
        // As often as it likes while it is short, and there is time to lose.
        let short = together(0, &[peer(50, 10, 20, false), peer(50, 85, 100, true)]).expect("it is light");
        assert!(short.apart < SWITCH, "{short:?}");
        // One that waits for each kernel makes way by itself: what follows may come as it likes.
        let waits = Peer { burst: MS, ..taker };
        assert_eq!(together(0, &[light, waits]).map(|it| (it.flows, it.late)), Some((true, MS + SWITCH)));
        let latency = Peer { priority: Priority::Latency, ..light };
        assert_eq!(together(0, &[latency, taker]).map(|it| it.apart), Some(0));
    }

    #[test]
    fn alone_the_slice_is_the_drivers() {
        let mut slice = Slice { length: 400e3, looked: 0 };
        assert_eq!(slice.next(0, &[peer(50, 100, 100, true)], MS), SLICE);
        assert_eq!(slice.next(3, &[], MS), SLICE);
    }

    #[test]
    fn leases_are_shorter_for_small_shares() {
        let of = |percent: u32, all: u64| lease(Share::from_ppm(10_000 * percent), 10_000 * all);
        assert_eq!([of(50, 100), of(15, 100), of(5, 100), of(1, 100)].map(|it| it / MS), [30, 30, 10, 5]);
    }

    #[test]
    fn virtual_times_go_round() {
        let (near_the_end, after) = (u64::MAX - 5, 7);
        assert_eq!(next([(0, after), (1, near_the_end)].into_iter(), usize::MAX), Some(1));
        // Who joins has had no less than the least, and a lease more than the most.
        let half = Share::from_ppm(500_000);
        let joined = |had| joined(had, [near_the_end, after].into_iter(), half);
        assert_eq!((joined(0), joined(near_the_end - 1)), (0, near_the_end));
        assert_eq!(joined(after + 1_000 * MS), after + 2 * LEASE);
        assert_eq!(super::joined(3, [].into_iter(), half), 3);
    }

    #[test]
    fn nobody_is_astray_by_turns_alone() {
        for ppm in [1, 100, 10_000, 500_000] {
            let weight = Share::from_ppm(ppm);
            let lease = virtual_time(LEASE, weight);
            let is_astray = |had| is_astray(had, [1_000 * MS, 2_000 * MS].into_iter(), weight);
            assert!(!is_astray(2_000 * MS + lease) && !is_astray((1_000 * MS).wrapping_sub(lease)), "{ppm}");
            assert!(is_astray(2_001 * MS + 2 * lease) && is_astray((999 * MS).wrapping_sub(2 * lease)), "{ppm}");
        }
        assert!(!is_astray(5, [].into_iter(), Share::WHOLE));
    }

    #[test]
    fn leases_go_by_virtual_time() {
        let weights = [10u32, 20, 70].map(|percent| Share::from_ppm(10_000 * percent));
        let (mut times, mut held, mut last) = ([0u64; 3], [0u64; 3], 0);
        for _ in 0..10_000 {
            last = next(times.iter().copied().enumerate(), last).expect("somebody wants");
            let length = lease(weights[last], 1_000_000);
            times[last] += virtual_time(length, weights[last]);
            held[last] += length;
        }
        let all: u64 = held.iter().sum();
        assert_eq!(held.map(|it| (it * 100 + all / 2) / all), [10, 20, 70]);
    }

    #[test]
    fn off_times_fit_both_sides_of_a_limit() {
        let of = |percent: u32| off_time(Share::from_ppm(10_000 * percent)) / MS;
        assert_eq!([10, 25, 50, 75, 90].map(of), [36, 22, 15, 7, 4]);
        assert!(off_time(Share::from_ppm(1)) < 500 * MS && of(100) == 0);
    }
}
