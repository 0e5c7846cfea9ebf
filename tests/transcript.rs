//! Call by call, the simulated driver answers as the real one did: tests/facts/transcript-h200.txt was written by the same
//! program (tests/programs/transcript.c) on an H200 under driver 580.159.04.

use std::fmt::Write as _;

mod support;
use support::{Machine, compile, report};

#[test]
fn answers_are_those_of_the_real_driver() {
    let here = Machine::new().run(&compile("transcript"), &["sim"]);
    let real = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/facts/transcript-h200.txt"))
        .expect("the facts are there");
    let (mut section, mut wrong, mut same) = ("", String::new(), 0);
    let (mut here, mut real) = (here.lines(), real.lines());
    loop {
        let (ours, theirs) = (here.next(), real.next());
        if ours.is_none() && theirs.is_none() {
            break;
        }
        if let Some(line) = theirs.filter(|line| line.starts_with('[')) {
            section = line;
        }
        if ours == theirs {
            same += usize::from(theirs.is_some_and(|line| line.contains(" -> ")));
        } else {
            let _ = writeln!(
                wrong,
                "{section} H200: {}\n{:>width$} here: {}",
                theirs.unwrap_or("nothing"),
                "",
                ours.unwrap_or("nothing"),
                width = section.len()
            );
        }
    }
    report("transcript", &format!("{same} calls answered as by the H200's driver\n{wrong}"));
    assert!(wrong.is_empty(), "answers that differ:\n{wrong}");
}
