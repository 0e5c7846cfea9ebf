//! Reads the prototypes out of what bindgen made of a header.

use std::collections::HashMap;

/// One function's arguments, name and type each, in the words of the generated bindings. All of them return a status.
#[derive(Clone)]
pub struct Prototype {
    pub arguments: Vec<(String, String)>,
}

/// Every `pub fn` of the bindings. bindgen writes one after the other in a fixed form, so no Rust parser is needed; what
/// is not in that form is left out, and a row that then lacks its prototype stops the build.
pub fn read(bindings: &str) -> HashMap<String, Prototype> {
    let mut found = HashMap::new();
    for piece in bindings.split("pub fn ").skip(1) {
        let Some((name, rest)) = piece.split_once('(') else { continue };
        let Some(end) = closing(rest) else { continue };
        if !rest[end + 1..].trim_start().starts_with("->") {
            continue;
        }
        let arguments = split_arguments(&rest[..end]);
        let arguments = arguments.iter().filter_map(|argument| argument.split_once(':'));
        let arguments = arguments.map(|(name, kind)| (name.trim().to_owned(), kind.trim().to_owned())).collect();
        found.insert(name.trim().to_owned(), Prototype { arguments });
    }
    found
}

/// Where the parenthesis closes that was opened just before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    text.char_indices().find_map(|(at, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        (depth == 0).then_some(at)
    })
}

/// At the commas that are not inside of anything.
fn split_arguments(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let mut start = 0;
    let mut pieces = Vec::new();
    let mut last = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if last != '-' => depth -= 1,
            ',' if depth == 0 => {
                pieces.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        last = c;
    }
    pieces.push(&text[start..]);
    pieces.retain(|piece| !piece.trim().is_empty());
    pieces
}
