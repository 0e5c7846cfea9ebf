//! What programs that are started from here are told to keep to, and whether anything holds them to it.

use std::path::Path;

use ration_contract::table::{ALIASES, SETTINGS};
use ration_contract::{QUOTA_FILE, Settings, with_pod};

use super::check::Check;
use crate::asked::described;
use crate::library::NAME;
use crate::{places, text};

/// The library's settings that are not about limits: name, accepted values (none: any).
const OTHERS: [(&str, &[&str]); 3] = [
    ("RATION_LOG", &["off", "error", "warn", "info", "debug"]),
    ("RATION_SWITCH", &["channels", "launches"]),
    ("RATION_TRACE", &[]),
];
/// The simulated GPU's settings are its own.
const SIMULATED: &str = "RATION_SIM_";
/// A name that is farther from all others than this is no slip of the finger.
const SLIP: usize = 4;

/// What is asked for, and by whom.
pub struct Asked {
    /// `None`: it cannot be understood.
    pub settings: Option<Settings>,
    pub has_file: bool,
    check: Check,
}

impl Asked {
    /// By this machine's quota file and this program's environment.
    pub fn here() -> Asked {
        let variables: Vec<(String, String)> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        let file = Path::new(QUOTA_FILE);
        match std::fs::read_to_string(file) {
            Ok(text) => Asked::of(&variables, Some(&with_pod(&text, "pod"))),
            Err(error) if file.exists() => Asked {
                settings: None,
                has_file: true,
                check: Check::problem(
                    "settings",
                    format!("{QUOTA_FILE} cannot be read: {error}"),
                    "Let all users of the container read it",
                ),
            },
            Err(_) => Asked::of(&variables, None),
        }
    }

    fn of(variables: &[(String, String)], file: Option<&str>) -> Asked {
        let get = |name: &str| variables.iter().find(|(it, _)| it == name).map(|(_, value)| value.clone());
        let mut findings = Vec::new();
        let settings = match Settings::read(&get, file) {
            Ok(settings) => {
                findings.extend(settings.warnings.iter().map(|it| {
                    Check::warning(
                        "settings",
                        it.to_string(),
                        "What is in the quota file counts; the variable does not",
                    )
                }));
                Some(settings)
            }
            Err(errors) => {
                findings.extend(errors.iter().map(|error| {
                    Check::problem("settings", error.to_string(), "Until then, programs are refused all GPU work")
                }));
                None
            }
        };
        findings.extend(variables.iter().filter_map(|(name, value)| odd(name, value)));
        if let (true, Some(settings)) = (findings.is_empty(), &settings) {
            let by = if file.is_some() { format!(", by {QUOTA_FILE}") } else { String::new() };
            findings.push(Check::ok("settings", format!("{}{by}", described(settings))));
        }
        let check = Check::of_all(findings).unwrap_or_else(|| Check::ok("settings", "none"));
        Asked { settings, has_file: file.is_some(), check }
    }

    /// What is asked for; where that makes no sense, what there is about places.
    pub fn settings(&self) -> Settings {
        self.settings.clone().unwrap_or_else(places::settings)
    }

    /// Whether it can be understood.
    pub fn check(&self) -> Check {
        self.check.clone()
    }

    /// Whether a program that is started from here is held to it. `loaded`: the copies of the library that are in one.
    pub fn enforced(&self, loaded: &[String]) -> Check {
        let Some(settings) = &self.settings else {
            return Check::problem(
                "enforced",
                "settings that are not understood hold nobody to anything: programs with the library are refused all GPU work",
                "See `settings`",
            );
        };
        let limits = described(settings);
        let Some(library) = loaded.first() else {
            return match (self.has_file, settings.asks_for_nothing()) {
                (true, _) => Check::problem(
                    "enforced",
                    format!("no: {QUOTA_FILE} asks for {limits}, and the library is not preloaded into programs"),
                    "Name it in /etc/ld.so.preload; in a pod, look at what hides that file (see `container`)",
                ),
                (false, false) => Check::warning(
                    "enforced",
                    format!("no: {limits} is asked for, and the library is not preloaded into programs"),
                    "Start them by `ration run -- PROGRAM`, or set LD_PRELOAD to libration.so",
                ),
                (false, true) => Check::ok(
                    "enforced",
                    "nothing is asked for, and no library preloaded: programs are held if `ration run` starts them",
                ),
            };
        };
        if settings.asks_for_nothing() {
            return Check::warning(
                "enforced",
                format!("no: {library} is preloaded into programs, but no limit is asked for"),
                "Set RATION_MEMORY, RATION_COMPUTE or both; or start programs by `ration run`, which does",
            );
        }
        Check::ok("enforced", format!("a program started from here is held: {limits}, by {library}"))
    }
}

/// A variable that is none of ours, and looks as if it should be, or that has a value that nobody understands.
fn odd(name: &str, value: &str) -> Option<Check> {
    if let Some((_, accepted)) = OTHERS.iter().find(|(other, _)| *other == name) {
        let is_good = accepted.is_empty() || accepted.contains(&value);
        return (!is_good).then(|| {
            Check::warning(
                "settings",
                format!("{name}=\"{}\" is not understood", text::safe(value, 60)),
                format!("Accepted: {}", accepted.join(", ")),
            )
        });
    }
    let upper = name.to_ascii_uppercase();
    let is_known = SETTINGS.iter().any(|it| it.name == name) || name.starts_with(SIMULATED);
    let is_alias = ALIASES.iter().any(|it| name.starts_with(it.name));
    let looks_like_ours = ["RATION_", "RATIO_", "RATIONS_"].iter().any(|prefix| upper.starts_with(prefix));
    if is_known || is_alias || !looks_like_ours {
        return None;
    }
    let names = SETTINGS.iter().map(|it| it.name).chain(OTHERS.iter().map(|(name, _)| *name));
    // What was left out at the end is the smallest slip.
    let far = |it: &str| if it.starts_with(&upper) { 1 } else { distance(&upper, it) };
    let nearest = names.map(|it| (far(it), it)).min().filter(|(far, _)| *far <= SLIP);
    Some(Check::warning(
        "settings",
        format!("{} is no setting, and does nothing", text::safe(name, 60)),
        match nearest {
            Some((_, it)) => format!("Is {it} meant?"),
            None => "docs/settings.md and docs/library.md have all that there are".into(),
        },
    ))
}

/// How many letters have to be put in, taken out or exchanged to make the one of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<u8> = other.bytes().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.bytes().enumerate() {
        let mut before = at;
        row[0] = at + 1;
        for (to, against) in other.iter().enumerate() {
            let exchanged = before + usize::from(byte != *against);
            before = row[to + 1];
            row[to + 1] = exchanged.min(row[to] + 1).min(before + 1);
        }
    }
    row[other.len()]
}

/// What the loader said of what it should have preloaded and did not: `ERROR: ld.so: object '...' from LD_PRELOAD cannot be preloaded
/// (...): ignored.`
pub fn preloads(errors: &str, loaded: &[String]) -> Check {
    let findings = errors.lines().filter_map(|line| {
        let rest = line.split_once("object '")?.1;
        let (object, rest) = rest.split_once("' from ")?;
        let (from, rest) = rest.split_once(" cannot be preloaded")?;
        let why = rest.trim_start_matches([' ', '(']).split(')').next().unwrap_or_default();
        let found = format!("{} from {from} is not preloaded: {}", text::safe(object, 200), text::safe(why, 80));
        let remedy = format!("Correct {from}, or put the file where it says, readable, for this processor and glibc");
        Some(match object.rsplit('/').next() == Some(NAME) && loaded.is_empty() {
            true => Check::problem("preload", found, remedy),
            false => Check::warning("preload", found, remedy),
        })
    });
    let findings: Vec<Check> = findings.collect();
    Check::of_all(findings).unwrap_or_else(|| {
        Check::ok(
            "preload",
            match loaded {
                [] => "LD_PRELOAD and /etc/ld.so.preload name no libration.so".to_owned(),
                [one] => format!("{one} is in programs that are started from here"),
                [one, more @ ..] => {
                    format!(
                        "{one} is in programs that are started from here, and {}: the first does the work",
                        more.join(", ")
                    )
                }
            },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    fn asked(variables: &[(&str, &str)], file: Option<&str>) -> Asked {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Asked::of(&variables, file)
    }

    #[test]
    fn what_cannot_be_understood_is_a_problem() {
        let check = asked(&[("RATION_MEMORY", "8g")], None).check();
        assert!(check.status == Status::Problem && check.found.contains("RATION_MEMORY=\"8g\""), "{check:?}");
        assert_eq!(asked(&[], Some("memry = 1GiB\n")).check().status, Status::Problem);
        let check = asked(&[("RATION_MEMORY", "1GiB")], Some("memory = 2GiB\n")).check();
        assert!(check.status == Status::Warning && check.found.contains("is ignored"), "{check:?}");
        assert_eq!(asked(&[("RATION_MEMORY", "1GiB")], None).check(), Check::ok("settings", "memory 1GiB"));
    }

    #[test]
    fn slips_are_found_and_what_is_others_is_left_alone() {
        let remedy = |name: &str| asked(&[(name, "1GiB")], None).check().remedy;
        for (name, meant) in [
            ("RATION_MEMROY", "RATION_MEMORY"),
            ("RATION_MEM", "RATION_MEMORY"),
            ("ration_memory", "RATION_MEMORY"),
            ("RATIO_COMPUTE", "RATION_COMPUTE"),
            ("RATION_COMPUTE_LIMITS", "RATION_COMPUTE_LIMIT"),
        ] {
            assert_eq!(remedy(name), Some(format!("Is {meant} meant?")), "{name}");
        }
        assert!(remedy("RATION_SOMETHING_ELSE").is_some_and(|it| it.contains("docs/settings.md")));
        for name in ["RATION_SIM_GPUS", "RATIONAL", "CUDA_DEVICE_ORDER", "PATH"] {
            assert_eq!(remedy(name), None, "{name}");
        }
        assert!(asked(&[("RATION_SWITCH", "on")], None).check().found.contains("not understood"));
        assert_eq!(asked(&[("RATION_SWITCH", "launches")], None).check().status, Status::Ok);
    }

    #[test]
    fn distances_are_those_of_letters() {
        assert_eq!(distance("abc", "abc"), 0);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn who_is_held_has_the_library_and_a_limit() {
        let library = ["/lib/libration.so".to_owned()];
        let limit = [("RATION_MEMORY", "1GiB")];
        let file = Some("memory = 1GiB\n");
        for (asked, loaded, status) in [
            (asked(&[], None), &[][..], Status::Ok),
            (asked(&limit, None), &[], Status::Warning),
            (asked(&limit, None), &library, Status::Ok),
            (asked(&[], None), &library, Status::Warning),
            (asked(&[], file), &library, Status::Ok),
            (asked(&[], file), &[], Status::Problem),
            (asked(&[("RATION_MEMORY", "x")], None), &library, Status::Problem),
        ] {
            let check = asked.enforced(loaded);
            assert_eq!(check.status, status, "{check:?}");
        }
    }

    #[test]
    fn what_the_loader_leaves_out_is_told() {
        let line = |object: &str| {
            format!(
                "ERROR: ld.so: object '{object}' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.\n"
            )
        };
        let check = preloads(&line("/nowhere/libration.so"), &[]);
        assert!(check.status == Status::Problem && check.found.contains("/nowhere/libration.so"), "{check:?}");
        assert!(check.found.ends_with(": cannot open shared object file"), "{check:?}");
        assert_eq!(preloads(&line("other.so"), &[]).status, Status::Warning);
        assert_eq!(preloads(&line("/nowhere/libration.so"), &["/lib/libration.so".into()]).status, Status::Warning);
        assert_eq!(preloads("something else\n", &[]).status, Status::Ok);
    }
}
