//! What was found, a check each, and what it comes to.

use serde::Serialize;

/// Of the form that programs get.
const VERSION: u32 = 1;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Programs can be held to their limits, less well, or not those that somebody may think of.
    Warning,
    /// Programs cannot be held to their limits here.
    Problem,
}

impl Status {
    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Problem => "problem",
        }
    }
}

/// A check that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name, which programs may rely on.
    pub check: &'static str,
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it; only where there is something to be done.
    pub remedy: Option<String>,
}

impl Check {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Check {
        Check { check, status: Status::Ok, found: found.into(), remedy: None }
    }

    pub fn warning(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { check, status: Status::Warning, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub fn problem(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { check, status: Status::Problem, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// Several findings of one check: all that is wrong, the worst first; or all of them, where nothing is.
    pub fn of_all(findings: Vec<Check>) -> Option<Check> {
        let worst = findings.iter().map(|it| it.status).max()?;
        let mut those: Vec<Check> =
            findings.into_iter().filter(|it| worst == Status::Ok || it.status > Status::Ok).collect();
        those.sort_by_key(|it| std::cmp::Reverse(it.status));
        let check = those.first()?.check;
        let found: Vec<String> = those.iter().map(|it| it.found.clone()).collect();
        let mut remedies: Vec<String> = Vec::new();
        for remedy in those.into_iter().filter_map(|it| it.remedy) {
            if !remedies.contains(&remedy) {
                remedies.push(remedy);
            }
        }
        let remedy = (!remedies.is_empty()).then(|| remedies.join(". "));
        Some(Check { check, status: worst, found: found.join("; "), remedy })
    }
}

/// All of it.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    version: u32,
    /// The worst of all checks.
    pub status: Status,
    /// The last line.
    pub summary: String,
    pub checks: Vec<Check>,
    /// Checks that could not be made, because of what others found.
    pub not_tried: Vec<&'static str>,
}

impl Diagnosis {
    pub fn of(checks: Vec<Check>, not_tried: Vec<&'static str>) -> Diagnosis {
        let status = checks.iter().map(|it| it.status).max().unwrap_or(Status::Ok);
        let summary = summary(&checks, &not_tried);
        Diagnosis { version: VERSION, status, summary, checks, not_tried }
    }
}

fn summary(checks: &[Check], not_tried: &[&str]) -> String {
    let count = |status: Status| checks.iter().filter(|it| it.status == status).count() as u64;
    let (problems, warnings) = (count(Status::Problem), count(Status::Warning));
    let counted = |number: u64, what: &str| crate::text::count(number, what);
    let mut said = match (problems, warnings) {
        (0, 0) => "ration will hold programs here".to_owned(),
        (0, _) => format!("ration will hold programs here, with {}", counted(warnings, "warning")),
        (_, 0) => format!("ration will not hold programs here: {}", counted(problems, "problem")),
        _ => {
            format!(
                "ration will not hold programs here: {}, and {}",
                counted(problems, "problem"),
                counted(warnings, "warning")
            )
        }
    };
    if !not_tried.is_empty() {
        said += &format!(". Not tried because of that: {}", not_tried.join(", "));
    }
    said + "."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_about_the_worst() {
        let said = |checks: &[Check]| summary(checks, &[]);
        let (good, odd) = (Check::ok("a", ""), Check::warning("b", "", ""));
        let bad = Check::problem("c", "", "");
        assert_eq!(said(std::slice::from_ref(&good)), "ration will hold programs here.");
        assert_eq!(said(&[good.clone(), odd.clone(), odd.clone()]), "ration will hold programs here, with 2 warnings.");
        assert_eq!(said(&[good.clone(), bad.clone()]), "ration will not hold programs here: 1 problem.");
        assert_eq!(said(&[bad.clone(), odd]), "ration will not hold programs here: 1 problem, and 1 warning.");
        assert!(summary(&[bad], &["x", "y"]).ends_with(". Not tried because of that: x, y."));
    }

    #[test]
    fn of_several_findings_those_count_that_are_wrong() {
        let all = Check::of_all(vec![
            Check::ok("a", "good"),
            Check::warning("a", "odd", "mend it"),
            Check::problem("a", "bad", "mend that"),
            Check::warning("a", "odd, too", "mend it"),
        ]);
        assert_eq!(all, Some(Check::problem("a", "bad; odd; odd, too", "mend that. mend it")));
        let good = Check::of_all(vec![Check::ok("a", "one"), Check::ok("a", "two")]);
        assert_eq!(good, Some(Check::ok("a", "one; two")));
        assert_eq!(Check::of_all(Vec::new()), None);
    }

    #[test]
    fn the_form_is_version_one() {
        let diagnosis = Diagnosis::of(vec![Check::problem("driver", "none", "install one")], vec!["gpus"]);
        let value = serde_json::to_value(diagnosis).expect("it is JSON");
        let expected = serde_json::json!({
            "version": 1,
            "status": "problem",
            "summary": "ration will not hold programs here: 1 problem. Not tried because of that: gpus.",
            "checks": [{"check": "driver", "status": "problem", "found": "none", "remedy": "install one"}],
            "not_tried": ["gpus"],
        });
        assert_eq!(value, expected, "a name that is gone or means something else is another version of the form");
    }
}
