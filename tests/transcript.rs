//! Call by call, the simulated driver answers as the real one did: the files in tests/facts were written by the same
//! programs (tests/programs/transcript*.c) on an H200 under driver 580.159.04.

use std::fmt::Write as _;

mod support;
use support::{Machine, compile, report};

/// What differs, line by line, with its section; and how many calls were answered alike.
fn compare(here: &str, real: &str) -> (String, usize) {
    let (mut section, mut wrong, mut same) = ("", String::new(), 0);
    let (mut here, mut real) = (here.lines(), real.lines());
    loop {
        let (ours, theirs) = (here.next(), real.next());
        if ours.is_none() && theirs.is_none() {
            return (wrong, same);
        }
        if let Some(line) = theirs.filter(|line| line.starts_with('[')) {
            section = line;
        }
        if ours == theirs {
            same += usize::from(theirs.is_some_and(|line| line.contains(" -> ")));
        } else {
            let (ours, theirs) = (ours.unwrap_or("nothing"), theirs.unwrap_or("nothing"));
            let _ = writeln!(wrong, "{section} H200: {theirs}\n{:>width$} here: {ours}", "", width = section.len());
        }
    }
}

#[test]
fn answers_are_those_of_the_real_driver() {
    let (mut text, mut all_wrong) = (String::new(), String::new());
    for (program, least) in [("transcript", 400), ("transcript_more", 180), ("transcript_memory", 280)] {
        let here = Machine::new().run(&compile(program), &["sim"]);
        let facts = format!("{}/tests/facts/{program}-h200.txt", env!("CARGO_MANIFEST_DIR"));
        let real = std::fs::read_to_string(&facts).unwrap_or_else(|e| panic!("{facts}: {e}"));
        let (wrong, same) = compare(&here, &real);
        let _ = writeln!(text, "{program}: {same} calls answered as by the H200's driver\n{wrong}");
        assert!(same > least, "{program}: only {same} calls were compared");
        all_wrong.push_str(&wrong);
    }
    report("transcript", text.trim_end());
    assert!(all_wrong.is_empty(), "answers that differ:\n{all_wrong}");
}
