//! Captures end and break as under the real driver: tests/facts/capture*-h200.txt were written by the same programs
//! (tests/programs/capture.c, capture_cases.c) on an H200 under driver 580.159.04.

use std::fmt::Write as _;

mod support;
use support::facts::{compare, real};
use support::{Machine, compile, report};

/// What becomes of a capture, as a word.
fn verdict(cell: &str) -> String {
    let mut words = cell.split_whitespace().skip(1);
    let (code, status, end) = (words.next(), words.next(), words.next());
    match (code, status, end) {
        (Some("0"), Some("1"), Some("0")) => "harmless".to_owned(),
        (Some(code), Some("1"), Some("0")) => format!("{code}, harmless"),
        (Some(code), Some("2"), Some("901")) => format!("{code}, breaks it"),
        _ => cell.to_owned(),
    }
}

/// The table for people: what each call does to a capture, by the capture's mode.
fn table(lines: &str) -> String {
    let mut text = format!(
        "{:<74} {:<16} {:<16} {:<16}\n",
        "a call, while a stream captures", "global", "thread-local", "relaxed"
    );
    for line in lines.lines().take_while(|line| !line.starts_with("[by another thread")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        match cells[..] {
            [call, global, local, relaxed] => {
                let _ = writeln!(
                    text,
                    "{call:<74} {:<16} {:<16} {:<16}",
                    verdict(global),
                    verdict(local),
                    verdict(relaxed)
                );
            }
            _ => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

#[test]
fn calls_break_captures_as_under_the_real_driver() {
    let here = Machine::new().run(&compile("capture"), &["sim"]);
    report("capture", &table(&here));
    compare(&here, &real("capture-h200.txt"));
}

#[test]
fn captures_spread_and_end_as_under_the_real_driver() {
    let here = Machine::new().run(&compile("capture_cases"), &["sim"]);
    compare(&here, &real("capture-cases-h200.txt"));
}
