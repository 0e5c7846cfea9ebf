//! Errors that teach: what was given, what is wrong with it, what is accepted, and what to do.
//!
//! Each prints as one line of less than [`Error::LONGEST`] bytes whatever was given, because the library has little room
//! for a line and the value is a stranger's.

use std::fmt;

use crate::table::plain;

/// What is wrong with a text, before it is known whose value it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub advice: String,
}

impl Problem {
    pub(crate) fn new(what: impl Into<String>, advice: impl Into<String>) -> Problem {
        Problem { what: what.into(), advice: advice.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.advice)
    }
}

impl std::error::Error for Problem {}

/// Where a value was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In the environment, under this name.
    Variable(String),
    /// In the quota file.
    File {
        /// Counted from 1; 0 is the file as a whole.
        line: usize,
        /// What stands before the `=`; empty if the line has none.
        key: String,
    },
}

/// A value and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Where.
    pub origin: Origin,
    /// As it was written.
    pub value: String,
}

impl Given {
    pub(crate) fn variable(name: impl Into<String>, value: impl Into<String>) -> Given {
        Given { origin: Origin::Variable(name.into()), value: value.into() }
    }

    pub(crate) fn line(line: usize, key: impl Into<String>, value: impl Into<String>) -> Given {
        Given { origin: Origin::File { line, key: key.into() }, value: value.into() }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = quoted(&self.value, 60);
        match &self.origin {
            Origin::Variable(name) => write!(f, "{name}={value}"),
            Origin::File { line: 0, .. } => write!(f, "quota file"),
            Origin::File { line, key } if key.is_empty() => write!(f, "quota file, line {line}: {value}"),
            Origin::File { line, key } => write!(f, "quota file, line {line}: {} = {value}", bare(key, 30)),
        }
    }
}

/// A setting that cannot be followed. Whoever reads settings refuses GPU work because of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What was given, and where.
    pub given: Given,
    /// What is wrong with it.
    pub what: String,
    /// What is accepted there.
    pub accepted: String,
    /// What to do.
    pub advice: String,
}

impl Error {
    /// No error prints longer than this, in bytes.
    pub const LONGEST: usize = 480;

    pub(crate) fn new(given: Given, problem: Problem, accepted: &str) -> Error {
        Error { given, what: problem.what, accepted: plain(accepted), advice: problem.advice }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; accepted: {}; {}", self.given, self.what, self.accepted, self.advice)
    }
}

impl std::error::Error for Error {}

/// Something was asked for twice, in different words, and one of the two does not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What does not count.
    pub ignored: Given,
    /// What does.
    pub holds: Given,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is ignored, because of {}; remove it, or let both say the same", self.ignored, self.holds)
    }
}

/// A text in quotes, made safe to print and cut to about this many bytes.
pub(crate) fn quoted(text: &str, most: usize) -> String {
    format!("\"{}\"", bare(text, most))
}

/// As [`quoted`], without the quotes.
fn bare(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if shown.len() >= most {
            shown.push_str("...");
            break;
        }
        shown.extend(c.escape_debug());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn strangers_text_is_cut_and_cannot_move_the_cursor() {
        assert_eq!(quoted("8\u{1b}[2J\n\"", 60), r#""8\u{1b}[2J\n\"""#);
        assert_eq!(quoted("aaaaaaaa", 4), "\"aaaa...\"");
        assert_eq!(quoted("aaaa", 4), "\"aaaa\"");
    }
}
