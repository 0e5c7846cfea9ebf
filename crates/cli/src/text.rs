//! Figures and tables as text.

use std::fmt::Write as _;

/// Whole numbers from a hundred on, one digit below; thousands apart: `1,998`, `49.9`.
pub fn rate(rate: f64) -> String {
    if rate < 99.95 { format!("{rate:.1}") } else { thousands(rate.round() as u64) }
}

/// `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of the whole: `61%`; below 10%, what it is to a tenth.
pub fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent < 9.95 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

/// A part of a limit, whose end is what matters: `75.3%`, `99.97%`, and `100%` for exactly all of it. It is rounded away
/// from the limit, so that neither what stays below it nor what goes beyond looks like the other.
pub fn fine_percent(part: f64) -> String {
    let hundredths = part * 10_000.0;
    match part {
        ..0.95 => format!("{:.1}%", part * 100.0),
        ..1.0 => format!("{:.2}%", hundredths.floor() / 100.0),
        1.0 => "100%".into(),
        _ => format!("{:.2}%", hundredths.ceil() / 100.0),
    }
}

/// Milliseconds, to three digits: `2.64`, `12.1`, `131`.
pub fn ms(ms: f64) -> String {
    match ms {
        ..9.995 => format!("{ms:.2}"),
        ..99.95 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

/// `24.5 GiB`, `518 MiB`.
pub fn memory(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1023.5 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

/// How much of so much, in the unit of the latter: `3.0/8.0 GiB`, `118/140 GiB`.
pub fn part_of(part: u64, whole: u64) -> String {
    let (unit, name) = if whole < 1 << 30 { (1_u64 << 20, "MiB") } else { (1 << 30, "GiB") };
    let (part, whole) = (part as f64 / unit as f64, whole as f64 / unit as f64);
    let figure = |it: f64| if name == "MiB" || it >= 99.95 { format!("{it:.0}") } else { format!("{it:.1}") };
    format!("{}/{} {name}", figure(part), figure(whole))
}

/// A number in four characters: `999`, `1.2k`, `12k`, `3.4M`.
pub fn short_count(number: u64) -> String {
    let mut scaled = number as f64;
    for unit in ["", "k", "M", "G", "T"] {
        if scaled < 999.5 {
            return match unit {
                "" => number.to_string(),
                _ if scaled < 9.95 => format!("{scaled:.1}{unit}"),
                _ => format!("{scaled:.0}{unit}"),
            };
        }
        scaled /= 1000.0;
    }
    "many".into()
}

/// A GPU as far as people tell it from others: `GPU-6f1c2f7a`.
pub fn gpu(uuid: &[u8; 16]) -> String {
    let begin: String = uuid.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{begin}")
}

/// `12.3 s`, of nanoseconds; minutes and hours where it is long.
pub fn seconds(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    match seconds {
        0..600 => format!("{:.1} s", nanoseconds as f64 / 1e9),
        600..36_000 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// So many of something: `1 allocation`, `no allocations`.
pub fn count(number: u64, what: &str) -> String {
    match number {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{} {what}s", thousands(number)),
    }
}

/// What a stranger wrote, made safe to print and cut to so many characters.
pub fn safe(text: &str, most: usize) -> String {
    let safe: String = text.chars().flat_map(char::escape_debug).collect();
    if safe.chars().count() <= most {
        return safe;
    }
    let cut: String = safe.chars().take(most.saturating_sub(1)).collect();
    cut + "…"
}

/// Where a column's cells stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Lays out rows in columns of just the width they need. The first row is the head and gets a line below it.
pub fn table(sides: &[Side], rows: &[Vec<String>]) -> String {
    table_with(sides, 1, rows)
}

/// The same with so many rows of heads.
pub fn table_with(sides: &[Side], heads: usize, rows: &[Vec<String>]) -> String {
    table_apart(sides, heads, 3, rows)
}

/// The same with columns so far apart.
pub fn table_apart(sides: &[Side], heads: usize, apart: usize, rows: &[Vec<String>]) -> String {
    let between = " ".repeat(apart);
    let width_of = |text: &str| text.chars().count();
    let widths: Vec<usize> = (0..sides.len())
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell)).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for ((cell, width), side) in row.iter().zip(&widths).zip(sides) {
            let gap = " ".repeat(width - width_of(cell));
            let _ = match side {
                Side::Left => write!(line, "{cell}{gap}{between}"),
                Side::Right => write!(line, "{gap}{cell}{between}"),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
        if number + 1 == heads {
            let total = widths.iter().sum::<usize>() + apart * (widths.len() - 1);
            text.push_str(&"─".repeat(total));
            text.push('\n');
        }
    }
    text
}

/// Breaks a paragraph into lines of at most `width` characters (but never inside a word), all but the first indented.
pub fn wrap(paragraph: &str, width: usize, indent: &str) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for word in paragraph.split_whitespace() {
        let fits = line.chars().count() + 1 + word.chars().count() <= width;
        if !line.trim().is_empty() && !fits {
            text.push_str(line.trim_end());
            text.push('\n');
            line = indent.to_owned();
        } else if !line.trim().is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_wrote_is_cut_and_cannot_move_the_cursor() {
        assert_eq!(safe("team/train", 10), "team/train");
        assert_eq!(safe("team/train-2", 10), "team/trai…");
        assert_eq!(safe("a\u{1b}[2J\n", 40), r"a\u{1b}[2J\n");
    }

    #[test]
    fn counts_and_times_read_as_people_say_them() {
        assert_eq!([count(0, "file"), count(1, "file"), count(1200, "file")], ["no files", "1 file", "1,200 files"]);
        let times = [0, 1_540_000_000, 599_000_000_000, 601_000_000_000, 36_000_000_000_000].map(seconds);
        assert_eq!(times, ["0.0 s", "1.5 s", "599.0 s", "10 min", "10 h"]);
        assert_eq!(gpu(&[0xab; 16]), "GPU-abababab");
    }

    #[test]
    fn narrow_columns_have_short_figures() {
        let gib = |number: u64| number << 30;
        let parts = [part_of(gib(3), gib(8)), part_of(gib(118), gib(140)), part_of(12 << 20, 512 << 20)];
        assert_eq!(parts, ["3.0/8.0 GiB", "118/140 GiB", "12/512 MiB"]);
        assert_eq!(part_of(0, 0), "0/0 MiB");
        let counts = [0, 999, 1_000, 1_249, 9_960, 123_456, 3_400_000, u64::MAX].map(short_count);
        assert_eq!(counts, ["0", "999", "1.0k", "1.2k", "10k", "123k", "3.4M", "many"]);
    }

    #[test]
    fn figures_keep_the_digits_that_mean_something() {
        assert_eq!([rate(0.0), rate(49.94), rate(99.97), rate(1998.4)], ["0.0", "49.9", "100", "1,998"]);
        assert_eq!(
            [thousands(7), thousands(999), thousands(1_000), thousands(1_234_567)],
            ["7", "999", "1,000", "1,234,567"]
        );
        assert_eq!([percent(0.0), percent(0.0871), percent(0.09951), percent(1.0)], ["0.0%", "8.7%", "10%", "100%"]);
        let fine = [0.753_4, 0.999_76, 0.999_999_9, 1.0, 1.000_01].map(fine_percent);
        assert_eq!(fine, ["75.3%", "99.97%", "99.99%", "100%", "100.01%"]);
        assert_eq!([ms(2.638), ms(9.996), ms(12.12), ms(131.4)], ["2.64", "10.0", "12.1", "131"]);
        assert_eq!([memory(518 << 20), memory(24 << 30)], ["518 MiB", "24.0 GiB"]);
    }

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let rows = [vec!["who".into(), "rate".into(), "→".into()], vec!["trainer".into(), "7".into(), "so".into()]];
        let expected = "\
who       rate   →
───────────────────
trainer      7   so
";
        assert_eq!(table(&[Side::Left, Side::Right, Side::Left], &rows), expected);
    }

    #[test]
    fn paragraphs_are_broken_between_words() {
        assert_eq!(wrap("one two  three four", 9, "  "), "one two\n  three\n  four\n");
        assert_eq!(wrap("immeasurable", 4, ""), "immeasurable\n");
        assert_eq!(wrap("", 4, ""), "\n");
    }
}
