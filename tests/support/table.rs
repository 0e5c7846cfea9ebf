//! The shim's table of hooks, as a test reads it: the file itself, not what the shim made of it.

use std::path::{Path, PathBuf};

/// `src/table/hooks.tsv`.
pub struct Table {
    pub classes: Vec<Class>,
    pub rows: Vec<Row>,
}

pub struct Class {
    pub name: String,
    pub library: String,
    pub about: String,
}

pub struct Row {
    pub symbol: String,
    /// Index into the classes.
    pub class: usize,
    pub since: String,
    /// What it takes of a GPU: `memory`, `work`, or `-` for nothing.
    pub takes: String,
    pub done: String,
}

impl Table {
    pub fn read() -> Table {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/table/hooks.tsv");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut table = Table { classes: Vec::new(), rows: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(rest) = line.strip_prefix('[') {
                let (name, rest) = rest.split_once("] ").expect("a class and its sentence");
                let (library, about) = rest.split_once(": ").expect("a library and a sentence");
                table.classes.push(Class { name: name.into(), library: library.into(), about: about.into() });
                continue;
            }
            let fields: Vec<&str> = line.split('\t').collect();
            let [symbol, since, takes, done] = fields[..] else { panic!("not a row: {line}") };
            let class = table.classes.len() - 1;
            let (symbol, since, takes, done) = (symbol.into(), since.into(), takes.into(), done.into());
            table.rows.push(Row { symbol, class, since, takes, done });
        }
        table
    }

    pub fn has(&self, symbol: &str) -> bool {
        self.rows.iter().any(|row| row.symbol == symbol)
    }
}

/// The built `libration.so`. A test's own binary is in `deps/` of cargo's output directory.
pub fn library() -> PathBuf {
    let here = std::env::current_exe().expect("a test has a path");
    let deps = here.parent().expect("a test is in a directory");
    let library = deps.parent().expect("deps is in a directory").join("libration.so");
    assert!(library.exists(), "{} is not there: run ci/build first", library.display());
    library
}
