//! `ration set`: another amount of memory or share of time for what runs.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use ration_contract::Settings;

use crate::asked::{self, Asked, goes_by_number};
use crate::change::{self, Told};
use crate::places;
use crate::runs::{Run, Runs};
use crate::text;

/// Changes what a program that runs in a slice may have.
///
/// For slices that `ration run` started, by the name that it gave them or was given: `ration status` shows it. What is not named stays
/// as it is. It holds at once, for all processes in the slice and for those that come.
///
/// Less memory than is held frees nothing by force: new allocations are refused until less than that is held.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ration set train --memory 12GiB\n  ration set train --compute-request 20% --compute-limit 60% \
    --priority batch"
)]
pub struct Arguments {
    /// What the slice is called
    name: String,
    #[command(flatten)]
    asked: Asked,
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    match set(arguments) {
        Ok(lines) => {
            let mut out = io::stdout().lock();
            let written = lines.iter().try_for_each(|line| writeln!(out, "{line}"));
            // Whoever reads us has seen enough; what was to be done is done.
            if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(141) }
        }
        Err(lines) => {
            for line in lines {
                let _ = writeln!(io::stderr(), "ration set: {line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// The annotations that make a pod's quota file.
const ANNOTATIONS: &str = "ration.dev/memory, ration.dev/compute, ration.dev/compute-request, ration.dev/compute-limit and ration.dev/priority";

fn set(arguments: &Arguments) -> Result<Vec<String>, Vec<String>> {
    let one = |line: String| vec![line];
    if arguments.asked.is_nothing() {
        return Err(one(
            "nothing to change; give --memory, --compute, --compute-request, --compute-limit or --priority".into(),
        ));
    }
    if let Some(file) = places::quota_file() {
        return Err(one(whose_it_is(file)));
    }
    let runs = Runs::open().map_err(one)?;
    let Some(mut run) = runs.find(&arguments.name) else { return Err(one(unknown(&arguments.name, &runs.all()))) };
    if run.began.asks_for_nothing() {
        return Err(one(format!(
            "{} was started without any limit, and so its processes are held to none; start it again with one",
            run.name
        )));
    }
    let settings = arguments.asked.in_place_of(&run.now)?;
    by_number(&arguments.asked, &settings).map_err(one)?;
    run.change(&settings).map_err(|error| one(format!("{}: {error}", run.dir.display())))?;
    change::survive_cut_files();
    let told = change::tell(&run, &change::regions(&run));
    Ok(said(&run, &told))
}

/// Who may change a limit that is not this user's to say.
fn whose_it_is(file: &Path) -> String {
    let file = file.display();
    format!(
        "what programs may have here is said by {file}, which counts before anything else. In Kubernetes, change the pod's annotations \
         {ANNOTATIONS}: kubectl annotate --overwrite pod POD ration.dev/memory=8Gi. Elsewhere, edit that file: programs follow it \
         within a second or two"
    )
}

fn unknown(name: &str, all: &[Run]) -> String {
    let name = text::safe(name, 60);
    if all.is_empty() {
        return format!("no slice is called {name}: none that `ration run` started runs now, for this user");
    }
    let names: Vec<&str> = all.iter().map(|run| run.name.as_str()).collect();
    format!("no slice is called {name}. There is: {}", names.join(", "))
}

/// A GPU's number is another one in each process, so nobody but the program could tell which is meant.
fn by_number(asked: &Asked, settings: &Settings) -> Result<(), String> {
    let is_about_compute = asked.compute.is_some() || asked.compute_request.is_some() || asked.compute_limit.is_some();
    let is_so = asked.memory.is_some() && goes_by_number(&settings.memory)
        || is_about_compute && (goes_by_number(&settings.compute_request) || goes_by_number(&settings.compute_limit));
    match is_so {
        true => {
            Err("a program that runs knows its GPUs' numbers, and nobody else does; name each by its UUID, such as \
                     GPU-8932f937=8GiB (`nvidia-smi -L` and `ration status` show it), or give one value for all"
                .into())
        }
        false => Ok(()),
    }
}

fn said(run: &Run, told: &[Told]) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", run.name, asked::described(&run.now))];
    if told.is_empty() {
        lines.push("It uses no GPU yet; this holds from when it does.".into());
    }
    for Told { gpu, cap, used } in told {
        if let Some(cap) = cap.filter(|cap| cap < used) {
            lines.push(format!(
                "{}: it holds {}. New allocations are refused until it holds less than {}; nothing is freed by force.",
                text::gpu(gpu),
                text::memory(*used),
                text::memory(cap)
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> Run {
        let settings = Settings { name: Some(name.into()), ..Settings::default() };
        Run { dir: "/nowhere".into(), name: name.into(), began: settings.clone(), now: settings }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_there_are() {
        assert!(unknown("x", &[]).contains("none that `ration run` started"));
        assert!(unknown("x", &[run("one"), run("two")]).ends_with("There is: one, two"));
        assert!(!unknown("\u{1b}[2J", &[]).contains('\u{1b}'));
    }

    #[test]
    fn where_somebody_else_says_what_holds_it_is_named() {
        let said = whose_it_is(Path::new("/etc/ration/quota"));
        assert!(said.contains("/etc/ration/quota") && said.contains("ration.dev/compute-limit"), "{said}");
    }

    #[test]
    fn less_memory_than_is_held_is_said() {
        let told = |used| said(&run("box"), &[Told { gpu: [1; 16], cap: Some(1 << 30), used }]);
        assert_eq!(told(1 << 30).len(), 1);
        let lines = told(2 << 30);
        assert!(lines[1].contains("holds 2.0 GiB") && lines[1].contains("nothing is freed by force"), "{lines:?}");
    }
}
