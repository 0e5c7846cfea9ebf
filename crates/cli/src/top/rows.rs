//! The containers in the order in which they are shown, and what is shown of each.

use clap::ValueEnum;

use super::history::{History, Rates};
use crate::look::{Container, Process, Report};
use crate::text::{self, Side};

/// A container with what it has had of late.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Of the GPU among those that are shown.
    pub gpu_number: usize,
    /// What it is called by: NVML's number, where that is known.
    pub gpu_index: u32,
    pub container: &'a Container,
    pub rates: Rates,
    /// What it is told from others by.
    pub mark: usize,
}

/// What rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    Name,
    Memory,
    Wants,
    #[value(name = "1s")]
    Short,
    #[value(name = "10s")]
    Long,
    Throttled,
    Waiting,
    Denied,
    Processes,
}

impl Sort {
    /// The next one.
    pub fn next(self) -> Sort {
        let all = Sort::value_variants();
        let at = all.iter().position(|it| *it == self).unwrap_or_default();
        all[(at + 1) % all.len()]
    }

    /// As it is typed.
    pub fn name(self) -> String {
        self.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
    }

    /// What is sorted by, the greatest first. Nobody's `None` is greater than a figure.
    fn of(self, row: &Row<'_>) -> f64 {
        let count = |it: Option<u64>| it.map(|it| it as f64);
        let figure = match self {
            Sort::Name => None,
            Sort::Memory => count(row.container.used_bytes),
            Sort::Wants => row.container.demand_percent,
            Sort::Short => row.rates.got_1s_percent,
            // Before ten seconds are over, what there is.
            Sort::Long => row.rates.got_10s_percent.or(row.rates.got_1s_percent),
            Sort::Throttled => row.rates.throttled_percent,
            Sort::Waiting => row.rates.waited_percent,
            Sort::Denied => count(row.container.refused),
            Sort::Processes => count(row.container.process_count),
        };
        figure.unwrap_or(-1.0)
    }
}

/// The containers whose name, GPU or user has `filter` in it, sorted; those that are equal by name.
pub fn rows<'a>(report: &'a Report, history: &History, sort: (Sort, bool), filter: &str) -> Vec<Row<'a>> {
    let filter = filter.to_lowercase();
    let mut rows: Vec<Row<'a>> = Vec::new();
    for (gpu_number, gpu) in report.gpus.iter().enumerate() {
        for container in &gpu.containers {
            let fields = [container.name.as_str(), gpu.uuid.as_str(), &container.user.to_string()];
            if fields.iter().any(|field| field.to_lowercase().contains(&filter)) {
                let gpu_index = gpu.index.unwrap_or(gpu_number as u32);
                let (rates, mark) = (history.rates(&gpu.uuid, container), history.mark(&gpu.uuid, container));
                rows.push(Row { gpu_number, gpu_index, container, rates, mark });
            }
        }
    }
    let (sort, is_reversed) = sort;
    rows.sort_by(|one, other| sort.of(other).total_cmp(&sort.of(one)).then(name(one).cmp(&name(other))));
    if is_reversed {
        rows.reverse();
    }
    rows
}

fn name<'a>(row: &Row<'a>) -> (&'a str, u32, usize) {
    (&row.container.name, row.container.user, row.gpu_number)
}

/// Something that is said of a container, in a column of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Gpu,
    Name,
    User,
    Memory,
    Priority,
    Request,
    Limit,
    Wants,
    Short,
    Long,
    Throttled,
    Waiting,
    Denied,
    Processes,
    By,
    Switch,
}

impl Column {
    /// In this order.
    const ALL: [Column; 16] = [
        Column::Gpu,
        Column::Name,
        Column::User,
        Column::Memory,
        Column::Priority,
        Column::Request,
        Column::Limit,
        Column::Wants,
        Column::Short,
        Column::Long,
        Column::Throttled,
        Column::Waiting,
        Column::Denied,
        Column::Processes,
        Column::By,
        Column::Switch,
    ];

    /// What is left out where there is no room for all, the least of it first. `By` is short for `Switch`.
    const LEAST: [Column; 13] = [
        Column::Switch,
        Column::User,
        Column::Priority,
        Column::Request,
        Column::By,
        Column::Processes,
        Column::Waiting,
        Column::Wants,
        Column::Long,
        Column::Denied,
        Column::Throttled,
        Column::Limit,
        Column::Short,
    ];

    pub fn head(self) -> &'static str {
        match self {
            Column::Gpu => "GPU",
            Column::Name => "NAME",
            Column::User => "USER",
            Column::Memory => "MEMORY",
            Column::Priority => "PRIORITY",
            Column::Request => "REQ",
            Column::Limit => "LIMIT",
            Column::Wants => "WANTS",
            Column::Short => "1 s",
            Column::Long => "10 s",
            Column::Throttled => "THROT",
            Column::Waiting => "WAIT",
            Column::Denied => "DENY",
            Column::Processes => "PROC",
            Column::By => "BY",
            Column::Switch => "SWITCHED BY",
        }
    }

    /// How many cells it takes; the name takes what is left, and no less than this.
    pub fn width(self) -> usize {
        match self {
            Column::Gpu => 3,
            Column::Name => 12,
            Column::User => 6,
            Column::Memory => 13,
            Column::Priority => 8,
            Column::Switch => 11,
            Column::By | Column::Denied | Column::Processes | Column::Request => 4,
            _ => 5,
        }
    }

    pub fn side(self) -> Side {
        match self {
            Column::Name | Column::Priority | Column::By | Column::Switch => Side::Left,
            _ => Side::Right,
        }
    }

    /// What rows are sorted by when this column is meant.
    pub fn sort(self) -> Option<Sort> {
        match self {
            Column::Name => Some(Sort::Name),
            Column::Memory => Some(Sort::Memory),
            Column::Wants => Some(Sort::Wants),
            Column::Short => Some(Sort::Short),
            Column::Long => Some(Sort::Long),
            Column::Throttled => Some(Sort::Throttled),
            Column::Waiting => Some(Sort::Waiting),
            Column::Denied => Some(Sort::Denied),
            Column::Processes => Some(Sort::Processes),
            _ => None,
        }
    }

    /// Those for which there is room, each with its width. `several`: whether there are several GPUs.
    pub fn fitting(width: usize, several: bool) -> Vec<(Column, usize)> {
        let mut columns: Vec<Column> = Column::ALL.into_iter().filter(|it| several || *it != Column::Gpu).collect();
        let needed = |columns: &[Column]| columns.iter().map(|it| it.width() + 1).sum::<usize>().saturating_sub(1);
        // Where there is room for the longer of both, the shorter goes.
        if needed(&columns) - Column::By.width() - 1 <= width {
            columns.retain(|it| *it != Column::By);
        }
        for least in Column::LEAST {
            if needed(&columns) <= width {
                break;
            }
            columns.retain(|it| *it != least);
        }
        let left = width.saturating_sub(needed(&columns));
        let wide = |column: Column| column.width() + if column == Column::Name { left } else { 0 };
        columns.into_iter().map(|column| (column, wide(column))).collect()
    }

    /// What is said of a container.
    pub fn cell(self, row: &Row<'_>, width: usize) -> String {
        let it = row.container;
        let unknown = || "-".to_owned();
        let share = |share: Option<f64>| share.map_or_else(unknown, |share| text::percent(share / 100.0));
        let count = |count: Option<u64>| count.map_or_else(unknown, text::short_count);
        let switch = it.switched_by.unwrap_or("-");
        match self {
            Column::Gpu => row.gpu_index.to_string(),
            Column::Name => text::safe(&it.name, width),
            Column::User => it.user.to_string(),
            Column::Memory => memory(it),
            Column::Priority => it.priority.into(),
            Column::Request => it.request_percent.map_or_else(|| "none".into(), |share| text::percent(share / 100.0)),
            Column::Limit => share(Some(it.limit_percent)),
            Column::Wants => share(it.demand_percent),
            Column::Short => share(row.rates.got_1s_percent),
            Column::Long => share(row.rates.got_10s_percent),
            Column::Throttled => share(row.rates.throttled_percent),
            Column::Waiting => share(row.rates.waited_percent),
            Column::Denied => count(it.refused),
            Column::Processes => count(it.process_count),
            Column::By => switch.chars().take(4).collect(),
            Column::Switch => switch.into(),
        }
    }
}

/// `3.0/8.0 GiB`; of others, nothing.
fn memory(container: &Container) -> String {
    let Some(used) = container.used_bytes else { return "-".into() };
    let Some(cap) = container.cap_bytes else { return text::memory(used) };
    text::part_of(used, cap)
}

/// A line about a process.
pub fn process(process: &Process) -> String {
    let state = if process.is_alive { "" } else { "  dead; what it held counts until the driver has let go of it" };
    format!("pid {:<8} {:>9}{state}", process.number(), text::memory(process.held_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::report;

    #[test]
    fn rows_are_sorted_and_filtered() {
        let report = report();
        let names = |sort, is_reversed, filter: &str| -> Vec<&str> {
            let rows = rows(&report, &History::default(), (sort, is_reversed), filter);
            rows.iter().map(|row| row.container.name.as_str()).collect()
        };
        assert_eq!(names(Sort::Name, false, ""), ["serve", "team/train"]);
        assert_eq!(names(Sort::Name, true, ""), ["team/train", "serve"]);
        assert_eq!(names(Sort::Memory, false, ""), ["team/train", "serve"]);
        assert_eq!(names(Sort::Name, false, "TRAIN"), ["team/train"]);
        assert_eq!(names(Sort::Name, false, "1001"), ["serve"]);
        assert_eq!(names(Sort::Name, false, "gpu-6f1c").len(), 2);
        assert!(names(Sort::Name, false, "nobody").is_empty());
        let mut sort = Sort::Name;
        for _ in Sort::value_variants() {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::Name);
    }

    #[test]
    fn what_fits_fills_the_line_and_no_more() {
        for (width, several) in (20..250).flat_map(|width| [(width, false), (width, true)]) {
            let columns = Column::fitting(width, several);
            let taken = columns.iter().map(|(_, width)| width + 1).sum::<usize>() - 1;
            assert!(taken == width || width < 33, "{taken} of {width}");
            assert!(columns.iter().any(|(it, _)| *it == Column::Name));
            assert!(
                !columns.iter().any(|(it, _)| *it == Column::By)
                    || !columns.iter().any(|(it, _)| *it == Column::Switch)
            );
        }
        // A terminal of 80, less the marks.
        let columns: Vec<Column> = Column::fitting(78, false).into_iter().map(|(it, _)| it).collect();
        use Column::*;
        assert_eq!(columns, [Name, Memory, Limit, Wants, Short, Long, Throttled, Waiting, Denied, Processes, By]);
    }
}
