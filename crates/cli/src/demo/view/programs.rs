//! The programs: what each gets now, and what it got alone.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table};

use super::super::figures::Latency;
use super::super::scene::{Performer, Scene};
use super::strip::NAMES;
use super::{COLOURS, QUIET, framed};
use crate::text;

/// The least that a gauge is worth drawing at, and the most it needs.
const GAUGE: (u16, u16) = (6, 40);
/// Room behind a gauge for its figure.
const FIGURE: u16 = 5;

/// What is said of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    Share,
    Request,
    ShareAlone,
    ShareBefore,
    Memory,
    Rate,
    RateAlone,
    Latency,
    LatencyAlone,
    LatencyBefore,
}

impl Column {
    /// In this order, each with its head and its width. The share's gauge takes what is left.
    const ALL: [(Column, &'static str, u16); 11] = [
        (Column::Name, "", NAMES - 1),
        (Column::Share, "GPU time", 0),
        (Column::Request, " asks", 5),
        (Column::ShareAlone, "alone", 5),
        (Column::ShareBefore, "without", 7),
        (Column::Memory, "  memory", 8),
        (Column::Rate, "      progress", 16),
        (Column::RateAlone, " alone", 6),
        (Column::Latency, "latency p50 / p99", 17),
        (Column::LatencyAlone, "alone", 11),
        (Column::LatencyBefore, "without", 11),
    ];

    /// Those about which there is something to say. What programs ask for is of no use before there is ration.
    fn of(scene: &Scene) -> Vec<(Column, &'static str, u16)> {
        let with_ration = scene.plan[scene.phase].with_ration;
        let mut columns = Column::ALL.to_vec();
        columns.retain(|(column, ..)| {
            let about_ration = [Column::Request, Column::ShareBefore, Column::LatencyBefore].contains(column);
            with_ration || !about_ration
        });
        columns
    }

    /// Those of them that fit, and the width of the gauge. What matters less goes first.
    fn fitting(mut columns: Vec<(Column, &'static str, u16)>, width: u16) -> (Vec<(Column, &'static str, u16)>, u16) {
        let victims = [
            Column::Memory,
            Column::LatencyAlone,
            Column::RateAlone,
            Column::ShareAlone,
            Column::LatencyBefore,
            Column::ShareBefore,
            Column::Latency,
            Column::Request,
        ];
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

    fn cell(self, performer: &Performer, colour: Color, gauge: u16) -> Line<'static> {
        let (program, here) = (&performer.program, performer.on_stage);
        let (alone, before) = (performer.alone.as_ref(), performer.before.as_ref());
        let quiet = |text: Option<String>| Line::styled(text.unwrap_or_default(), QUIET);
        let plain = |text: Option<String>| Line::from(text.filter(|_| here).unwrap_or_default());
        match self {
            Column::Name if here => Line::from(program.name.clone().bold().fg(colour)),
            Column::Name => quiet(Some(program.name.clone())),
            Column::Share if here => {
                let (full, rest) = bar(performer.share.unwrap_or(0.0), usize::from(gauge));
                let figure = performer.share.map_or("–".into(), text::percent);
                Line::from(vec![full.fg(colour), Span::styled(rest, QUIET), format!(" {figure:>4}").into()])
            }
            Column::Share => Line::default(),
            Column::Request => plain(program.requested().map(text::percent)).right_aligned(),
            Column::ShareBefore => quiet(before.map(|m| text::percent(m.share))).right_aligned(),
            Column::ShareAlone => quiet(alone.map(|m| text::percent(m.share))).right_aligned(),
            Column::Memory => plain(Some(text::memory(performer.memory))).right_aligned(),
            Column::Rate => {
                let unit = program.style.unit();
                plain(performer.rate.map(|rate| format!("{:>5} {unit}/s", text::rate(rate))))
            }
            Column::RateAlone => quiet(alone.map(|m| text::rate(m.rate))).right_aligned(),
            Column::Latency => plain(performer.latency.map(|latency| format!("{} ms", pair(latency)))),
            Column::LatencyAlone => quiet(alone.and_then(|m| m.latency_ms).map(pair)),
            Column::LatencyBefore => quiet(before.and_then(|m| m.latency_ms).map(pair)),
        }
    }
}

/// One row a program.
pub fn draw(frame: &mut Frame<'_>, area: Rect, scene: &Scene) {
    let inside = framed(frame, area, "What each gets in a second, and what it got before");
    let (columns, gauge) = Column::fitting(Column::of(scene), inside.width);
    let rows =
        scene.programs.iter().zip(COLOURS.iter().cycle()).map(|(performer, colour)| {
            Row::new(columns.iter().map(|(column, ..)| column.cell(performer, *colour, gauge)))
        });
    let widths = columns.iter().map(|(column, _, width)| match column {
        Column::Share => Constraint::Length(gauge + FIGURE),
        _ => Constraint::Length(*width),
    });
    let head = Row::new(columns.iter().map(|(_, head, _)| *head)).style(QUIET);
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(1), inside);
}

fn pair(latency: Latency) -> String {
    format!("{} / {}", text::ms(latency.p50), text::ms(latency.p99))
}

/// A bar of eighths: what is full, and what is not.
pub fn bar(part: f64, width: usize) -> (String, String) {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = ((part.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize).min(width * 8);
    let full = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    let rest = "·".repeat(width - full.chars().count());
    (full, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_terminal_gets_less_and_a_wide_one_no_more_than_it_needs() {
        let (all, gauge) = Column::fitting(Column::ALL.to_vec(), 200);
        assert_eq!((all.len(), gauge), (11, 40));
        let (some, gauge) = Column::fitting(Column::ALL.to_vec(), 100);
        assert_eq!((some.len(), gauge), (9, 7));
        assert!(!some.iter().any(|(column, ..)| matches!(column, Column::Memory | Column::LatencyAlone)));
        for width in 42..140 {
            let (columns, gauge) = Column::fitting(Column::ALL.to_vec(), width);
            let needed = columns.iter().map(|(_, _, width)| width + 1).sum::<u16>() + gauge + FIGURE;
            assert!(needed <= width, "{needed} of {width}");
        }
    }

    #[test]
    fn bars_are_as_long_as_the_part() {
        assert_eq!(bar(0.0, 4), (String::new(), "····".into()));
        assert_eq!(bar(0.5, 4), ("██".into(), "··".into()));
        assert_eq!(bar(0.53, 4), ("██▏".into(), "·".into()));
        assert_eq!(bar(1.7, 4), ("████".into(), String::new()));
    }
}
