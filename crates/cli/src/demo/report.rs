//! The end of the demo: a table of what each program got, and in plain words what it means.

use super::figures::{Latency, ProgramResult, Results};
use super::scenario::{Scenario, Style};
use crate::text::{self, Side, percent};

/// Lines are at most this long.
const WIDTH: usize = 100;

/// The table and the words.
pub fn report(results: &Results, scenario: &Scenario) -> String {
    let mut said = table(results);
    said.push('\n');
    let mut paragraphs = vec![waste(results)];
    for result in &results.programs {
        if let Some(program) = scenario.programs.iter().find(|program| program.name == result.name) {
            paragraphs.extend(fate(result, program.style));
        }
    }
    paragraphs.extend(doubt(results, scenario));
    for paragraph in paragraphs {
        said += &text::wrap(&format!("• {paragraph}"), WIDTH, "  ");
    }
    said.push('\n');
    said += &text::wrap(
        "Rates and latencies are by each program's own clock, GPU time by the simulated GPU's own record. Nobody asked \
         for these shares: time slicing hands them out by who always has something queued, and there is nothing to set.",
        WIDTH,
        "",
    );
    said
}

fn table(results: &Results) -> String {
    let head = ["program", "alone", "together", "of solo", "GPU time", "latency p50 / p99, ms"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let longest = results.programs.iter().map(|program| program.unit.len()).max().unwrap_or(0);
    for program in &results.programs {
        let gap = " ".repeat(longest - program.unit.len()); // so that the numbers are below each other
        let rate = |rate: f64| format!("{} {}/s{gap}", text::rate(rate), program.unit);
        let latency = match (program.alone.latency_ms, program.together.latency_ms) {
            (Some(alone), Some(together)) => format!("{} → {}", pair(alone), pair(together)),
            _ => String::new(),
        };
        rows.push(vec![
            program.name.clone(),
            rate(program.alone.rate),
            rate(program.together.rate),
            percent(program.of_solo),
            percent(program.together.share),
            latency,
        ]);
    }
    for (name, part) in [("(switching)", results.together.switching), ("(idle)", results.together.idle)] {
        let nothing = String::new;
        rows.push(vec![name.to_owned(), nothing(), nothing(), nothing(), percent(part)]);
    }
    text::table(&[Side::Left, Side::Right, Side::Right, Side::Right, Side::Right, Side::Left], &rows)
}

fn pair(latency: Latency) -> String {
    format!("{} / {}", text::ms(latency.p50), text::ms(latency.p99))
}

/// What sharing costs the GPU as a whole.
fn waste(results: &Results) -> String {
    let (gpu, best) = (&results.together, results.best_alone());
    let mut said = match best > 0.0 {
        true => format!("Together they got {} of what the GPU does for one program.", percent(gpu.useful / best)),
        false => "Nobody got anything out of the GPU.".to_owned(),
    };
    if let Some(switch) = gpu.switch_ms() {
        said += &format!(
            " It went from one program to another {} times a second, at {} ms each: {} of the time. Another {} went \
             into restoring what was interrupted.",
            text::thousands((gpu.switches as f64 / gpu.seconds).round() as u64),
            text::ms(switch),
            percent(gpu.switching),
            percent(gpu.restoring),
        );
    }
    said
}

/// A doubt about the figures, if there is one: somebody always had work for a GPU that was idle all the same.
fn doubt(results: &Results, scenario: &Scenario) -> Option<String> {
    let saturating = scenario.programs.iter().find(|program| matches!(program.style, Style::Queue { .. }))?;
    (results.together.idle > 0.03).then(|| {
        format!(
            "The GPU was idle for {} of the time, though {} has work for all of it: this machine was too busy with \
             other things to keep up. Take the figures as rough ones.",
            percent(results.together.idle),
            saturating.name,
        )
    })
}

/// What sharing did to a program.
fn fate(result: &ProgramResult, style: Style) -> Option<String> {
    let (name, alone, together) = (&result.name, &result.alone, &result.together);
    let slowed = result.of_solo < 0.95;
    match style {
        Style::Queue { .. } if slowed => Some(format!(
            "{name} always has kernels queued, and so had the GPU for {} of the time; it ran at {} of its own speed.",
            percent(together.share),
            percent(result.of_solo),
        )),
        Style::Wait if slowed => Some(format!(
            "{name} wants all of the GPU ({} of the time alone), but waits for each kernel before it launches the next. \
             While it does, its turn goes to others. It got {} of the time and ran at {} of its own speed.",
            percent(alone.share),
            percent(together.share),
            percent(result.of_solo),
        )),
        Style::Requests { .. } => {
            let (before, after) = (alone.latency_ms?, together.latency_ms?);
            if after.p50 < before.p50 * 1.1 {
                return Some(format!("{name}'s requests took {} ms, about what they take alone.", text::ms(after.p50)));
            }
            Some(format!(
                "{name} wants {} of the GPU, far from all of it, and pays in time: requests that took {} ms alone took \
                 {} ms ({:.1} times as long), and one in a hundred more than {} ms.",
                percent(alone.share),
                text::ms(before.p50),
                text::ms(after.p50),
                after.p50 / before.p50,
                text::ms(after.p99),
            ))
        }
        Style::Queue { .. } | Style::Wait => {
            Some(format!("{name} ran at {} of its own speed.", percent(result.of_solo)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::{GpuTime, Measured};
    use super::*;

    fn measured(rate: f64, share: f64, latency: Option<(f64, f64)>) -> Measured {
        let latency_ms = latency.map(|(p50, p99)| Latency { p50, p99 });
        Measured { rate, latency_ms, share, useful: share * 0.98, memory_bytes: 1 << 30, waited: None }
    }

    fn results() -> Results {
        let program = |name: &str, unit, alone: Measured, together: Measured| ProgramResult {
            name: name.into(),
            unit,
            of_solo: together.rate / alone.rate,
            alone,
            together,
        };
        Results {
            gpu: "NVIDIA H200".into(),
            together: GpuTime {
                seconds: 6.0,
                useful: 0.87,
                restoring: 0.025,
                switching: 0.1,
                idle: 0.005,
                switches: 3900,
            },
            programs: vec![
                program("trainer", "kernels", measured(2000.0, 1.0, None), measured(1191.2, 0.607, None)),
                program("notebook", "kernels", measured(1858.4, 0.929, None), measured(284.1, 0.153, None)),
                program(
                    "inference",
                    "requests",
                    measured(50.0, 0.1315, Some((2.66, 2.71))),
                    measured(49.9, 0.135, Some((6.21, 7.42))),
                ),
            ],
        }
    }

    #[test]
    fn the_table_is_laid_out_like_this() {
        let expected = "\
program                  alone           together   of solo   GPU time   latency p50 / p99, ms
──────────────────────────────────────────────────────────────────────────────────────────────────
trainer       2,000 kernels/s    1,191 kernels/s        60%        61%
notebook      1,858 kernels/s      284 kernels/s        15%        15%
inference      50.0 requests/s    49.9 requests/s      100%        14%   2.66 / 2.71 → 6.21 / 7.42
(switching)                                                        10%
(idle)                                                            0.5%
";
        assert_eq!(table(&results()), expected);
    }

    #[test]
    fn words_follow_the_figures() {
        let said = report(&results(), &Scenario::built_in());
        for fragment in [
            "Together they got 89% of what the GPU does for one program.",
            "650 times a second, at 0.15 ms each: 10% of the time.",
            "trainer always has kernels queued",
            "notebook wants all of the GPU (93% of the time alone)",
            "It got 15% of the time",
            "requests that took 2.66 ms alone took 6.21 ms (2.3 times as long)",
        ] {
            let unbroken = said.replace("\n  ", " ");
            assert!(unbroken.contains(fragment), "{said}\ndoes not say {fragment:?}");
        }
        for line in said.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn nobody_is_pitied_without_reason() {
        let mut results = results();
        for program in &mut results.programs {
            program.together = program.alone.clone();
            program.of_solo = 1.0;
        }
        results.together = GpuTime { seconds: 6.0, useful: 0.98, idle: 0.02, ..GpuTime::default() };
        let said = report(&results, &Scenario::built_in());
        assert!(said.contains("about what they take alone") && said.contains("trainer ran at 100%"), "{said}");
        assert!(!said.contains("switch") || said.contains("(switching)"), "{said}");
        assert!(!said.contains("times as long") && !said.contains("rough"), "{said}");
    }

    #[test]
    fn a_machine_that_could_not_keep_up_is_mentioned() {
        let mut results = results();
        results.together.idle = 0.05;
        assert!(report(&results, &Scenario::built_in()).contains("idle for 5.0% of the time, though trainer"));
    }
}
