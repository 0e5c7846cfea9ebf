//! The chart: shares of the GPU's time or memory over a whole act, stacked, from left to right as it goes on.

use std::time::Duration;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;

use super::super::scene::Sample;
use super::strip::NAMES;
use super::{COLOURS, QUIET, framed, put};

/// What is drawn.
pub struct Chart<'a> {
    /// Of what.
    pub title: &'a str,
    /// The shares, as far as they are known.
    pub history: &'a [Sample],
    /// What follows what, and how long it takes.
    pub phases: Vec<(&'a str, Duration)>,
}

/// As wide as the act is long.
pub fn draw(frame: &mut Frame<'_>, area: Rect, chart: &Chart<'_>) {
    let inside = framed(frame, area, chart.title);
    let Some(height) = inside.height.checked_sub(1).filter(|height| *height > 0) else { return };
    let graph = Rect { x: inside.x + NAMES, width: inside.width.saturating_sub(NAMES), height, ..inside };
    let total = chart.phases.iter().map(|(_, length)| *length).sum::<Duration>().as_secs_f64();
    let columns = columns(chart.history, usize::from(graph.width), total);
    let buffer = frame.buffer_mut();
    for (text, y) in [("100%", graph.y), ("0%", graph.y + height - 1)] {
        put(buffer, inside, (inside.x, y), &format!("{text:>11}"), QUIET);
    }
    for (x, shares) in columns.iter().enumerate().filter_map(|(x, shares)| Some((x, shares.as_ref()?))) {
        stack(buffer, Rect { x: graph.x + x as u16, width: 1, ..graph }, shares);
    }
    let mut at = 0.0;
    for (title, length) in &chart.phases {
        let place = |time: f64| (time / total * f64::from(graph.width)) as u16;
        let (from, to) = (place(at), place(at + length.as_secs_f64()));
        let fits = title.chars().count() < usize::from(to - from);
        let title = if fits { title } else { title.trim_end_matches(" alone") };
        put(buffer, inside, (graph.x + from, graph.y + height), &format!("╵{title}"), QUIET);
        at += length.as_secs_f64();
    }
}

/// The mean of what falls into each column; a column that nothing fell into yet, before one that something did, is
/// like its neighbour.
fn columns(history: &[Sample], width: usize, total: f64) -> Vec<Option<Vec<f64>>> {
    let mut sums: Vec<Option<(usize, Vec<f64>)>> = vec![None; width];
    for sample in history {
        let at = ((sample.at.as_secs_f64() / total * width as f64) as usize).min(width.saturating_sub(1));
        let Some(sum) = sums.get_mut(at) else { continue };
        let (count, shares) = sum.get_or_insert_with(|| (0, vec![0.0; sample.shares.len()]));
        *count += 1;
        shares.iter_mut().zip(&sample.shares).for_each(|(sum, share)| *sum += share);
    }
    let means = sums.into_iter().map(|sum| {
        let (count, shares) = sum?;
        Some(shares.into_iter().map(|share| share / count as f64).collect())
    });
    let mut means: Vec<Option<Vec<f64>>> = means.collect();
    for index in (1..means.len()).rev() {
        if means[index - 1].is_none() {
            means[index - 1] = means[index].clone();
        }
    }
    means
}

/// One column, from the bottom up, in eighths of a cell. A cell has two colours: of those that meet in it, the lowest
/// two.
fn stack(buffer: &mut Buffer, column: Rect, shares: &[f64]) {
    const BARS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
    let eighths = f64::from(column.height) * 8.0;
    let mut tops = Vec::new();
    let mut sum = 0.0;
    for share in shares {
        sum += share;
        tops.push((sum * eighths).round().min(eighths) as u16);
    }
    for row in 0..column.height {
        let (bottom, top) = (row * 8, row * 8 + 8);
        let inside = |tops: &[u16]| tops.iter().position(|end| *end > bottom);
        let Some(lowest) = inside(&tops) else { return };
        let Some(cell) = buffer.cell_mut((column.x, column.y + column.height - 1 - row)) else { return };
        let end = tops[lowest].min(top);
        let above = tops[lowest + 1..].iter().position(|other| *other > end).map(|i| i + lowest + 1);
        cell.set_symbol(BARS[usize::from(end - bottom)]).set_fg(COLOURS[lowest % COLOURS.len()]);
        cell.set_bg(above.filter(|_| end < top).map_or(Color::Reset, |i| COLOURS[i % COLOURS.len()]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_means_and_gaps_are_filled_from_the_right() {
        let sample = |ms, share| Sample { at: Duration::from_millis(ms), shares: vec![share] };
        let columns = columns(&[sample(100, 0.2), sample(200, 0.4), sample(2_500, 1.0)], 4, 4.0);
        let shares: Vec<Option<f64>> = columns.iter().map(|c| c.as_ref().map(|s| (s[0] * 10.0).round())).collect();
        assert_eq!(shares, [Some(3.0), Some(10.0), Some(10.0), None]);
    }

    #[test]
    fn a_column_is_stacked_from_the_bottom() {
        let area = Rect::new(0, 0, 1, 4);
        let mut buffer = Buffer::empty(area);
        stack(&mut buffer, area, &[0.375, 0.25]);
        let cell = |y: u16| buffer.cell((0, y)).map(|c| (c.symbol().to_owned(), c.fg, c.bg));
        assert_eq!(cell(3), Some(("█".into(), COLOURS[0], Color::Reset)));
        assert_eq!(cell(2), Some(("▄".into(), COLOURS[0], COLOURS[1])));
        assert_eq!(cell(1), Some(("▄".into(), COLOURS[1], Color::Reset)));
        assert_eq!(cell(0), Some((" ".into(), Color::Reset, Color::Reset)));
    }
}
