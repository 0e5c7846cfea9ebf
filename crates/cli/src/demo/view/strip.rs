//! The strip: a few dozen milliseconds of the GPU's timeline, a lane for each program.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::super::scene::Scene;
use super::{COLOURS, QUIET, framed, put};

/// Time that one column stands for.
const COLUMN_NS: u64 = 500_000;
/// Columns up to the widest terminal that gets a full strip.
const COLUMNS: usize = 400;
/// Room for the programs' names.
pub const NAMES: u16 = 13;

/// Part of each column's time that each program had, oldest column first.
#[derive(Debug, Default, PartialEq)]
pub struct Strip {
    lanes: Vec<Vec<f64>>,
}

impl Strip {
    /// The newest stretch of a scene.
    pub fn of(scene: &Scene) -> Strip {
        let end = scene.clock_ns;
        let start = end.saturating_sub(COLUMNS as u64 * COLUMN_NS);
        let mut lanes = vec![vec![0.0; COLUMNS]; scene.programs.len()];
        for run in &scene.runs {
            let Some(program) = scene.program_at(run.slot) else { continue };
            let (from, to) = (run.start_ns.max(start), run.end_ns.min(end));
            fill(&mut lanes[program], from.saturating_sub(start), to.saturating_sub(start));
        }
        Strip { lanes }
    }
}

/// Adds the stretch to the columns that it touches, to each the part of it that it covers.
fn fill(lane: &mut [f64], from_ns: u64, to_ns: u64) {
    let first = (from_ns / COLUMN_NS) as usize;
    for (index, column) in lane.iter_mut().enumerate().skip(first) {
        let (start, end) = (index as u64 * COLUMN_NS, (index as u64 + 1) * COLUMN_NS);
        if start >= to_ns {
            return;
        }
        let covered = to_ns.min(end).saturating_sub(from_ns.max(start));
        *column += covered as f64 / COLUMN_NS as f64;
    }
}

/// The lanes, with a ruler below.
pub fn draw(frame: &mut Frame<'_>, area: Rect, scene: &Scene, strip: &Strip) {
    let columns = usize::from(area.width.saturating_sub(NAMES + 4)).min(COLUMNS);
    let ms = columns as u64 * COLUMN_NS / 1_000_000;
    let inside = framed(frame, area, &format!("On the GPU: {ms} ms of it, a lane for each program"));
    let buffer = frame.buffer_mut();
    for (row, (performer, lane)) in scene.programs.iter().zip(&strip.lanes).enumerate() {
        let y = inside.y + row as u16;
        let colour = COLOURS[row % COLOURS.len()];
        let style = if performer.on_stage { Style::new().fg(colour) } else { QUIET };
        put(buffer, inside, (inside.x, y), &performer.program.name, style);
        for (column, part) in lane[COLUMNS - columns..].iter().enumerate() {
            let place = (inside.x + NAMES + column as u16, y);
            if let Some(cell) = buffer.cell_mut(place).filter(|_| inside.contains(place.into())) {
                cell.set_symbol(bar(*part)).set_fg(if *part < 0.06 { Color::DarkGray } else { colour });
            }
        }
    }
    let y = inside.y + strip.lanes.len() as u16;
    for column in (0..columns as u16).step_by(20) {
        let text = format!("╵{} ms", u64::from(column) * COLUMN_NS / 1_000_000);
        put(buffer, inside, (inside.x + NAMES + column, y), &text, QUIET);
    }
}

/// A column of this height.
fn bar(part: f64) -> &'static str {
    const BARS: [&str; 9] = ["·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    BARS[((part * 8.0).round() as usize).min(8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_fills_the_columns_that_it_covers() {
        let mut lane = [0.0; 5];
        fill(&mut lane, 250_000, 1_500_000);
        assert_eq!(lane, [0.5, 1.0, 1.0, 0.0, 0.0]);
        fill(&mut lane, 2_400_000, u64::MAX);
        assert!((lane[4] - 0.2).abs() < 1e-9);
        assert_eq!((bar(0.0), bar(0.5), bar(1.0), bar(1.2)), ("·", "▄", "█", "█"));
    }
}
