//! Writes the Rust that the table stands for: `hooks.rs`, included by `src/entry.rs`.
//!
//! Every row becomes
//! - the exported function: counts, and jumps to the original, without a stack frame of its own;
//! - `handed_…`: the function given out by the resolver where another library stands between us and the driver;
//! - `watched_…`: what both do when there is more to do than to count: the first call, tracing, another library.
//!
//! A row with an op is always answered by that op.

use std::collections::HashMap;
use std::fmt::Write;

use crate::prototypes::Prototype;
use crate::table::{Library, Row, Table};

/// Types passed by value that a trace cannot print as a number.
const STRUCTS: [&str; 3] = ["CUipcMemHandle", "CUipcEventHandle", "CUmemLocation"];

pub fn expand(table: &Table, prototypes: &HashMap<String, Prototype>) -> Result<String, String> {
    let mut out = String::new();
    let rows: Vec<&Row> = table.rows.iter().filter(|row| row.library != Library::Libc).collect();
    let w = &mut out;
    line(w, format_args!("/// How many symbols are counted."));
    line(w, format_args!("pub const COUNT: usize = {};", rows.len()));
    line(w, format_args!("/// Every row, in the order of the names."));
    line(w, format_args!("pub static ROWS: [Row; COUNT] = ["));
    for row in &rows {
        line(
            w,
            format_args!(
                "    Row {{ symbol: c\"{0}\", library: Library::{1:?}, takes: Takes::{2:?}, export: Door({0} as *const ()), handed: Door(handed_{0} as *const ()) }},",
                row.symbol, row.library, row.takes
            ),
        );
    }
    line(w, format_args!("];"));
    for (id, row) in rows.iter().enumerate() {
        let prototype = prototypes.get(row.prototype()).ok_or_else(|| {
            format!("{} is in the hook table, but include/ declares no {}", row.symbol, row.prototype())
        })?;
        function(w, id, row, prototype);
    }
    Ok(out)
}

fn function(out: &mut String, id: usize, row: &Row, prototype: &Prototype) {
    let name = &row.symbol;
    let join = |each: &dyn Fn(&(String, String)) -> String| {
        prototype.arguments.iter().map(each).collect::<Vec<_>>().join(", ")
    };
    let declared = join(&|(argument, kind)| format!("{argument}: {kind}"));
    let passed = join(&|(argument, _)| argument.clone());
    let kinds = join(&|(_, kind)| kind.clone());
    let shown = join(&|(argument, kind)| {
        if STRUCTS.contains(&kind.as_str()) { "Arg::Struct".into() } else { format!("Arg::from({argument})") }
    });
    let module = match row.library {
        Library::Nvml => "nvml",
        Library::Driver | Library::Libc => "cuda",
    };
    let stream = prototype.arguments.iter().find(|(_, kind)| kind == "CUstream").map(|(argument, _)| argument);
    let stream = match stream {
        Some(argument) => format!("Some(Stream::given({argument}, {}))", row.per_thread_stream()),
        None => "None".into(),
    };
    let original = format!("unsafe extern \"C-unwind\" fn({kinds}) -> u32");
    let call = format!("|original| unsafe {{ transmute::<*const (), {original}>(original)({passed}) }}");
    line(out, format_args!("mod hook_{name} {{"));
    line(out, format_args!("    use super::prelude::*; use crate::abi::{module}::*;"));
    line(out, format_args!("    const ID: usize = {id};"));
    line(out, format_args!("    #[cfg_attr(not(test), unsafe(no_mangle))]"));
    line(out, format_args!("    pub unsafe extern \"C-unwind\" fn {name}({declared}) -> u32 {{"));
    if row.always_answered() {
        line(out, format_args!("        unsafe {{ answered(Door::Exported, {passed}) }}"));
    } else {
        // One jump for both ways, so that no argument is moved.
        let pass = match (&row.op, &row.unless) {
            (None, _) => "entry::pass::<{ entry::ANY & !entry::SLICED }>(ID)".to_owned(),
            (Some(_), None) => "entry::pass::<{ entry::ANY }>(ID)".to_owned(),
            (Some(_), Some(unless)) => format!("entry::pass_if(ID, || ops::{unless})"),
        };
        line(out, format_args!("        let on = {pass}.unwrap_or(first as *const ());"));
        line(out, format_args!("        ({call})(on)"));
    }
    line(out, format_args!("    }}"));
    let (slow, more) = if row.op.is_some() { ("answered", "") } else { ("watched", "#[cold] ") };
    if !row.always_answered() {
        line(out, format_args!("    {more}#[inline(never)]"));
        line(out, format_args!("    unsafe extern \"C-unwind\" fn first({declared}) -> u32 {{"));
        line(out, format_args!("        unsafe {{ {slow}(Door::Exported, {passed}) }}"));
        line(out, format_args!("    }}"));
    }
    line(out, format_args!("    {more}pub unsafe extern \"C-unwind\" fn handed_{name}({declared}) -> u32 {{"));
    line(out, format_args!("        unsafe {{ {slow}(Door::Handed, {passed}) }}"));
    line(out, format_args!("    }}"));
    line(out, format_args!("    {more}#[inline(never)]"));
    line(out, format_args!("    unsafe fn {slow}(door: Door, {declared}) -> u32 {{"));
    line(out, format_args!("        let shown = || Shown::new(&[{shown}], {stream});"));
    match &row.op {
        None => line(out, format_args!("        entry::watch(ID, door, &shown, &{call})")),
        Some(op) => {
            // `op(a, b)`: only these of the arguments; `op`: all.
            let (name, chosen) = match op.strip_suffix(')').and_then(|op| op.split_once('(')) {
                Some((name, chosen)) => (name, chosen),
                None => (op.as_str(), passed.as_str()),
            };
            let op = format!("&mut |call: &mut ops::Call<'_>| unsafe {{ ops::{name}(call, {chosen}) }}");
            let answer = if row.always_answered() { "answer" } else { "answer_in_a_slice" };
            line(out, format_args!("        entry::{answer}(ID, door, &shown, &{call}, {op})"));
        }
    }
    line(out, format_args!("    }}"));
    line(out, format_args!("}}"));
    line(out, format_args!("pub use hook_{name}::{{{name}, handed_{name}}};"));
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("writing to a String succeeds");
}
