//! Who may use a GPU's time, and when.
//!
//! Pure arithmetic: the clock is an argument, nothing is remembered here, nothing waits, and no number can overflow. The
//! words that these functions work on live in the shared region; the shim calls them from the middle of a launch.
//!
//! All times are nanoseconds. *GPU time* is what the GPU worked; *wall time* is what passed.
//! - [`Bucket`]: the ceiling. A container at 30% has used up 10 ms of wall time when the GPU has worked 3 ms for it.
//! - [`turns`]: who is next where several want more than there is.
//! - [`Flight`]: how much work may be under way while somebody waits.
//! - [`Busy`]: how long the GPU worked, from when pieces of work began and ended on its timeline.
//! - [`Clocks`]: when that was, by the host's clock.
//! - [`sample`]: the same for a program of which only some launches are measured.
//! - [`Cost`]: what a kernel is expected to take, learned from how long it took ([`Lessons`]); [`Quickest`]: where others interrupt it.
//! - [`Pauses`]: whether a program that has nothing more to do will be back in a moment; [`Waking`]: how late threads are woken.
//!
//! # What is charged with what
//!
//! | account | charged with | because |
//! |---|---|---|
//! | the ceiling, [`Bucket`] | GPU time, measured: [`Busy`] | a limit is a limit of GPU time, and what others see of it |
//! | virtual time, [`turns`] | the time for which the GPU was held, gaps and switch included | nobody else could use it; alone, the container leaves the same gaps |
//! | virtual time, of work without a turn | GPU time, measured | it holds nothing |
//!
//! Requests are weights. Where those who want the GPU ask for more than all of it together, each gets its part of the sum;
//! where they ask for less, the rest is shared out in the same proportion, up to limits. Who asked for nothing weighs as much
//! as [one who asked for a hundredth](Share::UNASKED).
//!
//! # How the numbers follow
//!
//! From what was measured on an H200: a switch between busy contexts takes 0.15 ms; a thread that sleeps on a futex is awake
//! and has launched within some 0.03 ms; the hardware's own slices are 2.09 ms. `tests/model` runs containers by these rules
//! through simulated time, with these costs, and holds them to what follows.
//!
//! | number | value | follows from |
//! |---|---|---|
//! | [`Rules::turn`](turns::Rules::turn) | 22 ms | 0.18 ms of it are lost at each hand-over: 0.8%, so that two equals have 49.6% each and all together more than 99%. Longer turns make single seconds uneven |
//! | [`Rules::round`](turns::Rules::round) | 200 ms | the smallest share waits no longer than this for its next turn. With nine equal containers or one below 11%, turns become shorter |
//! | [`Rules::least`](turns::Rules::least) | 2 ms | what the hardware would give; a switch is 8% of it |
//! | [`Rules::idle`](turns::Rules::idle) | 0.3 ms | to switch away and back costs as much: a shorter gap is cheaper to wait for |
//! | [`Rules::idle_latency`](turns::Rules::idle_latency) | 0.1 ms | where it is not known that a pause will be long ([`Pauses`]), a request every 20 ms costs the neighbour two switches, two wake-ups and this: 0.46 of its 17.4 ms, so that it keeps 97.3% of them |
//! | [`Flight::USUAL`] | 0.4 and 0.1 ms | launches arrive within 0.1 ms, so the GPU never runs dry; a hand-over waits for little more than a switch costs. Well before the end of a turn, 1.5 and 0.4 ms ([`Flight::within`]): a thread that is woken late by less loses nothing |
//! | [`Flight::AWAITED`] | 5 ms before the end of a turn | PyTorch takes 10 ms to launch a pass forward that takes the GPU 8, and then 5 for one backwards that takes 15: in a turn it gets ahead as it does alone |
//! | [`Flight::SHORT`] | 0.25 and 0.06 ms | a request of 2.6 ms is answered in 1.2 times that at the median: it waits for a wake-up, a switch and half of what is in flight |
//! | [`Rules::ahead`](turns::Rules::ahead) | 50 ms | a `latency` container of 20% may be 10 ms ahead of its due before it queues like anybody |
//! | [`Rules::patience`](turns::Rules::patience) | 400 ms | two rounds. Longer than anybody waits in the order of virtual time, so that it means starving |
//! | [`Rules::lost`](turns::Rules::lost) | 60 ms | a turn and this are less than 100 ms, by which others go on when a holder is stuck in a piece of work |
//! | [`Rules::stalled`](turns::Rules::stalled) | 3 ms | what is lost of the GPU when a holder is stopped. One that is not says every millisecond that it has work under way |
//! | [`Rules::late`](turns::Rules::late) | 0.2 ms | what was expected of half a millisecond's work in flight may be off by a third, and a thread that is awake hands over within microseconds |
//! | [`Rules::recent`](turns::Rules::recent) | 1 s | who was here a second ago may well come back |
//! | [`Bucket::USUAL_BURST`] | 30 ms | in no second more than 3% above the limit; and threads that are woken late by less lose nothing |

#![forbid(unsafe_code)]

mod bucket;
mod busy;
mod clocks;
mod cost;
mod flight;
mod lessons;
mod pauses;
mod priority;
mod quickest;
pub mod sample;
mod share;
pub mod steer;
pub mod turns;
mod waking;

#[cfg(test)]
mod testing;

pub use bucket::Bucket;
pub use busy::Busy;
pub use clocks::Clocks;
pub use cost::Cost;
pub use flight::Flight;
pub use lessons::{Lessons, Mix};
pub use pauses::Pauses;
pub use priority::Priority;
pub use quickest::Quickest;
pub use share::Share;
pub use waking::Waking;
