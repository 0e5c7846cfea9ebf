//! `ration generate`: man pages and completions, for `ci/package`. All of them come from what clap knows of the command line, so that a new
//! verb has its page by being there; [`more`] is what a page has beyond that.

mod more;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command, CommandFactory as _};
use clap_complete::aot::{Bash, Fish, Generator, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Writes the man pages and the completions of the shells, each to where it is below a prefix's `share`.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The `share` to write to
    directory: PathBuf,
    /// What the pages say is their date
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: String,
}

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    match generate(&arguments.directory, &arguments.date) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ration generate: {}: {error}", arguments.directory.display());
            ExitCode::FAILURE
        }
    }
}

fn generate(share: &Path, date: &str) -> io::Result<()> {
    let command = visible();
    completion(&Bash, &command, &share.join("bash-completion/completions/ration"))?;
    completion(&Zsh, &command, &share.join("zsh/site-functions/_ration"))?;
    completion(&Fish, &command, &share.join("fish/vendor_completions.d/ration.fish"))?;
    let pages = share.join("man/man1");
    write(&pages.join("ration.1"), page(&command, &command, date)?)?;
    for verb in command.get_subcommands() {
        write(&pages.join(format!("ration-{}.1", verb.get_name())), page(verb, &command, date)?)?;
    }
    Ok(())
}

/// The command line without the verbs that are hidden: completions would offer them.
fn visible() -> Command {
    let all = crate::Arguments::command();
    let mut command = Command::new("ration")
        .bin_name("ration")
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .subcommand_value_name("COMMAND");
    command = command.args(all.get_arguments().cloned());
    command = command.subcommands(all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned());
    command = command.version(env!("CARGO_PKG_VERSION")).about(all.get_about().cloned().unwrap_or_default());
    command.build();
    command
}

fn completion(shell: &impl Generator, command: &Command, path: &Path) -> io::Result<()> {
    let mut script = Vec::new();
    shell.try_generate(command, &mut script)?;
    write(path, script)
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    std::fs::write(path, bytes)
}

/// A verb's page, or the one of `ration` itself.
fn page(command: &Command, whole: &Command, date: &str) -> io::Result<String> {
    let is_whole = command.get_name() == whole.get_name();
    let man = Man::new(command.clone());
    let man = man.source(format!("ration {}", env!("CARGO_PKG_VERSION"))).manual("ration").date(date);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if is_whole {
        verbs(whole).to_writer(&mut text)?;
    }
    for (heading, entries) in more::of(command.get_name()) {
        table(heading, entries).to_writer(&mut text)?;
    }
    if let Some(examples) = command.get_after_help() {
        after_help(&examples.to_string()).to_writer(&mut text)?;
    }
    see_also(command, whole).to_writer(&mut text)?;
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    // Each part begins with what an apostrophe is, of which once is enough.
    let preamble = Roff::new().render();
    Ok(preamble.clone() + &text.replace(&preamble, ""))
}

/// A section of words with what each means.
fn table(heading: &str, entries: &[(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (word, meaning) in entries {
        roff.control("TP", []).text([bold(*word)]).text([roman(*meaning)]);
    }
    roff
}

fn verbs(whole: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS"]);
    for verb in whole.get_subcommands() {
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        roff.control("TP", []).text([bold(format!("ration-{}(1)", verb.get_name()))]).text([roman(about)]);
    }
    roff
}

/// What stands behind the options: a heading in a line of its own (`Examples:`), and lines that stay as they are.
fn after_help(text: &str) -> Roff {
    let mut roff = Roff::new();
    let (heading, lines) = match text.split_once(":\n") {
        Some((heading, lines)) if !heading.contains('\n') => (heading.to_uppercase(), lines),
        _ => ("NOTES".to_owned(), text),
    };
    roff.control("SH", [heading.as_str()]).control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line.trim_start())]);
    }
    roff.control("fi", []);
    roff
}

fn see_also(command: &Command, whole: &Command) -> Roff {
    let mut names = vec!["ration".to_owned()];
    names.extend(whole.get_subcommands().map(|verb| format!("ration-{}", verb.get_name())));
    let own =
        if command.get_name() == whole.get_name() { "ration".into() } else { format!("ration-{}", command.get_name()) };
    names.retain(|name| *name != own);
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let count = names.len();
    for (at, name) in names.into_iter().enumerate() {
        roff.text([bold(name), roman(if at + 1 < count { "(1)," } else { "(1)" })]);
    }
    roff
}
