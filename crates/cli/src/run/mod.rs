//! `ration run`: a program in a slice.
//!
//! It puts the library and the limits into the program's environment ([`start`]), warns where that will be of no use ([`held`]), hands
//! on signals ([`signals`]), looks on meanwhile ([`watch`]), and says in the end what was used.

mod held;
mod signals;
mod start;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

use clap::{Args, ValueHint};

use crate::asked::{self, Asked};
use crate::library::{self, Library};
use crate::runs::{Presence, Runs};
use crate::{change, places};

/// Runs a program in a slice of the GPU: held to an amount of memory and to a share of its time.
///
/// All processes of the program share the slice. What is over the memory is refused to them as on a GPU of that size; beyond the share,
/// they wait. What is not asked for here is taken from the environment (RATION_MEMORY and its like).
///
/// The exit status is the program's; 128 and a signal's number if that ended it; 127 if there is no such program, 126 if it cannot be
/// run, and 125 if `ration run` itself cannot do what it was asked for. Signals are handed on.
///
/// `ration status` shows what runs, `ration set` changes it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ration run --memory 8GiB --compute 30% -- python3 train.py\n  \
    ration run --gpu 1 --memory 25% --compute-request 20% --compute-limit 60% -- ./serve\n  \
    ration run --name team --memory 8GiB -- ./one & ration run --name team -- ./two    # one slice for both")]
pub struct Arguments {
    #[command(flatten)]
    asked: Asked,
    /// Which GPU the program sees, by number or UUID, as CUDA_VISIBLE_DEVICES has it
    #[arg(long, value_name = "GPU", value_parser = gpu)]
    gpu: Option<String>,
    /// What the slice is called; programs that run under one name share it. Otherwise each run has one of its own
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    name: Option<String>,
    /// GPU work is refused where the program's processes cannot be held to the limits together
    #[arg(long)]
    strict: bool,
    /// The libration.so to use, instead of the one beside this program
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// No line in the end about what was used, and no warnings
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// The exit status for what goes wrong before a program runs, as `env`, `nice` and `timeout` have it.
pub const OWN_ERROR: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

fn gpu(text: &str) -> Result<String, String> {
    let is_one = |it: &str| {
        let is_number = !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit());
        is_number || it.starts_with("GPU-") || it.starts_with("MIG-")
    };
    match text.split(',').all(is_one) {
        true => Ok(text.to_owned()),
        false => Err("accepted: a number from 0 on, or a UUID as `nvidia-smi -L` shows it; several with commas".into()),
    }
}

/// What keeps a program from running.
struct Trouble {
    status: u8,
    lines: Vec<String>,
}

impl From<String> for Trouble {
    fn from(line: String) -> Trouble {
        Trouble { status: OWN_ERROR, lines: vec![line] }
    }
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    match play(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(trouble) => {
            trouble.lines.iter().for_each(|line| say(line));
            ExitCode::from(trouble.status)
        }
    }
}

/// Says something on standard error, and does not mind if nobody listens.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "ration run: {line}");
}

fn play(arguments: &Arguments) -> Result<u8, Trouble> {
    let Some((program, rest)) = arguments.command.split_first() else { return Err(String::from("no program").into()) };
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let mut settings = arguments
        .asked
        .with_environment(arguments.name.as_deref(), &variable)
        .map_err(|lines| Trouble { status: OWN_ERROR, lines })?;
    settings.strict |= arguments.strict;
    let library = Library::find(arguments.library.as_deref()).map_err(|library::Missing { path, error }| {
        format!("{}: {error}. Name the library that holds programs to their limits with --library PATH", path.display())
    })?;
    let path = start::find(program).map_err(|error| cannot_run(program, &error))?;
    if !arguments.quiet {
        if let Some(file) = places::quota_file() {
            say(&format!("{} is there, and counts before what is asked for here", file.display()));
        }
        for warning in held::warnings(program, &path, rest) {
            say(&warning);
        }
    }

    let runs = Runs::open()?;
    let name = settings.name.clone().unwrap_or_else(|| start::fresh_name(program, |name| runs.find(name).is_some()));
    let begun = runs.begin(&name, &settings);
    drop(runs);
    let presence = begun.map_err(|error| format!("nothing can be noted about this run: {error}"))?;
    let wanted = asked::described(&settings);
    let holds = asked::described(&presence.run.now);
    if presence.is_joined && wanted != holds && !settings.asks_for_nothing() && !arguments.quiet {
        say(&format!(
            "{name} runs already, with {holds}: that holds, and not {wanted}. `ration set {name}` changes it"
        ));
    }
    if presence.run.began.asks_for_nothing() && !arguments.quiet {
        say("no limit is asked for, so the program is held to none and not looked at; give --memory or --compute");
    }
    let played = with(arguments, program, rest, &library, &presence);
    if let Ok(runs) = Runs::open() {
        runs.end(presence);
    }
    played
}

/// Runs the program, which is noted.
fn with(
    arguments: &Arguments,
    program: &OsString,
    rest: &[OsString],
    library: &Library,
    presence: &Presence,
) -> Result<u8, Trouble> {
    let preload = start::preload(library, &presence.run.dir)?;
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload);
    start::limit(&mut command, &presence.run.now, arguments.gpu.as_deref());
    change::survive_cut_files();
    let signals = signals::Signals::catch().map_err(|error| format!("signals cannot be handed on: {error}"))?;
    let watch = watch::Watch::begin(&presence.run);
    let mut child = command.spawn().map_err(|error| cannot_run(program, &error))?;
    let watching = watch.start();
    signals.hand_on_to(&child);
    let status = signals.wait(&mut child).map_err(|error| format!("the program cannot be waited for: {error}"))?;
    let seen = watching.end();
    if !arguments.quiet {
        let _ = writeln!(io::stderr(), "ration: {}: {}", presence.run.name, seen.said());
    }
    Ok(status_of(status))
}

fn cannot_run(program: &OsString, error: &io::Error) -> Trouble {
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
    Trouble { status, lines: vec![format!("{}: {error}", program.to_string_lossy())] }
}

/// As shells have it.
fn status_of(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(OWN_ERROR)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_status_is_the_programs_or_its_signals() {
        assert_eq!(status_of(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(status_of(ExitStatus::from_raw(15)), 143);
    }

    #[test]
    fn a_gpu_is_a_number_or_a_uuid() {
        for good in ["0", "12", "0,1", "GPU-8932f937", "MIG-1"] {
            assert_eq!(gpu(good).as_deref(), Ok(good));
        }
        for bad in ["", "-1", "one", "0,", "0 1"] {
            assert!(gpu(bad).is_err(), "{bad}");
        }
    }
}
