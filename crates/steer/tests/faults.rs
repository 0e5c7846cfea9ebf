//! Deaths, stops and late wake-ups in random mixes, in virtual time: nobody hangs, nobody stays off, and the others have their shares.

mod node;

use node::{Container, MS, Node, SHAPES, container, outcome, tell};
use ration_policy::tuning::LONGEST_OFF;
use ration_policy::{Priority, Share};
use sim_scheduler::programs::Shape;

struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn container(&mut self) -> Container {
        let mut it = container(self.one(&[0, 10, 25, 50]), self.one(SHAPES).1);
        if self.below(4) == 0 {
            it.limit = self.one(&[20, 50, 80]);
        }
        if self.below(6) == 0 {
            it.priority = Priority::Latency;
        }
        it.cost = self.one(&[80, 100, 100, 130]);
        it
    }
}

/// How long a mix runs, and how long each part of it is.
const PARTS: u64 = 5;
const PART: u64 = 600 * MS;

/// Runs a mix to which something happens now and then. What was wrong, and the longest time for which anybody was off.
fn mix(seed: u64) -> (Vec<String>, u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let containers: Vec<Container> = (0..2 + dice.below(6)).map(|_| dice.container()).collect();
    let mut node = Node::new(&containers, seed);
    node.late = dice.one(&[0, 0, 5 * MS, 20 * MS]);
    let count = containers.len();
    let mut alive = vec![true; count];
    let mut stopped = vec![0; count];
    let (mut wrong, mut longest) = (Vec::new(), 0);
    for part in 0..PARTS {
        let which = dice.below(count);
        match dice.below(4) {
            0 if alive.iter().filter(|is| **is).count() > 1 && alive[which] => {
                node.kill(which);
                alive[which] = false;
            }
            1 => {
                let time = dice.one(&[30, 200, 600]) * MS;
                node.stop(which, time);
                stopped[which] = node.gpu.now() + time;
            }
            _ => {}
        }
        let (before, began) = (node.busy(), node.gpu.now());
        node.tenants.iter_mut().for_each(|it| it.longest_off = 0);
        node.run(PART, true);
        let had: Vec<u64> = node.busy().iter().zip(before).map(|(after, before)| after - before).collect();
        for which in (0..count).filter(|which| alive[*which] && stopped[*which] <= began) {
            let off = node.tenants[which].longest_off;
            longest = longest.max(off);
            // Nobody stays off for longer than twice a round, but for late wake-ups. Who asked for nothing has a hundredth, which
            // may come after more than one part.
            let is_hungry = containers[which].weight > 0 && had[which] == 0;
            if part > 0 && (is_hungry || off > LONGEST_OFF + 100 * MS + 2 * node.late) {
                let (had, off) = (had[which] / 1000, off / 1000);
                wrong.push(format!("seed {seed}, part {part}: {which} of {containers:?} had {had} us, off {off} us"));
            }
        }
    }
    for which in (0..count).filter(|which| alive[*which] && stopped[*which] == 0) {
        if node.busy()[which] == 0 {
            wrong.push(format!("seed {seed}: {which} of {containers:?} had nothing"));
        }
    }
    (wrong, longest)
}

/// `RATION_TEST_MIXES` says how many; ten thousand take some six minutes of a processor.
#[test]
fn nobody_hangs() {
    let count = std::env::var("RATION_TEST_MIXES").map_or(300, |text| text.parse().expect("a number"));
    let all: Vec<(Vec<String>, u64)> = (0..count).map(mix).collect();
    let longest = all.iter().map(|(_, longest)| *longest).max().unwrap_or(0);
    let wrong: Vec<&str> = all.iter().flat_map(|(wrong, _)| wrong).map(String::as_str).collect();
    tell(&format!("{count} mixes; nobody was off for longer than {} ms", longest / MS));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// After the holder of a lease is gone, or stands still, the others have their shares.
#[test]
fn others_have_their_shares_after_a_death_or_a_stop() {
    for seed in 0..20 {
        for is_killed in [true, false] {
            let mut node =
                Node::new(&[container(50, Shape::DEEP), container(25, Shape::DEEP), container(25, Shape::DEEP)], seed);
            node.run(1_000 * MS + seed * 7 * MS, true);
            if is_killed {
                node.kill(0);
            } else {
                node.stop(0, 2_000 * MS);
            }
            node.tenants.iter_mut().for_each(|it| it.longest_off = 0);
            let got = outcome(&mut node, 100 * MS, 1_000 * MS, true).usage;
            let off = node.tenants[1..].iter().map(|it| it.longest_off).max().unwrap_or(0);
            assert!(got[1..].iter().all(|got| *got >= 0.46), "killed {is_killed}, seed {seed}: {got:.3?}");
            assert!(off < 200 * MS, "killed {is_killed}, seed {seed}: off for {} ms", off / MS);
        }
    }
}

/// Containers may have clocks of their own (time namespaces). They have their shares, and neither who is ahead of the others nor who is
/// behind them keeps them off the GPU when it stands still.
#[test]
fn clocks_that_differ_change_nothing() {
    const HOUR: u64 = 3_600_000 * MS;
    for (seed, ahead) in (0..9).zip([[0, HOUR, 2 * HOUR], [2 * HOUR, 0, HOUR], [HOUR, 0, 0]].into_iter().cycle()) {
        let shapes = [Shape::DEEP, Shape::GEMM, Shape::DEEP];
        let mut node = Node::new(&[0, 1, 2].map(|which| container([50, 25, 25][which], shapes[which])), seed);
        node.tenants.iter_mut().zip(ahead).for_each(|(it, ahead)| it.ahead = ahead);
        let got = outcome(&mut node, 1_000 * MS, 2_000 * MS, true).usage;
        tell(&format!("clocks apart by {:?} hours: {got:.3?} of 0.50, 0.25, 0.25", ahead.map(|it| it / HOUR)));
        assert!(got[0] > 0.46 && got[1..].iter().all(|got| *got > 0.22), "seed {seed}, {ahead:?}: {got:.3?}");
        node.stop(0, 1_000 * MS);
        node.tenants.iter_mut().for_each(|it| it.longest_off = 0);
        let got = outcome(&mut node, 100 * MS, 800 * MS, true).usage;
        let off = node.tenants[1..].iter().map(|it| it.longest_off).max().unwrap_or(0);
        assert!(got[1..].iter().all(|got| *got > 0.44), "seed {seed}, {ahead:?}, stopped: {got:.3?}");
        assert!(off < 200 * MS, "seed {seed}, {ahead:?}, stopped: off for {} ms", off / MS);
    }
}

/// What others write into a container's words (a limit, a request, a debt of minutes) changes nothing for one that has a quota file.
#[test]
fn words_that_others_write_change_nothing() {
    let forged = [(Share::from_ppm(10_000), 600_000 * MS), (Share::WHOLE, 0), (Share::from_ppm(1), 1)];
    for (limit, owes) in forged {
        let limited = |limit| node::limited(limit, Shape::DEEP);
        let mut node = Node::new(&[limited(25), limited(60)], 1);
        node.has_quota_files = true;
        node.run(500 * MS, true);
        let before = node.busy();
        for _ in 0..2_000 {
            node.forge(0, limit, owes);
            node.run(MS, true);
        }
        let got: Vec<u64> =
            node.busy().iter().zip(before).map(|(after, before)| (after - before) / (20 * MS)).collect();
        tell(&format!("forged: {limit:?}, owes {} ms: {got:?}% of 25 and 60", owes / MS));
        assert!((24..=26).contains(&got[0]) && (58..=61).contains(&got[1]), "{limit:?}, {owes}: {got:?}");
    }
}

/// One says over and over that the GPU is its own. The others have what plain time slicing gives them, but for a tenth: nobody is believed
/// for longer than that.
#[test]
fn who_says_that_every_lease_is_its_own_is_not_believed_for_long() {
    for seed in 0..3 {
        let mut node =
            Node::new(&[container(50, Shape::DEEP), container(25, Shape::GEMM), container(25, Shape::DEEP)], seed);
        node.run(1_000 * MS, true);
        node.tenants[0].lies = true;
        node.gpu.on(0);
        let got = outcome(&mut node, 0, 20_000 * MS, true).usage;
        // As by the hardware alone.
        let shapes = [Shape::DEEP, Shape::GEMM, Shape::DEEP];
        let plain = outcome(&mut Node::new(&shapes.map(|it| container(0, it)), seed), 0, 5_000 * MS, false).usage;
        tell(&format!("beside one that lies: {got:.3?}; by plain time slicing {plain:.3?}"));
        assert!((1..3).all(|it| got[it] > 0.85 * plain[it]), "seed {seed}: {got:.3?} of {plain:.3?}");
        assert!((1..3).all(|it| node.view(it).disbelieved > 0), "seed {seed}: nobody says so");
        node.tenants[0].lies = false;
        node.run(13_000 * MS, true);
        let got = outcome(&mut node, 0, 2_000 * MS, true).usage;
        assert!(got[0] > 0.46 && got[1..].iter().all(|got| *got > 0.22), "seed {seed}: it is over, and {got:.3?}");
    }
}

/// What somebody once said that was not so, or what was lost, leaves nothing behind: not its place among those that take turns, and not
/// the number of a lease after which there is none.
#[test]
fn what_was_said_once_is_soon_forgotten() {
    const LAST: u64 = (1 << 34) - 1;
    let nobody = 0x3fff_ffff;
    let places = [i64::MIN, -1 << 60, -600_000_000_000, 600_000_000_000, 1 << 60, i64::MAX].map(|had| (had, None));
    let numbers = [0, 1 << 32, 1 << 33, LAST - 2, LAST - 1, LAST].map(|number| (0, Some((nobody, number))));
    for (seed, (had, lease)) in places.into_iter().chain(numbers).enumerate() {
        for containers in [&[75, 25][..], &[50, 25, 25]] {
            let all: Vec<_> = containers.iter().map(|weight| container(*weight, Shape::DEEP)).collect();
            let mut node = Node::new(&all, seed as u64);
            node.run(2_000 * MS, true);
            node.says_once(0, had, lease);
            // From when it was forgotten on.
            node.run(2_000 * MS, true);
            let got = outcome(&mut node, 0, 2_000 * MS, true).usage;
            tell(&format!("once said to have had {had} more, {lease:?}: {got:.3?} of {containers:?}%"));
            let is_right = got.iter().zip(containers).all(|(got, of)| *got > f64::from(*of) / 100.0 - 0.04);
            assert!(is_right, "once said to have had {had} more, {lease:?}: {got:.3?} of {containers:?}%");
        }
    }
}
