//! The settings that are one word: priority, name, directory, yes or no.

use std::fmt;
use std::str::FromStr;

use crate::NAME_MAX;
use crate::error::{Problem, quoted};
use crate::file::POD;
use crate::quantity::empty;

/// Who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// Waits least.
    Latency,
    /// As most do.
    #[default]
    Normal,
    /// Waits most.
    Batch,
}

const PRIORITIES: [(&str, Priority); 3] =
    [("latency", Priority::Latency), ("normal", Priority::Normal), ("batch", Priority::Batch)];

impl FromStr for Priority {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Priority, Problem> {
        choice(text, &PRIORITIES, "write latency, normal or batch")
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Priority::Latency => "latency",
            Priority::Normal => "normal",
            Priority::Batch => "batch",
        })
    }
}

const SWITCH: [(&str, bool); 8] = [
    ("1", true),
    ("true", true),
    ("yes", true),
    ("on", true),
    ("0", false),
    ("false", false),
    ("no", false),
    ("off", false),
];

pub(crate) fn switch(text: &str) -> Result<bool, Problem> {
    choice(text, &SWITCH, "write 1 or 0")
}

fn choice<T: Copy>(text: &str, choices: &[(&str, T)], advice: &str) -> Result<T, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(empty());
    }
    match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some((_, value)) => Ok(*value),
        None => Err(Problem::new(format!("{} is none of the choices", quoted(text, 30)), advice)),
    }
}

/// A name is shown in tables and log lines of other containers, so it may not contain what moves a cursor or looks like
/// another.
pub(crate) fn name(text: &str) -> Result<String, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(empty());
    }
    if let Some(strange) = text.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(Problem::new(
            format!("{} may not be in a name", quoted(&strange.to_string(), 12)),
            "use letters, digits and signs such as / - _ . :",
        ));
    }
    if text.starts_with('#') {
        return Err(Problem::new(
            "it begins with #, as a comment in the quota file does",
            "let it begin with another sign",
        ));
    }
    if text.contains(POD) {
        return Err(Problem::new(
            "{pod} is replaced by what is in a file called pod beside the quota file, and there is none",
            "put that file there, or write the name out",
        ));
    }
    if text.len() > NAME_MAX {
        return Err(Problem::new(format!("it is {} characters long", text.len()), "shorten it to 253"));
    }
    Ok(text.to_owned())
}

pub(crate) fn dir(text: &str) -> Result<String, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Err(empty());
    }
    if !text.starts_with('/') {
        return Err(Problem::new(
            "it does not begin with /, so it would be another place in every working directory",
            "write the path from the root",
        ));
    }
    // A file's name is added to it, and the system takes 4095 bytes in all.
    if text.len() > 4000 || text.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err(Problem::new("it has spaces or control characters, or is too long", "choose a plainer path"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_read() {
        assert_eq!("latency".parse(), Ok(Priority::Latency));
        assert_eq!(" Batch ".parse(), Ok(Priority::Batch));
        for (_, priority) in PRIORITIES {
            assert_eq!(priority.to_string().parse(), Ok(priority));
        }
        assert_eq!((switch("1"), switch("OFF")), (Ok(true), Ok(false)));
        assert_eq!(name(" team/pod-1/main "), Ok("team/pod-1/main".into()));
        assert_eq!(name(&"n".repeat(253)).map(|name| name.len()), Ok(253));
        assert_eq!(dir("/run/ration"), Ok("/run/ration".into()));
    }

    #[test]
    fn other_words_are_not() {
        assert!("high".parse::<Priority>().is_err() && "".parse::<Priority>().is_err());
        assert!(switch("2").is_err() && switch("").is_err());
        for bad in ["", "a b", "a\u{1b}[2J", "ünder", "#1", &"n".repeat(254)] {
            assert!(name(bad).is_err(), "{bad:?}");
        }
        for bad in ["", "run/ration", "~/ration", "/a b", "/a\0", &"/x".repeat(2001)] {
            assert!(dir(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_word_is_too_strange(text in any::<String>()) {
            let _ = (text.parse::<Priority>(), switch(&text), name(&text), dir(&text));
        }
    }
}
