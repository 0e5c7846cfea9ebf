//! What a container does about its neighbours: how long its slice is, who holds the GPU next, and for how long.
//!
//! Everybody decides for itself, by these functions over the same words. Nothing is remembered here but one's own slice.

use crate::Priority;
use crate::Share;

/// One microsecond and one millisecond, in nanoseconds.
const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// What a container says of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peer {
    /// What it asked for.
    pub weight: Share,
    /// How urgent its work is.
    pub priority: Priority,
    /// What it uses of the GPU's time, in millionths, over the last [`Tuning::window`].
    pub usage: u32,
    /// It would use more.
    pub wants: bool,
    /// It uses all of the GPU when it has it.
    pub fills: bool,
    /// How long its answers take, in nanoseconds; 0: not known.
    pub burst: u64,
    /// It is at work, or was a moment ago.
    pub is_busy: bool,
}

impl Peer {
    fn is_latency(&self) -> bool {
        self.priority == Priority::Latency
    }

    /// Whether it takes leases: it fills the GPU, and is not to be waited for.
    pub fn takes_leases(&self) -> bool {
        self.fills && !self.is_latency()
    }
}

/// All values that were chosen, each with where it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// The slice that the driver gives: 2,048 µs.
    pub default_slice: u64,
    /// A lease. One that waits for each kernel loses 1 ms of it to its neighbour, which comes on before it is off: 3%. With eight
    /// that contend, a neighbour's allocations take five times as long at the 99th percentile with 10 ms, 1.3 times with 20.
    pub lease: u64,
    /// The longest round of leases, of up to forty containers: nobody waits longer than this.
    pub round: u64,
    /// The shortest lease: a switch is 4% of it.
    pub least_lease: u64,
    /// The longest slice beside programs that do not fill the GPU: four times the driver's; a switch is 2.5% of it.
    pub longest_slice: u64,
    /// The shortest slice: a switch is a fifth of it. Much shorter ones seem to have cost one that fills the GPU half of its speed
    /// beside a program that decodes token by token.
    pub shortest_slice: u64,
    /// The shortest slice beside a `latency` container: 0.2 ms answers within 1.05 times the time alone, 2 ms within 1.35.
    pub shortest_for_latency: u64,
    /// Of a `latency` container's usual burst, a neighbour's slice is this part at most: what it waits for.
    pub burst_part: u64,
    /// How often slices are looked at again. A change costs 0.3 ms in the kernel module: 1.5% of it.
    pub look: u64,
    /// Over how long usage is told: three of these looks.
    pub window: u64,
    /// Who is less than this below its fair share is not short of it, in millionths: half of the 3 points that mixes are judged by.
    pub short: u32,
}

/// The values in use.
pub const TUNING: Tuning = Tuning {
    default_slice: 2_048 * US,
    lease: 30 * MS,
    round: 200 * MS,
    least_lease: 5 * MS,
    longest_slice: 8 * MS,
    shortest_slice: 1_000 * US,
    shortest_for_latency: 200 * US,
    burst_part: 10,
    look: 20 * MS,
    window: 60 * MS,
    short: 15_000,
};

/// Who wants how much, as far as shares are concerned: a container, or all that take leases together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Group {
    weight: f64,
    usage: f64,
    wants: bool,
    share: f64,
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
            if !group.wants && group.usage <= group.share {
                group.share = group.usage;
                settled += group.usage;
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

/// The slice that a container has from now on, in nanoseconds, and until when it stays so.
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
    pub const NEW: Slice = Slice { length: TUNING.default_slice as f64, looked: 0 };

    /// The slice of the container `own` among its peers. Moves by some per cent at each look.
    pub fn next(&mut self, own: usize, peers: &[Peer], now: u64) -> u64 {
        let Some(me) = peers.get(own).filter(|_| peers.len() < MOST) else { return TUNING.default_slice };
        if peers.len() < 2 {
            *self = Slice { length: TUNING.default_slice as f64, looked: now };
            return TUNING.default_slice;
        }
        if me.is_latency() && !me.fills {
            // It leaves the GPU by itself when it is done.
            return 1_000 * MS;
        }
        let others = || peers.iter().enumerate().filter(|(index, _)| *index != own).map(|(_, it)| it);
        // Where light ones interrupt it, too, short slices cost who fills the GPU half of it: then only while they are needed.
        let has_lights = others().any(|it| !it.is_latency() && !it.fills);
        let hurries = others().filter(|it| it.is_latency() && (it.is_busy || !has_lights));
        let burst = hurries.map(|it| it.burst.max(MS)).min();
        // Of those that take leases one is on at a time, and stands for all of them: the light ones are served as often as if
        // each had its own slice, and no more time goes into switching.
        let takers = peers.iter().filter(|it| it.takes_leases() && it.wants).count().clamp(1, 8) as u64;
        let usual = if me.takes_leases() { TUNING.default_slice * takers } else { TUNING.default_slice };
        let longest = burst.map_or(TUNING.longest_slice.max(usual), |burst| {
            (burst / TUNING.burst_part).clamp(TUNING.shortest_for_latency, TUNING.default_slice)
        });
        let shortest = if burst.is_some() { TUNING.shortest_for_latency } else { TUNING.shortest_slice };
        // Where nobody slips in, the slice of a holder matters only while the next one comes on: it keeps the GPU until it is off.
        if peers.iter().all(Peer::takes_leases) {
            return TUNING.lease / 2;
        }
        if now >= self.looked + TUNING.look {
            self.looked = now;
            self.length *= match Shares::of(me, peers).factor() {
                Some(factor) => factor,
                // Towards the usual, in ten steps or at once where it is near.
                None => (usual as f64 / self.length).clamp(0.9, 1.1),
            };
        }
        // One that does not fill the GPU leaves it by itself, and does not keep a `latency` container waiting for long.
        let longest = if me.takes_leases() { longest } else { TUNING.longest_slice };
        self.length = self.length.clamp(TUNING.shortest_slice as f64, TUNING.longest_slice.max(usual) as f64);
        // What is short for the sake of a `latency` container is as before when that is idle.
        (self.length as u64).clamp(shortest, longest.max(shortest))
    }
}

/// What each should have, and has.
struct Shares {
    /// The first is all that take leases together.
    groups: [Group; MOST],
    count: usize,
    /// Which of them is the container's own.
    own: usize,
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
            groups[at].wants |= peer.wants;
        }
        let capacity = groups[..count].iter().map(|group| group.usage).sum();
        fair(&mut groups[..count], capacity);
        Shares { groups, count, own }
    }

    /// By what a slice changes; `None`: nobody is short of anything.
    fn factor(&self) -> Option<f64> {
        let is_short = |group: &Group| group.wants && group.usage < group.share - f64::from(TUNING.short);
        if !self.groups[..self.count].iter().any(is_short) {
            return None;
        }
        Some(match &self.groups[self.own] {
            it if is_short(it) => 1.1,
            it if it.usage > it.share + f64::from(TUNING.short) * 0.67 => 0.9,
            _ => 1.0,
        })
    }
}

/// How long the lease of a container is, among those that take them: by its part of all weights, so that a round stays short.
pub fn lease(weight: Share, all: u64) -> u64 {
    let part = TUNING.round as u128 * u128::from(weight.ppm()) / u128::from(all.max(1));
    (part as u64).clamp(TUNING.least_lease, TUNING.lease)
}

/// Virtual time for so much time held.
pub fn virtual_time(held: u64, weight: Share) -> u64 {
    weight.wall(held)
}

/// Of those that want a lease, given by index and virtual time, who is next: the one that has had least; of equals, the first
/// after the one that had the last.
pub fn next(wanting: impl Iterator<Item = (usize, u64)>, last: usize) -> Option<usize> {
    wanting.min_by_key(|(index, time)| (*time, *index <= last, *index)).map(|(index, _)| index)
}

/// How long a container at its limit stays off the GPU at a time, in nanoseconds of wall time, and so how far into debt it may
/// go before: both sides of a period are long against a switch, 4 ms or more, and it lasts 30 ms or
/// more: the two calls of each take the calling thread 0.75 ms, 2.5% of a core.
pub fn off_time(limit: Share) -> u64 {
    const SIDE: u64 = 4 * MS;
    let on = u64::from(limit.ppm());
    let off = 1_000_000 - on;
    let period = (30 * MS).max(SIDE * 1_000_000 / on.max(10_000)).max(SIDE * 1_000_000 / off.max(10_000));
    period / 1_000_000 * off
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(percent: u32, usage: u32, wants: bool, fills: bool) -> Peer {
        let weight = Share::from_ppm(10_000 * percent);
        Peer { weight, priority: Priority::Normal, usage: 10_000 * usage, wants, fills, burst: 0, is_busy: true }
    }

    fn shares(groups: &[(f64, f64, bool)], capacity: f64) -> Vec<f64> {
        let of = |&(weight, usage, wants): &(f64, f64, bool)| Group { weight, usage, wants, share: 0.0 };
        let mut groups: Vec<Group> = groups.iter().map(of).collect();
        fair(&mut groups, capacity);
        groups.iter().map(|group| group.share.round()).collect()
    }

    #[test]
    fn fair_shares_are_max_min() {
        assert_eq!(shares(&[(25.0, 50.0, true), (75.0, 50.0, true)], 100.0), [25.0, 75.0]);
        // Who uses less than its part leaves the rest to those who want it, by weight.
        assert_eq!(shares(&[(50.0, 10.0, false), (25.0, 45.0, true), (25.0, 45.0, true)], 100.0), [10.0, 45.0, 45.0]);
        // Who uses more than its part, and wants no more, is held to its part by those who do.
        assert_eq!(shares(&[(50.0, 70.0, false), (50.0, 30.0, true)], 100.0), [50.0, 50.0]);
        assert_eq!(shares(&[(1.0, 0.0, false)], 0.0), [0.0]);
    }

    #[test]
    fn a_light_one_that_is_short_makes_slices_of_fillers_shorter() {
        let peers = [peer(12, 5, true, false), peer(12, 40, true, true), peer(12, 40, true, true)];
        let mut slices = [Slice::default(); 3];
        let mut last = [0; 3];
        for step in 1..=50u64 {
            for (own, slice) in slices.iter_mut().enumerate() {
                last[own] = slice.next(own, &peers, step * TUNING.look);
            }
        }
        assert_eq!(last, [TUNING.longest_slice, TUNING.shortest_slice, TUNING.shortest_slice]);
    }

    #[test]
    fn slices_drift_back_when_nobody_is_short() {
        let peers = [peer(50, 24, false, false), peer(50, 70, true, true)];
        let mut slice = Slice { length: 400e3, looked: 0 };
        let last = (1..200u64).map(|step| slice.next(1, &peers, step * TUNING.look)).last();
        assert!(last.is_some_and(|last| (2_000_000..2_100_000).contains(&last)), "{last:?}");
    }

    #[test]
    fn beside_a_latency_container_slices_are_a_part_of_its_burst() {
        let mut latency = peer(30, 13, false, false);
        (latency.priority, latency.burst) = (Priority::Latency, 2_600_000);
        let peers = [latency, peer(50, 85, true, true)];
        assert_eq!(Slice::default().next(1, &peers, TUNING.look), 260_000);
        assert_eq!(Slice::default().next(0, &peers, TUNING.look), 1_000 * MS);
    }

    #[test]
    fn alone_the_slice_is_the_drivers() {
        let mut slice = Slice { length: 400e3, looked: 0 };
        assert_eq!(slice.next(0, &[peer(50, 100, true, true)], MS), TUNING.default_slice);
        assert_eq!(slice.next(3, &[], MS), TUNING.default_slice);
    }

    #[test]
    fn leases_are_shorter_for_small_shares() {
        let of = |percent: u32, all: u64| lease(Share::from_ppm(10_000 * percent), 10_000 * all);
        assert_eq!([of(50, 100), of(15, 100), of(5, 100), of(1, 100)].map(|it| it / MS), [30, 30, 10, 5]);
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
