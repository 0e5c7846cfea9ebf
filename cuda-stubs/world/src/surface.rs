//! The names: what the simulated libraries export, and what `cuGetProcAddress` answers.

/// One answer of the resolver.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// The name a client asks for.
    pub name: &'static str,
    /// The lowest CUDA version (major * 1000 + minor * 10) for which this is the answer.
    pub since: u32,
    /// Whether it is the answer for legacy default-stream flags.
    pub legacy: bool,
    /// Whether it is the answer for per-thread default-stream flags.
    pub per_thread: bool,
    /// Index into [`DRIVER_EXPORTS`].
    pub export: usize,
}

include!(concat!(env!("OUT_DIR"), "/surface.rs"));

/// Where a driver symbol's call count stands in a process's record. For constants: a name that is not an export fails to compile.
pub const fn driver_index(name: &str) -> usize {
    index(&DRIVER_EXPORTS, name)
}

/// The same for an NVML symbol; they follow the driver's.
pub const fn nvml_index(name: &str) -> usize {
    DRIVER_COUNT + index(&NVML_EXPORTS, name)
}

const fn index(list: &[&str], name: &str) -> usize {
    let (mut low, mut high) = (0, list.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match compare(list[middle].as_bytes(), name.as_bytes()) {
            0 => return middle,
            -1 => low = middle + 1,
            _ => high = middle,
        }
    }
    panic!("not an export of the simulated driver");
}

const fn compare(a: &[u8], b: &[u8]) -> i32 {
    let mut i = 0;
    loop {
        match (i < a.len(), i < b.len()) {
            (false, false) => return 0,
            (false, true) => return -1,
            (true, false) => return 1,
            _ if a[i] < b[i] => return -1,
            _ if a[i] > b[i] => return 1,
            _ => i += 1,
        }
    }
}

/// The symbol that a call counter belongs to.
pub fn counted_symbol(index: usize) -> &'static str {
    if index < DRIVER_COUNT { DRIVER_EXPORTS[index] } else { NVML_EXPORTS[index - DRIVER_COUNT] }
}

/// All counters a process has.
pub const COUNTERS: usize = DRIVER_COUNT + NVML_COUNT;

/// The answer of `cuGetProcAddress` for a name at a version: the newest row that is not newer than `version`.
pub fn resolve(name: &str, version: u32, per_thread: bool) -> Resolution {
    let first = RESOLVE.partition_point(|row| row.name < name);
    let rows = RESOLVE[first..].iter().take_while(|row| row.name == name);
    let mut known = false;
    let mut best: Option<&Answer> = None;
    for row in rows {
        known = true;
        let mode = if per_thread { row.per_thread } else { row.legacy };
        if mode && row.since <= version && best.is_none_or(|b| row.since >= b.since) {
            best = Some(row);
        }
    }
    match best {
        Some(row) => Resolution::Export(row.export),
        None if known => Resolution::VersionTooOld,
        None => Resolution::Unknown,
    }
}

/// See [`resolve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Index into [`DRIVER_EXPORTS`].
    Export(usize),
    /// The name exists, but not yet at that version.
    VersionTooOld,
    /// No such name.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_abi_follows_version_and_stream_mode() {
        let name = |r| if let Resolution::Export(i) = r { DRIVER_EXPORTS[i] } else { "" };
        assert_eq!(name(resolve("cuMemAlloc", 2000, false)), "cuMemAlloc");
        assert_eq!(name(resolve("cuMemAlloc", 12000, false)), "cuMemAlloc_v2");
        assert_eq!(name(resolve("cuLaunchKernel", 12000, true)), "cuLaunchKernel_ptsz");
        assert_eq!(name(resolve("cuCtxGetDevice", 13000, false)), "cuCtxGetDevice_v2");
        assert_eq!(name(resolve("cuCtxGetDevice", 12090, false)), "cuCtxGetDevice");
        assert_eq!(resolve("cuMemAlloc_v2", 12000, false), Resolution::Unknown);
        assert_eq!(resolve("cuGraphAddNode", 11000, false), Resolution::VersionTooOld);
    }

    #[test]
    fn an_index_names_its_symbol() {
        const LAUNCH: usize = driver_index("cuLaunchKernel");
        assert_eq!(counted_symbol(LAUNCH), "cuLaunchKernel");
        assert_eq!(counted_symbol(nvml_index("nvmlInit_v2")), "nvmlInit_v2");
    }
}
