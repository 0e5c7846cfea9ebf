//! The same as lines, for a pipe or a log, and for programs.

use std::io::{self, Write as _};
use std::time::Instant;

use serde::Serialize;

use super::Arguments;
use super::history::{History, Rates};
use super::rows::{Column, Row, rows};
use crate::look::{Container, Problem, Report, VERSION};
use crate::text;

/// As wide as lines are that nobody has to fold.
const WIDTH: usize = 110;

/// Looks and prints, once or again and again.
pub fn print(arguments: &Arguments, mut look: impl FnMut() -> Report) -> io::Result<()> {
    let (mut history, began) = (History::default(), Instant::now());
    let mut last = look();
    history.add(began.elapsed(), &last);
    loop {
        // The first one, too, says what was had in the time before.
        std::thread::sleep(arguments.interval);
        last = look();
        history.add(began.elapsed(), &last);
        let rows = rows(&last, &history, (arguments.sort, arguments.reverse), &arguments.filter);
        let shown = match (arguments.json, arguments.watch) {
            (true, false) => serde_json::to_string_pretty(&form(&last, &rows))? + "\n",
            (true, true) => serde_json::to_string(&form(&last, &rows))? + "\n",
            (false, _) => table(&last, &rows, &arguments.filter),
        };
        if !arguments.json {
            for problem in &last.problems {
                // Nobody has to read them.
                let _ = writeln!(io::stderr(), "ration top: {}: {}", text::safe(&problem.path, 200), problem.why);
            }
        }
        let mut out = io::stdout().lock();
        out.write_all(shown.as_bytes())?;
        if !arguments.watch {
            return out.flush();
        }
        if !arguments.json {
            out.write_all(b"\n")?;
        }
        out.flush()?;
    }
}

/// A line for each container.
fn table(report: &Report, all: &[Row<'_>], filter: &str) -> String {
    if all.is_empty() {
        return format!("{}\n", nobody(filter));
    }
    let columns = Column::fitting(WIDTH, report.gpus.len() > 1);
    let sides: Vec<_> = columns.iter().map(|(column, _)| column.side()).collect();
    let head = columns.iter().map(|(column, _)| column.head().to_owned()).collect();
    let cells = |row: &Row<'_>| columns.iter().map(|(column, width)| column.cell(row, *width)).collect();
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(all.iter().map(cells)).collect();
    text::table_apart(&sides, 1, 1, &lines)
}

/// What is said where there is nobody.
pub fn nobody(filter: &str) -> &'static str {
    if filter.is_empty() { "No container uses a GPU here." } else { "No container fits the filter." }
}

/// The form of `ration status`, with what each container has had of late.
#[derive(Serialize)]
struct Form<'a> {
    version: u32,
    gpus: Vec<FormGpu<'a>>,
    problems: &'a [Problem],
}

#[derive(Serialize)]
struct FormGpu<'a> {
    uuid: &'a str,
    index: Option<u32>,
    name: Option<&'a str>,
    memory_bytes: Option<u64>,
    taken_bytes: Option<u64>,
    containers: Vec<FormContainer<'a>>,
}

#[derive(Serialize)]
struct FormContainer<'a> {
    #[serde(flatten)]
    container: &'a Container,
    #[serde(flatten)]
    rates: Rates,
}

fn form<'a>(report: &'a Report, rows: &[Row<'a>]) -> Form<'a> {
    let gpus = report.gpus.iter().enumerate().map(|(number, gpu)| FormGpu {
        uuid: &gpu.uuid,
        index: gpu.index,
        name: gpu.name.as_deref(),
        memory_bytes: gpu.memory_bytes,
        taken_bytes: gpu.taken_bytes,
        containers: rows
            .iter()
            .filter(|row| row.gpu_number == number)
            .map(|row| FormContainer { container: row.container, rates: row.rates })
            .collect(),
    });
    Form { version: VERSION, gpus: gpus.collect(), problems: &report.problems }
}

#[cfg(test)]
mod tests {
    use super::super::rows::Sort;
    use super::*;
    use crate::look::tests::report;

    #[test]
    fn lines_are_no_longer_than_they_may_be() {
        let report = report();
        let shown = table(&report, &rows(&report, &History::default(), (Sort::Name, false), ""), "");
        let expected = "\
NAME       USER      MEMORY PRIORITY  REQ LIMIT WANTS 1 s 10 s THROT WAIT DENY PROC SWITCHED BY
───────────────────────────────────────────────────────────────────────────────────────────────
serve      1001           - latency  none  100%     -   -    -     -    -    -    - -
team/train 1000 3.0/8.0 GiB normal    30%   30%   97%   -    -     -    -    2    1 channels
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_form_is_that_of_status_and_a_little_more() {
        let report = report();
        let rows = rows(&report, &History::default(), (Sort::Name, false), "");
        let value = serde_json::to_value(form(&report, &rows)).expect("it is JSON");
        let status = serde_json::to_value(&report).expect("it is JSON");
        for (key, expected) in status["gpus"][0]["containers"][0].as_object().expect("an object") {
            assert_eq!(&value["gpus"][0]["containers"][1][key], expected, "{key}");
        }
        for key in ["got_1s_percent", "got_10s_percent", "throttled_percent", "waited_percent", "refused_10s"] {
            assert!(value["gpus"][0]["containers"][0].get(key).is_some(), "{key}: {value}");
        }
        assert_eq!((&value["version"], &value["problems"]), (&status["version"], &status["problems"]));
    }
}
