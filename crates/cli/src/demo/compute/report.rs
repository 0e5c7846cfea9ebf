//! The end of the act about compute: what each asked for, what it had without ration and with it, and what held.

use super::super::figures::Measured;
use super::verdict::SHORT;
use super::{ComputeResults, ContainerResult};
use crate::text::{self, Side, percent};

/// Lines are at most this long.
const WIDTH: usize = 100;

/// The table and the words.
pub fn report(results: &ComputeResults) -> String {
    let mut said = table(results);
    said.push('\n');
    for verdict in &results.verdicts {
        said += &text::wrap(&format!("• {} {}", verdict.held.mark(), verdict.said), WIDTH, "  ");
    }
    if let Some(starved) = results.starved() {
        let doubt = format!(
            "This machine is busy with other things: a container that was ready to run waited for a CPU for {} of the \
             time, and who cannot run cannot take turns. Take the figures with ration as rough ones.",
            percent(starved)
        );
        said += &text::wrap(&format!("• {doubt}"), WIDTH, "  ");
    }
    said.push('\n');
    said += &text::wrap(
        &format!(
            "Shares are by the simulated GPU's own record, and hold within {} points; latencies are by the container's \
             own clock. The programs are the same every time: with ration, libration.so is loaded into them and told \
             what each asks for.",
            SHORT * 100.0
        ),
        WIDTH,
        "",
    );
    said
}

fn table(results: &ComputeResults) -> String {
    let heads = [
        ["compute", "GPU time", "", "", "", "latency p50 / p99, ms", "", ""],
        ["container", "asks for", "alone", "without", "with", "alone", "without", "with ration"],
    ];
    let mut rows: Vec<Vec<String>> = heads.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
    rows.extend(results.containers.iter().map(row));
    let parts = [
        ("(switching)", results.without.switching, results.with.switching),
        ("(idle)", results.without.idle, results.with.idle),
    ];
    for (name, without, with) in parts {
        rows.push(vec![name.to_owned(), String::new(), String::new(), percent(without), percent(with)]);
    }
    let sides = [Side::Left, Side::Right, Side::Right, Side::Right, Side::Right, Side::Left, Side::Left, Side::Left];
    text::table_with(&sides, 2, &rows)
}

fn row(container: &ContainerResult) -> Vec<String> {
    let phases = [&container.alone, &container.without, &container.with];
    let latency = |measured: &Measured| {
        let latency =
            measured.latency_ms.map(|latency| format!("{} / {}", text::ms(latency.p50), text::ms(latency.p99)));
        latency.unwrap_or_default()
    };
    let mut cells = vec![container.name.clone(), container.request.map_or("–".into(), percent)];
    cells.extend(phases.map(|measured| percent(measured.share)));
    cells.extend(phases.map(latency));
    cells
}

#[cfg(test)]
mod tests {
    use super::super::staged;
    use super::*;

    #[test]
    fn the_table_is_laid_out_like_this() {
        let expected = "\
compute       GPU time                            latency p50 / p99, ms
container     asks for   alone   without   with   alone                   without       with ration
───────────────────────────────────────────────────────────────────────────────────────────────────
trainer            50%    100%       61%    53%
notebook           30%     93%       15%    32%
inference          20%     13%       14%    13%   2.66 / 2.71             6.21 / 7.42   2.98 / 3.51
(switching)                          10%   1.0%
(idle)                              1.0%   1.0%
";
        assert_eq!(table(&staged()), expected);
    }

    #[test]
    fn each_promise_has_a_line_that_says_whether_it_held() {
        let said = report(&staged());
        assert_eq!(said.matches("\n• held: ").count(), 5, "{said}");
        assert!(!said.contains("busy"), "{said}");
        for line in said.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        let mut results = staged();
        results.containers[1].with.share = 0.1;
        let results = results.judged();
        assert!(report(&results).contains("\n• NOT held: notebook asked for 30%"), "{}", report(&results));
        assert_eq!(results.broken().len(), 1);
        let starved = ComputeResults { waited: Some(0.64), ..results };
        let said = report(&starved).replace("\n  ", " ");
        assert!(said.contains("NOT held") && said.contains("waited for a CPU for 64% of the time"), "{said}");
        assert!(starved.broken().is_empty(), "it is said, and is nobody's fault");
        assert!(staged().broken().is_empty());
    }
}
