//! The log: one line per event on standard error, as text or as JSON.

use std::io::IsTerminal as _;

use clap::ValueEnum;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// From which level on lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Faults only.
    Error,
    /// Also what somebody should look at.
    Warn,
    /// Also one line per admission.
    Info,
    /// Also what happens inside.
    Debug,
    /// Also what the libraries say.
    Trace,
}

/// What to log, and how.
#[derive(Debug, Clone, Copy, clap::Args)]
#[group(id = "log")] // it is made part of other commands' arguments, which have a group of their own
pub struct Args {
    /// How lines of the log look [default: text on a terminal, json elsewhere]
    #[arg(long, value_enum, env = "RATION_INJECTOR_LOG_FORMAT", hide_env = true)]
    pub log_format: Option<Format>,
    /// From which level on lines are logged; `info` has one line per admission
    #[arg(long, value_enum, default_value = "info", env = "RATION_INJECTOR_LOG_LEVEL", hide_env = true)]
    pub log_level: Level,
}

/// Starts the log, for the rest of the process. A second call changes nothing.
pub fn start(args: Args) {
    let terminal = std::io::stderr().is_terminal();
    let format = args.log_format.unwrap_or(if terminal { Format::Text } else { Format::Json });
    let (ours, theirs) = match args.log_level {
        Level::Error => (LevelFilter::ERROR, LevelFilter::OFF),
        Level::Warn => (LevelFilter::WARN, LevelFilter::OFF),
        Level::Info => (LevelFilter::INFO, LevelFilter::OFF),
        Level::Debug => (LevelFilter::DEBUG, LevelFilter::WARN),
        Level::Trace => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    let levels = Targets::new().with_default(theirs).with_target("ration_injector", ours);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(levels);
    let _ = match format {
        Format::Json => registry.with(lines.json().flatten_event(true)).try_init(),
        Format::Text => registry.with(lines.with_ansi(false)).try_init(),
    };
}
