//! Reads `src/table/hooks.tsv`: the one list of what the shim stands in front of.

use std::collections::HashSet;

/// Where the table is, from the root of the package.
pub const PATH: &str = "src/table/hooks.tsv";

/// Which library a class of symbols comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    Driver,
    Nvml,
    /// Written by hand in `src/`: the table only names them.
    Libc,
}

/// What a call takes of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    Nothing,
    Memory,
    Work,
}

/// One symbol.
pub struct Row {
    pub symbol: String,
    pub library: Library,
    pub takes: Takes,
    /// The function of `src/ops` that answers, or `None` when the call is counted and handed on.
    pub op: Option<String>,
    /// When the op has nothing to do, so that the call simply passes: an expression of `src/ops`.
    pub unless: Option<String>,
}

impl Row {
    /// The name of the prototype: a symbol that differs only in what stream 0 means shares that of the one without.
    pub fn prototype(&self) -> &str {
        let name = self.symbol.as_str();
        name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name)
    }

    /// Whether the op answers every call, and not only those of a process that is held to a slice.
    pub fn always_answered(&self) -> bool {
        self.op.as_ref().is_some_and(|op| op.starts_with("resolver::"))
    }

    /// Whether stream handle 0 means the calling thread's own stream.
    pub fn per_thread_stream(&self) -> bool {
        self.prototype() != self.symbol
    }
}

/// The whole table.
pub struct Table {
    /// In the order of their names: the resolver searches by halves.
    pub rows: Vec<Row>,
}

impl Table {
    pub fn parse(text: &str) -> Result<Table, String> {
        let mut table = Table { rows: Vec::new() };
        let mut library = None;
        let mut seen = HashSet::new();
        for (number, line) in text.lines().enumerate() {
            let wrong = |what: String| format!("{PATH}:{}: {what}", number + 1);
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(rest) = line.strip_prefix('[') {
                let (_class, rest) =
                    rest.split_once("] ").ok_or_else(|| wrong("a class is '[name] library: …'".into()))?;
                library = Some(match rest.split(':').next() {
                    Some("libcuda") => Library::Driver,
                    Some("libnvidia-ml") => Library::Nvml,
                    Some("libc") => Library::Libc,
                    other => return Err(wrong(format!("{other:?} is not libcuda, libnvidia-ml or libc"))),
                });
                continue;
            }
            let fields: Vec<&str> = line.split('\t').collect();
            let [symbol, _since, takes, done] = fields[..] else {
                return Err(wrong(format!(
                    "'{line}' is not symbol, version, what it takes and what is done, with tabs between"
                )));
            };
            let takes = match takes {
                "-" => Takes::Nothing,
                "memory" => Takes::Memory,
                "work" => Takes::Work,
                other => return Err(wrong(format!("{symbol} takes '{other}', which is not memory, work or -"))),
            };
            let library = library.ok_or_else(|| wrong(format!("{symbol} comes before any class")))?;
            if !seen.insert(symbol.to_owned()) {
                return Err(wrong(format!("{symbol} is there twice")));
            }
            let (done, unless) = match done.split_once(" unless ") {
                Some((done, unless)) => (done, Some(unless.to_owned())),
                None => (done, None),
            };
            let op = match done {
                "forward" | "by-hand" => None,
                path => Some(path.to_owned()),
            };
            table.rows.push(Row { symbol: symbol.to_owned(), library, takes, op, unless });
        }
        table.rows.sort_by(|a, b| a.symbol.cmp(&b.symbol));
        Ok(table)
    }
}
