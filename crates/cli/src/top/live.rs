//! The live view: a screen that is drawn after every look and every key, until somebody leaves.

use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

use super::history::History;
use super::keys::{Key, keys};
use super::rows::rows;
use super::screen::{Screen, draw};
use super::state::{State, Then};
use crate::look::Report;

/// How long a signal may wait to be noticed.
const NOTICE: Duration = Duration::from_millis(100);

/// The terminal, until dropped.
struct Terminal(DefaultTerminal);

impl Terminal {
    fn take() -> io::Result<Terminal> {
        ratatui::try_init().map(Terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = ratatui::try_restore(); // where the terminal is gone, there is nothing to give back
    }
}

/// Watches until somebody leaves, or the terminal does.
pub fn watch(mut state: State, mut look: impl FnMut() -> Report) -> io::Result<()> {
    let flag = |signals: &[i32]| -> io::Result<Arc<AtomicBool>> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in signals {
            signal_hook::flag::register(*signal, Arc::clone(&flag))?;
        }
        Ok(flag)
    };
    let (ends, resized) = (flag(&[SIGTERM, SIGHUP, SIGINT])?, flag(&[SIGWINCH])?);
    let mut terminal = Terminal::take()?;
    let typed = typing();
    let began = Instant::now();
    let (mut history, mut report) = (History::default(), look());
    history.add(began.elapsed(), &report);
    let (mut due, mut then) = (began + state.every, Then::Draw);
    while !ends.load(Ordering::Relaxed) {
        let all = rows(&report, &history, (state.sort, state.is_reversed), &state.filter);
        match then {
            Then::Leave => break,
            Then::Nothing => {}
            Then::Suspend => {
                drop(terminal);
                stop();
                terminal = Terminal::take()?;
            }
            Then::DrawAll => terminal.0.clear()?,
            Then::Draw => {}
        }
        if then != Then::Nothing {
            let every = seconds(state.every);
            let screen = Screen { report: &report, rows: &all, state: &state, every: &every };
            terminal.0.draw(|frame| draw(frame, &screen))?;
        }
        let (count, page) = (all.len(), usize::from(terminal.0.size()?.height / 2));
        then = match typed.recv_timeout(due.saturating_duration_since(Instant::now()).min(NOTICE)) {
            Ok(key) => {
                let then = state.press(key, count, page);
                // A shorter interval holds from now on.
                due = due.min(Instant::now() + state.every);
                then
            }
            Err(RecvTimeoutError::Timeout) => Then::Nothing,
            // Nobody can type any more.
            Err(RecvTimeoutError::Disconnected) => Then::Leave,
        };
        if resized.swap(false, Ordering::Relaxed) && then == Then::Nothing {
            then = Then::Draw;
        }
        let now = Instant::now();
        if now >= due {
            due = now + state.every;
            if !state.is_paused {
                report = look();
                history.add(began.elapsed(), &report);
                then = if then == Then::Nothing { Then::Draw } else { then };
            }
        }
    }
    Ok(())
}

/// `1 s`, `0.5 s`.
pub fn seconds(every: Duration) -> String {
    format!("{} s", (every.as_secs_f64() * 100.0).round() / 100.0)
}

/// What is typed, until standard input ends.
fn typing() -> Receiver<Key> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 256];
        let mut input = io::stdin().lock();
        loop {
            match input.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => {
                    for key in keys(&bytes[..count]) {
                        if sender.send(key).is_err() {
                            return;
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    receiver
}

/// Stops, as Ctrl-Z does to programs that leave the terminal as it is; returns when somebody continues us.
fn stop() {
    let group = rustix::process::Signal::TSTP;
    let _ = rustix::process::kill_current_process_group(group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_read_as_people_write_them() {
        assert_eq!(
            [100, 250, 1000, 2500].map(|ms| seconds(Duration::from_millis(ms))),
            ["0.1 s", "0.25 s", "1 s", "2.5 s"]
        );
    }
}
