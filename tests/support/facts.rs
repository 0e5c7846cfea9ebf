//! What a real driver answered, kept in tests/facts, and the comparison with what the simulated one answers.

use std::fmt::Write as _;

/// The facts in tests/facts/NAME.
pub fn real(name: &str) -> String {
    let path = format!("{}/tests/facts/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Line by line the same, or all lines that differ.
pub fn compare(here: &str, real: &str) {
    let (mut ours, mut theirs) = (here.lines(), real.lines());
    let (mut wrong, mut section) = (String::new(), "");
    loop {
        let (ours, theirs) = (ours.next(), theirs.next());
        if ours.is_none() && theirs.is_none() {
            break;
        }
        section = theirs.filter(|line| line.starts_with('[')).unwrap_or(section);
        if ours != theirs {
            let (theirs, ours) = (theirs.unwrap_or("nothing"), ours.unwrap_or("nothing"));
            let _ = writeln!(wrong, "{section}\n  wanted: {theirs}\n  here:   {ours}");
        }
    }
    assert!(wrong.is_empty(), "answers that differ:\n{wrong}");
}
