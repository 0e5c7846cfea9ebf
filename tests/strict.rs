//! Strict means strict, and no more: where nobody knows what a program may have, each call that takes memory or sends work answers
//! `CUDA_ERROR_NOT_PERMITTED`, whatever was answered before; and what gives back, waits or asks goes on. The program ignores all
//! errors. The judge is the simulated driver's record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{Regions, Session, inside};
use support::table::Table;
use support::{Machine, report};

/// Longer than this without an answer is a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// `CUDA_ERROR_NOT_PERMITTED`
const NO: i64 = 800;

/// tests/programs/caps/strict.c, compiled once: tests may run at the same time in one process.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| container::program("strict"))
}

/// A program in a container on a machine of its own.
struct Scene {
    machine: Machine,
    regions: Regions,
    session: Session,
    /// What `cuInit` answered.
    init: i64,
    /// How often it was told no.
    refused: usize,
}

impl Scene {
    fn begin(settings: &[(&str, &str)]) -> Scene {
        let (machine, regions) = (Machine::new(), Regions::new());
        let settings: Vec<(&str, String)> = settings.iter().map(|(name, value)| (*name, (*value).into())).collect();
        let mut command = inside(&machine, &regions, "tests/strict", &settings, program());
        if let Some((_, dir)) = settings.iter().find(|(name, _)| *name == "RATION_DIR") {
            command.env("RATION_DIR", dir);
        }
        command.env("RATION_TRACE", regions.0.join("trace"));
        let mut session = Session::start(&mut command, PATIENCE);
        let first = session.until("ready").expect("it begins");
        let init = answers(&first)[0].1;
        Scene { machine, regions, session, init, refused: usize::from(init == NO) }
    }

    /// Does something; the driver's code of each call.
    fn ask(&mut self, order: &str) -> Vec<(String, i64)> {
        self.session.tell(order);
        let lines = self.session.until("done").unwrap_or_else(|why| panic!("`{order}`: {why}"));
        let answers = answers(&lines);
        self.refused += answers.iter().filter(|(_, code)| *code == NO).count();
        answers
    }

    /// What clients have of the GPU: its memory, and the time that it has computed or copied for them so far.
    fn taken(&self) -> (u64, u64) {
        let record = self.machine.record();
        let copying: u64 = record.processes.iter().flat_map(|it| it.gpus.values()).map(|it| it.copying_ns).sum();
        (record.gpus[0].used_bytes, record.gpus[0].busy_ns + copying)
    }

    /// Tries everything; what was not refused, and what it had of the GPU by that.
    fn everything_is_refused(&mut self) {
        // Whatever is under way ends.
        std::thread::sleep(Duration::from_millis(100));
        let before = self.taken();
        let mut let_through: Vec<String> = Vec::new();
        let tried = self.ask("try");
        assert!(tried.len() > 70, "it tried {} calls only", tried.len());
        let rows = Table::read();
        let rows: Vec<_> = rows.rows.iter().filter(|row| row.takes != "-").collect();
        let by_name: Vec<_> = rows.iter().flat_map(|row| self.ask(&format!("row {}", row.symbol))).collect();
        assert!(by_name.len() > 180, "the driver has {} of {} rows", by_name.len(), rows.len());
        for (name, code) in tried.iter().chain(&by_name).filter(|(_, code)| *code != NO) {
            let_through.push(format!("{name} -> {code}"));
        }
        std::thread::sleep(Duration::from_millis(100));
        let after = self.taken();
        let taken = (after.0 as i64 - before.0 as i64, after.1 - before.1);
        assert!(
            let_through.is_empty() && taken == (0, 0),
            "it took {} bytes and {} ns of the GPU. Not refused: {}",
            taken.0,
            taken.1,
            let_through.join(", ")
        );
    }

    /// Lets it end. The trace has counted what was refused, and the reason was said once.
    fn end(mut self, reason: &str) {
        let trace = self.regions.0.join("trace");
        let said = self.session.said();
        assert_eq!(said.matches(reason).count(), 1, "{said}");
        self.session.tell("quit");
        let refused = self.refused;
        self.session.finish().expect("it ends well");
        let trace = std::fs::read_to_string(trace).expect("it is traced");
        let counted = format!("# refused, not knowing what may be had: {refused}");
        assert!(trace.lines().any(|line| line == counted), "{counted}; the trace: {trace}");
    }
}

/// Lines of a name and a code.
fn answers(lines: &[String]) -> Vec<(String, i64)> {
    let pair = |line: &String| {
        let (name, code) = line.split_once(' ')?;
        Some((name.to_owned(), code.split(' ').next()?.parse().ok()?))
    };
    lines.iter().map(|line| pair(line).unwrap_or_else(|| panic!("not an answer: {line}"))).collect()
}

/// Somebody writes over the region, who should not be able to.
fn damage(regions: &Regions) {
    let region = regions.files().pop().expect("a region");
    let length = region.metadata().expect("it is there").len() as usize;
    std::fs::OpenOptions::new()
        .write(true)
        .open(&region)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &vec![0xff; length]))
        .expect("it can be written to");
}

#[test]
fn nothing_is_had_where_the_settings_cannot_be_understood() {
    let mut scene = Scene::begin(&[("RATION_MEMORY", "lots")]);
    assert_eq!(scene.init, NO);
    scene.ask("prepare");
    scene.everything_is_refused();
    assert_eq!(scene.taken(), (0, 0));
    // The driver was never started, and says so itself.
    let given: BTreeMap<_, _> = scene.ask("give").into_iter().collect();
    assert!(given.values().all(|code| *code != NO), "{given:?}");
}

#[test]
fn nothing_is_had_where_the_region_is_missing_and_strict_wants_one() {
    let nowhere = "/proc/self/exe";
    let settings = [("RATION_MEMORY", "2GiB"), ("RATION_STRICT", "1"), ("RATION_DIR", nowhere)];
    let mut scene = Scene::begin(&settings);
    assert_eq!(scene.init, NO);
    scene.ask("prepare");
    scene.everything_is_refused();
    assert_eq!(scene.taken(), (0, 0));
    // The driver was started, and nobody has anything: it says so itself.
    let given: BTreeMap<_, _> = scene.ask("give").into_iter().collect();
    assert!(given.values().all(|code| *code != NO), "{given:?}");
    // Others are let in: what was refused to one is not refused to all.
    let mut other = Scene::begin(&[("RATION_MEMORY", "2GiB"), ("RATION_STRICT", "1")]);
    assert_eq!(other.init, 0);
    let refused = other.ask("try").into_iter().filter(|(_, code)| *code == NO).count();
    assert_eq!(refused, 0);
}

#[test]
fn nothing_more_is_had_when_the_region_is_lost_and_all_can_be_given_back() {
    let mut scene = Scene::begin(&[("RATION_MEMORY", "2GiB"), ("RATION_STRICT", "1")]);
    assert_eq!(scene.init, 0);
    scene.ask("prepare");
    assert!(scene.taken().0 > 0 && scene.taken().1 > 0, "it has {:?}", scene.taken());
    damage(&scene.regions);
    // Those who do not ask for memory are noticed by the controller.
    std::thread::sleep(Duration::from_millis(300));
    scene.everything_is_refused();
    let given = scene.ask("give");
    let wrong: Vec<_> = given.iter().filter(|(_, code)| *code != 0).collect();
    assert!(wrong.is_empty(), "not given back: {wrong:?}");
    assert_eq!(scene.taken().0, 0, "it has given all of it back");
    scene.end("RATION_STRICT");
}

/// It neither launches anything nor asks for memory, and has no limit that anybody would steer it for.
#[test]
fn who_only_copies_notices_that_the_region_is_lost() {
    let mut scene = Scene::begin(&[("RATION_MEMORY", "2GiB"), ("RATION_STRICT", "1")]);
    assert_eq!(scene.init, 0);
    scene.ask("hold");
    assert!(scene.ask("copy").iter().all(|(_, code)| *code == 0));
    damage(&scene.regions);
    std::thread::sleep(Duration::from_millis(300));
    let copied = scene.ask("copy");
    assert!(copied.len() == 3 && copied.iter().all(|(_, code)| *code == NO), "{copied:?}");
    scene.everything_is_refused();
    scene.end("RATION_STRICT");
}

#[test]
fn threads_in_the_middle_of_calls_are_refused_from_one_call_on() {
    let mut scene = Scene::begin(&[("RATION_MEMORY", "2GiB"), ("RATION_STRICT", "1")]);
    assert_eq!(scene.init, 0);
    scene.ask("prepare");
    scene.session.tell("busy 600");
    std::thread::sleep(Duration::from_millis(250));
    damage(&scene.regions);
    let lines = scene.session.until("done").expect("it neither hangs nor ends");
    let numbers: Vec<u64> = lines[0].split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
    let [calls, refused, more] = numbers[..] else { panic!("{lines:?}") };
    report(
        "strict-threads",
        &format!("{calls} calls, {refused} of them refused, {more} not refused after one that was\n"),
    );
    assert!(refused > 0 && refused < calls, "{calls} calls, {refused} refused");
    assert_eq!(more, 0, "of {calls}, {refused} refused");
    scene.refused += refused as usize;
    scene.end("RATION_STRICT");
}
