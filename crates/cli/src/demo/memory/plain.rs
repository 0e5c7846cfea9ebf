//! The act about memory, as lines.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::figures::Part;
use super::report::short;
use super::scene::{Actor, Scene};
use crate::text;

/// From one line to the next.
const EVERY: Duration = Duration::from_millis(300);

/// Where the lines are.
#[derive(Debug)]
pub struct Lines {
    began: Instant,
    next: Instant,
    /// The run and the part of it that were written of last.
    last: Option<(usize, Option<Part>)>,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines { began: Instant::now(), next: Instant::now(), last: None }
    }
}

impl Lines {
    /// Writes a line every third of a second, and one when something new begins.
    pub fn write(&mut self, out: &mut impl Write, scene: &Scene) -> io::Result<()> {
        let now = Instant::now();
        let here = (scene.now, scene.part);
        if self.last.is_none() {
            *self = Lines::default();
            let size = text::memory(scene.gpu_bytes);
            writeln!(out, "greedy and steady on one simulated {} of {size}: who gets its memory", scene.gpu)?;
            let seconds = (scene.times.run() * 2).as_secs_f64();
            writeln!(
                out,
                "({seconds:.0} s; memory as the GPU counts it, refusals by their code; answers are requests served)"
            )?;
        }
        if self.last.map(|(run, _)| run) != Some(scene.now) {
            writeln!(out, "{}", title(scene))?;
        }
        if self.last != Some(here) && scene.part.is_some() {
            writeln!(out, "  {}", scene.happening())?;
            self.next = now + EVERY / 2; // what has just begun is not to be seen yet
        } else if now >= self.next && scene.part.is_some() {
            self.next = now + EVERY;
            let [greedy, steady] = &scene.run().containers;
            let line = format!("{}  ·  {}", part(greedy), part(steady));
            writeln!(out, "{:6.1} s  {line}", self.began.elapsed().as_secs_f64())?;
        }
        self.last = Some(here);
        Ok(())
    }
}

fn title(scene: &Scene) -> String {
    let run = scene.run();
    let limits = run.containers.iter().filter_map(|actor| {
        let limit = text::memory(actor.limit?);
        Some(format!("{} has a limit of {limit}", actor.role.name()))
    });
    let limits: Vec<String> = limits.collect();
    match limits.is_empty() {
        true => format!("{}: no limits", run.title),
        false => format!("{}: {}", run.title, limits.join(", ")),
    }
}

fn part(actor: &Actor) -> String {
    let mut said = format!("{} {:>9}", actor.role.name(), text::memory(actor.gpu_bytes));
    if let Some(limit) = actor.limit {
        said += &format!(" {:>6}", text::fine_percent(actor.gpu_bytes as f64 / limit as f64));
    }
    if let Some(rate) = actor.rate {
        said += &format!("  {} {}/s", text::rate(rate), actor.role.unit());
    }
    let account = actor.account.iter().find_map(|account| Some((account.refused, account.refused_with.as_ref()?)));
    if let Some((times, name)) = account {
        said += &format!("  refused {times}×, {}", short(name));
    }
    said
}

#[cfg(test)]
mod tests {
    use super::super::scene::staged;
    use super::*;

    #[test]
    fn lines_can_be_read() {
        let mut scene = staged();
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        scene.now = 0;
        lines.write(&mut out, &scene).expect("written");
        scene.now = 1;
        lines.write(&mut out, &scene).expect("written");
        std::thread::sleep(EVERY);
        lines.write(&mut out, &scene).expect("written");
        let said = String::from_utf8(out).expect("text");
        for fragment in [
            "greedy and steady on one simulated NVIDIA H200 of 140.4 GiB: who gets its memory\n",
            "\nwithout ration: no limits\n  greedy was refused",
            "\nwith ration: greedy has a limit of 8.0 GiB, steady has a limit of 6.0 GiB\n",
            "greedy   8.0 GiB 99.97%  50.0 rounds/s  refused 25×, OUT_OF_MEMORY  ·  steady",
            "  ·  steady   4.8 GiB  79.3%  50.0 answers/s\n",
        ] {
            assert!(said.contains(fragment), "{fragment:?} is not in\n{said}");
        }
    }
}
