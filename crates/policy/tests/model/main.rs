//! Several containers take turns on one GPU, in simulated time: what comes of the rules.

mod ceiling;
mod changes;
mod container;
mod gpu;
mod hour;
mod latency;
mod load;
mod model;
mod outcome;
mod shares;
mod trouble;

use std::path::Path;

/// Leaves a table where `ci/test` prints it, and prints it.
fn report(name: &str, table: &str) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is inside the target directory");
    std::fs::create_dir_all(target.join("report")).expect("the target directory is writable");
    std::fs::write(target.join(format!("report/{name}.txt")), table).expect("the target directory is writable");
    println!("{table}");
}
