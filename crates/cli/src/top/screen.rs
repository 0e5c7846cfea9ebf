//! What is on the screen: for each GPU a bar of its memory and one of its time, below that a row for each container.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::bar::{self, Bar, Whose};
use super::plain::nobody;
use super::rows::{self, Column, Row};
use super::state::{Mode, State};
use crate::look::Report;
use crate::text::{self, Side};

/// What containers are told apart by: in colour, and by a letter where a terminal, or an eye, has none.
const COLOURS: [Color; 6] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// A terminal smaller than this shows nothing that helps.
const LEAST: (u16, u16) = (40, 8);
/// Before each row: whose it is in the bars.
const MARK: u16 = 2;

/// What is shown.
pub struct Screen<'a> {
    pub report: &'a Report,
    pub rows: &'a [Row<'a>],
    pub state: &'a State,
    /// How often it is looked.
    pub every: &'a str,
}

/// What a container is drawn as.
#[derive(Clone, Copy)]
pub struct Look {
    pub letter: char,
    pub style: Style,
}

impl Look {
    pub fn of(mark: usize, is_coloured: bool) -> Look {
        let letter = LETTERS.get(mark).map_or('+', |letter| char::from(*letter));
        let style = if is_coloured { Style::new().fg(COLOURS[mark % COLOURS.len()]) } else { Style::new() };
        Look { letter, style }
    }
}

/// Draws all of it. What there is no room for goes in the order of its worth; nothing is written beyond the area.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen<'_>) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let line = format!("ration top: at least {}x{}, please", LEAST.0, LEAST.1);
        frame.buffer_mut().set_stringn(area.x, area.y, line, usize::from(area.width), Style::new());
        return;
    }
    let gpus = screen.report.gpus.len();
    // Two bars for each GPU while they take less than half of the screen, then one line.
    let (each, room) = (if gpus * 3 <= usize::from(area.height) / 2 { 3 } else { 1 }, usize::from(area.height) / 2);
    let lines = (gpus * each).min(room.max(1));
    let [head, bars, _, table, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(lines as u16),
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_head(frame.buffer_mut(), head, screen);
    draw_bars(frame.buffer_mut(), bars, screen, each);
    match screen.state.mode {
        Mode::Help => draw_help(frame.buffer_mut(), table),
        _ => draw_table(frame.buffer_mut(), table, screen),
    }
    draw_foot(frame.buffer_mut(), foot, screen);
}

fn draw_head(buffer: &mut Buffer, area: Rect, screen: &Screen<'_>) {
    let count = |number: usize, what: &str| text::count(number as u64, what);
    let all: usize = screen.report.gpus.iter().map(|gpu| gpu.containers.len()).sum();
    let shown = match screen.rows.len() == all {
        true => count(all, "container"),
        false => format!("{} of {}", screen.rows.len(), count(all, "container")),
    };
    let about = format!("  {}, {shown}", count(screen.report.gpus.len(), "GPU"));
    let line = Line::from(vec![Span::styled("ration top", Modifier::BOLD), Span::raw(about)]);
    buffer.set_line(area.x, area.y, &line, area.width);
    let right = if screen.state.is_paused { "paused".to_owned() } else { format!("every {}", screen.every) };
    right_aligned(buffer, area, &right, if screen.state.is_paused { Modifier::REVERSED.into() } else { Style::new() });
}

fn right_aligned(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    let width = (text.chars().count() as u16).min(area.width);
    buffer.set_stringn(area.right() - width, area.y, text, usize::from(width), style);
}

fn draw_bars(buffer: &mut Buffer, area: Rect, screen: &Screen<'_>, each: usize) {
    let gpus = &screen.report.gpus;
    for (number, gpu) in gpus.iter().enumerate() {
        let y = area.y + (number * each) as u16;
        if y >= area.bottom() {
            break;
        }
        let line = Rect { y, height: 1, ..area };
        // The last line says how many are not on the screen.
        let left = gpus.len() - number;
        if y + 1 == area.bottom() && left > 1 && each == 1 {
            let more = format!("and {} (a filter shows those of one)", text::count(left as u64, "more GPU"));
            buffer.set_stringn(line.x, line.y, more, usize::from(line.width), Style::new());
            break;
        }
        let (memory, time) = bar::of(gpu, number, screen.rows);
        let is_coloured = screen.state.is_coloured;
        if each == 1 {
            let [name, first, _, second] = Layout::horizontal([
                Constraint::Length(16),
                Constraint::Fill(1),
                Constraint::Length(2),
                Constraint::Fill(1),
            ])
            .areas(line);
            let short: String = gpu.uuid.chars().take(12).collect();
            let number = gpu.index.unwrap_or(number as u32);
            buffer.set_stringn(name.x, name.y, format!("{number:>2} {short}"), 16, Style::new());
            draw_bar(buffer, first, "", &memory, is_coloured);
            draw_bar(buffer, second, "", &time, is_coloured);
            continue;
        }
        let number = gpu.index.unwrap_or(number as u32);
        let model = gpu.name.as_deref().map_or_else(String::new, |name| format!("  {}", text::safe(name, 40)));
        let title = format!("GPU {number}{model}  {}", gpu.uuid);
        buffer.set_stringn(line.x, y, title, usize::from(line.width), Modifier::BOLD);
        draw_bar(buffer, Rect { y: y + 1, ..line }, "  memory ", &memory, is_coloured);
        draw_bar(buffer, Rect { y: y + 2, ..line }, "  time   ", &time, is_coloured);
    }
}

/// A bar between what it is of and what it comes to.
fn draw_bar(buffer: &mut Buffer, area: Rect, title: &str, bar: &Bar, is_coloured: bool) {
    let figure = usize::from(area.width.min(14));
    let title_width = title.chars().count() as u16;
    let width = area.width.saturating_sub(title_width + figure as u16 + 3);
    buffer.set_stringn(area.x, area.y, title, usize::from(area.width), Style::new());
    let (x, y) = (area.x + title_width, area.y);
    let cells = bar.cells(usize::from(width));
    buffer.set_string(x, y, "[", Style::new());
    for (at, cell) in cells.iter().enumerate() {
        let (sign, style) = match cell {
            None => ('·', Style::new().add_modifier(Modifier::DIM)),
            Some(Whose::Others) => ('░', Style::new()),
            Some(Whose::Container(mark)) => {
                let look = Look::of(*mark, is_coloured);
                let is_first = at == 0 || cells[at - 1] != *cell;
                // The letter that the row has, in the colour that it has.
                let style = if is_coloured { look.style.add_modifier(Modifier::REVERSED) } else { look.style };
                (if is_first || !is_coloured { look.letter } else { ' ' }, style)
            }
        };
        if let Some(cell) = buffer.cell_mut((x + 1 + at as u16, y)) {
            cell.set_char(sign).set_style(style);
        }
    }
    buffer.set_string(x + 1 + width, y, "]", Style::new());
    let figure_area = Rect { x: x + width + 2, width: area.right().saturating_sub(x + width + 2), ..area };
    right_aligned(buffer, figure_area, &bar.figure, Style::new());
}

fn draw_table(buffer: &mut Buffer, area: Rect, screen: &Screen<'_>) {
    let several = screen.report.gpus.len() > 1;
    let columns = Column::fitting(usize::from(area.width - MARK), several);
    let state = screen.state;
    let mut x = area.x + MARK;
    for (column, width) in &columns {
        let is_sorted = column.sort() == Some(state.sort);
        let style =
            Style::new().add_modifier(if is_sorted { Modifier::BOLD | Modifier::UNDERLINED } else { Modifier::BOLD });
        put(buffer, (x, area.y), column.head(), *width, column.side(), style);
        x += *width as u16 + 1;
    }
    let lines = usize::from(area.height.saturating_sub(1));
    if screen.rows.is_empty() {
        let nothing = nobody(&state.filter);
        buffer.set_stringn(area.x + MARK, area.y + 1, nothing, usize::from(area.width - MARK), Style::new());
        return;
    }
    let selected = state.selected.min(screen.rows.len() - 1);
    let mut shown: Vec<(usize, Option<String>)> = Vec::new();
    for (at, row) in screen.rows.iter().enumerate() {
        shown.push((at, None));
        if at == selected && state.is_open {
            let processes = row.container.processes.as_deref().unwrap_or_default();
            shown.push((at, Some(format!("in {}", text::safe(&row.container.directory, usize::from(area.width))))));
            shown.extend(processes.iter().map(|it| (at, Some(rows::process(it)))));
        }
    }
    // What is selected stays on the screen, and as much as possible of what belongs to it.
    let first = shown.iter().position(|(at, _)| *at == selected).unwrap_or_default();
    let last = shown.iter().rposition(|(at, _)| *at == selected).unwrap_or_default();
    let from = (last + 1).saturating_sub(lines).min(first);
    for (line, (at, inner)) in shown.iter().skip(from).take(lines).enumerate() {
        let y = area.y + 1 + line as u16;
        match inner {
            Some(inner) => {
                buffer.set_stringn(area.x + MARK + 2, y, inner, usize::from(area.width - MARK - 2), Modifier::DIM);
            }
            None => {
                draw_row(buffer, Rect { y, height: 1, ..area }, &screen.rows[*at], &columns, state, *at == selected);
            }
        }
    }
    let below = screen.rows.len() - shown.iter().skip(from).take(lines).filter(|(_, inner)| inner.is_none()).count();
    if below > 0 {
        right_aligned(buffer, Rect { height: 1, ..area }, &format!(" {below} more "), Modifier::REVERSED.into());
    }
}

fn draw_row(
    buffer: &mut Buffer,
    area: Rect,
    row: &Row<'_>,
    columns: &[(Column, usize)],
    state: &State,
    is_selected: bool,
) {
    let look = Look::of(row.mark, state.is_coloured);
    let whole = if is_selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
    buffer.set_style(area, whole);
    let mark = if state.is_coloured { look.style.add_modifier(Modifier::REVERSED) } else { look.style };
    buffer.set_string(area.x, area.y, look.letter.to_string(), mark);
    let mut x = area.x + MARK;
    for (column, width) in columns {
        let style = alarm(*column, row, state.is_coloured).patch(whole);
        put(buffer, (x, area.y), &column.cell(row, *width), *width, column.side(), style);
        x += *width as u16 + 1;
    }
}

/// What somebody should see at once: that it was refused memory just now, that it is kept off the GPU, that somebody in it died.
fn alarm(column: Column, row: &Row<'_>, is_coloured: bool) -> Style {
    let rings = |colour: Color| {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if is_coloured { style.fg(colour) } else { style }
    };
    let more_than = |share: Option<f64>, percent: f64| share.is_some_and(|share| share > percent);
    match column {
        Column::Denied if row.rates.refused_10s.is_some_and(|count| count > 0) => rings(Color::Red),
        Column::Throttled if more_than(row.rates.throttled_percent, 1.0) => rings(Color::Yellow),
        Column::Waiting if more_than(row.rates.waited_percent, 50.0) => rings(Color::Yellow),
        Column::Processes if row.container.processes.iter().flatten().any(|it| !it.is_alive) => rings(Color::Red),
        _ => Style::new(),
    }
}

fn put(buffer: &mut Buffer, (x, y): (u16, u16), text: &str, width: usize, side: Side, style: Style) {
    let gap = width.saturating_sub(text.chars().count());
    let x = x + if side == Side::Right { gap as u16 } else { 0 };
    buffer.set_stringn(x, y, text, width, style);
}

fn draw_foot(buffer: &mut Buffer, area: Rect, screen: &Screen<'_>) {
    let state = screen.state;
    if state.mode == Mode::Filter {
        let line = Line::from(vec![
            Span::styled("filter: ", Modifier::BOLD),
            Span::raw(text::safe(&state.filter, usize::from(area.width.saturating_sub(40).max(8)))),
            Span::styled(" ", Modifier::REVERSED),
            Span::styled("  Enter keeps it, Esc clears it", Modifier::DIM),
        ]);
        buffer.set_line(area.x, area.y, &line, area.width);
        return;
    }
    let order = if state.is_reversed { "▲" } else { "▼" };
    let mut keys =
        format!("q quit  ? help  s sort {}{order}  / filter  space pause  enter processes", state.sort.name());
    if !state.filter.is_empty() {
        keys = format!("filter \"{}\" (/ changes it)  {keys}", text::safe(&state.filter, 20));
    }
    if let Some(problem) = screen.report.problems.first() {
        let count = text::count(screen.report.problems.len() as u64, "problem");
        keys = format!("{count}: {}: {}", text::safe(&problem.path, 60), problem.why);
    }
    buffer.set_stringn(area.x, area.y, keys, usize::from(area.width), Modifier::DIM);
}

/// What the keys do and the columns mean, in the place of the table.
const HELP: [&str; 14] = [
    "q, Ctrl-C  leave             s, S  sort by the next column, in reverse",
    "?, h       this, and back    /     show those with this name, GPU or user",
    "space, p   pause, go on      up, down, page up, page down: choose a row",
    "+, -       look less often, more often",
    "enter      the processes of the chosen row, and back",
    "",
    "MEMORY     held, and the most it may hold; in the bar, ░ is held by others",
    "REQ LIMIT  its share of the GPU's time: what it is to have, and the most",
    "WANTS      what it would use while it has something to do, alone",
    "1 s, 10 s  what it had of the GPU's time; -: it counts none (idle, or alone)",
    "THROT      how much of the time its limit kept it off the GPU",
    "WAIT       how much of the time it waited for others' turns",
    "DENY PROC  requests for memory that did not fit, as the library made them; processes",
    "BY         taken off the GPU by its channels, or by holding its launches",
];

fn draw_help(buffer: &mut Buffer, area: Rect) {
    for (line, y) in HELP.iter().zip(area.y..area.bottom()) {
        buffer.set_stringn(area.x + MARK, y, line, usize::from(area.width - MARK), Style::new());
    }
}
