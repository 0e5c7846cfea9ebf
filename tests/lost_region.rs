//! Regions that somebody damages while programs are in them: cut short, written over, removed, replaced. The program goes on, within
//! its limits, and says so once; a `SIGBUS` of its own ends as it does without us. The judge is the simulated driver's record.

use std::fmt::Write as _;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[path = "caps/container.rs"]
mod container;
mod support;

use container::{GIB, MIB, Regions, Session, busy_share, inside, look};
use support::tries::until_good;
use support::{Machine, compile, report};

const CAP: u64 = 2 * GIB;
/// What is taken at a time.
const STEP: u64 = 64 * MIB;
/// Longer than this without an answer is a hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a region is, and where its parts begin: docs/region.md.
const LENGTH: u64 = 331_776;
const CONTAINERS: u64 = 4096;
const PROCESSES: u64 = 69_632;
const WHOLE: Range<u64> = 0..LENGTH;

/// A way to damage a file, and whether its processes lose their places by it.
type Damage = (&'static str, bool, fn(&Path));

const DAMAGES: &[Damage] = &[
    ("cut to nothing", true, |file| cut(file, 0)),
    ("cut to a page", true, |file| cut(file, CONTAINERS)),
    ("cut within the processes", true, |file| cut(file, PROCESSES)),
    ("cut, and as long again", true, |file| {
        cut(file, 0);
        cut(file, LENGTH);
    }),
    ("zeros", true, |file| write_over(file, WHOLE, |_| 0)),
    ("zeros in the header", false, |file| write_over(file, 0..CONTAINERS, |_| 0)),
    ("zeros in the containers", true, |file| write_over(file, CONTAINERS..PROCESSES, |_| 0)),
    ("zeros in the processes", true, |file| write_over(file, PROCESSES..LENGTH, |_| 0)),
    ("ones", true, |file| write_over(file, WHOLE, |_| 0xff)),
    ("random bytes", true, |file| {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        write_over(file, WHOLE, |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        });
    }),
    ("removed", false, |file| std::fs::remove_file(file).expect("it is there")),
    ("replaced", false, |file| {
        let other = file.with_extension("other");
        std::fs::copy(file, &other).expect("there is room");
        std::fs::rename(&other, file).expect("the directory is ours");
    }),
];

fn open(file: &Path) -> std::fs::File {
    std::fs::OpenOptions::new().write(true).open(file).expect("the region is there")
}

fn cut(file: &Path, length: u64) {
    open(file).set_len(length).expect("it can be cut");
}

fn write_over(file: &Path, part: Range<u64>, byte: impl FnMut(u64) -> u8) {
    let mut file = open(file);
    file.seek(SeekFrom::Start(part.start)).expect("a plain file");
    let bytes: Vec<u8> = part.map(byte).collect();
    file.write_all(&bytes).expect("it can be written to");
}

/// tests/programs/caps/lost.c, compiled once: tests may run at the same time in one process.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| container::program("lost"))
}

/// The region in a directory.
fn region(regions: &Regions) -> PathBuf {
    regions.files().pop().expect("a region")
}

/// A program that has begun, in a container with these settings.
fn begin(
    program: &Path,
    machine: &Machine,
    regions: &Regions,
    disposition: &str,
    settings: &[(&str, &str)],
) -> Session {
    let settings: Vec<(&str, String)> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let mut session =
        Session::start(inside(machine, regions, "tests/lost", &settings, program).arg(disposition), PATIENCE);
    session.until("ready").expect("it begins");
    session
}

/// The driver's code, and the numbers after it.
fn ask(session: &mut Session, order: &str) -> Result<(i64, Vec<u64>), String> {
    session.tell(order);
    let Some(line) = session.line()? else {
        let how = session.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        return Err(format!("`{order}` ended it: {how}; {}", session.said()));
    };
    let mut words = line.split(' ').map(|word| word.parse::<i64>().map_err(|_| format!("`{order}`: {line}")));
    let code = words.next().unwrap_or(Err(format!("`{order}`: nothing")))?;
    Ok((code, words.map(|word| word.map(|word| word as u64)).collect::<Result<_, _>>()?))
}

fn must(session: &mut Session, order: &str) -> Result<Vec<u64>, String> {
    match ask(session, order)? {
        (0, numbers) => Ok(numbers),
        (code, _) => Err(format!("`{order}` -> {code}; {}", session.said())),
    }
}

/// Lets it end by itself, well.
fn end(mut session: Session) -> Result<(), String> {
    session.tell("quit");
    session.finish().map(drop)
}

fn check(so: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if so { Ok(()) } else { Err(what()) }
}

/// How often it said that it goes on alone.
fn times_said(session: &Session) -> usize {
    session.said().matches("by itself").count()
}

/// It asks for more than it may have, gets what it may, and goes on.
fn is_held_to_its_cap(session: &mut Session, machine: &Machine) -> Result<(), String> {
    let (code, _) = ask(session, &format!("fill {STEP} {}", 2 * CAP))?;
    check(code == 2, || format!("it was told {code}, and not that there is no more"))?;
    let held = look(&machine.world()).held;
    check(held <= CAP, || format!("it holds {held} bytes, {} beyond its cap", held.saturating_sub(CAP)))?;
    check(held + STEP + 32 * MIB > CAP, || format!("it holds {held} bytes only"))?;
    must(session, "kernel")?;
    let total = must(session, "total")?;
    check(total == [CAP], || format!("it is told of a GPU with {total:?} bytes"))
}

/// Plays it with every damage; `LOST_ONLY` names one.
fn every_damage(name: &str, play: impl Fn(&Damage) -> Result<(), String>) {
    let (mut table, mut wrong) = (String::new(), String::new());
    let only = std::env::var("LOST_ONLY").unwrap_or_default();
    for damage in DAMAGES.iter().filter(|damage| only.is_empty() || only == damage.0) {
        let verdict = play(damage);
        let _ = writeln!(table, "{:<28}{}", damage.0, verdict.as_ref().err().map_or("holds", |why| why));
        if let Err(why) = verdict {
            let _ = writeln!(wrong, "{}: {why}", damage.0);
        }
    }
    report(name, &table);
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_program_whose_region_is_damaged_goes_on_within_its_cap_and_says_so_once() {
    let program = program();
    every_damage("lost-region", |(_, is_lost, damage)| {
        let (machine, regions) = (Machine::new(), Regions::new());
        let trace = regions.0.join("trace");
        let settings = [("RATION_MEMORY", "2GiB"), ("RATION_TRACE", trace.to_str().expect("a plain path"))];
        let mut session = begin(program, &machine, &regions, "default", &settings);
        must(&mut session, "start")?;
        must(&mut session, &format!("fill {STEP} {}", 8 * STEP))?;
        must(&mut session, "kernel")?;
        damage(&region(&regions));
        must(&mut session, "kernel")?;
        is_held_to_its_cap(&mut session, &machine)?;
        // What it gives back it can have again, and no more.
        must(&mut session, "empty")?;
        is_held_to_its_cap(&mut session, &machine)?;
        let said = times_said(&session);
        check(said == usize::from(*is_lost), || format!("it said so {said} times: {}", session.said()))?;
        end(session)?;
        let trace = std::fs::read_to_string(&trace).map_err(|error| error.to_string())?;
        let is_counted = trace.lines().any(|line| line == "# places in a region lost: 1");
        check(is_counted == *is_lost, || format!("the trace: {trace}"))
    });
}

#[test]
fn threads_that_allocate_and_launch_while_it_happens_neither_stop_nor_lose_count() {
    let program = program();
    every_damage("lost-region-busy", |(_, is_lost, damage)| {
        let (machine, regions) = (Machine::new(), Regions::new());
        let settings = [("RATION_MEMORY", "2GiB")];
        let mut session = begin(program, &machine, &regions, "default", &settings);
        must(&mut session, "start")?;
        session.tell("busy 600");
        std::thread::sleep(Duration::from_millis(200));
        damage(&region(&regions));
        let line = session.line()?.ok_or_else(|| format!("it ended: {}", session.said()))?;
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        check(numbers[2] * 10 > numbers[1], || {
            format!("{} rounds, {} of them in the last third", numbers[1], numbers[2])
        })?;
        is_held_to_its_cap(&mut session, &machine)?;
        let said = times_said(&session);
        check(said == usize::from(*is_lost), || format!("it said so {said} times: {}", session.said()))?;
        end(session)
    });
}

/// What a program that may use a quarter of the GPU's time has of it after the damage, in per cent.
fn share_after(program: &Path, damage: fn(&Path), is_lost: bool) -> Result<f64, String> {
    let (machine, regions) = (Machine::new(), Regions::new());
    let settings = [("RATION_COMPUTE_LIMIT", "25%".to_owned())];
    let mut command = inside(&machine, &regions, "tests/lost", &settings, program);
    let mut session = Session::start(command.args(["queue", "500", "2.2"]), PATIENCE);
    session.until("ready")?;
    std::thread::sleep(Duration::from_millis(500));
    damage(&region(&regions));
    std::thread::sleep(Duration::from_millis(250));
    let got = busy_share(&machine.world(), Duration::from_secs(1));
    let (times, said) = (times_said(&session), session.said());
    session.finish()?;
    check(times == usize::from(is_lost), || format!("it said so {times} times: {said}"))?;
    Ok(got)
}

#[test]
fn a_limit_on_gpu_time_is_kept_by_a_process_that_is_alone_with_it() {
    let program = compile("compute_work");
    every_damage("lost-region-compute", |(_, is_lost, damage)| {
        // A machine that stands still for a while says nothing about the share, and only about that.
        let is_right = |share: &f64| (share - 25.0).abs() < 4.0;
        let attempt = || share_after(&program, *damage, *is_lost);
        let Some(got) = until_good(attempt, |got| got.as_ref().map_or(true, is_right)) else { return Ok(()) };
        let share = got?;
        check(is_right(&share), || format!("it has {share:.1}% of the GPU's time, of 25%"))
    });
}

#[test]
fn a_strict_program_gets_no_more_gpu_work_when_its_region_is_lost() {
    let program = program();
    every_damage("lost-region-strict", |(_, is_lost, damage)| {
        let (machine, regions) = (Machine::new(), Regions::new());
        let settings = [("RATION_MEMORY", "2GiB"), ("RATION_STRICT", "1")];
        let mut session = begin(program, &machine, &regions, "default", &settings);
        must(&mut session, "start")?;
        must(&mut session, &format!("fill {STEP} {STEP}"))?;
        must(&mut session, "kernel")?;
        damage(&region(&regions));
        let expected = if *is_lost { [800, 800] } else { [0, 0] };
        let fill = ask(&mut session, &format!("fill {STEP} {STEP}"))?.0;
        // Those who launch without asking are made to ask soon.
        std::thread::sleep(Duration::from_millis(200));
        let told = [fill, ask(&mut session, "kernel")?.0];
        check(told == expected, || format!("memory, kernel: {told:?} and not {expected:?}; {}", session.said()))?;
        let said = session.said().matches("RATION_STRICT").count();
        check(said == usize::from(*is_lost), || format!("it said so {said} times: {}", session.said()))?;
        must(&mut session, "empty")?;
        end(session)
    });
}

/// Two programs of a container lose their region, somebody removes what is left of it, and they share the container's cap again.
fn come_back(is_strict: bool) -> Result<(), String> {
    let program = program();
    let (machine, regions) = (Machine::new(), Regions::new());
    let settings = [("RATION_MEMORY", "2GiB"), ("RATION_STRICT", if is_strict { "1" } else { "0" })];
    let mut both = [(); 2].map(|()| begin(program, &machine, &regions, "default", &settings));
    for session in &mut both {
        must(session, "start")?;
        must(session, &format!("fill {STEP} {}", 4 * STEP))?;
        must(session, "kernel")?;
    }
    let region = region(&regions);
    write_over(&region, WHOLE, |_| 0xff);
    for session in &mut both {
        let told = ask(session, &format!("fill {STEP} {STEP}"))?.0;
        check(told == if is_strict { 800 } else { 0 }, || format!("damaged, and it was told {told}"))?;
    }
    std::fs::remove_file(&region).expect("it is there");
    let end = std::time::Instant::now() + Duration::from_secs(5);
    let is_back = |session: &Session| session.said().contains("whole again");
    while !both.iter().all(is_back) {
        check(std::time::Instant::now() < end, || format!("not back: {}{}", both[0].said(), both[1].said()))?;
        std::thread::sleep(Duration::from_millis(50));
    }
    let held = look(&machine.world()).held;
    for session in &mut both {
        let (code, _) = ask(session, &format!("fill {STEP} {}", 2 * CAP))?;
        check(code == 2, || format!("it was told {code}, and not that there is no more; {}", session.said()))?;
        must(session, "kernel")?;
    }
    let filled = look(&machine.world()).held;
    check(filled <= CAP && filled + STEP + 32 * MIB > CAP, || format!("{held}, then {filled} bytes of {CAP}"))?;
    for mut session in both {
        check(session.said().matches("whole again").count() == 1, || session.said())?;
        must(&mut session, "empty")?;
        self::end(session)?;
    }
    Ok(())
}

#[test]
fn threads_that_allocate_while_their_programs_come_back_lose_no_count() {
    let program = program();
    let (machine, regions) = (Machine::new(), Regions::new());
    let mut both = [(); 2].map(|()| begin(program, &machine, &regions, "default", &[("RATION_MEMORY", "2GiB")]));
    for session in &mut both {
        assert_eq!(must(session, "start"), Ok(vec![]));
        assert_eq!(must(session, "kernel"), Ok(vec![]));
        session.tell("busy 3000");
    }
    // More than once, each time anew.
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(200));
        let region = region(&regions);
        write_over(&region, WHOLE, |_| 0xff);
        std::thread::sleep(Duration::from_millis(100));
        std::fs::remove_file(&region).expect("it is there");
        std::thread::sleep(Duration::from_millis(1200));
    }
    for session in &mut both {
        assert!(session.line().expect("it does not hang").is_some(), "{}", session.said());
        assert!(session.said().contains("whole again"), "{}", session.said());
    }
    for session in &mut both {
        let told = ask(session, &format!("fill {STEP} {}", 2 * CAP)).expect("it goes on");
        assert_eq!(told.0, 2, "{}", session.said());
    }
    let held = look(&machine.world()).held;
    assert!(held <= CAP && held + STEP + 32 * MIB > CAP, "{held} bytes of {CAP}");
}

#[test]
fn programs_come_back_together_when_there_is_a_whole_region_again() {
    assert_eq!([false, true].map(come_back), [Ok(()), Ok(())]);
}

/// What a program says that has these orders, and how it ends: bare or in a slice.
fn outcome(program: &Path, disposition: &str, orders: &[&str], is_sliced: bool) -> String {
    let (machine, regions) = (Machine::new(), Regions::new());
    let settings = [("RATION_MEMORY", "2GiB".to_owned())];
    let mut command = machine.command(program);
    if is_sliced {
        command = inside(&machine, &regions, "tests/lost", &settings, program);
    }
    let mut session = Session::start(command.arg(disposition), PATIENCE);
    let mut text = String::new();
    orders.iter().chain(&["quit"]).for_each(|order| session.tell(order));
    while let Some(line) = session.line().expect("it does not hang") {
        let _ = write!(text, "{line}; ");
    }
    let status = session.child.wait().expect("a child");
    let _ = write!(text, "exit {:?}, signal {:?}", status.code(), status.signal());
    text
}

#[test]
fn a_programs_own_bus_errors_end_as_they_do_without_us() {
    let program = program();
    let (mut table, mut wrong) = (String::new(), String::new());
    for disposition in ["default", "ignore", "plain", "info", "once", "jump"] {
        for orders in [&["fault"][..], &["raise"], &["fault", "fault"], &["raise", "fault"], &["fault", "raise"]] {
            let orders = [&["start"], orders, &["kernel"]].concat();
            let (bare, sliced) =
                (outcome(program, disposition, &orders, false), outcome(program, disposition, &orders, true));
            let _ = writeln!(table, "{disposition:<8} {:<28} {sliced}", orders.join(" "));
            if bare != sliced {
                let _ = writeln!(wrong, "{disposition} {orders:?}: {sliced}; bare: {bare}");
            }
        }
    }
    report("lost-region-own-faults", &table);
    assert!(wrong.is_empty(), "{wrong}");
    // They show something only if a handler was called, and the default ends the program.
    let called = outcome(program, "info", &["start", "fault", "fault"], false);
    assert!(called.contains("0 2 2") && called.contains("exit Some(0)"), "{called}");
    let ended = outcome(program, "default", &["start", "fault"], false);
    assert!(ended.contains("signal Some(7)"), "{ended}");
}

#[test]
fn its_own_handler_and_a_damaged_region_do_not_disturb_each_other() {
    let program = program();
    for disposition in ["ignore", "plain", "info", "once", "jump"] {
        let (machine, regions) = (Machine::new(), Regions::new());
        let settings = [("RATION_MEMORY", "2GiB")];
        let mut session = begin(program, &machine, &regions, disposition, &settings);
        let played = (|| {
            must(&mut session, "start")?;
            cut(&region(&regions), 0);
            must(&mut session, "kernel")?;
            is_held_to_its_cap(&mut session, &machine)?;
            if disposition != "ignore" {
                let calls = must(&mut session, "fault")?;
                check(calls == [1, 1], || format!("its handler: {calls:?}"))?;
            }
            must(&mut session, "kernel").map(drop)
        })();
        assert_eq!(played, Ok(()), "{disposition}");
    }
}

#[test]
fn there_is_a_handler_only_where_there_is_a_slice() {
    let program = program();
    for (settings, expected) in [(&[][..], 0), (&[("RATION_MEMORY", "2GiB")], 1)] {
        let (machine, regions) = (Machine::new(), Regions::new());
        let mut session = begin(program, &machine, &regions, "default", settings);
        assert_eq!(must(&mut session, "start"), Ok(vec![]));
        assert_eq!(must(&mut session, "handler"), Ok(vec![expected]), "{settings:?}");
    }
}

#[test]
fn those_who_come_after_the_damage_go_on_alone_like_those_who_were_there() {
    let program = program();
    every_damage("lost-region-newcomers", |(_, is_lost, damage)| {
        let (machine, regions) = (Machine::new(), Regions::new());
        let settings = [("RATION_MEMORY", "2GiB")];
        let mut before = [(); 2].map(|()| begin(program, &machine, &regions, "default", &settings));
        for session in &mut before {
            must(session, "start")?;
            must(session, &format!("fill {STEP} {STEP}"))?;
        }
        damage(&region(&regions));
        let mut after = begin(program, &machine, &regions, "default", &settings);
        must(&mut after, "start")?;
        // One at a time: each has the whole of what the container may have, and the others have given back theirs.
        let [one, other] = &mut before;
        for (session, was_there) in [(one, true), (other, true), (&mut after, false)] {
            let (code, _) = ask(session, &format!("fill {STEP} {}", 2 * CAP))?;
            check(code == 2, || format!("it was told {code}, and not that there is no more"))?;
            must(session, "kernel")?;
            must(session, "empty")?;
            let said = times_said(session);
            // One who comes later does not see what is wrong with a region that begins as one.
            check(said == usize::from(*is_lost) || !was_there, || {
                format!("it said so {said} times: {}", session.said())
            })?;
        }
        // The whole, and no more: the record knows the most that each ever had.
        let peak = look(&machine.world()).peak;
        check(peak <= CAP, || format!("one of them had {peak} bytes"))?;
        before.into_iter().chain([after]).try_for_each(end)
    });
}

#[test]
fn no_program_is_killed_by_a_file_that_is_cut_and_removed_over_and_over_while_it_starts() {
    let program = program();
    let regions = Regions::new();
    let machine = Machine::new();
    let is_over = AtomicBool::new(false);
    let played = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0u64.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                for file in regions.files() {
                    let _ = std::fs::OpenOptions::new().write(true).open(&file).map(|it| it.set_len(number % 3 * 4096));
                    std::thread::sleep(Duration::from_micros(number % 7 * 300));
                    let _ = std::fs::remove_file(&file);
                }
                std::thread::sleep(Duration::from_micros(number % 11 * 400));
            }
        });
        // Also if one of them does not even begin.
        let played = std::panic::catch_unwind(|| {
            (0..100).try_for_each(|_| {
                let mut session = begin(program, &machine, &regions, "default", &[("RATION_MEMORY", "2GiB")]);
                must(&mut session, "start")?;
                is_held_to_its_cap(&mut session, &machine)?;
                end(session)
            })
        });
        is_over.store(true, Ordering::Relaxed);
        played.expect("they begin")
    });
    assert_eq!(played, Ok(()));
}
