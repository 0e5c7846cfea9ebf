//! What the ledger costs.
//!
//! ```console
//! $ cargo run --release -p ration-region --example cost [SECONDS]
//! ```
//!
//! prints a table; each row is measured for so many seconds.

#[path = "../tests/support/cost.rs"]
mod cost;

use std::time::Duration;

fn main() {
    let seconds = std::env::args().nth(1).map_or(0.5, |text| text.parse().expect("seconds"));
    let dir = std::env::temp_dir().join(format!("ration-cost-{}", std::process::id()));
    let rows = cost::measure_all(&dir, Duration::from_secs_f64(seconds));
    print!("{}", cost::table(&rows));
    std::fs::remove_dir_all(&dir).expect("it was made for this");
}
