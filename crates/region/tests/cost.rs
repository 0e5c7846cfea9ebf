//! What the ledger costs, by the processor time that it takes: what there is beside it on the machine matters little then.

#[path = "support/cost.rs"]
mod cost;
mod support;

use std::time::Duration;

use cost::{Deed, Row};
use support::Scratch;

/// Nanoseconds for a reservation that is kept, in one process. An allocation takes the driver 200 times as long.
const MOST: f64 = 300.0;
/// The same where each process looks at what the others have just written.
const MOST_AMONG_PROCESSES: f64 = 600.0;
/// The same on a machine on which all the threads run at once, and wait for each other's caches.
const MOST_AT_ONCE: f64 = 3000.0;

#[test]
fn a_reservation_is_cheap() {
    let scratch = Scratch::new("cost");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let most = |row: &Row| match row.processes * row.threads {
        1 => MOST,
        _ if processors > 2 => MOST_AT_ONCE,
        _ if row.processes > 1 => MOST_AMONG_PROCESSES,
        _ => MOST,
    };
    // A processor that is shared with others has its bad moments. Three of them in a row are more than that.
    for attempt in 0..3 {
        let rows = cost::measure_all(&scratch.regions(), Duration::from_millis(100));
        let table = cost::table(&rows);
        support::report("region-cost", &table);
        let dear = rows.iter().find(|row| row.deed == Deed::ReserveKeep && row.cpu > most(row));
        let Some(row) = dear else { return };
        assert!(attempt < 2, "{:.0} ns are more than {:.0}:\n{table}", row.cpu, most(row));
    }
}
