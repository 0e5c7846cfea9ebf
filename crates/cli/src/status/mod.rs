//! `ration status`: which containers use this machine's GPUs, and what each has of them.
//!
//! Everything is read from the files that containers keep ([`crate::look`]), and nothing there is believed to make sense; it is shown as a
//! [`table`] or as JSON.

mod table;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;

use crate::look::Report;
use crate::{places, text};

/// Shows the slices that there are: memory, share of GPU time, processes.
///
/// Your own are shown in full, others' as far as they tell everybody; root sees all that it may read. What is no file of a slice's, or a
/// damaged one, is named.
///
/// Where slices are is where the library puts them: RATION_DIR, else /run/ration and a directory of yours in /dev/shm.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ration status\n  ration status train --json | jq '.gpus[].containers[].used_bytes'"
)]
pub struct Arguments {
    /// Only the slice of this name
    name: Option<String>,
    /// For programs; docs/cli.md describes it
    #[arg(long)]
    json: bool,
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    let places = places::settings();
    let report = Report::now(places.dir.as_deref(), places.own_dir.as_deref());
    let (report, is_found) = match &arguments.name {
        Some(name) => report.only(name),
        None => (report, true),
    };
    let shown = if arguments.json { json(&report) } else { human(&report) };
    let mut out = io::stdout().lock();
    if shown.and_then(|shown| out.write_all(shown.as_bytes())).and_then(|()| out.flush()).is_err() {
        // Whoever reads us has seen enough.
        return ExitCode::from(141);
    }
    let Some(name) = arguments.name.as_ref().filter(|_| !is_found) else { return ExitCode::SUCCESS };
    let _ =
        writeln!(io::stderr(), "ration status: no slice is called {}; `ration status` shows all", text::safe(name, 60));
    ExitCode::FAILURE
}

fn json(report: &Report) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

fn human(report: &Report) -> io::Result<String> {
    let mut errors = io::stderr().lock();
    for problem in &report.problems {
        // Nobody has to read them.
        let _ = writeln!(errors, "ration status: {}: {}", text::safe(&problem.path, 200), problem.why);
    }
    Ok(table::of(report))
}
