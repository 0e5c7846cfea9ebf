//! `ration top`: who has what of this machine's GPUs, now and of late.
//!
//! It looks ([`crate::look`]), keeps what was counted for ten seconds ([`history`]) and shows it: on a [`screen`] that is drawn again
//! and again ([`live`]), or as lines ([`plain`]).

mod bar;
mod history;
mod keys;
mod live;
mod plain;
mod rows;
mod screen;
mod state;

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cards::Cards;
use crate::look::Report;
use crate::places;
use rows::Sort;
use state::{INTERVALS, Mode, State};

/// Watches the slices that there are: memory, GPU time, who is throttled, refused, waiting.
///
/// On a terminal it is a live view: ? shows its keys, q leaves it. Elsewhere one table is printed, a second later.
///
/// Your own slices are shown in full, others' as far as they tell everybody; root sees all that it may read. Watching costs what is
/// watched nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ration top\n  ration top --once --sort memory\n  ration top --json --watch | \
    jq -c '.gpus[].containers[] | [.name, .got_1s_percent]'")]
pub struct Arguments {
    /// One table, after a second, and no live view
    #[arg(long, conflicts_with = "watch")]
    once: bool,
    /// A table after each look, one below the other, and no live view
    #[arg(long)]
    watch: bool,
    /// For programs: one object, or with --watch one a line; docs/cli.md describes it
    #[arg(long)]
    json: bool,
    /// How often to look
    #[arg(long, short = 'n', value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// What is sorted by, the most first
    #[arg(long, value_enum, default_value_t = Sort::Long)]
    sort: Sort,
    /// The least first
    #[arg(long)]
    reverse: bool,
    /// Only those with this in their name, GPU or user
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Whether the live view has colours; auto: unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    color: Colour,
}

/// So long nobody minds to wait for NVML; what comes later is shown from then on.
const FIRST_ANSWER: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Colour {
    Auto,
    Always,
    Never,
}

fn interval(text: &str) -> Result<Duration, String> {
    let (least, most) = (INTERVALS.0.as_secs_f64(), INTERVALS.1.as_secs_f64());
    let seconds = text.parse().ok().filter(|seconds: &f64| (least..=most).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("a number of seconds from {least} to {most}"))
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    let places = places::settings();
    let cards = Cards::ask();
    cards.wait(FIRST_ANSWER);
    let look = || {
        let mut report = Report::now(places.dir.as_deref(), places.own_dir.as_deref());
        cards.tell(&mut report);
        report
    };
    let is_plain = arguments.once || arguments.watch || arguments.json;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let shown = match is_plain || !is_terminal {
        true => plain::print(arguments, look),
        false => live::watch(arguments.state(), look),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads us has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(141),
        Err(error) => {
            let _ = writeln!(
                io::stderr(),
                "ration top: the terminal cannot be used: {error}; --once and --watch need none"
            );
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    fn state(&self) -> State {
        let wants_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        State {
            sort: self.sort,
            is_reversed: self.reverse,
            filter: self.filter.clone(),
            mode: Mode::Watch,
            is_paused: false,
            selected: 0,
            is_open: false,
            is_coloured: self.color == Colour::Always || (self.color == Colour::Auto && wants_colour),
            every: self.interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_ends() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "3601", "inf", "NaN", "1s", ""] {
            assert_eq!(interval(text), Err("a number of seconds from 0.1 to 3600".into()), "{text}");
        }
    }
}
