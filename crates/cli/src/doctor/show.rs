//! What people get to see: a line for each check, and what to do below it.

use std::io::{self, IsTerminal as _, Write as _};

use super::check::{Check, Diagnosis, Status};
use crate::text;

/// Lines are no longer than this.
const WIDTH: usize = 100;
/// Where what was found begins: behind the status and the check's name.
const INDENT: &str = "                       ";
/// In front of what is to be done.
const MARK: &str = "-> ";

/// Somebody to show it to, as it comes.
pub struct Show {
    /// Programs get all of it at the end.
    is_silent: bool,
    is_coloured: bool,
    /// Somebody looks at what is under way.
    is_watched: bool,
}

impl Show {
    pub fn new(is_silent: bool) -> Show {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
        Show { is_silent, is_coloured: io::stdout().is_terminal() && !no_color, is_watched: io::stderr().is_terminal() }
    }

    /// Says what is being tried now, where somebody looks on.
    pub fn doing(&self, what: &str) {
        if self.is_watched {
            let _ = write!(io::stderr(), "\r\x1b[K{what} ...");
            let _ = io::stderr().flush();
        }
    }

    /// Takes that away.
    pub fn done(&self) {
        if self.is_watched {
            let _ = write!(io::stderr(), "\r\x1b[K");
            let _ = io::stderr().flush();
        }
    }

    /// Shows a check. Whether anybody reads on.
    pub fn check(&self, check: &Check) -> io::Result<()> {
        if self.is_silent {
            return Ok(());
        }
        self.done();
        io::stdout().write_all(lines(check, self.is_coloured).as_bytes())
    }

    /// Shows the end.
    pub fn end(&self, diagnosis: &Diagnosis) -> io::Result<()> {
        self.done();
        let mut out = io::stdout().lock();
        if self.is_silent {
            writeln!(out, "{}", serde_json::to_string_pretty(diagnosis)?)?;
        } else {
            let summary = text::wrap(&diagnosis.summary, WIDTH, "");
            write!(out, "\n{}", painted(diagnosis.status, &summary, self.is_coloured))?;
        }
        out.flush()
    }
}

fn lines(check: &Check, is_coloured: bool) -> String {
    let word = format!("{:<8}", check.status.word());
    let head = format!("{} {:<13} ", painted(check.status, &word, is_coloured), check.check);
    let mut lines = head + &hanging(&check.found, INDENT);
    if let Some(remedy) = &check.remedy {
        lines += INDENT;
        lines += MARK;
        lines += &hanging(remedy, &format!("{INDENT}{}", " ".repeat(MARK.len())));
    }
    lines
}

/// A paragraph behind something that is as wide as its indentation.
fn hanging(words: &str, indent: &str) -> String {
    // That stands there as one word, and is taken away again.
    let filled = text::wrap(&format!("{}{}", "x".repeat(indent.len()), printable(words)), WIDTH, indent);
    filled.get(indent.len()..).unwrap_or(&filled).to_owned()
}

/// Whatever others wrote of it cannot move the cursor.
fn printable(words: &str) -> String {
    words.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn painted(status: Status, words: &str, is_coloured: bool) -> String {
    let colour = match status {
        Status::Ok => "32",
        Status::Warning => "33",
        Status::Problem => "31",
    };
    if is_coloured { format!("\x1b[{colour}m{words}\x1b[0m") } else { words.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_a_line_and_what_to_do_is_below_it() {
        assert_eq!(lines(&Check::ok("mig", "off"), false), "ok       mig           off\n");
        let check = Check::problem("driver", "none \u{1b}[2J", "Install one");
        let expected = format!("problem  driver        none ?[2J\n{INDENT}-> Install one\n");
        assert_eq!(lines(&check, false), expected);
        assert!(lines(&check, true).starts_with("\x1b[31mproblem \x1b[0m driver "));
    }

    #[test]
    fn long_ones_are_wrapped_below_where_they_begin() {
        let check = Check::warning("region-files", "word ".repeat(40), "do ".repeat(60));
        let shown = lines(&check, false);
        assert!(shown.lines().all(|line| line.chars().count() <= WIDTH), "{shown}");
        assert!(shown.lines().skip(1).all(|line| line.starts_with(INDENT)), "{shown}");
        assert_eq!(shown.matches("word").count(), 40);
    }
}
