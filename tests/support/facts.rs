//! What a real driver answered, kept in tests/facts, and the comparison with what the simulated one answers.

use std::fmt::Write as _;

/// The facts in tests/facts/NAME.
pub fn real(name: &str) -> String {
    let path = format!("{}/tests/facts/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// All lines that differ, each with its section; and how many calls were answered alike.
pub fn differences(here: &str, real: &str) -> (String, usize) {
    let (mut ours, mut theirs) = (here.lines(), real.lines());
    let (mut wrong, mut section, mut same) = (String::new(), "", 0);
    loop {
        let (ours, theirs) = (ours.next(), theirs.next());
        if ours.is_none() && theirs.is_none() {
            return (wrong, same);
        }
        section = theirs.filter(|line| line.starts_with('[')).unwrap_or(section);
        if ours == theirs {
            same += usize::from(theirs.is_some_and(|line| line.contains(" -> ")));
        } else {
            let (theirs, ours) = (theirs.unwrap_or("nothing"), ours.unwrap_or("nothing"));
            let _ = writeln!(wrong, "{section}\n  wanted: {theirs}\n  here:   {ours}");
        }
    }
}

/// Line by line the same, or the test fails with all that differ.
pub fn compare(here: &str, real: &str) {
    let (wrong, _) = differences(here, real);
    assert!(wrong.is_empty(), "answers that differ:\n{wrong}");
}
