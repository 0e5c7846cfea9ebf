//! Call by call, the simulated driver answers as the real one did: the files in tests/facts were written by the same
//! programs (tests/programs/transcript*.c) on an H200 under driver 580.159.04.

use std::fmt::Write as _;

mod support;
use support::{Machine, compile, facts, report};

#[test]
fn answers_are_those_of_the_real_driver() {
    let (mut text, mut all_wrong) = (String::new(), String::new());
    for (program, least) in [("transcript", 400), ("transcript_more", 180), ("transcript_memory", 280)] {
        // In slow motion: a kernel of 60 ms is still busy when a busy machine gets round to asking.
        let machine = Machine::with(&[("RATION_SIM_SPEED", "0.2")]);
        let here = machine.run(&compile(program), &["sim"]);
        let (wrong, same) = facts::differences(&here, &facts::real(&format!("{program}-h200.txt")));
        let _ = writeln!(text, "{program}: {same} calls answered as by the H200's driver\n{wrong}");
        assert!(same > least, "{program}: only {same} calls were compared");
        all_wrong.push_str(&wrong);
    }
    report("transcript", text.trim_end());
    assert!(all_wrong.is_empty(), "answers that differ:\n{all_wrong}");
}
