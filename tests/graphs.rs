//! Graphs: what the driver answers about them, held to an H200's answers, and what launching them does.

use std::path::PathBuf;
use std::sync::LazyLock;

mod support;
use support::facts::{compare, real};
use support::{Machine, compile};

/// Several tests use it, at the same time.
static GRAPH_RUN: LazyLock<PathBuf> = LazyLock::new(|| compile("graph_run"));

#[test]
fn answers_are_those_of_the_real_driver() {
    let here = Machine::new().run(&compile("graph"), &["sim"]);
    compare(&here, &real("graph-h200.txt"));
}

/// What a run must print: times are GPU time, which the simulation has to the nanosecond.
const RUNS: &str = "\
two branches and a join, half: 10.000 ms
two branches and a join, wide: 15.000 ms
two children of two and one more: 15.000 ms
captured fork of two halves: 5.000 ms
one executable graph in two streams: 10.000 ms
two executable graphs in two streams: 5.000 ms
host nodes saw: 10 20 30 10 20 30
from memory of the graph: 77
from memory of the graph: 77
from memory of the graph: 77
an event inside, after 5.000 of 10.000 ms
set to 5, then a loop that counts down: 6.000 ms, again 6.000 ms
set to 2, then the third of four: 16.000 ms
a loop without end: error 719
three wide kernels, made tiny ones: 15.000, 0.030 ms
switched off: 0.000 ms
a user object of a graph in flight: gone 0, then 1, by another thread 1
a picture of 3 nodes and 2 edges
after a thread left with a capture in its own stream: 0 0
";

#[test]
fn launches_do_what_the_graph_says() {
    let here = Machine::new().run(&GRAPH_RUN, &[]);
    compare(&here, RUNS);
}

#[test]
fn the_record_counts_every_kernel_of_a_graph() {
    let machine = Machine::new();
    machine.run(&GRAPH_RUN, &["count"]);
    let record = machine.record();
    let kernels: u64 = record.processes.iter().filter_map(|p| p.gpus.get(&0)).map(|gpu| gpu.kernels).sum();
    assert_eq!(kernels, 13 + 10 * 1000, "a graph's kernels run as one piece, but they are so many");
}

#[test]
fn a_graph_of_a_thousand_kernels_is_launched_at_once() {
    let output = Machine::new().run(&GRAPH_RUN, &["cost"]);
    let ns: u64 = output.trim().parse().unwrap_or_else(|e| panic!("{output:?}: {e}"));
    println!("one launch of a graph of 1000 kernels: {ns} ns on the host");
    assert!(ns < 100_000, "{ns} ns for one launch: it must not depend on the number of kernels");
}
