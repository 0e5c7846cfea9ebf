//! The part that runs on each node: puts the library and the region's directory there, looks after them, and says how they are.
//! docs/node.md is its manual.
//!
//! | module | what it does |
//! |---|---|
//! | `disk` | changes that are there whole or not at all, and a lock |
//! | `elf` | whether a file can be loaded on this machine |
//! | `store` | the libraries, and which of them new pods get |
//! | `uses` | who has a file open, mapped or mounted |
//! | `old` | when a library that is not current any more goes |
//! | `regions` | who is in the regions, and who can join them |
//! | `reap` | removes what dead pods left |
//! | `report`, `metrics` | how the node is, for people and programs |
//! | `watch` | all of it, again and again, until it is told to stop |
//! | `uninstall` | leaves the node as it was |

mod bus;
mod disk;
mod elf;
mod metrics;
mod old;
mod reap;
mod regions;
mod report;
mod store;
mod uninstall;
mod uses;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};

use crate::logs;
use old::Grace;
use store::{Library, Store, Turn};
use uses::Processes;

/// Puts the library and the region's directory onto this node, and looks after them
///
/// Without a command it does so until it gets SIGTERM, and then leaves the node as it is.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    places: Places,
    /// How often the node is looked after, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    every: Duration,
    /// How long what nobody uses is left: regions, dead containers' places in them, pods' directories, old libraries
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    grace: Duration,
    /// How long old libraries and pods' empty directories are left where the host's processes cannot be seen
    #[arg(long, value_name = "SECONDS", default_value = "604800", value_parser = seconds)]
    blind_grace: Duration,
    /// Where to say how the node is, over HTTP: /healthz, /readyz, /metrics, /status
    #[arg(long = "status", value_name = "ADDRESS:PORT")]
    address: Option<SocketAddr>,
    #[command(flatten)]
    log: logs::Args,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Where everything is.
#[derive(Debug, clap::Args)]
struct Places {
    /// The host's directory for the library, which goes to lib/VERSION-HASH/ in it
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = "/var/lib/ration")]
    root: PathBuf,
    /// The host's directory for the regions, in which each pod has a directory of its own
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = "/run/ration-pods")]
    region_dir: PathBuf,
    /// The library to install
    #[arg(long, global = true, value_name = "FILE", default_value = "/usr/lib/ration/libration.so")]
    library: PathBuf,
    /// The library's version
    #[arg(long, global = true, value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    library_version: String,
    /// Whether /proc has all of the host's processes
    #[arg(long, global = true, value_enum, default_value = "auto")]
    host_processes: HostProcesses,
    /// Where /proc is
    #[arg(long, global = true, value_name = "DIRECTORY", default_value = "/proc", hide = true)]
    proc: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HostProcesses {
    /// If it is that of the host's PID namespace.
    Auto,
    /// It has, as on a node that is itself a container.
    Yes,
    /// It has not.
    No,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Installs the library and makes the region's directory, once
    Install,
    /// Removes the libraries and the regions, if nobody uses them
    Uninstall {
        /// Also if somebody does: who has the library keeps it, but new processes are not held to any limit
        #[arg(long)]
        force: bool,
    },
    /// Says how the node is; fails if pods cannot be started here
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no number of seconds, such as 30 or 0.5");
    let number: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number).map_err(|_| wrong())
}

impl Places {
    fn store(&self) -> Store {
        Store { root: self.root.clone() }
    }

    fn processes(&self) -> Processes {
        let all = match self.host_processes {
            HostProcesses::Auto => None,
            HostProcesses::Yes => Some(true),
            HostProcesses::No => Some(false),
        };
        Processes::new(&self.proc, all)
    }

    fn library(&self) -> Result<Library, String> {
        Library::read(&self.library, &self.library_version)
    }
}

/// Does what the arguments say.
pub fn run(args: Args) -> ExitCode {
    bus::be_ready();
    let Args { places, every, grace, blind_grace, address, log, command } = args;
    let outcome = match command {
        None => {
            logs::start(log);
            let settings = watch::Settings {
                store: places.store(),
                region_dir: places.region_dir.clone(),
                processes: places.processes(),
                every: every.max(Duration::from_millis(50)),
                grace: Grace { seeing: grace, blind: blind_grace },
                address,
            };
            places.library().and_then(|library| watch::run(settings, library)).map(|()| true)
        }
        Some(Command::Install) => install(&places).map(|()| true),
        Some(Command::Uninstall { force }) => uninstall(&places, force).map(|()| true),
        Some(Command::Status { json }) => status(&places, json),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("ration-injector node: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn install(places: &Places) -> Result<(), String> {
    let library = places.library()?;
    let mut deeds = Vec::new();
    // In this order: pods that get the library have their directories made in there.
    let outcome = store::ensure_directory(&places.region_dir, regions::DIRECTORY_MODE, &mut deeds);
    let outcome = outcome.and_then(|()| places.store().install(&library, Turn::Always, &mut deeds));
    deeds.iter().for_each(|deed| println!("{deed}"));
    outcome?;
    println!("{} is installed, and new pods get it", library.name);
    Ok(())
}

fn uninstall(places: &Places, force: bool) -> Result<(), String> {
    let done = uninstall::uninstall(&places.store(), &places.region_dir, &places.processes(), force)?;
    done.iter().for_each(|line| println!("{line}"));
    if done.is_empty() {
        println!("nothing of ration is on this node");
    }
    Ok(())
}

fn status(places: &Places, json: bool) -> Result<bool, String> {
    let status = report::inspect(&places.store(), &places.region_dir, &places.processes());
    if json {
        println!("{}", serde_json::to_string_pretty(&status).map_err(|error| error.to_string())?);
    } else {
        print!("{}", status.text());
    }
    Ok(status.ready)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "-1", "ten", "nan", "1e300"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
