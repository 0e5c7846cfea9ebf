//! The quota file: `key = value` lines, mounted read-only by whoever runs the machine, so that a tenant cannot change it.

use crate::NAME_MAX;
use crate::error::{Error, Given, Problem, quoted};
use crate::table::{NAME, SETTINGS, Setting};

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

/// What stands in a file's `name` for the pod's, which an injector does not know yet when it writes the file.
pub const POD: &str = "{pod}";

/// The text of the quota file with the pod's name in the place of [`POD`]. One that would make the name too long loses its
/// beginning: the pods of one job differ in the end.
pub fn with_pod(text: &str, pod: &str) -> String {
    let put = |line: &str| match line.split_once('=') {
        Some((key, value)) if key.trim() == NAME.key && value.contains(POD) => {
            let rest = without_comment(value).trim().chars().count().saturating_sub(POD.len());
            let too_long = rest.saturating_add(pod.chars().count()).saturating_sub(NAME_MAX);
            line.replacen(POD, &pod.chars().skip(too_long).collect::<String>(), 1)
        }
        _ => line.to_owned(),
    };
    text.lines().map(put).fold(String::new(), |all, line| all + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_name_comes_into_the_name_and_nowhere_else() {
        let text = "memory = 8GiB # {pod}\nname = team/{pod}/main # of {pod}\n";
        let wanted = "memory = 8GiB # {pod}\nname = team/web-x7k2p/main # of {pod}\n";
        assert_eq!(with_pod(text, "web-x7k2p"), wanted);
        let long = with_pod(&format!("name = {}/{{pod}}/{}", "n".repeat(63), "c".repeat(63)), &"p".repeat(250));
        assert_eq!(long.trim().len(), "name = ".len() + NAME_MAX);
        let found = read(&long).expect("still a file");
        assert!(crate::plain::name(&found[0].1.value).is_ok());
        assert!(long.contains("ppp/ccc"), "{long}");
    }

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
