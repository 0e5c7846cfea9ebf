//! `ration-injector`: the programs that run in a cluster. Each command is a module with its arguments and a `run`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ration_injector::server::command as webhook;
use ration_injector::{copy, node};

/// Puts ration into a Kubernetes cluster: the library into pods, and onto the nodes that they run on.
#[derive(Debug, Parser)]
#[command(name = "ration-injector", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Webhook(webhook::Args),
    Node(node::Args),
    Copy(copy::Args),
    /// Says whether a configuration file of the webhook can be used
    Check {
        /// The file, in YAML
        #[arg(value_name = "FILE")]
        config: String,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Webhook(args) => webhook::run(args),
        Command::Node(args) => node::run(args),
        Command::Copy(args) => copy::run(&args),
        Command::Check { config } => match webhook::check(&config) {
            Ok(()) => {
                println!("{config}: can be used");
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("{config}: {why}");
                ExitCode::FAILURE
            }
        },
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
