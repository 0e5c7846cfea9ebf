//! Each rule by itself. What comes of them together is in tests/model.

use proptest::prelude::*;

use super::*;
use crate::testing::{MS, any_time};

const RULES: &Rules = &Rules::USUAL;
/// A time.
const NOW: u64 = 1_000_000 * MS;
/// What the clock says then.
const CLOCK: u64 = 5_000_000 * MS;

/// Somebody of so many per cent who has been waiting for a while, and is not behind.
fn someone(index: usize, percent: u32) -> Contender {
    Contender {
        index,
        weight: Share::from_ppm(percent * 10_000),
        priority: Priority::Normal,
        virtual_time: CLOCK,
        since: NOW - 50 * MS,
        served: NOW - 50 * MS,
        free: 0,
        ready: 0,
    }
}

/// One that is so far ahead.
fn ahead(contender: Contender, by: u64) -> Contender {
    Contender { virtual_time: contender.virtual_time + by, ..contender }
}

fn of(contender: Contender, priority: Priority) -> Contender {
    Contender { priority, ..contender }
}

/// A turn that begins now.
fn turn(holder: Contender) -> Turn {
    Turn { holder, began: NOW, quiet: None, heard: NOW, seen: NOW }
}

fn queue<'a>(
    turn: impl Into<Option<Turn>>,
    waiting: &'a [Contender],
) -> Queue<'static, std::iter::Copied<std::slice::Iter<'a, Contender>>> {
    Queue { clock: CLOCK, turn: turn.into(), waiting: waiting.iter().copied(), now: NOW, rules: RULES }
}

/// How long from now until the turn is over.
fn lasts(turn: Turn, waiting: &[Contender]) -> u64 {
    queue(turn, waiting).over_at().expect("somebody waits") - NOW
}

// --------------------------------------------------------------------------------------------------- order

#[test]
fn who_is_furthest_behind_is_next() {
    let waiting = [ahead(someone(0, 50), 5), ahead(someone(1, 50), 3), ahead(someone(2, 50), 9)];
    assert_eq!(queue(None, &waiting).next().map(|grant| grant.index), Some(1));
    assert_eq!(queue(None, &[]).next(), None);
}

#[test]
fn who_has_waited_longest_is_next_where_they_are_equal() {
    let early = Contender { since: NOW - 60 * MS, ..someone(7, 50) };
    assert_eq!(queue(None, &[someone(0, 50), early, someone(8, 50)]).next().map(|grant| grant.index), Some(7));
}

#[test]
fn somebody_in_a_hurry_goes_first_while_it_is_within_its_due() {
    let hurried = of(someone(0, 50), Priority::Latency);
    let other = someone(1, 50);
    let first = |lead: u64| queue(None, &[ahead(hurried, lead), other]).next().map(|grant| grant.index);
    assert_eq!((first(RULES.ahead), first(RULES.ahead + 1)), (Some(0), Some(1)));
}

#[test]
fn batch_goes_last_until_it_has_waited_for_too_long() {
    let batch = |waited: u64| Contender { since: NOW - waited, ..of(someone(0, 50), Priority::Batch) };
    let others = [ahead(someone(1, 50), 90 * MS), of(someone(2, 50), Priority::Latency)];
    let first = |waited: u64, rest: &[Contender]| {
        queue(None, &[&[batch(waited)], rest].concat()).next().map(|grant| grant.index)
    };
    assert_eq!(first(RULES.patience - 1, &others[..1]), Some(1));
    assert_eq!(first(RULES.patience, &others), Some(0), "before anybody else");
    assert_eq!(first(0, &[]), Some(0), "alone");
    // One that has had much more than its due has no such claim: its pieces are longer than its turns.
    let waiting = [ahead(batch(RULES.patience), RULES.round + 1), others[0]];
    assert_eq!(queue(None, &waiting).next().map(|grant| grant.index), Some(1));
}

#[test]
fn who_has_come_to_its_ceiling_is_passed_over() {
    let full = Contender { free: NOW + MS, ready: NOW + 20 * MS, ..someone(0, 50) };
    let other = ahead(someone(1, 50), 100 * MS);
    assert_eq!(queue(None, &[full, other]).next().map(|grant| grant.index), Some(1));
    assert_eq!(queue(None, &[full]).next(), None);
    // With a little due, it has what is left, and goes after all who have enough for a turn.
    let little = Contender { free: NOW - MS, ..full };
    assert_eq!(queue(None, &[little, other]).next().map(|grant| grant.index), Some(1));
    assert_eq!(queue(None, &[little]).next().map(|grant| grant.index), Some(0));
}

// ---------------------------------------------------------------------------------------------------- turns

#[test]
fn a_turn_lasts_and_goes_on_while_the_holder_is_behind() {
    assert_eq!(queue(turn(someone(0, 50)), &[]).over_at(), None, "nobody waits");
    assert_eq!(lasts(turn(someone(0, 50)), &[someone(1, 50)]), RULES.turn);
    // The other is ahead by 90 ms of virtual time, which takes 45 at a half.
    assert_eq!(lasts(turn(someone(0, 50)), &[ahead(someone(1, 50), 90 * MS)]), 45 * MS);
}

#[test]
fn everybody_has_a_turn_in_a_round() {
    assert_eq!(lasts(turn(someone(0, 5)), &[someone(1, 95)]), RULES.round / 20);
    assert_eq!(lasts(turn(someone(0, 5)), &[someone(1, 15)]), RULES.turn, "a quarter of what they ask for together");
    assert_eq!(
        lasts(turn(someone(0, 1)), &[someone(1, 100), someone(2, 100)]),
        RULES.least,
        "a hundredth of a round is too little"
    );
    let sixteen: Vec<_> = (1..16).map(|index| someone(index, 6)).collect();
    assert_eq!(lasts(turn(someone(0, 6)), &sixteen), RULES.round / 16);
}

#[test]
fn who_comes_back_behind_shortens_the_turn_by_what_it_is_owed() {
    // It was away for a moment, and the holder was let in meanwhile, far ahead of it.
    let back = |behind: u64| Contender { virtual_time: CLOCK - behind, since: NOW, served: NOW, ..someone(1, 50) };
    assert_eq!(lasts(turn(someone(0, 50)), &[back(10 * MS)]), RULES.turn - 5 * MS);
    assert_eq!(lasts(turn(someone(0, 50)), &[back(1000 * MS)]), RULES.least, "not so short that switches eat it up");
}

#[test]
fn what_was_owed_is_forgotten_by_the_time_that_passes() {
    let away = |length: u64| Contender { virtual_time: 0, since: NOW, served: NOW - length, ..someone(1, 50) };
    let joins_at = |length: u64| CLOCK - queue(None, &[away(length)]).next().expect("it waits").virtual_time;
    assert_eq!((joins_at(0), joins_at(10 * MS)), (2 * RULES.turn, 2 * RULES.turn - 10 * MS));
    assert_eq!((joins_at(2 * RULES.turn), joins_at(600_000 * MS)), (0, 0));
    let small = Contender { virtual_time: 0, since: NOW, served: NOW, ..someone(1, 1) };
    assert_eq!(
        CLOCK - queue(None, &[small]).next().expect("it waits").virtual_time,
        RULES.round,
        "no more than a round"
    );
}

#[test]
fn somebody_in_a_hurry_interrupts_at_once_while_it_is_within_its_due() {
    let hurried = of(someone(1, 50), Priority::Latency);
    assert_eq!(lasts(turn(someone(0, 50)), &[hurried]), 0);
    assert_eq!(lasts(turn(someone(0, 50)), &[ahead(hurried, RULES.ahead)]), 0);
    assert_eq!(
        lasts(turn(someone(0, 50)), &[ahead(hurried, RULES.ahead + 8 * MS)]),
        4 * MS,
        "when the holder has caught up"
    );
    assert_eq!(lasts(turn(of(someone(0, 50), Priority::Latency)), &[hurried]), RULES.turn, "but none of its like");
    // A third that is far behind both: the hurried one is beyond its due next to that.
    let behind = Contender { virtual_time: CLOCK - 20 * MS, ..someone(2, 50) };
    let late = ahead(hurried, RULES.ahead - 10 * MS);
    assert_eq!(
        lasts(turn(ahead(someone(0, 50), 1)), &[late, behind]),
        RULES.turn - 10 * MS,
        "so it is that one's turn"
    );
}

#[test]
fn a_holder_in_a_hurry_is_left_alone_while_it_is_within_its_due() {
    let holder = of(someone(0, 50), Priority::Latency);
    assert_eq!(lasts(turn(holder), &[someone(1, 50)]), RULES.turn.max(RULES.ahead / 2));
}

#[test]
fn what_batch_was_left_is_taken_back() {
    let batch = of(someone(0, 50), Priority::Batch);
    assert_eq!(lasts(turn(batch), &[ahead(someone(1, 50), 400 * MS)]), RULES.least);
    assert_eq!(lasts(turn(batch), &[of(someone(1, 50), Priority::Latency)]), 0);
    assert_eq!(lasts(turn(batch), &[of(someone(1, 50), Priority::Batch)]), RULES.turn);
    let waits = Contender { since: NOW - 10 * MS, ..of(someone(1, 50), Priority::Batch) };
    assert_eq!(lasts(turn(someone(0, 50)), &[waits]), RULES.patience - 10 * MS);
    // One that was let in because it had waited for too long has its turn, and in any case a part of it.
    let overdue = Contender { since: NOW - RULES.patience, ..batch };
    assert_eq!(lasts(turn(overdue), &[someone(1, 50)]), RULES.turn);
    assert_eq!(lasts(turn(overdue), &[of(someone(1, 50), Priority::Latency)]), RULES.least);
}

#[test]
fn a_quiet_holder_has_given_its_turn_away() {
    let quiet = |holder: Contender, quiet: u64| Turn { quiet: Some(quiet), ..turn(holder) };
    let far = ahead(someone(1, 50), 400 * MS);
    assert_eq!(lasts(quiet(someone(0, 50), NOW), &[far]), RULES.idle);
    assert_eq!(lasts(quiet(of(someone(0, 50), Priority::Latency), NOW), &[far]), RULES.idle_latency);
    let full = Contender { free: NOW + 100, ..someone(0, 50) };
    assert_eq!(lasts(quiet(full, NOW), &[far]), 0, "who has come to its ceiling is not waited for");
    let little = Contender { ready: NOW + 20 * MS, ..far };
    assert_eq!(lasts(quiet(someone(0, 50), NOW), &[little]), RULES.idle, "a short turn is better than none");
    assert_eq!(lasts(turn(someone(0, 50)), &[little]), 200 * MS, "but not worth ending another's");
}

#[test]
fn who_is_not_heard_of_has_lost_its_turn() {
    let lost = |turn: Turn| queue(turn, &[ahead(someone(1, 50), 400 * MS)]).lost_at().expect("somebody waits") - NOW;
    assert_eq!(lost(turn(someone(0, 50))), RULES.stalled);
    assert_eq!(
        lost(Turn { heard: NOW + 100 * MS, ..turn(someone(0, 50)) }),
        100 * MS + RULES.stalled,
        "a long piece of work"
    );
    assert_eq!(
        lost(Turn { heard: NOW + 1000 * MS, ..turn(someone(0, 50)) }),
        200 * MS + RULES.lost,
        "too long a piece"
    );
    assert_eq!(queue(turn(someone(0, 50)), &[]).lost_at(), None);
    let is_stalled = |turn: Turn| queue(turn, &[]).is_stalled();
    let before = NOW - RULES.stalled;
    let silent = Turn { began: before - MS, heard: before, seen: before, ..turn(someone(0, 50)) };
    assert!(is_stalled(silent));
    assert!(!is_stalled(Turn { heard: before + 1, ..silent }), "what it has started may not be done");
    assert!(!is_stalled(Turn { seen: before + 1, ..silent }), "it is there");
    assert!(!is_stalled(Turn { quiet: Some(before - MS), ..silent }), "it has said that it rests");
    let works_on = |heard: u64| Turn { heard, seen: NOW + 1000 * MS, ..turn(someone(0, 50)) };
    assert_eq!(lost(works_on(NOW)), RULES.lost, "it is there, but what it has started is not done");
    assert!(RULES.is_heard(NOW - RULES.lost + 1, NOW) && !RULES.is_heard(NOW - RULES.lost, NOW));
}

#[test]
fn who_keeps_one_in_a_hurry_waiting_has_lost_its_turn_soon() {
    let lost = |turn: Turn, waiting: Contender| queue(turn, &[waiting]).lost_at().expect("somebody waits") - NOW;
    let (holder, hurried) = (someone(0, 50), of(someone(1, 50), Priority::Latency));
    assert_eq!(lost(turn(holder), hurried), RULES.late);
    assert_eq!(lost(turn(of(holder, Priority::Batch)), hurried), RULES.late);
    let works = |until: u64| Turn { heard: NOW + until, ..turn(holder) };
    assert_eq!(lost(works(MS), hurried), MS + RULES.late, "what is in flight is waited for");
    assert_eq!(lost(works(100 * MS), hurried), RULES.lost, "but not for longer than for anybody");
    let is_there = |holder: Contender| Turn { seen: NOW + 1000 * MS, ..turn(holder) };
    assert!(lost(is_there(of(holder, Priority::Latency)), hurried) >= RULES.lost, "its like");
    assert!(lost(is_there(holder), ahead(hurried, 400 * MS)) >= RULES.lost, "who has had more than its due waits");
    assert_eq!(lost(turn(of(holder, Priority::Latency)), hurried), RULES.stalled, "unless it is stopped");
}

// ------------------------------------------------------------------------------------------------ hand-overs

#[test]
fn the_holder_is_charged_for_all_the_time_it_held() {
    let held = Turn { began: NOW - 30 * MS, ..turn(someone(0, 25)) };
    let grant = queue(held, &[someone(1, 75)]).next().expect("somebody waits");
    assert_eq!((grant.charge, grant.was_served), (120 * MS, true));
    assert_eq!((grant.index, grant.virtual_time, grant.clock), (1, CLOCK, CLOCK));
    let short = Turn { began: NOW - RULES.least + 1, ..held };
    assert!(!queue(short, &[someone(1, 75)]).next().expect("somebody waits").was_served);
}

#[test]
fn time_for_which_nobody_was_there_is_charged_to_nobody() {
    let ago = |time: u64| NOW - time * MS;
    let waits = |since: u64| Contender { since, ..someone(1, 50) };
    let charge = |turn: Turn| queue(turn, &[waits(ago(70))]).next().expect("somebody waits").charge;
    // It has held the GPU for 5 ms, and nothing was seen of anybody in the 60 since then.
    let silent = Turn { began: ago(65), heard: ago(60), seen: ago(62), ..turn(someone(0, 50)) };
    assert_eq!(charge(silent), 2 * (5 * MS + RULES.stalled));
    assert_eq!(charge(Turn { heard: ago(2), ..silent }), 130 * MS, "what it had started took as long");
    assert_eq!(charge(Turn { seen: ago(2), ..silent }), 130 * MS, "it was there");
    let quiet = Turn { quiet: Some(ago(60)), ..silent };
    assert_eq!(charge(quiet), 2 * (5 * MS + RULES.idle));
    let alone = queue(quiet, &[waits(ago(10))]).next().expect("somebody waits");
    assert_eq!(alone.charge, 110 * MS, "until another came it was alone, which costs nothing afterwards");
    assert_eq!(RULES.silence(ago(60), NOW), 60 * MS - RULES.stalled);
    assert_eq!((RULES.silence(ago(3), NOW), RULES.silence(NOW + MS, NOW)), (0, 0));
}

/// Its ceiling has to find again what was due to it, or it would lose that each time that somebody in a hurry comes.
#[test]
fn who_is_sent_away_early_waits_on_with_what_is_due_to_it() {
    let due = 80 * MS;
    let since = |held: u64, due: u64| {
        let holder = Contender { free: NOW - due, since: NOW - 120 * MS, ..someone(0, 25) };
        let held = Turn { began: NOW - held, ..turn(holder) };
        NOW - queue(held, &[someone(1, 75)]).next().expect("somebody waits").since
    };
    assert_eq!(since(10 * MS, due), due - Bucket::USUAL_BURST, "the burst it has anyway");
    assert_eq!(since(10 * MS, Bucket::USUAL_BURST), 0);
    assert_eq!(since(10 * MS, 1000 * MS), 120 * MS, "no longer than before");
    assert_eq!(since(RULES.turn, due), 0, "it has had its turn");
    assert_eq!(since(RULES.least - 1, due), 120 * MS, "it has had nothing");
    let long = Contender { free: NOW - 900 * MS, since: NOW - 900 * MS, ..someone(0, 25) };
    let held = Turn { began: NOW - 10 * MS, ..turn(long) };
    let grant = queue(held, &[someone(1, 75)]).next().expect("somebody waits");
    assert_eq!(NOW - grant.since, RULES.patience - RULES.round, "it is not overdue within a round");
    let unlimited = Turn { began: NOW - 10 * MS, ..turn(someone(0, 25)) };
    assert_eq!(queue(unlimited, &[someone(1, 75)]).next().map(|grant| grant.since), Some(NOW));
}

#[test]
fn what_was_held_counts_at_the_weight_of_then() {
    let (ninety, ten) = (Share::from_ppm(900_000), Share::from_ppm(100_000));
    let changed = reweighed(CLOCK, 90 * MS, ninety, ten);
    assert_eq!(charged(changed, 90 * MS, ten), CLOCK + 100 * MS);
    assert_eq!(reweighed(CLOCK, 0, ninety, ten), CLOCK);
    // Alone for an hour, at a weight that counts as more then.
    let (hour, small) = (3_600_000 * MS, Share::from_ppm(1));
    let alone = Turn {
        began: NOW,
        ..turn(Contender { virtual_time: reweighed(20 * hour, hour, ninety, small), ..someone(0, 1) })
    };
    let comes = Contender { since: NOW + hour, served: 0, ..someone(1, 50) };
    let grant = Queue { now: NOW + hour, ..queue(alone, &[comes]) }.next().expect("somebody waits");
    assert_eq!(grant.virtual_time, 20 * hour + ninety.wall(hour), "as if nothing had changed");
}

/// Batch waits all the time: who comes meanwhile starts where the holder is.
#[test]
fn time_next_to_batch_costs_nothing() {
    let batch = Contender { since: NOW - 300 * MS, ..of(someone(2, 50), Priority::Batch) };
    let held = Turn { began: NOW - 300 * MS, ..turn(someone(0, 50)) };
    let comes = Contender { since: NOW, served: 0, virtual_time: 0, ..someone(1, 50) };
    let grant = queue(held, &[comes, batch]).next().expect("somebody waits");
    assert_eq!((grant.index, grant.virtual_time), (1, CLOCK + 2 * 300 * MS));
    // Next to its like it is not alone.
    let like = Turn { holder: of(held.holder, Priority::Batch), ..held };
    let grant = queue(like, &[batch]).next().expect("somebody waits");
    assert_eq!((grant.index, grant.virtual_time), (2, CLOCK));
}

/// Up to the moment when somebody wants it too, the clock goes with the holder.
#[test]
fn time_alone_costs_nothing() {
    let alone = Turn { began: NOW - 1000 * MS, ..turn(someone(0, 50)) };
    let comes = Contender { since: NOW - 10 * MS, served: 0, virtual_time: 0, ..someone(1, 50) };
    let grant = queue(alone, &[comes]).next().expect("somebody waits");
    assert_eq!(grant.virtual_time, CLOCK + 2 * 990 * MS, "it starts where the holder was when it came");
    assert_eq!(CLOCK + grant.charge - grant.virtual_time, 20 * MS, "and is behind by the ten milliseconds since");
    assert_eq!(grant.clock, grant.virtual_time);
}

#[test]
fn nobody_who_waits_is_lifted_by_the_clock() {
    // Somebody in a hurry takes over, ahead of the holder, which wants to go on.
    let hurried = ahead(of(someone(1, 50), Priority::Latency), 40 * MS);
    let held = Turn { began: NOW - 5 * MS, ..turn(someone(0, 50)) };
    let grant = queue(held, &[hurried]).next().expect("somebody waits");
    assert_eq!((grant.index, grant.clock), (1, CLOCK + 10 * MS), "the holder's new virtual time");
    // Batch waits without end, and does not hold the clock back.
    let batch = Contender { virtual_time: 0, ..of(someone(2, 50), Priority::Batch) };
    let grant = queue(Turn { began: NOW - 30 * MS, ..held }, &[ahead(someone(1, 50), 20 * MS), batch]).next();
    assert_eq!(grant.map(|grant| grant.clock), Some(CLOCK + 20 * MS));
}

#[test]
fn queues_are_short_where_somebody_may_come() {
    let none: [(Priority, u64); 0] = [];
    assert_eq!(RULES.flight(none.into_iter(), NOW), None);
    let flight =
        |priority: Priority, wanted: u64| RULES.flight([(Priority::Batch, 0), (priority, wanted)].into_iter(), NOW);
    assert_eq!(flight(Priority::Normal, 0), None, "it never wanted the GPU");
    assert_eq!(flight(Priority::Normal, NOW), Some(Flight::AWAITED));
    let both = |wanted: [u64; 2]| RULES.flight(wanted.map(|wanted| (Priority::Normal, wanted)).into_iter(), NOW);
    assert_eq!([[NOW, NOW - 1], [NOW - 1, NOW]].map(both), [Some(Flight::USUAL); 2], "one may come back");
    assert_eq!(flight(Priority::Normal, NOW - RULES.recent + 1), Some(Flight::USUAL));
    assert_eq!(flight(Priority::Normal, NOW - RULES.recent), None);
    assert_eq!(flight(Priority::Latency, 1), Some(Flight::SHORT), "whenever it comes");
}

// ---------------------------------------------------------------------------------------------------- laws

fn any_priority() -> impl Strategy<Value = Priority> {
    prop_oneof![Just(Priority::Batch), Just(Priority::Normal), Just(Priority::Latency)]
}

/// Whatever the words say.
fn any_contender(index: usize) -> impl Strategy<Value = Contender> {
    (1..=1_000_000u32, any_priority(), [any_time(), any_time(), any_time(), any_time(), any_time()]).prop_map(
        move |(ppm, priority, [virtual_time, since, served, free, ready])| Contender {
            index,
            weight: Share::from_ppm(ppm),
            priority,
            virtual_time,
            since,
            served,
            free,
            ready,
        },
    )
}

/// What the words say where all is well: around a clock, around now.
fn a_contender(index: usize) -> impl Strategy<Value = Contender> {
    let near = |around: u64| around - 500 * MS..around + 500 * MS;
    (10_000..=1_000_000u32, any_priority(), near(CLOCK), 0..600 * MS, 0..600 * MS, near(NOW), 0..50 * MS).prop_map(
        move |(ppm, priority, virtual_time, waited, away, free, saving)| Contender {
            index,
            weight: Share::from_ppm(ppm),
            priority,
            virtual_time,
            since: NOW - waited,
            served: NOW - waited - away,
            free,
            ready: if priority == Priority::Latency { free } else { free + saving },
        },
    )
}

fn several(one: impl Fn(usize) -> BoxedStrategy<Contender>) -> impl Strategy<Value = Vec<Contender>> {
    (1..7usize).prop_flat_map(move |count| (0..count).map(&one).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Words that anybody may have written, and the end of time: no panic, and no nonsense.
    #[test]
    fn no_word_is_too_much(
        mut all in several(|index| any_contender(index).boxed()),
        holds in any::<bool>(), clock in any_time(), now in any_time(),
        [began, quiet, heard, seen] in [any_time(), any_time(), any_time(), any_time()], working in any::<bool>(),
    ) {
        let turn = holds.then(|| all.pop()).flatten().map(|holder| Turn { holder, began, quiet: (!working).then_some(quiet), heard, seen });
        let queue = Queue { clock, turn, waiting: all.iter().copied(), now, rules: RULES };
        prop_assert_eq!(queue.over_at().is_some(), turn.is_some() && !all.is_empty());
        prop_assert_eq!(queue.lost_at().is_some(), queue.over_at().is_some());
        let next = queue.next();
        prop_assert!(next.is_none_or(|grant| all.iter().any(|it| it.index == grant.index) && grant.clock >= clock));
        prop_assert!(!queue.is_over() || next.is_some(), "when a turn is over, somebody is next");
        prop_assert!(queue.lost_at().is_none_or(|at| at > now) || next.is_some(), "when it is lost, too");
    }

    /// Those who look at the same words come to the same end, in whatever order they look at them.
    #[test]
    fn all_agree((all, shuffled) in several(|index| a_contender(index).boxed())
        .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())))
    {
        let (one, other) = (queue(None, &all), queue(None, &shuffled));
        prop_assert_eq!(one.next(), other.next());
        if let Some(grant) = one.next() {
            let rest = |list: &[Contender]| list.iter().copied().filter(|it| it.index != grant.index).collect::<Vec<_>>();
            let holder = all[grant.index];
            prop_assert_eq!(queue(turn(holder), &rest(&all)).over_at(), queue(turn(holder), &rest(&shuffled)).over_at());
        }
    }

    /// A turn that is given is not over at once, though the one that had it before may still want it; and unless somebody in a
    /// hurry waits, it lasts long enough to be worth a switch.
    #[test]
    fn nobody_is_let_in_to_be_sent_away(all in several(|index| a_contender(index).boxed()), began in 0..100 * MS) {
        let (holder, waiting) = all.split_last().expect("at least one");
        let before = Turn { holder: *holder, began: NOW - began, quiet: None, heard: NOW, seen: NOW };
        let first = queue(before, waiting);
        if !first.is_over() {
            return Ok(());
        }
        let grant = first.next().expect("it is over");
        let back = Contender {
            virtual_time: holder.virtual_time + grant.charge,
            since: if grant.was_served { NOW } else { holder.since },
            served: NOW,
            ..*holder
        };
        let mut rest: Vec<_> = waiting.iter().copied().filter(|it| it.index != grant.index).collect();
        rest.push(back);
        let new = Contender { virtual_time: grant.virtual_time, ..waiting[grant.index] };
        let after = Queue { clock: grant.clock, ..queue(turn(new), &rest) };
        let over = after.over_at().expect("others wait");
        prop_assert!(over > NOW, "over at once");
        let in_a_hurry = rest.iter().any(|it| it.priority == Priority::Latency);
        prop_assert!(in_a_hurry || over >= NOW + RULES.least, "over after {} ns", over - NOW);
    }
}
