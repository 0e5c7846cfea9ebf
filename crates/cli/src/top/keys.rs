//! What is typed. Terminals send bytes; a dozen sequences are all that is needed, and a reader of our own comes back when the terminal
//! is closed.

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A letter, digit or sign.
    Sign(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C: whoever types it wants to leave, whatever else is going on.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L: something else has written over the screen.
    Redraw,
}

/// The keys in what was read at once. A sequence that is not known is none of them.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((first, after)) = rest.split_first() {
        let (key, taken) = match first {
            0x1b => match sequence(after) {
                Some((key, length)) => (key, 1 + length),
                None => (Some(Key::Escape), 1),
            },
            b'\r' | b'\n' => (Some(Key::Enter), 1),
            b'\t' => (Some(Key::Tab), 1),
            0x7f | 0x08 => (Some(Key::Backspace), 1),
            3 => (Some(Key::Interrupt), 1),
            12 => (Some(Key::Redraw), 1),
            26 => (Some(Key::Suspend), 1),
            0..0x20 => (None, 1),
            _ => sign(rest),
        };
        keys.extend(key);
        rest = &rest[taken..];
    }
    keys
}

/// A character, and its bytes.
fn sign(bytes: &[u8]) -> (Option<Key>, usize) {
    let longest = &bytes[..bytes.len().min(4)];
    let valid = longest.utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next());
    match valid {
        Some(sign) => ((!sign.is_control()).then_some(Key::Sign(sign)), sign.len_utf8()),
        None => (None, 1),
    }
}

/// What follows an escape character: `[` or `O`, parameters, a last byte. `None`: nothing of the kind does.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let (b'[' | b'O', rest) = bytes.split_first()? else { return None };
    let length = rest.iter().position(|byte| (0x40..=0x7e).contains(byte))?;
    let (parameters, last) = (&rest[..length], rest[length]);
    let key = match (parameters, last) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
        (_, b'F') | (b"4" | b"8", b'~') => Some(Key::End),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        _ => None,
    };
    Some((key, length + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_say_keys_in_several_ways() {
        for (bytes, expected) in [
            (&b"q"[..], &[Key::Sign('q')][..]),
            (b"\x1b", &[Key::Escape]),
            (b"\x1b[A\x1bOB", &[Key::Up, Key::Down]),
            (b"\x1b[1;5A", &[Key::Up]),
            (b"\x1b[5~\x1b[6~", &[Key::PageUp, Key::PageDown]),
            (b"\x1b[H\x1b[4~", &[Key::Home, Key::End]),
            (b"\x1b[15~x", &[Key::Sign('x')]),
            (b"\x03\x1a\x0c", &[Key::Interrupt, Key::Suspend, Key::Redraw]),
            (b"a\r\x7f\t", &[Key::Sign('a'), Key::Enter, Key::Backspace, Key::Tab]),
            ("ä\u{2603}".as_bytes(), &[Key::Sign('ä'), Key::Sign('\u{2603}')]),
            (b"\xff\x00\x1b[", &[Key::Escape, Key::Sign('[')]),
            (b"", &[]),
        ] {
            assert_eq!(keys(bytes), expected, "{bytes:?}");
        }
    }
}
