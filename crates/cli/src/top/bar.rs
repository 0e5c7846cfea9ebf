//! A GPU's memory or time, and who has how much of it.

use super::rows::Row;
use crate::look::Gpu;
use crate::text;

/// Who has a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The container with this mark.
    Container(usize),
    /// Somebody whom we do not know.
    Others,
}

/// Parts of a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Of one.
    pub parts: Vec<(Whose, f64)>,
    /// What it comes to.
    pub figure: String,
}

impl Bar {
    /// Whose each of so many cells is. Who has something has a cell as long as there is one.
    pub fn cells(&self, width: usize) -> Vec<Option<Whose>> {
        let mut cells = Vec::with_capacity(width);
        let mut sum = 0.0;
        for (whose, part) in &self.parts {
            sum += if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
            let end = ((sum * width as f64).round() as usize).max(cells.len() + usize::from(*part > 0.0));
            while cells.len() < end.min(width) {
                cells.push(Some(*whose));
            }
        }
        cells.resize(width, None);
        cells
    }
}

/// The bars of a GPU's memory and of its time, with a part for each container that is shown.
pub fn of(gpu: &Gpu, number: usize, rows: &[Row<'_>]) -> (Bar, Bar) {
    let mut here: Vec<&Row<'_>> = rows.iter().filter(|row| row.gpu_number == number).collect();
    // So that parts keep their places, however the rows are sorted.
    here.sort_by_key(|row| row.mark);
    let total = gpu.memory_bytes.filter(|total| *total > 0);
    let held: u64 = here.iter().filter_map(|row| row.container.used_bytes).sum();
    let memory = here.iter().map(|row| {
        let part = row.container.used_bytes.unwrap_or(0) as f64 / total.unwrap_or(u64::MAX) as f64;
        (Whose::Container(row.mark), part)
    });
    // What NVML says is taken besides is that of containers of which we see no figures, and of programs in none.
    let taken = gpu.taken_bytes.unwrap_or(0).max(held);
    let others = (Whose::Others, (taken - held) as f64 / total.unwrap_or(u64::MAX) as f64);
    let time = || here.iter().map(|row| (Whose::Container(row.mark), row.rates.got_1s_percent.unwrap_or(0.0) / 100.0));
    let figure = total.map_or_else(|| text::memory(taken), |total| text::part_of(taken, total));
    let memory = Bar { parts: memory.chain([others]).collect(), figure };
    let sum: f64 = time().map(|(_, part)| part).sum();
    let time = Bar { parts: time().collect(), figure: text::percent(sum.min(1.0)) };
    (memory, time)
}

#[cfg(test)]
mod tests {
    use super::super::history::History;
    use super::super::rows::{Sort, rows};
    use super::*;
    use crate::look::tests::report;

    #[test]
    fn cells_are_shared_out_as_the_whole_is() {
        let part = |(mark, part): &(usize, f64)| (Whose::Container(*mark), *part);
        let bar = |parts: &[(usize, f64)]| Bar { parts: parts.iter().map(part).collect(), figure: String::new() };
        let drawn = |bar: Bar, width| -> String {
            let sign = |cell| match cell {
                Some(Whose::Container(mark)) => char::from(b'a' + mark as u8),
                Some(Whose::Others) => '#',
                None => '.',
            };
            bar.cells(width).into_iter().map(sign).collect()
        };
        assert_eq!(drawn(bar(&[(0, 0.5), (1, 0.25)]), 8), "aaaabb..");
        assert_eq!(drawn(bar(&[(0, 0.001), (1, 0.001)]), 8), "ab......", "who has something is seen");
        assert_eq!(drawn(bar(&[(0, 0.9), (1, 0.9)]), 4), "aaaa");
        assert_eq!(drawn(bar(&[(0, f64::NAN), (2, 0.5)]), 4), "cc..");
        assert_eq!(drawn(bar(&[]), 0), "");
    }

    #[test]
    fn others_memory_is_not_known_and_not_drawn() {
        let report = report();
        let rows = rows(&report, &History::default(), (Sort::Memory, false), "");
        let (memory, time) = of(&report.gpus[0], 0, &rows);
        assert_eq!((memory.figure.as_str(), time.figure.as_str()), ("3.0/140 GiB", "0.0%"));
        assert_eq!(memory.parts.iter().filter(|(_, part)| *part > 0.0).count(), 1);
    }

    #[test]
    fn what_nvml_says_is_taken_besides_is_drawn() {
        let mut report = report();
        report.gpus[0].taken_bytes = Some(73 << 30);
        let all = rows(&report, &History::default(), (Sort::Memory, false), "");
        let (memory, _) = of(&report.gpus[0], 0, &all);
        assert_eq!(memory.figure, "73.0/140 GiB");
        let others = memory.cells(140).into_iter().filter(|it| *it == Some(Whose::Others)).count();
        assert!((69..=71).contains(&others), "{others} of 140");
    }
}
