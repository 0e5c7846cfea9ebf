//! The end of the act about memory: both runs side by side, and in plain words what it means.

use super::figures::{Account, ContainerResult, MemoryResults, RunResult, Work};
use crate::text::{self, Side, fine_percent, memory};

/// Lines are at most this long.
const WIDTH: usize = 100;
/// What a driver's name of an error begins with.
const PREFIX: &str = "CUDA_ERROR_";

/// The table and the words.
pub fn report(results: &MemoryResults) -> String {
    let mut said = table(results);
    said.push('\n');
    for paragraph in [without(&results.without), with(&results.with)] {
        said += &text::wrap(&format!("• {paragraph}"), WIDTH, "  ");
    }
    said.push('\n');
    said += &text::wrap(
        "What a container believes is what cuMemGetInfo says inside of it. What the GPU counts is the simulated GPU's \
         own record, where a context has its part, too: what nvidia-smi says outside of the containers.",
        WIDTH,
        "",
    );
    said
}

fn table(results: &MemoryResults) -> String {
    let columns = [&results.without, &results.with].map(|run| [&run.greedy, &run.steady]).concat();
    let cells = |row: &str, cell: &dyn Fn(&ContainerResult) -> String| -> Vec<String> {
        std::iter::once(row.to_owned()).chain(columns.iter().map(|container| cell(container))).collect()
    };
    let none = || "–".to_owned();
    let rate = |work: fn(&Account) -> Work| {
        // Greedy serves nobody.
        move |c: &ContainerResult| match c.name {
            "steady" => work(&c.believes).rate().map_or("–".into(), text::rate),
            _ => "–".to_owned(),
        }
    };
    let runs = ["memory", "without ration", "", "with ration", ""].map(str::to_owned).to_vec();
    let rows = [
        runs,
        cells("container", &|c| c.name.to_owned()),
        cells("limit", &|c| c.limit_bytes.map_or("none".into(), memory)),
        cells("believes that the GPU has", &|c| memory(c.believes.total_bytes)),
        cells("and that there is free", &|c| memory(c.believes.free_bytes)),
        cells("has allocated", &|c| memory(c.believes.held_bytes)),
        cells("the most, as the GPU counts", &|c| memory(c.gpu_peak_bytes)),
        cells("as a part of its limit", &|c| c.of_limit.map_or_else(none, fine_percent)),
        cells("asked for memory", &|c| times(c.believes.asked)),
        cells("was refused", &|c| times(c.believes.refused)),
        cells(&format!("with {PREFIX}…"), &|c| refusal(&c.believes).map_or_else(none, short)),
        cells("answers/s, before greedy asks", &rate(|a| a.before)),
        cells("           while it takes", &rate(|a| a.taking)),
        cells("           once it has all", &rate(|a| a.after)),
    ];
    text::table_with(&[Side::Left, Side::Right, Side::Right, Side::Right, Side::Right], 2, &rows)
}

fn times(count: u64) -> String {
    match count {
        0 => "never".into(),
        1 => "once".into(),
        _ => format!("{} times", text::thousands(count)),
    }
}

/// What it was refused with, if it was.
fn refusal(account: &Account) -> Option<&str> {
    account.refused_with.as_deref().filter(|_| account.refused != 0)
}

/// A driver's name of an error without what all of them begin with.
pub fn short(name: &str) -> String {
    name.strip_prefix(PREFIX).unwrap_or(name).to_owned()
}

/// How steady fared once greedy had all: before and after, in requests answered per second.
fn answers(steady: &ContainerResult) -> (f64, f64) {
    let rate = |work: Work| work.rate().unwrap_or(0.0);
    (rate(steady.believes.before), rate(steady.believes.after))
}

fn without(run: &RunResult) -> String {
    let (greedy, steady) = (&run.greedy, &run.steady);
    let taken = format!(
        "Without ration, greedy took {} and left {}.",
        memory(greedy.gpu_peak_bytes),
        memory(greedy.believes.free_bytes)
    );
    let (before, after) = answers(steady);
    match refusal(&steady.believes) {
        Some(name) => format!(
            "{taken} steady, which asked for no more than before, was refused memory {} ({name}): of {} requests a \
             second it answered {} from then on.",
            times(steady.believes.refused),
            text::rate(before),
            text::rate(after),
        ),
        None => format!("{taken} steady was lucky and found enough for itself all the same."),
    }
}

fn with(run: &RunResult) -> String {
    let (greedy, steady) = (&run.greedy, &run.steady);
    let (limit, held) = (greedy.limit_bytes.unwrap_or(0), greedy.gpu_peak_bytes);
    let part = fine_percent(greedy.of_limit.unwrap_or(0.0));
    let mut said = match held <= limit {
        true => {
            format!("With ration, the same program got {part} of its {} as the GPU counts, and no more:", memory(limit))
        }
        false => {
            format!("With ration, greedy got beyond its limit of {}, which is a bug: {part} of it;", memory(limit))
        }
    };
    said += &match refusal(&greedy.believes) {
        Some(name) => format!(" it was told {name}, as on a GPU of that size"),
        None => " it was never refused anything".to_owned(),
    };
    let work = greedy.believes.after;
    said += &match work.tried - work.done {
        0 => format!(", and went on working ({} rounds of a small allocation and a kernel).", work.done),
        failed => format!(", and could not go on: {failed} of {} rounds of its work failed.", work.tried),
    };
    let (before, after) = answers(steady);
    said += &match refusal(&steady.believes) {
        None => format!(
            " steady was never refused anything; it answered {} requests a second before, and {} beside a greedy \
             that was full.",
            text::rate(before),
            text::rate(after)
        ),
        Some(name) => format!(" steady was refused memory {} ({name}).", times(steady.believes.refused)),
    };
    said
}

#[cfg(test)]
mod tests {
    use super::super::scene::staged;
    use super::*;

    fn results() -> MemoryResults {
        let scene = staged();
        let [without, with] = [0, 1].map(|run: usize| scene.runs[run].result([7, 8]));
        MemoryResults { gpu: scene.gpu, gpu_bytes: scene.gpu_bytes, without, with }
    }

    fn unbroken(results: &MemoryResults) -> String {
        report(results).replace("\n  ", " ")
    }

    #[test]
    fn the_table_is_laid_out_like_this() {
        let expected = "\
memory                          without ration                     with ration
container                               greedy          steady          greedy      steady
──────────────────────────────────────────────────────────────────────────────────────────
limit                                     none            none         8.0 GiB     6.0 GiB
believes that the GPU has            139.8 GiB       139.8 GiB         8.0 GiB     6.0 GiB
and that there is free                   1 MiB           1 MiB           1 MiB     1.5 GiB
has allocated                        134.7 GiB         4.0 GiB         7.5 GiB     4.0 GiB
the most, as the GPU counts          135.2 GiB         4.8 GiB         8.0 GiB     4.8 GiB
as a part of its limit                       –               –          99.97%       79.3%
asked for memory                     100 times       100 times       100 times   100 times
was refused                           30 times        40 times        25 times       never
with CUDA_ERROR_…                OUT_OF_MEMORY   OUT_OF_MEMORY   OUT_OF_MEMORY           –
answers/s, before greedy asks                –            50.0               –        50.0
           while it takes                    –            50.0               –        50.0
           once it has all                   –             0.0               –        50.0
";
        assert_eq!(table(&results()), expected);
    }

    #[test]
    fn words_follow_the_figures() {
        let said = unbroken(&results());
        for fragment in [
            "greedy took 135.2 GiB and left 1 MiB.",
            "was refused memory 40 times (CUDA_ERROR_OUT_OF_MEMORY): of 50.0 requests a second it answered 0.0",
            "got 99.97% of its 8.0 GiB as the GPU counts, and no more: it was told CUDA_ERROR_OUT_OF_MEMORY",
            "went on working (50 rounds",
            "steady was never refused anything; it answered 50.0 requests a second before, and 50.0",
        ] {
            assert!(said.contains(fragment), "{said}\ndoes not say {fragment:?}");
        }
        for line in report(&results()).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn nothing_is_praised_that_did_not_happen() {
        let mut results = results();
        results.with.greedy.gpu_peak_bytes = 9 << 30;
        results.with.greedy.of_limit = Some(1.125);
        results.with.greedy.believes.refused = 0;
        results.with.greedy.believes.after.done -= 3;
        results.with.steady.believes.refused = 1;
        results.with.steady.believes.refused_with = Some("CUDA_ERROR_OUT_OF_MEMORY".into());
        results.without.steady.believes.refused = 0;
        let said = unbroken(&results);
        for fragment in [
            "beyond its limit of 8.0 GiB, which is a bug: 112.50% of it",
            "it was never refused anything",
            "could not go on: 3 of 50 rounds",
            "steady was refused memory once (CUDA_ERROR_OUT_OF_MEMORY)",
            "steady was lucky",
        ] {
            assert!(said.contains(fragment), "{said}\ndoes not say {fragment:?}");
        }
    }
}
