//! A terminal's screen as a picture.

use std::fmt::Write as _;

use vt100::Color;

/// How wide and high a cell is.
const CELL: (f64, f64) = (8.4, 18.0);
const MARGIN: f64 = 12.0;
const GROUND: &str = "#1c1e26";
const INK: &str = "#d5d8da";
/// The colours that terminals have by number.
const BY_NUMBER: [&str; 16] = [
    "#1c1e26", "#e95678", "#29d398", "#fab795", "#26bbd9", "#ee64ac", "#59e1e3", "#d5d8da", "#6c6f93", "#ec6a88",
    "#3fdaa4", "#fbc3a7", "#3fc4de", "#f075b5", "#6be4e6", "#ffffff",
];

fn colour(of: Color, else_: &str) -> String {
    match of {
        Color::Default => else_.to_owned(),
        Color::Idx(number) => BY_NUMBER.get(usize::from(number)).map_or_else(|| INK.to_owned(), |it| (*it).to_owned()),
        Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
    }
}

/// How a cell looks.
#[derive(Clone, PartialEq)]
struct Style {
    ink: String,
    ground: String,
    is_bold: bool,
    is_dim: bool,
}

fn style(cell: &vt100::Cell) -> Style {
    let (mut ink, mut ground) = (colour(cell.fgcolor(), INK), colour(cell.bgcolor(), GROUND));
    if cell.inverse() {
        std::mem::swap(&mut ink, &mut ground);
    }
    Style { ink, ground, is_bold: cell.bold(), is_dim: cell.dim() }
}

/// The screen as SVG: a line of text for each run of cells that look the same.
pub fn svg(screen: &vt100::Screen) -> String {
    let (lines, columns) = screen.size();
    let (lines, columns) = (lines.get(), columns.get());
    let (width, height) = (f64::from(columns) * CELL.0 + 2.0 * MARGIN, f64::from(lines) * CELL.1 + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-size=\"14\" \
         font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\">\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"6\" fill=\"{GROUND}\"/>\n"
    );
    for line in 0..lines {
        let mut column = 0;
        while column < columns {
            let Some(first) = screen.cell(line, column) else { break };
            let (look, begin, mut text) = (style(first), column, String::new());
            while let Some(cell) = screen.cell(line, column).filter(|it| style(it) == look) {
                let sign = cell.contents();
                text.push_str(if sign.is_empty() { " " } else { sign });
                column += 1;
            }
            run(&mut svg, (f64::from(begin), f64::from(line)), &look, &text);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Adds a run of cells from a column and a line on.
fn run(svg: &mut String, at: (f64, f64), look: &Style, text: &str) {
    let (x, y) = (MARGIN + at.0 * CELL.0, MARGIN + at.1 * CELL.1);
    let width = text.chars().count() as f64 * CELL.0;
    if look.ground != GROUND {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{}\"/>",
            CELL.1, look.ground
        );
    }
    let shown = text.trim_end();
    if shown.is_empty() {
        return;
    }
    let width = shown.chars().count() as f64 * CELL.0;
    let weight = if look.is_bold { " font-weight=\"bold\"" } else { "" };
    let dim = if look.is_dim { " opacity=\"0.6\"" } else { "" };
    let shown = shown.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{width:.1}\" xml:space=\"preserve\" fill=\"{}\"{weight}{dim}>{shown}</text>",
        y + CELL.1 * 0.75,
        look.ink
    );
}
