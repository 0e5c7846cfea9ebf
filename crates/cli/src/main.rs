//! `ration`: runs, watches and changes slices of a GPU. Each command is a module with its arguments and a `run`.

mod asked;
mod cards;
mod change;
mod demo;
mod doctor;
mod export;
mod functions;
#[cfg(feature = "generate")]
mod generate;
mod library;
mod look;
mod nvml;
mod places;
mod reap;
mod run;
mod runs;
mod set;
mod status;
mod text;
mod top;

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
    Run(Box<run::Arguments>),
    Top(top::Arguments),
    Status(status::Arguments),
    Set(set::Arguments),
    Reap(reap::Arguments),
    Export(export::Arguments),
    Doctor(doctor::Arguments),
    Demo(demo::Arguments),
    #[command(hide = true)]
    DemoWorker(demo::worker::Arguments),
    #[command(hide = true)]
    DemoContainer(demo::container::Arguments),
    #[command(hide = true)]
    DoctorProbe(doctor::probe::Arguments),
    #[cfg(feature = "generate")]
    #[command(hide = true)]
    Generate(generate::Arguments),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            // Nobody should take our own trouble for a program's answer.
            let is_run = std::env::args_os().nth(1).is_some_and(|verb| verb == "run");
            return ExitCode::from(match error.exit_code() {
                0 => 0,
                _ if is_run => run::OWN_ERROR,
                status => u8::try_from(status).unwrap_or(2),
            });
        }
    };
    match arguments.command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Set(arguments) => set::run(&arguments),
        Command::Reap(arguments) => reap::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::DemoWorker(arguments) => demo::worker::run(&arguments),
        Command::DemoContainer(arguments) => demo::container::run(&arguments),
        Command::DoctorProbe(arguments) => doctor::probe::run(&arguments),
        #[cfg(feature = "generate")]
        Command::Generate(arguments) => generate::run(&arguments),
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
