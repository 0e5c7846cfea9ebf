//! What a ceiling promises, to the container and to the others.

use proptest::prelude::*;

use super::*;
use crate::testing::{MS, any_time};

const START: u64 = 1_000_000 * MS;

fn bucket(percent: u32) -> Bucket {
    Bucket::new(Share::from_ppm(percent * 10_000))
}

fn any_bucket() -> impl Strategy<Value = Bucket> {
    let burst = prop_oneof![Just(Bucket::USUAL_BURST), Just(0), any_time()];
    (1..=1_000_000u32, burst).prop_map(|(ppm, burst)| Bucket { limit: Share::from_ppm(ppm), burst })
}

/// Below the whole, which is no ceiling.
fn a_limit() -> impl Strategy<Value = Share> {
    (10_000..1_000_000u32).prop_map(Share::from_ppm)
}

/// A container that has pieces of these lengths to do, each so long after the one before, and waits where it must; then it is
/// woken a little late. Returns when each piece began.
fn works(bucket: Bucket, mut word: u64, late: u64, pieces: &[(u64, u64)]) -> Vec<u64> {
    let (mut now, mut begun) = (START, Vec::new());
    for (pause, piece) in pieces {
        now += pause;
        let free = bucket.free_at(word, now);
        if free > now {
            now = free + late;
        }
        begun.push(now);
        now += piece;
        word = bucket.charged(word, now, *piece);
    }
    begun
}

#[test]
fn three_of_ten_milliseconds_at_thirty_percent() {
    let bucket = bucket(30);
    let word = bucket.charged(START, START, 3 * MS);
    assert_eq!(bucket.free_at(word, START), START + 10 * MS);
    assert_eq!((bucket.due(word, START + 9 * MS), bucket.due(word, START + 20 * MS)), (0, 3 * MS));
}

#[test]
fn an_idle_container_saves_up_the_burst_and_no_more() {
    let bucket = bucket(50);
    assert_eq!(bucket.due(0, START), bucket.burst / 2);
    let (half, now) = (bucket.burst / 2, START + bucket.burst / 2);
    let word = bucket.charged(0, now, half);
    assert_eq!(bucket.due(word, now), half / 2, "all that was due is used, and this has become due meanwhile");
}

#[test]
fn a_kernel_that_is_longer_than_all_that_is_due_is_paid_back() {
    let bucket = bucket(10);
    let word = bucket.charged(START, START, 1000 * MS);
    assert_eq!(bucket.free_at(word, START), START + 10_000 * MS);
    assert_eq!(bucket.due(word, START + 9_999 * MS), 0);
}

/// A piece of ten seconds that another's work is in between of, so that it takes twenty.
#[test]
fn what_becomes_due_while_the_gpu_works_for_others_is_not_lost() {
    let (bucket, second) = (bucket(25), 1000 * MS);
    let word = bucket.charged_from(START, START, START + 20 * second, 10 * second);
    assert_eq!(word, START + 40 * second, "a quarter of forty seconds");
    assert_eq!(
        bucket.charged_from(0, START, START + second, MS),
        START - bucket.burst + 4 * MS,
        "no idle time before it"
    );
    assert_eq!(
        bucket.charged_from(START, START + 50 * MS, START + 50 * MS, 30 * MS),
        bucket.charged(START, START + 50 * MS, 30 * MS),
        "it cannot have begun later than that"
    );
}

#[test]
fn all_of_the_gpu_is_no_ceiling() {
    let bucket = bucket(100);
    for word in [0, START, START + 1000 * MS, u64::MAX] {
        assert!(bucket.free_at(word, START) <= START);
    }
}

#[test]
fn damage_is_no_debt_and_debts_have_an_end() {
    let bucket = bucket(1);
    assert_eq!(bucket.free_at(u64::MAX, START), START, "nobody can have used so much");
    let word = bucket.charged(START, START, u64::MAX);
    assert_eq!(word, START + Bucket::LONGEST_DEBT);
    assert_eq!(
        bucket.free_at(word, START - 5 * MS),
        START - 5 * MS + Bucket::LONGEST_DEBT,
        "by a clock that was read earlier"
    );
}

#[test]
fn a_debt_is_paid_at_the_new_rate_when_the_limit_changes() {
    let (low, high) = (bucket(5), bucket(50));
    let word = low.charged(START, START, 10 * MS);
    assert_eq!(low.free_at(word, START), START + 200 * MS);
    assert_eq!(low.changed(high, word, START), START + 20 * MS);
    assert_eq!(high.changed(low, START + 20 * MS, START), START + 200 * MS);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// In any stretch of time: what is due in it, and the burst, and the piece at its end.
    #[test]
    fn nobody_uses_more_than_its_limit(
        limit in a_limit(),
        saved in any::<bool>(),
        pieces in prop::collection::vec((0..100 * MS, 1..20 * MS), 1..60),
    ) {
        let bucket = Bucket::new(limit);
        let begun = works(bucket, if saved { 0 } else { START }, 0, &pieces);
        for first in 0..begun.len() {
            let mut used = 0;
            for last in first..begun.len() {
                let stretch = begun[last] - begun[first];
                prop_assert!(used <= limit.gpu(stretch + bucket.burst), "{used} in {stretch}, and then the last piece");
                used += pieces[last].1;
            }
        }
    }

    /// Whoever always wants, and is woken late by less than the burst, has got all that was due up to the last piece.
    #[test]
    fn nothing_that_was_due_is_lost(
        limit in a_limit(),
        late in 0..Bucket::USUAL_BURST,
        pieces in prop::collection::vec((Just(0), 1..20 * MS), 1..60),
    ) {
        let begun = works(Bucket::new(limit), START, late, &pieces);
        let last = pieces.len() - 1;
        let used: u64 = pieces[..last].iter().map(|piece| piece.1).sum();
        // The wall time of each piece is rounded up, by less than a nanosecond.
        let due = limit.gpu((begun[last] - START).saturating_sub(late + last as u64));
        prop_assert!(used >= due, "{used} of {due}");
    }

    /// What is owed or saved up is GPU time, whatever the limit.
    #[test]
    fn a_change_of_limit_changes_no_balance(old in a_limit(), new in a_limit(), offset in 0..2000 * MS) {
        let (old, new) = (Bucket { limit: old, burst: u64::MAX }, Bucket { limit: new, burst: u64::MAX });
        let near = |left: u64, right: u64| left.abs_diff(right) <= 1;
        let (owing, saving) = (START + offset, START - offset);
        let after = old.changed(new, owing, START);
        prop_assert!(near(new.limit.gpu(after - START), old.limit.gpu(offset)));
        let after = old.changed(new, saving, START);
        prop_assert!(near(new.due(after, START), old.due(saving, START)));
        // And there and back again.
        let back = new.changed(old, old.changed(new, owing, START), START);
        prop_assert!(back.abs_diff(owing) <= old.limit.wall(2));
    }

    #[test]
    fn no_word_and_no_time_is_too_much(
        bucket in any_bucket(), other in any_bucket(), word in any_time(), now in any_time(), gpu in any_time(),
    ) {
        let latest = now.saturating_add(Bucket::LONGEST_DEBT);
        let charged = bucket.charged(word, now, gpu);
        prop_assert!((now.saturating_sub(gpu).saturating_sub(bucket.burst)..=latest).contains(&charged));
        prop_assert!(charged >= bucket.free_at(word, now.saturating_sub(gpu)), "use is never a gain");
        prop_assert!(bucket.free_at(word, now) <= latest);
        prop_assert!(bucket.due(word, now) <= bucket.limit.gpu(bucket.burst));
        prop_assert!(bucket.due(word, now) == 0 || bucket.free_at(word, now) < now);
        let changed = bucket.changed(other, word, now);
        prop_assert!((now.saturating_sub(other.burst)..=latest).contains(&changed));
    }
}

#[test]
fn word_that_others_wrote_is_believed_as_far_as_it_can_be_true() {
    let bucket = bucket(10);
    // Alone: no more than this process used, and no less, whatever stands there.
    let mut debt = Debt::found(START, START, 400 * MS);
    debt.used(bucket, START, START + MS, MS, 0, START + 600_000 * MS);
    assert_eq!(debt.free_at(bucket, START + MS), START + 10 * MS);
    let saved_up = Bucket::USUAL_BURST;
    for used in 1..=10 {
        debt.used(bucket, START + MS, START + 2 * MS, MS, 0, 0);
        assert_eq!(debt.free_at(bucket, START), START + 10 * MS * (used + 1) - saved_up, "{used}");
    }
    // With others: no more than there was time for.
    let mut debt = Debt::found(START, START, 400 * MS);
    debt.used(bucket, START, START + MS, MS / 2, MS, START + 600_000 * MS);
    assert_eq!(debt.free_at(bucket, START + MS), START + 15 * MS);
    // Who comes new believes it for a while.
    assert_eq!(Debt::found(START + 600_000 * MS, START, 400 * MS).free_at(bucket, START), START + 400 * MS);
}

proptest! {
    /// Two processes that are on together know as much as the word that they share, look by look.
    #[test]
    fn word_that_is_true_is_believed(limit in a_limit(), looks in prop::collection::vec((1..4u64, 0..=100u64, 0..=100u64), 1..60)) {
        let bucket = Bucket::new(limit);
        let (mut word, mut now, mut debt) = (START, START, Debt::found(START, START, 400 * MS));
        for (time, own, other) in looks {
            let (began, time) = (now, time * MS);
            now += time;
            // Both together use no more than there was.
            let (own, other) = (time * own / 200, time * other / 200);
            word = bucket.charged_from(word, began, now, own);
            word = bucket.charged_from(word, began, now, other);
            debt.used(bucket, began, now, own, time, word);
            prop_assert_eq!(debt.free_at(bucket, now), bucket.free_at(word, now));
        }
    }
}
