//! The demo as lines: for logs, pipes and those who like it plain.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::plan::AGAIN;
use super::scenario::Priority;
use super::scene::{Performer, Scene};
use super::{Audience, memory, text};

/// From one line to the next.
const EVERY: Duration = Duration::from_millis(500);

/// Writes a line every half second, and one when a phase begins.
pub struct Lines<W> {
    out: W,
    began: Instant,
    next: Instant,
    /// Its title; a phase that is tried again has another one.
    phase: Option<String>,
    memory: memory::Lines,
}

impl<W: Write> Lines<W> {
    /// To this.
    pub fn new(out: W) -> Lines<W> {
        let memory = memory::Lines::default();
        Lines { out, began: Instant::now(), next: Instant::now(), phase: None, memory }
    }
}

impl<W: Write> Audience for Lines<W> {
    fn watch(&mut self, scene: &Scene) -> io::Result<bool> {
        let now = Instant::now();
        if self.phase.is_none() {
            let names: Vec<&str> = scene.programs.iter().map(|p| p.program.name.as_str()).collect();
            writeln!(self.out, "{} on one simulated {}, {}", names.join(", "), scene.gpu, scene.how())?;
            let total = scene.total().as_secs_f64();
            writeln!(self.out, "({total:.0} s; share of GPU time in the last second, units per second, latency)")?;
        }
        if self.phase.as_ref() != Some(&scene.plan[scene.phase].title) {
            self.phase = Some(scene.plan[scene.phase].title.clone());
            self.next = now + EVERY;
            if scene.plan[scene.phase].title.ends_with(AGAIN) {
                writeln!(self.out, "(this machine was busy with other things: once more)")?;
            }
            writeln!(self.out, "{}", title(scene))?;
        } else if now >= self.next && !scene.into_phase.is_zero() {
            self.next = now + EVERY;
            writeln!(self.out, "{:6.1} s  {}", self.began.elapsed().as_secs_f64(), line(scene))?;
        }
        self.out.flush()?;
        Ok(true)
    }

    fn watch_memory(&mut self, scene: &memory::Scene) -> io::Result<bool> {
        self.memory.write(&mut self.out, scene)?;
        self.out.flush()?;
        Ok(true)
    }
}

fn title(scene: &Scene) -> String {
    let phase = &scene.plan[scene.phase];
    if !phase.with_ration {
        return phase.title.clone();
    }
    let asks = scene.programs.iter().map(|performer| {
        let program = &performer.program;
        let request = program.requested().map_or("nothing".into(), text::percent);
        match program.priority {
            Priority::Normal => format!("{} asks for {request}", program.name),
            other => format!("{} asks for {request}, as {}", program.name, other.name()),
        }
    });
    format!("{}: {}", phase.title, asks.collect::<Vec<_>>().join("; "))
}

fn line(scene: &Scene) -> String {
    let parts: Vec<String> = scene.programs.iter().filter(|p| p.on_stage).map(part).collect();
    parts.join("  ·  ")
}

fn part(performer: &Performer) -> String {
    let share = performer.share.map_or("–".into(), text::percent);
    let rate = performer.rate.map_or("–".into(), text::rate);
    let mut said = format!("{} {share:>4} {rate:>5}/s", performer.program.name);
    if let Some(latency) = performer.latency {
        said += &format!("  p50 {} p99 {} ms", text::ms(latency.p50), text::ms(latency.p99));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::super::scenario::Scenario;
    use super::*;

    #[test]
    fn with_ration_it_is_said_what_each_asks_for() {
        let scenario = Scenario::containers();
        let mut scene = Scene::new("GPU".into(), &scenario, plan::compute(&scenario, Duration::from_secs(6)));
        let mut out = Vec::new();
        let mut lines = Lines::new(&mut out);
        for phase in [3, 4] {
            scene.begin(phase);
            assert!(lines.watch(&scene).expect("written"));
        }
        let said = String::from_utf8(out).expect("text");
        for fragment in [
            "trainer, notebook, inference on one simulated GPU, by plain time slicing, then by shares\n",
            "\nwithout ration\nwith ration: trainer asks for 50%; notebook asks for 30%; inference asks for 20%, as latency\n",
        ] {
            assert!(said.contains(fragment), "{fragment:?} is not in\n{said}");
        }
    }
}
