//! All values that were chosen, in one table, and what follows from them. Times are nanoseconds.
//!
//! "Measured" is on an H200 with driver 580; docs/design/compute.md has the figures.

/// A microsecond.
pub const US: u64 = 1_000;
/// A millisecond.
pub const MS: u64 = 1_000_000;

// Chosen.

/// The slice that the driver gives a context.
pub const SLICE: u64 = 2_048 * US;
/// What a change between two contexts that fill the GPU costs; half of it to save the one, half to restore the other. Measured.
pub const SWITCH: u64 = 200 * US;
/// What a call takes that takes channels off, or puts them on, beside others. Measured: 0.3 to 0.7 ms.
pub const CALL: u64 = 500 * US;
/// How often a controller looks while something is to be steered: 1 to 5% of a core.
pub const LOOK: u64 = MS;
/// A lease. One that waits for each kernel loses 1 ms of it to its neighbour, which comes on before it is off: 3%. With eight that
/// contend, a neighbour's allocations take five times as long at the 99th percentile with 10 ms, 1.3 times with 20.
pub const LEASE: u64 = 30 * MS;
/// The longest round of leases, of up to forty containers.
pub const ROUND: u64 = 200 * MS;
/// Who has so much less than its fair share is short of it, in millionths: half of the 3 points that mixes are judged by.
pub const SHORT: f64 = 15_000.0;
/// What all should have together, in millionths: as much as two that fill the GPU have with the driver's slices (91.2%), less the
/// point that mixes are judged by.
pub const LEAST_SUM: f64 = 902_000.0;
/// Work over host time from which on a program fills the GPU. Alone, those that do have more than 1; costs are the lower quartile of
/// what kernels take, up to a seventh less.
pub const FILLS: f64 = 0.85;
/// Who waits for less of the time than this does not want more: alone, a program that waits for each kernel does, too.
pub const WAITING: f64 = 0.3;
/// A pause between two launches that counts as work: nobody else could have the GPU in it. (A switch takes forty times as long; and
/// so those count who look from outside.)
pub const PAUSE: u64 = 5 * US;
/// What lies between two events besides the launch between them, against CUPTI: 2.4 to 2.75 µs for eight kernels of 1.3 to 7.4 µs.
pub const BESIDE: u64 = 2_500;
/// What a launch takes at least: an empty kernel, by CUPTI.
pub const EMPTY: u64 = 800;
/// A mark after so many launches: an event takes 2 µs of the launching thread, a launch 2 to 4. And so many queue while off by a
/// limit.
pub const MARKED: u32 = 128;
/// What is known is measured again after so many launches: two events, a latch and a fill take 15 µs, half a hundredth of them.
pub const AGAIN: u32 = 1024;
/// So many sealed measurements of which the least counts, before it moves with them: where two of three are interrupted, one of six
/// is not, nine times of ten.
pub const ENOUGH: u32 = 6;
/// What lies between two kernels of a queue. Measured: 1.1 to 1.35 µs a launch in five networks and loops, by CUPTI.
pub const GAP: u64 = 1_250;
/// The same beside others, in a queue that was held and is let go whole, and at least: caches are cold. By CUPTI, of a loop, a decoder
/// and a small network beside four others.
pub const GAP_HELD: u64 = 500;
/// A call that takes so long does so because of others: a hundred times as long as usual.
pub const SLOW: u64 = 50 * MS;
/// A thread that is woken is awake after so long, on a host that is not idle.
pub const AWAKE: u64 = 120 * US;

// What follows: looks and words.

/// Looks while nothing is to be steered.
pub const CALM: u64 = 10 * LOOK;
/// Slices and shares are looked at so often: a call is 2.5% of it.
pub const SLICES: u64 = 20 * LOOK;
/// A process's first launch waits for its controller's first look, no longer than this: usually as long as a thread needs to wake up.
pub const AWAITED: u64 = 20 * AWAKE;
/// Over how long usage is told: two leases.
pub const WINDOW: u64 = 2 * LEASE;
/// Who launched nothing for so long is not there for others; a `latency` container is, for longer: its next request is to be
/// answered at once.
pub const GONE: u64 = ROUND / 2;
/// The same of a `latency` container.
pub const GONE_LATENCY: u64 = 5 * ROUND;
/// Who has said nothing for so long is not there: seven times the longest that one sleeps that is.
pub const FRESH: u64 = 3 * ROUND / 4;
/// A holder that is on and has said nothing for so long is not waited for. It speaks at each look; a busy host may wake it late.
pub const SILENT: u64 = 12 * LOOK;
/// One that is off when it is given a lease says nothing until it is on. After so long it is not waited for: it is gone, or the kernel
/// module is busy with others.
pub const COMING: u64 = 3 * SILENT;
/// After a call that took too long, so long without any but to put the channels on: the time in which a few contexts are made.
pub const REST: u64 = 10 * SLOW;

// Limits.

/// Both sides of a limit's period are this long at least: long against a call.
pub const SIDE: u64 = 8 * CALL;
/// The processes of a container that go off together are off at most so much apart: the calls of four of them.
pub const OFF_LATER: u64 = 4 * CALL;
/// What a container may save up while it is idle, in wall time: in the second after it has 3% more than its limit.
pub const BURST: u64 = LEASE;
/// What may be due to a container at least, in millionths: it is off for less than a round.
pub const LEAST_DUE: f64 = (1_000_000 * SIDE / ROUND) as f64;

// Leases.

/// The shortest lease.
pub const LEAST_LEASE: u64 = 10 * CALL;
/// A holder with nothing to do passes the lease on after so long.
pub const IDLE: u64 = 2 * LOOK;
/// A lease is passed so much before its end: what the next one needs to come on.
pub const SOON: u64 = CALL / 2;
/// Who passed a lease on goes off when the next one is on, or after so long.
pub const OVERLAP: u64 = 3 * CALL;
/// Nobody stays off for others for longer, whatever they say.
pub const LONGEST_OFF: u64 = 2 * ROUND;
/// Whoever was kept off for that long again and again, so many times within so long, believes nobody's leases for some time: somebody
/// says what is not so. What is lost to that is a tenth.
pub const TIMES_OFF: u32 = 3;
/// See [`TIMES_OFF`].
pub const BELIEVES: u64 = 10 * LONGEST_OFF;
/// See [`TIMES_OFF`].
pub const DISBELIEVES: u64 = 30 * LONGEST_OFF;
/// A call that takes channels off has done so when it began so long ago: with it, a program that is on for a quarter of 20 ms has
/// 24.7% of the time by its own count.
pub const OFF_AFTER: u64 = SWITCH;

// Slices, and room for `latency` containers.

/// The slice of a program that does not fill the GPU.
pub const LONGEST_SLICE: u64 = 4 * SLICE;
/// The same while a `latency` container is busy, which waits for it: with 8 ms, one request in a hundred beside three kinds of
/// programs takes 2.1 times the time alone in the model, with this 1.6.
pub const HURRIED_SLICE: u64 = SLICE / 2;
/// The slice of one that fills the GPU, where others come seldom and are to be served at once: as long as the change that it costs.
/// With it a `latency` container answers within 1.05 times the time alone, with 2 ms within 1.35.
pub const SHORTEST_SLICE: u64 = SWITCH;
/// Who had something under way so recently is busy: requests that come every 20 ms keep a service so.
pub const BUSY: u64 = LEASE;
/// And is at work.
pub const AT_WORK: u64 = 2 * LOOK;
/// Answers of so long are worth that all others go off: two calls of each.
pub const LONG_ANSWER: u64 = 10 * CALL;
/// For so long at a time.
pub const LONGEST_ROOM: u64 = ROUND / 2;
/// Who is at work for longer than this without a pause does not answer anybody: it has its share like others.
pub const ENDLESS: u64 = ROUND;

/// Launches of a program that does not fill the GPU are kept back for so long at most. Measured: beside a loop that is held for 4, 8 and
/// 16 ms its neighbour has 72, 76 and 76% of its speed.
pub const BATCH: u64 = 8 * LOOK;
/// And no more of them: half of the 1,022 that a queue holds.
pub const KEPT: u32 = 4 * MARKED;

// Demand, and what launches cost.

/// Over how long the demand is told: the host's part of the time is 1 to 5% of it for one that waits for each kernel, of which a
/// hundred looks see one at least.
pub const DEMAND: u64 = ROUND;
/// Below this a program does not fill the GPU. (The networks that were tried, decoders and loops have 0.1 to 0.4.)
pub const DOES_NOT_FILL: f64 = FILLS - 0.15;
/// What was not measured [`ENOUGH`] times is measured again after so much work, too: as much as [`AGAIN`] launches take the host.
pub const AGAIN_WORK: u64 = AGAIN as u64 * 3 * US;
/// Work of so long may be told of at once, when it ends.
pub const LONGEST_WORK: u64 = ROUND / 2;
/// A latch that is closed for longer is opened for the thread that should have: a launch takes some microseconds.
pub const LATCHED: u64 = 2 * LOOK;
/// After so many of those there are no latches any more: all of them together cost a program no more than a lease.
pub const STUCK: u32 = (LEASE / (2 * LATCHED)) as u32;
/// A mark after so much work.
pub const WORK: u64 = LOOK / 2;

// By launches.

/// The most that may be under way: who comes waits no longer than for a slice.
pub const ROOM: u64 = SLICE;
/// The most while nobody else is there, and no limit: who comes has its share after so long.
pub const ROOM_ALONE: u64 = 10 * SLICE;
/// The most when it will make way within [`ENDS`]: what is under way then is done beside that of the next one.
pub const ROOM_LAST: u64 = 2 * SWITCH;
/// See there.
pub const ENDS: u64 = 3 * LOOK;
/// What a launch counts for whose cost is not known: four of them may be under way.
pub const UNKNOWN: u64 = SLICE / 4;
/// How often it is looked whether all is done.
pub const DRAINING: u64 = LOOK / 5;
/// What is under way for longer than this after off counts as off: it may be for ever.
pub const DRAINED: u64 = 10 * ROUND;
