//! The plot: shares of the GPU's time against time, as an SVG file. A panel for each time that all programs ran together.
//!
//! It is written by hand, and understood by anything that shows SVG: plain elements, classes for what is light or dark,
//! and light where a viewer knows nothing of that.

use std::fmt::Write as _;
use std::time::Duration;

use super::figures::{Measured, Played};
use super::scenario::{MOST, Program, Scenario};
use super::scene::Sample;
use crate::text::percent;

/// Shares while all programs ran together.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    /// In a few words, how the GPU was shared.
    pub title: String,
    /// How long that took.
    pub length: Duration,
    /// Times are from its beginning.
    pub samples: Vec<Sample>,
}

impl Curves {
    /// What a scene remembers from `begin` on, each point the mean of the [`MEAN`] before it. The last moments, when programs
    /// have ended one after the other, are all at one time, and only the first of them counts.
    pub fn of(title: &str, begin: Duration, length: Duration, history: &[Sample]) -> Curves {
        let mut looks: Vec<&Sample> = Vec::new();
        for sample in history {
            if looks.last().is_none_or(|last| last.at < sample.at) {
                looks.push(sample);
            }
        }
        let samples = looks.iter().enumerate().map(|(last, look)| {
            let recent = looks[..=last].iter().filter(|other| other.at + MEAN > look.at);
            Sample { at: look.at.saturating_sub(begin), shares: mean(recent.map(|sample| &sample.shares[..])) }
        });
        let samples = samples.collect();
        Curves { title: title.to_owned(), length, samples }
    }
}

/// Of shares by program, at several times.
fn mean<'a>(times: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let (mut sums, mut count) = (Vec::new(), 0.0);
    for shares in times {
        sums.resize(shares.len(), 0.0);
        sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        count += 1.0;
    }
    sums.into_iter().map(|sum| sum / count).collect()
}

/// A lease is some ten milliseconds long: over so long a time, who had the GPU for how many of them is a share.
const MEAN: Duration = Duration::from_millis(500);

/// Readable for the colour-blind, on light and on dark.
const COLOURS: [[&str; 2]; MOST] = [
    ["#0072b2", "#56b4e9"],
    ["#d55e00", "#ff8c42"],
    ["#00805f", "#2fd6a5"],
    ["#a3478a", "#e69bd0"],
    ["#8a6d00", "#f0d442"],
    ["#555555", "#bbbbbb"],
];

const HEIGHT: f64 = 430.0;
const TOP: f64 = 104.0;
const BOTTOM: f64 = 52.0;
const LEFT: f64 = 64.0;
const GAP: f64 = 36.0;
const PANEL: f64 = 420.0;
/// Of the area in which curves are.
const TALL: f64 = HEIGHT - TOP - BOTTOM;

/// The file's text.
pub fn svg(scenario: &Scenario, played: &Played) -> String {
    let curves = &played.curves;
    let width = LEFT + curves.len() as f64 * (PANEL + GAP);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{HEIGHT}\" viewBox=\"0 0 {width} {HEIGHT}\" \
         role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n<title>Shares of GPU time</title>\n"
    );
    style(&mut out);
    let title = format!(
        "Who had the GPU's time: {} programs on one simulated {}",
        scenario.programs.len(),
        escaped(&played.gpu)
    );
    put(&mut out, &format!("<rect class=\"paper\" width=\"{width}\" height=\"{HEIGHT}\"/>"));
    put(&mut out, &format!("<text class=\"ink\" x=\"{LEFT}\" y=\"26\" font-size=\"16\">{title}</text>"));
    legend(&mut out, scenario, &played.alone);
    let middle = TOP + TALL / 2.0;
    put(
        &mut out,
        &format!(
            "<text class=\"ink\" text-anchor=\"middle\" transform=\"translate(16 {middle}) rotate(-90)\">share of the \
             GPU's time, mean of half a second</text>"
        ),
    );
    for (number, one) in curves.iter().enumerate() {
        panel(&mut out, LEFT + number as f64 * (PANEL + GAP), scenario, one);
    }
    out + "</svg>\n"
}

fn put(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}

fn style(out: &mut String) {
    let colours = |tone: usize| {
        let rules = COLOURS.iter().enumerate().map(|(i, tones)| format!(" .c{i} {{ stroke: {} }}", tones[tone]));
        rules.collect::<String>()
    };
    put(out, "<style>");
    put(out, ".paper { fill: #ffffff } .ink { fill: #222222 } .grid { stroke: #dddddd } .axis { stroke: #666666 }");
    put(out, &format!("polyline {{ fill: none; stroke-width: 1.8; stroke-linejoin: round }}{}", colours(0)));
    put(out, ".asked { stroke-width: 1.2; stroke-dasharray: 6 4; opacity: 0.8 }");
    put(out, "@media (prefers-color-scheme: dark) {");
    put(out, ".paper { fill: #16181d } .ink { fill: #e4e4e4 } .grid { stroke: #33373f } .axis { stroke: #999999 }");
    put(out, &format!("{} }}", colours(1).trim_start()));
    put(out, "</style>");
}

/// Names, and which line is whose.
fn legend(out: &mut String, scenario: &Scenario, alone: &[Measured]) {
    let mut x = LEFT;
    for (number, program) in scenario.programs.iter().enumerate() {
        // Who has no use for what it asks for is below it, and nothing is wrong.
        let most = alone.get(number).map_or(1.0, |alone| alone.share);
        let said = match program.requested() {
            Some(request) if most < request - 0.005 => {
                format!("{} (asks for {}, uses {} alone)", escaped(&program.name), percent(request), percent(most))
            }
            Some(request) => format!("{} (asks for {})", escaped(&program.name), percent(request)),
            None => escaped(&program.name),
        };
        let (end, text) = (x + 24.0, x + 30.0);
        put(
            out,
            &format!("<line class=\"c{number}\" stroke-width=\"3\" x1=\"{x}\" y1=\"48\" x2=\"{end}\" y2=\"48\"/>"),
        );
        put(out, &format!("<text class=\"ink\" x=\"{text}\" y=\"52\">{said}</text>"));
        x += 46.0 + 7.0 * said.chars().count() as f64;
    }
    if scenario.programs.iter().any(|program| program.request.is_some()) {
        put(out, &format!("<text class=\"ink\" x=\"{LEFT}\" y=\"72\">dashed: what each asks for</text>"));
    }
}

/// The curves of one time together, in axes of their own.
fn panel(out: &mut String, x: f64, scenario: &Scenario, curves: &Curves) {
    let seconds = curves.length.as_secs_f64().max(1e-3);
    let across = |at: f64| x + (at / seconds).min(1.0) * PANEL;
    let (right, bottom) = (x + PANEL, TOP + TALL);
    put(out, "<g>");
    put(
        out,
        &format!(
            "<text class=\"ink\" x=\"{x}\" y=\"{}\" font-size=\"13\">{}</text>",
            TOP - 10.0,
            escaped(&curves.title)
        ),
    );
    for quarter in 0..=4 {
        let (share, class) = (f64::from(quarter) / 4.0, if quarter == 0 { "axis" } else { "grid" });
        let (y, label) = (height(share), x - 6.0);
        put(out, &format!("<line class=\"{class}\" x1=\"{x}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\"/>"));
        put(
            out,
            &format!(
                "<text class=\"ink\" text-anchor=\"end\" x=\"{label}\" y=\"{}\">{}%</text>",
                y + 4.0,
                quarter * 25
            ),
        );
    }
    put(out, &format!("<line class=\"axis\" x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{bottom}\"/>"));
    let step = step(seconds);
    let mut at = 0.0;
    while at <= seconds {
        let (tick, label) = (round(across(at)), bottom + 18.0);
        put(
            out,
            &format!("<line class=\"axis\" x1=\"{tick}\" y1=\"{bottom}\" x2=\"{tick}\" y2=\"{}\"/>", bottom + 4.0),
        );
        put(out, &format!("<text class=\"ink\" text-anchor=\"middle\" x=\"{tick}\" y=\"{label}\">{at}</text>"));
        at += step;
    }
    let middle = x + PANEL / 2.0;
    put(
        out,
        &format!("<text class=\"ink\" text-anchor=\"middle\" x=\"{middle}\" y=\"{}\">seconds</text>", bottom + 38.0),
    );
    for (number, program) in scenario.programs.iter().enumerate() {
        asked(out, number, program, x);
        let points = curves.samples.iter().filter_map(|sample| {
            let share = sample.shares.get(number)?;
            Some(format!("{},{}", round(across(sample.at.as_secs_f64())), height(*share)))
        });
        let points: Vec<String> = points.collect();
        put(out, &format!("<polyline class=\"c{number}\" points=\"{}\"/>", points.join(" ")));
    }
    put(out, "</g>");
}

/// The line that a program's curve should not be below, as far as it has a use for so much.
fn asked(out: &mut String, number: usize, program: &Program, x: f64) {
    if let Some(request) = program.requested() {
        let (y, right) = (height(request), x + PANEL);
        put(out, &format!("<line class=\"asked c{number}\" x1=\"{x}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\"/>"));
    }
}

/// Where a share is, from the top.
fn height(share: f64) -> f64 {
    round(TOP + TALL * (1.0 - share.clamp(0.0, 1.0)))
}

/// To a tenth: nobody sees less.
fn round(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

/// From one second that is written to the next: ten of them at most.
fn step(seconds: f64) -> f64 {
    let steps = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0];
    steps.into_iter().find(|step| seconds / step <= 10.0).unwrap_or(600.0)
}

/// As text in XML, which has no place for control characters at all.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let _ = match c {
            // writing to a String does not fail
            '&' => write!(out, "&amp;"),
            '<' => write!(out, "&lt;"),
            '>' => write!(out, "&gt;"),
            c if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) => write!(out, "\u{fffd}"),
            c => write!(out, "{c}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(title: &str) -> Curves {
        let sample = |tenth: u64| Sample {
            at: Duration::from_millis(4000 + 100 * tenth),
            shares: vec![if tenth.is_multiple_of(2) { 0.4 } else { 0.6 }, 0.25, 0.0],
        };
        let history: Vec<Sample> = (1..=20).chain([20, 20]).map(sample).collect();
        Curves::of(title, Duration::from_secs(4), Duration::from_secs(2), &history)
    }

    fn played(gpu: &str, titles: &[&str]) -> Played {
        let alone = [1.0, 0.9, 0.13].map(|share| Measured {
            rate: 1.0,
            latency_ms: None,
            share,
            useful: share,
            memory_bytes: 0,
            waited: None,
        });
        let curves = titles.iter().map(|title| curves(title)).collect();
        Played { gpu: gpu.to_owned(), alone: alone.to_vec(), together: Vec::new(), curves }
    }

    /// The names of all elements, in order, if each ends where it should and no text is taken for an element.
    fn elements(text: &str) -> Vec<&str> {
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        for part in text.split('<').skip(1) {
            let (tag, said) = part.split_once('>').unwrap_or_else(|| panic!("an element without an end: {part}"));
            assert!(!said.contains('>') && tag.matches('"').count().is_multiple_of(2), "{part}");
            for entity in said.split('&').skip(1) {
                assert!(["amp;", "lt;", "gt;"].iter().any(|known| entity.starts_with(known)), "{said}");
            }
            let name = tag.split([' ', '/']).next().unwrap_or_default();
            match tag.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed), "{text}"),
                None => seen.push(name),
            }
            if !tag.starts_with('/') && !tag.ends_with('/') {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "{open:?} have no end");
        seen
    }

    #[test]
    fn moments_at_one_time_count_once_and_points_are_means() {
        let curves = curves("all");
        assert_eq!(curves.samples.len(), 20);
        assert_eq!(curves.samples[0].at, Duration::from_millis(100));
        assert_eq!(curves.samples[0].shares, [0.6, 0.25, 0.0]);
        let last = &curves.samples[19];
        assert_eq!(last.at, Duration::from_secs(2));
        assert!((last.shares[0] - 0.48).abs() < 1e-9, "the mean of five: {last:?}");
    }

    #[test]
    fn each_panel_has_a_curve_for_each_program_and_what_each_asks_for() {
        let drawn = svg(&Scenario::containers(), &played("GPU", &["without ration", "with ration"]));
        let elements = elements(&drawn);
        let count = |name: &str| elements.iter().filter(|element| **element == name).count();
        assert_eq!((count("polyline"), count("svg"), count("title"), count("style"), count("g")), (6, 1, 1, 1, 2));
        assert_eq!(drawn.matches("class=\"asked ").count(), 6);
        for said in [
            "trainer (asks for 50%)",
            "inference (asks for 20%, uses 13% alone)",
            ">seconds<",
            ">100%<",
            ">without ration<",
            ">with ration<",
            "prefers-color-scheme",
        ] {
            assert!(drawn.contains(said), "{said:?} is not in\n{drawn}");
        }
        let lines: Vec<&str> = drawn.lines().filter(|line| line.starts_with("<polyline")).collect();
        for (number, line) in lines.iter().enumerate() {
            let points: Vec<&str> = line.split('"').nth(3).expect("points").split(' ').collect();
            assert_eq!(points.len(), 20, "{line}");
            let (x, y) = points[19].split_once(',').expect("a point");
            let right = LEFT + PANEL + (number / 3) as f64 * (PANEL + GAP);
            assert_eq!(x.parse::<f64>().expect("a number"), right);
            let share = 1.0 - (y.parse::<f64>().expect("a number") - TOP) / TALL;
            assert!((share - [0.48, 0.25, 0.0][number % 3]).abs() < 1e-3, "{share}: {line}");
        }
    }

    #[test]
    fn names_are_text_and_shares_stay_in_their_axes() {
        let scenario = "a<b>&\" kernel=1ms memory=1GiB wait\nb\u{1} kernel=1ms memory=1GiB wait\n".parse::<Scenario>();
        let drawn = svg(&scenario.expect("two programs"), &played("</svg>", &["<g>"]));
        elements(&drawn);
        assert!(
            drawn.contains(">a&lt;b&gt;&amp;\"<") && !drawn.contains('\u{1}') && !drawn.contains("dashed:"),
            "{drawn}"
        );
        assert_eq!((height(1.5), height(-1.0), height(1.0)), (TOP, TOP + TALL, TOP));
        assert_eq!([1.5, 6.3, 60.0, 3600.0].map(step), [0.2, 1.0, 10.0, 600.0]);
    }
}
