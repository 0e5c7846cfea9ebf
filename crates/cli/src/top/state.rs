//! What whoever watches has chosen, and what each key does to it.

use std::time::Duration;

use super::keys::Key;
use super::rows::Sort;

/// How often somebody may look: eyes are no quicker, and nobody waits longer.
pub const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3600));

/// What keys are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Watch,
    /// A filter is being typed.
    Filter,
    Help,
}

/// What has to be done after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    Nothing,
    /// The screen is drawn anew.
    Draw,
    /// So it is, whatever stands there.
    DrawAll,
    Suspend,
    Leave,
}

/// What has been chosen.
#[derive(Debug, Clone)]
pub struct State {
    pub sort: Sort,
    pub is_reversed: bool,
    pub filter: String,
    pub mode: Mode,
    pub is_paused: bool,
    /// The number of the chosen row.
    pub selected: usize,
    /// Whether its processes are shown.
    pub is_open: bool,
    pub is_coloured: bool,
    pub every: Duration,
}

impl State {
    /// Does what a key says. `rows`: how many there are; `page`: how many fit on the screen.
    pub fn press(&mut self, key: Key, rows: usize, page: usize) -> Then {
        match (key, self.mode) {
            (Key::Interrupt, _) => return Then::Leave,
            (Key::Suspend, _) => return Then::Suspend,
            (Key::Redraw, _) => return Then::DrawAll,
            (key, Mode::Filter) => return self.type_filter(key),
            (_, Mode::Help) => {
                self.mode = Mode::Watch;
                return if key == Key::Sign('q') { Then::Leave } else { Then::Draw };
            }
            (_, Mode::Watch) => {}
        }
        match key {
            Key::Sign('q' | 'Q') => return Then::Leave,
            Key::Sign('?' | 'h') => self.mode = Mode::Help,
            Key::Sign('/') => self.mode = Mode::Filter,
            Key::Sign(' ' | 'p') => self.is_paused = !self.is_paused,
            Key::Sign('s') => self.sort = self.sort.next(),
            Key::Sign('S' | 'r') => self.is_reversed = !self.is_reversed,
            Key::Sign('+') => self.every = (self.every * 2).min(INTERVALS.1),
            Key::Sign('-') => self.every = (self.every / 2).max(INTERVALS.0),
            Key::Up | Key::Sign('k') => self.selected = self.selected.saturating_sub(1),
            Key::Down | Key::Sign('j') => self.selected += 1,
            Key::PageUp => self.selected = self.selected.saturating_sub(page),
            Key::PageDown => self.selected += page,
            Key::Home => self.selected = 0,
            Key::End => self.selected = rows,
            Key::Enter => self.is_open = !self.is_open,
            Key::Escape if !self.filter.is_empty() => self.filter.clear(),
            Key::Escape => self.is_open = false,
            _ => return Then::Nothing,
        }
        self.selected = self.selected.min(rows.saturating_sub(1));
        Then::Draw
    }

    fn type_filter(&mut self, key: Key) -> Then {
        match key {
            Key::Sign(sign) => self.filter.push(sign),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.mode = Mode::Watch,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Watch;
            }
            _ => return Then::Nothing,
        }
        self.selected = 0;
        Then::Draw
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn state() -> State {
        State {
            sort: Sort::Long,
            is_reversed: false,
            filter: String::new(),
            mode: Mode::Watch,
            is_paused: false,
            selected: 0,
            is_open: false,
            is_coloured: false,
            every: Duration::from_secs(1),
        }
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut state = state();
        let mut press = |keys: &[Key]| {
            let last = keys.iter().map(|key| state.press(*key, 5, 3)).last();
            (state.clone(), last)
        };
        assert_eq!(press(&[Key::Sign('s')]).0.sort, Sort::Throttled);
        assert!(press(&[Key::Sign('S')]).0.is_reversed && press(&[Key::Sign(' ')]).0.is_paused);
        assert_eq!(press(&[Key::Down, Key::Down, Key::Up]).0.selected, 1);
        assert_eq!(press(&[Key::PageDown, Key::PageDown]).0.selected, 4, "no further than the last");
        assert_eq!(press(&[Key::Home, Key::Up]).0.selected, 0);
        assert_eq!(press(&[Key::End]).0.selected, 4);
        assert!(press(&[Key::Enter]).0.is_open && !press(&[Key::Escape]).0.is_open);
        assert_eq!(press(&[Key::Sign('-')]).0.every, Duration::from_millis(500));
        assert_eq!(press(&[Key::Sign('-'); 9]).0.every, INTERVALS.0);
        assert_eq!(press(&[Key::Sign('+'); 30]).0.every, INTERVALS.1);
        assert_eq!(press(&[Key::Sign('?')]).0.mode, Mode::Help);
        assert_eq!(press(&[Key::Sign('s')]).0.mode, Mode::Watch, "any key leads back");
        assert_eq!(press(&[Key::Tab]).1, Some(Then::Nothing));
        assert_eq!(press(&[Key::Sign('q')]).1, Some(Then::Leave));
        assert_eq!(press(&[Key::Suspend]).1, Some(Then::Suspend));
        assert_eq!(press(&[Key::Redraw]).1, Some(Then::DrawAll));
    }

    #[test]
    fn a_filter_is_typed_kept_and_cleared() {
        let mut state = state();
        for key in [Key::Sign('/'), Key::Sign('q'), Key::Sign('s'), Key::Backspace, Key::Enter] {
            assert_eq!(state.press(key, 5, 3), Then::Draw);
        }
        assert_eq!((state.filter.as_str(), state.mode), ("q", Mode::Watch));
        state.press(Key::Escape, 5, 3);
        assert!(state.filter.is_empty());
        for key in [Key::Sign('/'), Key::Sign('a'), Key::Escape] {
            state.press(key, 5, 3);
        }
        assert_eq!((state.filter.as_str(), state.mode), ("", Mode::Watch));
        state.press(Key::Sign('/'), 5, 3);
        assert_eq!(state.press(Key::Interrupt, 5, 3), Then::Leave);
    }
}
