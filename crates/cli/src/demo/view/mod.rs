//! The live view: who is on the GPU, what each program gets, and how it compares with being alone.

mod chart;
mod memory;
mod programs;
mod strip;

use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Margin, Position, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Padding};
use ratatui::{DefaultTerminal, Frame};

use super::Audience;
use super::scenario::MOST;
use super::scene::Scene;
use chart::Chart;
use strip::Strip;

/// What programs are told apart by.
const COLOURS: [Color; MOST] = [Color::Cyan, Color::Yellow, Color::Magenta, Color::Green, Color::Blue, Color::Red];
/// What is there, but not the point.
const QUIET: Style = Style::new().fg(Color::DarkGray);
/// A strip stands still for so long: eyes are slower than the GPU.
const STRIP_EVERY: Duration = Duration::from_millis(500);

/// The view. Dropping it gives the terminal back.
pub struct View {
    terminal: DefaultTerminal,
    strip: Strip,
    strip_due: Instant,
    phase: usize,
    leaving: Arc<AtomicBool>,
}

impl View {
    /// Takes the terminal.
    pub fn open() -> io::Result<View> {
        let terminal = ratatui::try_init()?;
        let leaving = Arc::new(AtomicBool::new(false));
        let keys = Arc::clone(&leaving);
        std::thread::spawn(move || {
            await_leave();
            keys.store(true, Ordering::Relaxed);
        });
        Ok(View { terminal, strip: Strip::default(), strip_due: Instant::now(), phase: 0, leaving })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = ratatui::try_restore(); // where the terminal is gone, there is nothing to give back
    }
}

/// Returns when somebody presses q or Ctrl-C, or when there is nobody any more who could. Two keys need no library;
/// and crossterm's reader never comes back from a terminal that was closed.
fn await_leave() {
    const CONTROL_C: u8 = 3;
    let mut keys = [0; 64];
    let mut input = io::stdin().lock();
    loop {
        match input.read(&mut keys) {
            Ok(0) => return,
            Ok(count) if keys[..count].iter().any(|key| [b'q', b'Q', CONTROL_C].contains(key)) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

impl Audience for View {
    fn watch(&mut self, scene: &Scene) -> io::Result<bool> {
        if self.leaving.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let now = Instant::now();
        if now >= self.strip_due || scene.phase != self.phase {
            (self.strip_due, self.phase) = (now + STRIP_EVERY, scene.phase);
            self.strip = Strip::of(scene);
        }
        let strip = &self.strip;
        self.terminal.draw(|frame| draw(frame, scene, strip))?;
        Ok(true)
    }

    fn watch_memory(&mut self, scene: &super::memory::Scene) -> io::Result<bool> {
        if self.leaving.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.terminal.draw(|frame| memory::draw(frame, scene))?;
        Ok(true)
    }
}

fn draw(frame: &mut Frame<'_>, scene: &Scene, strip: &Strip) {
    let programs = scene.programs.len() as u16;
    let [head, lanes, table, chart, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(programs + 3),
        Constraint::Length(programs + 3),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area().inner(Margin { horizontal: 1, vertical: 0 }));
    let about = format!("{programs} programs on one simulated {}, {}", scene.gpu, scene.how());
    header(frame, head, about, scene.plan.iter().map(|phase| phase.title.as_str()), scene.phase);
    strip::draw(frame, lanes, scene, strip);
    programs::draw(frame, table, scene);
    if chart.height >= 4 {
        let phases = scene.plan.iter().map(|phase| (phase.title.as_str(), phase.length())).collect();
        let title = "Shares of GPU time, over the whole act";
        chart::draw(frame, chart, &Chart { title, history: &scene.history, phases });
    }
    let (phase, all) = scene.left();
    let left = match scene.into_phase.is_zero() {
        true => "starting".to_owned(),
        false => format!("{:.1} s of this left, {:.0} s in all", phase.as_secs_f64(), all.as_secs_f64().ceil()),
    };
    footer(frame, foot, left);
}

fn footer(frame: &mut Frame<'_>, area: Rect, left: String) {
    frame.render_widget(Line::from(left), area);
    frame.render_widget(Line::styled("q ends", QUIET).right_aligned(), area);
}

/// What the act is about, and its steps, of which the one with number `now` is on.
fn header<'a>(frame: &mut Frame<'_>, area: Rect, about: String, titles: impl Iterator<Item = &'a str>, now: usize) {
    let title = Line::from(vec!["ration demo".bold(), "  ".into(), about.into()]);
    frame.render_widget(title, Rect { height: 1, ..area });
    let mut steps = Vec::new();
    for (number, title) in titles.enumerate() {
        let (mark, style) = match number.cmp(&now) {
            std::cmp::Ordering::Less => ("✓", QUIET),
            std::cmp::Ordering::Equal => ("▶", Style::new().add_modifier(Modifier::BOLD)),
            std::cmp::Ordering::Greater => ("·", QUIET),
        };
        steps.push(Span::styled(format!("{mark} {title}   "), style));
    }
    let row = Rect { y: area.y + 1, height: area.height.saturating_sub(1).min(1), ..area };
    frame.render_widget(Line::from(steps), row);
}

/// A frame around a part of the view, and the room inside.
fn framed(frame: &mut Frame<'_>, area: Rect, title: &str) -> Rect {
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(QUIET)
        .padding(Padding::horizontal(1))
        .title(Span::styled(format!(" {title} "), Style::reset()));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    inside
}

/// Writes a word at a place of `room`, as far as it fits; nothing, where there is no such place.
fn put(buffer: &mut Buffer, room: Rect, (x, y): (u16, u16), text: &str, style: Style) {
    if room.contains(Position { x, y }) && buffer.area.contains(Position { x, y }) {
        buffer.set_stringn(x, y, text, usize::from(room.right() - x), style);
    }
}

#[cfg(test)]
pub mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::figures::{Done, Latency, Measured};
    use super::super::plan;
    use super::super::scenario::Scenario;
    use super::super::stage::{Run, Snapshot, Usage};
    use super::*;

    const MS: u64 = 1_000_000;

    /// In the middle of the last phase, with two programs in turn on the GPU.
    fn scene() -> Scene {
        let scenario = Scenario::built_in();
        let mut scene = Scene::new("NVIDIA H200".into(), &scenario, plan::sharing(&scenario, Duration::from_secs(6)));
        scene.begin(3);
        play(&mut scene);
        scene
    }

    /// The same of the act about compute, with ration.
    fn scene_with_ration() -> Scene {
        let scenario = Scenario::containers();
        let mut scene = Scene::new("NVIDIA H200".into(), &scenario, plan::compute(&scenario, Duration::from_secs(6)));
        scene.begin(4);
        play(&mut scene);
        for performer in &mut scene.programs {
            performer.before = performer.alone.clone().map(|alone| Measured { share: 0.31, ..alone });
        }
        scene
    }

    fn play(scene: &mut Scene) {
        let latency = Some(Latency { p50: 2.66, p99: 2.71 });
        for performer in &mut scene.programs {
            let measured =
                Measured { rate: 2000.0, latency_ms: latency, share: 1.0, useful: 1.0, memory_bytes: 0, waited: None };
            performer.alone = Some(measured);
        }
        for tick in 0..20 {
            let clock_ns = tick * 100 * MS;
            scene.into_phase = Duration::from_millis(tick * 100);
            let usage = |slot: usize| Usage { slot, busy_ns: clock_ns / 2, memory_bytes: 25 << 30, ..Usage::default() };
            let users = [(100, usage(0)), (101, usage(1))].into_iter().collect();
            let runs = (0..50).map(|i| {
                let start_ns = clock_ns + i * 2 * MS;
                Run { slot: i as usize % 2, start_ns, end_ns: start_ns + 2 * MS }
            });
            let snapshot = Snapshot { clock_ns, users, ..Snapshot::default() };
            scene.saw(&snapshot, &[(0, 100), (1, 101)], runs.collect(), None);
            let latencies_ns = vec![6_210_000, 7_420_000];
            scene.heard(2, true, &Done { elapsed_ns: clock_ns, units: tick * 5, latencies_ns });
        }
    }

    fn drawn(scene: &Scene, width: u16, height: u16) -> Vec<String> {
        let strip = Strip::of(scene);
        on_screen(width, height, |frame| draw(frame, scene, &strip))
    }

    /// The lines of a terminal of this size, drawn on.
    pub fn on_screen(width: u16, height: u16, draw: impl FnOnce(&mut Frame<'_>)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(draw).expect("drawn");
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol()).collect();
        (0..height).map(row).collect()
    }

    #[test]
    fn it_can_be_read() {
        let lines = drawn(&scene(), 110, 30);
        for fragment in [
            "✓ inference alone   ▶ all together",
            "trainer      ···████····████",
            "trainer      ████████········  50%  100% 25.0 GiB",
            "50.0 requests/s  2,000 6.21 / 7.42 ms",
            "4.4 s of this left, 5 s in all",
        ] {
            assert!(lines.iter().any(|line| line.contains(fragment)), "{fragment:?} is not in\n{}", lines.join("\n"));
        }
    }

    #[test]
    fn with_ration_it_shows_what_each_asked_for_and_what_it_had_without() {
        let lines = drawn(&scene_with_ration(), 120, 30);
        for fragment in
            ["▶ with ration", "asks alone without", "  50%   50%  100%     31%", "6.21 / 7.42 ms    2.66 / 2.71 2.66"]
        {
            assert!(lines.iter().any(|line| line.contains(fragment)), "{fragment:?} is not in\n{}", lines.join("\n"));
        }
    }

    #[test]
    fn it_fits_any_terminal() {
        for scene in [scene(), scene_with_ration()] {
            for (width, height) in (1..140).step_by(7).flat_map(|w| (1..40).step_by(2).map(move |h| (w, h))) {
                drawn(&scene, width, height);
            }
        }
    }
}
