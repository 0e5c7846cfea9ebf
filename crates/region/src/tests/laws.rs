//! The ledger against a simple model of it: a list of who holds what.

use proptest::prelude::*;

use super::{Someone, account, assert_sound, region};
use crate::layout::{NO_CAP, PENDING_BITS};
use crate::ledger::Full;
use crate::life::is_over;
use crate::sync::SeqCst;
use crate::table::Place;

/// Something that happens. Members are named by their number among those that ever joined.
#[derive(Clone, Debug)]
enum Event {
    Join { container: usize, cap: Option<u64> },
    Reserve { member: usize, bytes: u64, keep_free: u64 },
    Charge { member: usize, bytes: u64 },
    Refund { member: usize, bytes: u64 },
    SetCap { member: usize, cap: Option<u64> },
    Kill { member: usize },
    Leave { member: usize },
    Reap { member: usize, released: u8 },
}

/// Mostly sizes that matter together, sometimes absurd ones.
fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..60u64, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn event() -> impl Strategy<Value = Event> {
    let member = || 0..12usize;
    let cap = || prop_oneof![1 => Just(None), 4 => (0..150u64).prop_map(Some)];
    prop_oneof![
        3 => (0..2usize, cap()).prop_map(|(container, cap)| Event::Join { container, cap }),
        8 => (member(), bytes(), prop_oneof![4 => Just(0), 1 => bytes()])
            .prop_map(|(member, bytes, keep_free)| Event::Reserve { member, bytes, keep_free }),
        2 => (member(), bytes()).prop_map(|(member, bytes)| Event::Charge { member, bytes }),
        5 => (member(), bytes()).prop_map(|(member, bytes)| Event::Refund { member, bytes }),
        1 => (member(), cap()).prop_map(|(member, cap)| Event::SetCap { member, cap }),
        1 => member().prop_map(|member| Event::Kill { member }),
        1 => member().prop_map(|member| Event::Leave { member }),
        2 => (member(), any::<u8>()).prop_map(|(member, released)| Event::Reap { member, released }),
    ]
}

/// What the model knows of a member.
struct Known {
    someone: Someone,
    place: Place,
    container: usize,
    held: u64,
    drift: u64,
    alive: bool,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_is_a_list_of_who_holds_what(events in prop::collection::vec(event(), 1..120)) {
        let region = region();
        let table = region.table();
        let mut members: Vec<Known> = Vec::new();
        let mut caps = [None::<u64>; 2];
        for (number, event) in events.into_iter().enumerate() {
            let used = |members: &[Known], container: usize| {
                members.iter().filter(|it| it.container == container).fold(0u64, |sum, it| sum.saturating_add(it.held))
            };
            let count = members.len();
            let living = |member: usize| (count > 0).then(|| member % count);
            match event {
                Event::Join { container, cap } => {
                    if count == 12 {
                        continue;
                    }
                    let someone = Someone::new(number as u32 + 1);
                    let place = someone.join(table, ["left", "right"][container], cap).expect("room");
                    if !members.iter().any(|it| it.container == container && it.alive) || caps[container].is_none() {
                        caps[container] = cap;
                    }
                    members.push(Known { someone, place, container, held: 0, drift: 0, alive: true });
                }
                Event::Reserve { member, bytes, keep_free } => {
                    let Some(at) = living(member).filter(|&at| members[at].alive) else { continue };
                    let container = members[at].container;
                    let used = used(&members, container);
                    let outcome = account(table, &members[at].place).reserve(bytes, keep_free);
                    match caps[container] {
                        Some(cap) if used.saturating_add(bytes) > cap.saturating_sub(keep_free) => {
                            prop_assert_eq!(outcome, Err(Full { cap, used }));
                        }
                        _ => {
                            prop_assert_eq!(outcome, Ok(()));
                            members[at].held = members[at].held.saturating_add(bytes);
                        }
                    }
                }
                Event::Charge { member, bytes } => {
                    let Some(at) = living(member).filter(|&at| members[at].alive) else { continue };
                    account(table, &members[at].place).charge(bytes);
                    members[at].held = members[at].held.saturating_add(bytes);
                }
                Event::Refund { member, bytes } => {
                    let Some(at) = living(member).filter(|&at| members[at].alive) else { continue };
                    account(table, &members[at].place).refund(bytes);
                    members[at].drift = members[at].drift.saturating_add(bytes.saturating_sub(members[at].held));
                    members[at].held = members[at].held.saturating_sub(bytes);
                }
                Event::SetCap { member, cap } => {
                    let Some(at) = living(member).filter(|&at| members[at].alive) else { continue };
                    let container = &table.containers[members[at].place.container];
                    container.cap.store(cap.unwrap_or(NO_CAP), SeqCst);
                    caps[members[at].container] = cap;
                }
                Event::Kill { member } => {
                    let Some(at) = living(member).filter(|&at| members[at].alive) else { continue };
                    members[at].someone.die();
                    members[at].alive = false;
                }
                Event::Leave { member } => {
                    let Some(at) = living(member).filter(|&at| members[at].alive) else { continue };
                    let gone = members.swap_remove(at);
                    table.leave(&gone.someone, &gone.place).expect("free");
                }
                Event::Reap { member, released } => {
                    let Some(at) = living(member).filter(|&at| members[at].alive) else { continue };
                    let container = members[at].place.container;
                    let dead: Vec<_> =
                        table.members_of(container).filter(|(_, it)| is_over(&it.life)).map(|(at, _)| at).collect();
                    for (nth, process) in dead.into_iter().enumerate() {
                        if released >> (nth % 8) & 1 == 0 {
                            continue;
                        }
                        let known = members.iter().position(|it| it.place.process == process && !it.alive);
                        let known = known.expect("the model knows of its death");
                        let generation = table.processes[process].generation.load(SeqCst);
                        let back = table.bury(&members[at].someone, process, generation).expect("free");
                        prop_assert_eq!(back, members[known].held);
                        // Once more, as by somebody who was slower: nothing happens.
                        prop_assert_eq!(table.bury(&members[at].someone, process, generation), Ok(0));
                        members[known].held = 0;
                        members[known].place.process = usize::MAX;
                    }
                    members.retain(|it| it.place.process != usize::MAX);
                }
            }
            for it in members.iter().filter(|it| it.alive) {
                let account = account(table, &it.place);
                prop_assert_eq!(account.used(), used(&members, it.container));
                let slot = &table.processes[it.place.process];
                prop_assert_eq!((slot.held.load(SeqCst), slot.drift.load(SeqCst)), (it.held, it.drift));
                prop_assert_eq!(slot.pending.load(SeqCst) << (64 - PENDING_BITS), 0);
                prop_assert_eq!(account.cap(), caps[it.container].unwrap_or(NO_CAP));
            }
            let alive: Vec<&Place> = members.iter().filter(|it| it.alive).map(|it| &it.place).collect();
            assert_sound(table, &alive);
        }
    }
}
