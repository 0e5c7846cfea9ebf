//! `ration`: runs, watches and changes slices of a GPU. Each command is a module with its arguments and a `run`.

mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Slices one NVIDIA GPU between containers, without MIG.
#[derive(Debug, Parser)]
#[command(name = "ration", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    #[command(hide = true)]
    DemoWorker(demo::worker::Arguments),
    #[command(hide = true)]
    DemoContainer(demo::container::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoWorker(arguments) => demo::worker::run(&arguments),
        Command::DemoContainer(arguments) => demo::container::run(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
