//! What people get to see: for each GPU a table that fits into 80 columns, with a line of particulars below each container.

use std::fmt::Write as _;

use crate::look::{Container, Gpu, Process, Report};
use crate::text::{self, Side};

/// The longest name that is shown whole, of a container beside the other columns.
const NAME: usize = 25;
/// So many processes are named.
const PROCESSES: usize = 8;

/// All of it.
pub fn of(report: &Report) -> String {
    if report.gpus.is_empty() {
        return "No container uses a GPU here.\n".into();
    }
    let mut shown = String::new();
    for gpu in &report.gpus {
        if !shown.is_empty() {
            shown.push('\n');
        }
        let memory = gpu.memory_bytes.map_or_else(String::new, |bytes| format!(": {}", text::memory(bytes)));
        let _ = writeln!(shown, "{}{memory}\n", gpu.uuid);
        shown.push_str(&table(gpu));
    }
    shown
}

fn table(gpu: &Gpu) -> String {
    const SIDES: [Side; 7] = [Side::Left, Side::Right, Side::Right, Side::Right, Side::Right, Side::Right, Side::Left];
    let head = ["NAME", "MEMORY", "OF", "REQUEST", "LIMIT", "USAGE", "PRIORITY"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(gpu.containers.iter().map(row)).collect();
    let table = text::table_apart(&SIDES, 1, 2, &rows);
    // Two lines of the table are its head.
    let mut shown = String::new();
    for (at, line) in table.lines().enumerate() {
        let _ = writeln!(shown, "{}", line.trim_end());
        if let Some(container) = at.checked_sub(2).and_then(|at| gpu.containers.get(at)) {
            let _ = writeln!(shown, "  {}", particulars(container));
        }
    }
    shown
}

fn row(container: &Container) -> Vec<String> {
    let unknown = || "-".to_owned();
    let cap = match (container.is_full, container.cap_bytes) {
        (true, None) => "no cap".into(),
        (_, cap) => cap.map_or_else(unknown, text::memory),
    };
    let percent = |share: f64| text::percent(share / 100.0);
    vec![
        text::safe(&container.name, NAME),
        container.used_bytes.map_or_else(unknown, text::memory),
        cap,
        container.request_percent.map_or_else(|| "none".into(), percent),
        percent(container.limit_percent),
        container.usage_percent.map_or_else(unknown, percent),
        container.priority.into(),
    ]
}

fn particulars(container: &Container) -> String {
    let mut parts = Vec::new();
    if !container.is_full {
        parts.push(format!("user {}'s", container.user));
        parts.extend(
            container.process_count.map(|count| text::count(count, "process").replace("processs", "processes")),
        );
        parts.extend((container.usage_percent.is_none()).then(|| "quiet".to_owned()));
        parts.extend((container.wants_more == Some(true)).then(|| "wants more".to_owned()));
        return parts.join(", ");
    }
    let time = |seconds: Option<f64>| text::seconds((seconds.unwrap_or(0.0) * 1e9) as u64);
    parts.push(format!("{} of GPU time", time(container.gpu_seconds)));
    parts.push(format!("throttled {}", time(container.throttled_seconds)));
    parts.push(format!("{} refused", container.refused.unwrap_or(0)));
    parts.extend(container.switched_by.map(|by| format!("by {by}")));
    let processes = container.processes.as_deref().unwrap_or_default();
    let mut pids: Vec<String> = processes.iter().take(PROCESSES).map(pid).collect();
    if processes.len() > PROCESSES {
        pids.push(format!("and {} more", processes.len() - PROCESSES));
    }
    parts.push(format!("pid {}", pids.join(" ")));
    parts.join(", ")
}

fn pid(process: &Process) -> String {
    format!("{}{}", process.number(), if process.is_alive { "" } else { " (dead)" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::report;

    #[test]
    fn it_fits_and_reads_well() {
        let shown = of(&report());
        let expected = "\
GPU-6f1c2f7a-0000-0000-0000-000000000001: 140.0 GiB

NAME         MEMORY       OF  REQUEST  LIMIT  USAGE  PRIORITY
─────────────────────────────────────────────────────────────
team/train  3.0 GiB  8.0 GiB      30%    30%    29%  normal
  12.3 s of GPU time, throttled 1.5 s, 2 refused, by channels, pid 4711
serve             -        -     none   100%      -  latency
  user 1001's, quiet
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn long_names_and_strange_ones_stay_in_their_column() {
        let mut report = report();
        report.gpus[0].containers[0].name = "namespace/a-very-long-name-of-a-pod/\u{1b}[2J".repeat(5);
        let shown = of(&report);
        assert!(!shown.contains('\u{1b}') && shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        report.gpus.clear();
        assert_eq!(of(&report), "No container uses a GPU here.\n");
    }
}
