//! The quota file: `key = value` lines, mounted read-only by whoever runs the machine, so that a tenant cannot change it.

use crate::error::{Error, Given, Problem, quoted};
use crate::table::{SETTINGS, Setting};

/// More errors than this help nobody.
const MOST_ERRORS: usize = 16;

/// What the file sets. A file that sets nothing is an error: it was mounted to limit something.
pub(crate) fn read(text: &str) -> Result<Vec<(&'static Setting, Given)>, Vec<Error>> {
    let mut found: Vec<(&'static Setting, Given)> = Vec::new();
    let mut errors = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = without_comment(line).trim();
        if line.is_empty() {
            continue;
        }
        match entry(line, number, &found) {
            Ok(entry) => found.push(entry),
            Err(error) => errors.push(*error),
        }
        if errors.len() >= MOST_ERRORS {
            break;
        }
    }
    if found.is_empty() && errors.is_empty() {
        let advice = "write at least one setting, or do not mount the file";
        errors.push(Error::new(Given::line(0, "", ""), Problem::new("it sets nothing", advice), &accepted()));
    }
    if errors.is_empty() { Ok(found) } else { Err(errors) }
}

fn entry(
    line: &str,
    number: usize,
    found: &[(&'static Setting, Given)],
) -> Result<(&'static Setting, Given), Box<Error>> {
    let Some((key, value)) = line.split_once('=') else {
        let problem = Problem::new("it has no =", "write it as key = value");
        return Err(Box::new(Error::new(Given::line(number, "", line), problem, &accepted())));
    };
    let (key, value) = (key.trim(), value.trim());
    let given = Given::line(number, key, value);
    let Some(setting) = SETTINGS.into_iter().find(|setting| setting.key == key) else {
        return Err(Box::new(Error::new(given, unknown(key), &accepted())));
    };
    if let Some((_, earlier)) = found.iter().find(|(other, _)| *other == setting) {
        let what = format!("it is set twice, before this as {}", quoted(&earlier.value, 60));
        return Err(Box::new(Error::new(given, Problem::new(what, "remove one of the two"), setting.form)));
    }
    Ok((setting, given))
}

fn unknown(key: &str) -> Problem {
    let lower = key.to_ascii_lowercase().replace('-', "_");
    let plain = lower.strip_prefix("ration_").unwrap_or(&lower);
    let advice = match SETTINGS.iter().find(|setting| setting.key == plain) {
        Some(setting) => format!("write {}", setting.key),
        None => "correct the key, or remove the line".to_owned(),
    };
    Problem::new(format!("{} is no setting", quoted(key, 30)), advice)
}

fn accepted() -> String {
    let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
    format!("lines key = value with the keys {}", keys.join(", "))
}

/// A comment begins with a `#` at the start of the line or after a space.
fn without_comment(line: &str) -> &str {
    let mut after_space = true;
    for (at, c) in line.char_indices() {
        if c == '#' && after_space {
            return line.get(..at).unwrap_or(line);
        }
        after_space = c.is_whitespace();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_comments_and_blank_ones_left_out() {
        let text = "# team a\r\n\r\nmemory=0=8GiB,1=25%  # half\n\tname = a#1\n";
        let found: Vec<_> = read(text).expect("good").into_iter().map(|(s, given)| (s.key, given)).collect();
        assert_eq!(
            found,
            [("memory", Given::line(3, "memory", "0=8GiB,1=25%")), ("name", Given::line(4, "name", "a#1"))]
        );
    }

    #[test]
    fn every_bad_line_is_told_up_to_a_limit() {
        assert_eq!(read("memory 8GiB\nspeed = 3\n").expect_err("two bad lines").len(), 2);
        assert_eq!(read(&"x\n".repeat(1000)).expect_err("all bad").len(), MOST_ERRORS);
    }
}
