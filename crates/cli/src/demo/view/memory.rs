//! The act about memory: both runs, one below the other, each with its containers and what they hold of what they may.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Margin, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table};

use super::super::memory::{Actor, Run, Scene, short};
use super::chart::{self, Chart};
use super::programs::bar;
use super::strip::NAMES;
use super::{COLOURS, QUIET, footer, framed, header};
use crate::text;

/// The least that a gauge is worth drawing at, and the most it needs.
const GAUGE: (u16, u16) = (6, 40);
/// Room behind a gauge for its figure.
const FIGURE: u16 = 7;

/// What is said of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    Held,
    Bytes,
    Believes,
    Rate,
    Refused,
    With,
}

impl Column {
    /// In this order, each with its head and its width. The gauge takes what is left.
    const ALL: [(Column, &'static str, u16); 7] = [
        (Column::Name, "", NAMES - 1),
        (Column::Held, "as the GPU counts", 0),
        (Column::Bytes, "", 20),
        (Column::Believes, "believes free", 20),
        (Column::Rate, "  gets done", 15),
        (Column::Refused, "refused", 7),
        (Column::With, "CUDA_ERROR_…", 13),
    ];

    /// Those that fit, and the width of the gauge. What matters less goes first.
    fn fitting(width: u16) -> (Vec<(Column, &'static str, u16)>, u16) {
        let mut columns = Column::ALL.to_vec();
        let victims = [Column::With, Column::Bytes, Column::Believes, Column::Refused];
        for victim in std::iter::once(None).chain(victims.map(Some)) {
            columns.retain(|(column, ..)| Some(*column) != victim);
            let others: u16 = columns.iter().map(|(_, _, width)| width + 1).sum();
            let room = width.saturating_sub(others + FIGURE);
            if room >= GAUGE.0 {
                return (columns, room.min(GAUGE.1));
            }
        }
        (columns, GAUGE.0)
    }

    fn cell(self, actor: &Actor, whole: u64, colour: Color, gauge: u16) -> Line<'static> {
        let account = actor.account.as_ref();
        let refused = account.filter(|account| account.refused != 0);
        match self {
            Column::Name => Line::from(actor.role.name().bold().fg(colour)),
            Column::Held => {
                let part = actor.gpu_bytes as f64 / whole.max(1) as f64;
                let (full, rest) = bar(part, usize::from(gauge));
                let figure = format!(" {:>6}", text::fine_percent(part));
                Line::from(vec![full.fg(colour), Span::styled(rest, QUIET), figure.into()])
            }
            Column::Bytes => Line::from(of(actor.gpu_bytes, whole)),
            Column::Believes => Line::from(account.map(|a| of(a.free_bytes, a.total_bytes)).unwrap_or_default()),
            Column::Rate => {
                let unit = actor.role.unit();
                Line::from(actor.rate.map(|rate| format!("{:>5} {unit}/s", text::rate(rate))).unwrap_or_default())
            }
            Column::Refused => {
                let times = account.map(|account| format!("{}×", text::thousands(account.refused)));
                Line::styled(times.unwrap_or_default(), alarm(refused.is_some())).right_aligned()
            }
            Column::With => {
                let name = refused.and_then(|account| account.refused_with.as_deref());
                Line::styled(name.map(short).unwrap_or_default(), alarm(true))
            }
        }
    }
}

fn alarm(rings: bool) -> Style {
    if rings { Style::new().fg(Color::Red).add_modifier(Modifier::BOLD) } else { Style::new() }
}

/// `135.3 of 140.4 GiB`, `4 MiB of 140.4 GiB`.
fn of(part: u64, whole: u64) -> String {
    let (part, whole) = (text::memory(part), text::memory(whole));
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number} of {whole}"),
        _ => format!("{part} of {whole}"),
    }
}

/// All of it.
pub fn draw(frame: &mut Frame<'_>, scene: &Scene) {
    let [head, first, second, below, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area().inner(Margin { horizontal: 1, vertical: 0 }));
    let about = format!("one simulated {} of {}, and who gets its memory", scene.gpu, text::memory(scene.gpu_bytes));
    header(frame, head, about, scene.runs.iter().map(|run| run.title), scene.now);
    for (area, (number, run)) in [first, second].into_iter().zip(scene.runs.iter().enumerate()) {
        draw_run(frame, area, scene, run, number <= scene.now);
    }
    if below.height >= 4 {
        let phases = scene.runs.iter().map(|run| (run.title, scene.times.run())).collect();
        let title = "Who holds how much of the GPU's memory, over the whole act";
        chart::draw(frame, below, &Chart { title, history: &scene.history, phases });
    }
    footer(frame, foot, scene.happening().to_owned());
}

/// One row a container; none before the run has begun.
fn draw_run(frame: &mut Frame<'_>, area: Rect, scene: &Scene, run: &Run, begun: bool) {
    let limits: Vec<String> = run
        .containers
        .iter()
        .filter_map(|actor| Some(format!("{} may have {}", actor.role.name(), text::memory(actor.limit?))))
        .collect();
    let limits = if limits.is_empty() { "nobody has a limit".to_owned() } else { limits.join(", ") };
    let inside = framed(frame, area, &format!("{}: {limits}", run.title));
    if !begun {
        return;
    }
    let (columns, gauge) = Column::fitting(inside.width);
    let rows = run.containers.iter().zip(COLOURS).map(|(actor, colour)| {
        let whole = actor.limit.unwrap_or(scene.gpu_bytes);
        Row::new(columns.iter().map(|(column, ..)| column.cell(actor, whole, colour, gauge)))
    });
    let widths = columns.iter().map(|(column, _, width)| match column {
        Column::Held => Constraint::Length(gauge + FIGURE),
        _ => Constraint::Length(*width),
    });
    let head = Row::new(columns.iter().map(|(_, head, _)| *head)).style(QUIET);
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(1), inside);
}

#[cfg(test)]
mod tests {
    use super::super::super::memory::staged;
    use super::super::tests::on_screen;
    use super::*;

    #[test]
    fn it_can_be_read() {
        let lines = on_screen(160, 30, |frame| draw(frame, &staged()));
        for fragment in [
            "✓ without ration   ▶ with ration",
            "╭ without ration: nobody has a limit ─",
            "╭ with ration: greedy may have 8.0 GiB, steady may have 6.0 GiB ─",
            " 99.97% 8.0 of 8.0 GiB       1 MiB of 8.0 GiB",
            "refused CUDA_ERROR_…",
            "  79.3% 4.8 of 6.0 GiB       1.5 of 6.0 GiB        50.0 answers/s      0×",
            "    25× OUT_OF_MEMORY",
            "greedy was refused, and goes on with what it has",
        ] {
            assert!(lines.iter().any(|line| line.contains(fragment)), "{fragment:?} is not in\n{}", lines.join("\n"));
        }
    }

    #[test]
    fn a_run_that_has_not_begun_shows_nothing() {
        let mut scene = staged();
        scene.now = 0;
        let lines = on_screen(160, 30, |frame| draw(frame, &scene));
        assert!(lines.iter().filter(|line| line.contains("steady ")).count() <= 2, "{}", lines.join("\n"));
    }

    #[test]
    fn what_does_not_fit_is_left_out_in_the_order_of_its_worth() {
        let (all, _) = Column::fitting(150);
        assert_eq!(all.len(), 7);
        let (some, gauge) = Column::fitting(74); // a terminal of 80
        assert_eq!((some.len(), gauge), (5, 8));
        assert!(!some.iter().any(|(column, ..)| matches!(column, Column::With | Column::Bytes)));
        for width in 43..160 {
            let (columns, gauge) = Column::fitting(width);
            let needed = columns.iter().map(|(_, _, width)| width + 1).sum::<u16>() + gauge + FIGURE;
            assert!(needed <= width, "{needed} of {width}");
        }
    }

    #[test]
    fn it_fits_any_terminal() {
        let scene = staged();
        for (width, height) in (1..180).step_by(7).flat_map(|w| (1..40).step_by(2).map(move |h| (w, h))) {
            on_screen(width, height, |frame| draw(frame, &scene));
        }
    }
}
