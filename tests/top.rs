//! `ration top` in a terminal, as somebody watches it, and as lines; and `ration export`, as Prometheus asks it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use ration_region::{Gpu, Home, Region};
use serde_json::Value;

#[path = "caps/container.rs"]
mod container;
#[path = "cli/desk.rs"]
mod desk;
#[path = "cli/screen.rs"]
mod screen;
mod support;

use container::{GIB, Session};
use desk::{Desk, PATIENCE, containers, end, take};
use screen::Screen;
use support::preload::shim;
use support::tries::until_good;
use support::{compile, sim_dir};

/// Work without an end, with the module that lets channels be driven.
fn works(desk: &Desk, arguments: &[&str]) -> Session {
    let mut command = desk.ration("run", arguments);
    command.arg("--").arg(compile("load")).args(["saturate", "500", "600"]);
    let module = sim_dir().join("libsim-kernel.so");
    Session::start(command.env("LD_PRELOAD", format!("{}:{}", shim().display(), module.display())), PATIENCE)
}

fn top(desk: &Desk, arguments: &[&str]) -> Command {
    let mut command = desk.machine.command(desk::ration());
    command.arg("top").args(arguments).env("RATION_DIR", &desk.regions.0);
    command
}

/// What stands in a column of a line, counted from the name on.
fn word(screen: &Screen, name: &str, at: usize) -> String {
    let line = screen.line(name).unwrap_or_default();
    line.split_whitespace().nth(at + 1).unwrap_or_default().to_owned()
}

/// A figure in percent.
fn percent(screen: &Screen, name: &str, at: usize) -> f64 {
    word(screen, name, at).trim_end_matches('%').parse().unwrap_or(-1.0)
}

#[test]
fn containers_come_are_throttled_are_refused_and_die() {
    let desk = Desk::new();
    let mut screen = Screen::start(&mut top(&desk, &["-n", "0.2", "--color", "never", "--sort", "name"]), 80, 24);
    screen.until("nobody is there", |it| it.text().contains("No container uses a GPU here."));
    assert!(screen.is_alternate());

    let mut holds = desk.hold(&["--name", "holds", "--memory", "4GiB"]);
    screen.until("somebody came", |it| it.text().contains("1 container ") && it.line("holds").is_some());
    assert_eq!(take(&mut holds, 3 * GIB), "had");
    screen.until("what it holds is seen", |it| word(it, "holds", 1) == "3.5/4.0" && word(it, "holds", 2) == "GiB");
    // The columns of a terminal of 80: memory takes two words.
    const HEAD: &str = "  NAME                 MEMORY LIMIT WANTS   1 s  10 s THROT  WAIT DENY PROC BY";
    assert!(screen.text().lines().any(|line| line.trim_end() == HEAD), "{}", screen.text());
    let (limit, short, throttled, denied, by) = (3, 5, 7, 9, 11);
    assert_eq!((word(&screen, "holds", limit).as_str(), word(&screen, "holds", denied).as_str()), ("100%", "0"));

    assert_eq!(take(&mut holds, 3 * GIB), "refused 2");
    screen.until("it was refused", |it| word(it, "holds", denied).parse().is_ok_and(|count: u32| count > 0));

    let mut works = works(&desk, &["--name", "works", "--memory", "8GiB", "--compute", "30%"]);
    screen.until("its limit keeps it off", |it| percent(it, "works", throttled) > 30.0);
    screen.until("it has its share", |it| (24.0..=36.0).contains(&percent(it, "works", short)));
    screen.until("how it is switched is seen", |it| word(it, "works", by) == "chan");
    assert_eq!((word(&screen, "works", limit).as_str(), word(&screen, "works", denied).as_str()), ("30%", "0"));
    // What their contexts take besides is in the figure, too, and is nobody's here; what the driver keeps for itself is not. NVML is
    // asked once a second.
    screen.until("what is taken of the GPU is seen", |it| {
        let text = it.text();
        text.lines().any(|line| line.contains("[ab░") && line.ends_with(" 4.0/140 GiB"))
    });
    let text = screen.text();
    let bars: Vec<&str> = text.lines().filter(|line| line.contains('[')).collect();
    assert!(bars[0].starts_with("  memory [a") && bars[0].contains('░') && bars[0].ends_with(" 4.0/140 GiB"), "{text}");
    let share =
        bars[1].matches('b').count() as f64 / (bars[1].find(']').unwrap_or(1) - bars[1].find('[').unwrap_or(0)) as f64;
    assert!(bars[1].starts_with("  time   [") && share > 0.05, "{share}: {text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    // Whose processes they are.
    screen.press("\x1b[B\r");
    screen.until("processes are listed", |it| it.text().contains("    pid ") && it.text().contains("    in /"));
    screen.press("\r");
    screen.until("they are hidden", |it| !it.text().contains("    pid "));

    screen.resize(140, 40);
    screen.until("there is room for all", |it| it.text().contains("SWITCHED BY") && it.text().contains("channels"));
    let text = screen.text();
    assert!(text.contains(" USER ") && text.contains(" PRIORITY ") && text.contains(" REQ "), "{text}");
    screen.resize(30, 5);
    screen.until("it says how much it needs", |it| it.text().contains("at least 40x8"));
    screen.resize(80, 24);
    screen.until("it is back", |it| it.line("works").is_some());

    // One is killed in the middle of its work.
    let pid: i32 = containers(&desk.status()).iter().find(|it| it["name"] == "works").expect("it works")["processes"][0]
        ["pid"]
        .as_i64()
        .expect("a number") as i32;
    // SAFETY: kill takes numbers; its parent, `ration run`, has not waited for it.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    screen.until("it is gone", |it| it.line("works").is_none() && it.text().contains("1 container "));
    works.close();
    assert_eq!(end(works).0, Some(128 + libc::SIGKILL));

    screen.press("q");
    assert!(screen.end().success());
    screen.until("the terminal is as it was", |it| !it.is_alternate());
    assert_eq!(end(holds).0, Some(0));
    desk.is_clean();
}

#[test]
fn keys_choose_what_is_shown() {
    let desk = Desk::new();
    let (one, two) =
        (desk.hold(&["--name", "one", "--memory", "4GiB"]), desk.hold(&["--name", "two", "--memory", "2GiB"]));
    let mut screen = Screen::start(&mut top(&desk, &["-n", "0.2", "--sort", "name"]), 80, 24);
    let order = |it: &Screen| {
        let text = it.text();
        text.find("one ").zip(text.find("two ")).map(|(one, two)| one < two)
    };
    screen.until("both are there", |it| order(it) == Some(true));
    assert_eq!(screen.colour_of("one "), Some(vt100::Color::Default));
    screen.press("S");
    screen.until("the order is the other", |it| order(it) == Some(false));
    screen.press("/tw");
    screen.until("one is left", |it| it.text().contains("1 of 2 containers") && it.text().contains("filter: tw"));
    screen.press("\x1b");
    screen.until("both are back", |it| order(it).is_some());
    screen.press("?");
    screen.until("keys are explained", |it| it.text().contains("leave") && it.text().contains("THROT "));
    screen.press(" ");
    screen.until("the table is back", |it| order(it).is_some());
    screen.press(" ");
    screen.until("it stands still", |it| it.text().contains("paused"));
    assert_eq!((end(one).0, end(two).0), (Some(0), Some(0)));
    std::thread::sleep(Duration::from_millis(500));
    assert!(order(&screen).is_some(), "what is paused stays:\n{}", screen.text());
    screen.press("p");
    screen.until("it goes on", |it| it.text().contains("No container uses a GPU here."));

    screen.press("\x03");
    assert!(screen.end().success());
    desk.is_clean();
}

/// Ctrl-Z gives the terminal back to the shell, and who is continued has the view again.
#[test]
fn it_can_be_suspended() {
    let desk = Desk::new();
    let mut shell = desk.machine.command("bash");
    shell.arg("-mc").arg("\"$0\" top; echo back at the prompt; read; fg").arg(desk::ration());
    let mut screen = Screen::start(shell.env("RATION_DIR", &desk.regions.0), 80, 24);
    let is_there = |it: &Screen| it.is_alternate() && it.text().contains("No container");
    screen.until("it is there", is_there);
    screen.press("\x1a");
    screen.until("it is stopped", |it| !it.is_alternate() && it.text().contains("back at the prompt"));
    screen.press("\r");
    screen.until("it is back", is_there);
    screen.press("q");
    assert!(screen.end().success());
    screen.until("the terminal is as it was", |it| !it.is_alternate());
}

/// However it ends, the terminal is as it was; and who has no terminal gets lines.
#[test]
fn it_leaves_as_it_should() {
    let desk = Desk::new();
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        let mut screen = Screen::start(&mut top(&desk, &[]), 80, 24);
        screen.until("it is there", |it| it.text().contains("ration top"));
        // SAFETY: kill takes numbers; the child was not waited for.
        unsafe { libc::kill(screen.child.id() as i32, signal) };
        assert!(screen.end().success());
        screen.until("the terminal is as it was", |it| !it.is_alternate());
    }
    let answer = desk.answer("top", &["-n", "0.1"]);
    assert_eq!((answer.status, answer.out.as_str()), (0, "No container uses a GPU here.\n"), "{answer:?}");
    let answer = desk.answer("top", &["--interval", "0"]);
    assert!(answer.status == 2 && answer.err.contains("a number of seconds from 0.1 to 3600"), "{answer:?}");
    let answer = desk.answer("top", &["--once", "--watch"]);
    assert!(answer.status == 2 && answer.err.contains("cannot be used with"), "{answer:?}");
}

#[test]
fn programs_read_it_too() {
    let desk = Desk::new();
    let works = works(&desk, &["--name", "works", "--memory", "8GiB", "--compute", "30%"]);
    let share = |report: &Value| containers(report).first().and_then(|it| it["got_1s_percent"].as_f64());
    let deadline = Instant::now() + PATIENCE;
    let report = loop {
        let answer = desk.answer("top", &["--json"]);
        assert_eq!(answer.status, 0, "{answer:?}");
        let report: Value = serde_json::from_str(&answer.out).expect("it is JSON");
        if share(&report).is_some_and(|share| (24.0..=36.0).contains(&share)) {
            break report;
        }
        assert!(Instant::now() < deadline, "{report:#}");
    };
    assert_eq!((&report["version"], &containers(&report)[0]["name"]), (&Value::from(1), &Value::from("works")));
    let answer = desk.answer("top", &["--once", "-n", "0.2", "--filter", "nobody"]);
    assert_eq!((answer.status, answer.out.as_str()), (0, "No container fits the filter.\n"), "{answer:?}");
    let mut watch = top(&desk, &["--watch", "--json", "-n", "0.1"]);
    let mut watch = Session::start(&mut watch, PATIENCE);
    for _ in 0..3 {
        let line = watch.line().expect("a line").expect("it goes on");
        let report: Value = serde_json::from_str(&line).expect("it is JSON");
        assert_eq!(containers(&report).len(), 1);
    }
    watch.signal(libc::SIGKILL);
    works.signal(libc::SIGTERM);
    assert_eq!(end(works).0, Some(128 + libc::SIGTERM));
}

/// `ration export`, on a port that is free.
struct Exporter {
    session: Session,
    address: String,
}

impl Exporter {
    fn start(desk: &Desk) -> Exporter {
        let mut command = desk.machine.command(desk::ration());
        command.args(["export", "--listen", "127.0.0.1:0"]).env("RATION_DIR", &desk.regions.0);
        let session = Session::start(&mut command, PATIENCE);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = session.said();
            if let Some((_, address)) = said.split_once("http://")
                && let Some(address) = address.strip_suffix("/metrics\n")
            {
                let address = address.to_owned();
                return Exporter { session, address };
            }
            assert!(Instant::now() < deadline, "it does not say where it listens: {said}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The head of an answer, and what follows it.
    fn get(&self, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").expect("it can be asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    }

    fn end(self, signal: i32) {
        self.session.signal(signal);
        assert_eq!(end(self.session).0, Some(0));
    }
}

#[test]
fn prometheus_is_told_the_same() {
    let desk = Desk::new();
    let mut holds = desk.hold(&["--name", "team/holds-0/main", "--memory", "4GiB", "--compute-request", "20%"]);
    assert_eq!(take(&mut holds, 3 * GIB), "had");
    assert_eq!(take(&mut holds, 3 * GIB), "refused 2");
    let exporter = Exporter::start(&desk);
    let (head, page) = exporter.get("/metrics");
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("application/openmetrics-text"), "{head}");
    let status = desk.status();
    let container = containers(&status)[0].clone();
    let figure = |name: &str| {
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")) && !line.contains("state=\"dead\""))
            .unwrap_or_else(|| panic!("no {name} in {page}"));
        let labels = r#"namespace="team",pod="holds-0",container="main""#;
        assert!(line.contains(labels) && line.contains("gpu=\"GPU-72617469-"), "{line}");
        line.rsplit(' ').next().and_then(|it| it.parse::<f64>().ok()).unwrap_or(-1.0)
    };
    assert_eq!(Some(figure("ration_container_memory_used_bytes")), container["used_bytes"].as_f64());
    assert_eq!(Some(figure("ration_container_memory_refused_total")), container["refused"].as_f64());
    let held = figure("ration_container_memory_used_bytes");
    assert!(held >= 3.5 * GIB as f64 && held < 3.6 * GIB as f64, "{held}");
    assert!((held..=4.0 * GIB as f64).contains(&figure("ration_container_memory_peak_bytes")));
    assert_eq!(figure("ration_container_memory_limit_bytes"), 4.0 * GIB as f64);
    assert_eq!(figure("ration_container_compute_request_ratio"), 0.2);
    assert_eq!(figure("ration_container_processes"), 1.0);
    assert_eq!(exporter.get("/healthz").1, "ok\n");
    assert!(exporter.get("/nowhere").0.starts_with("HTTP/1.1 404"));
    let answer = desk.answer("export", &["--listen", &exporter.address]);
    assert!(answer.status == 1 && answer.err.contains("is used by somebody already; --listen takes"), "{answer:?}");
    let once = desk.answer("export", &["--once"]);
    assert!(
        once.status == 0 && once.out.ends_with("# EOF\n") && once.out.contains("ration_container_memory_used_bytes{")
    );

    assert_eq!(end(holds).0, Some(0));
    assert!(!exporter.get("/metrics").1.contains("holds-0"), "who has gone is told of no more");
    exporter.end(libc::SIGINT);
    desk.is_clean();
}

/// A crowded GPU: a hundred containers of ten processes each. A look and what is shown of it take a twentieth of a second at most, as
/// the median of twenty.
#[test]
fn a_hundred_containers_are_looked_at_quickly() {
    let desk = Desk::new();
    let gpu = Gpu { uuid: [7; 16], total: 140 << 30 };
    let mut regions = Vec::new();
    for number in 0..100 {
        let name = format!("pod-{number:03}");
        let region = Region::open_at(&Home::among(&desk.regions.0, &name), &gpu).expect("a region");
        regions.push((name, region));
    }
    let mut members = Vec::new();
    for (name, region) in &regions {
        for number in 0..10 {
            let member = region.join(name, Some(4 << 30)).expect("there is room");
            member.reserve(number << 20).expect("there is room");
            members.push(member);
        }
    }
    let mut screen = Screen::start(&mut top(&desk, &["-n", "3600", "--sort", "name"]), 140, 40);
    screen.until("all are there", |it| it.text().contains("100 containers") && it.line("pod-000").is_some());
    screen.press("\x1b[F");
    screen.until("the last is shown", |it| it.line("pod-099").is_some());
    let exporter = Exporter::start(&desk);
    // The medians of twenty looks, and of twenty answers.
    let attempt = || {
        let (mut took, mut answered) = (Vec::new(), Vec::new());
        let mut watch = Session::start(&mut top(&desk, &["--watch", "--json", "-n", "0.1"]), PATIENCE);
        watch.line().expect("a line");
        let mut last = Instant::now();
        for _ in 0..20 {
            let line = watch.line().expect("a line").expect("it goes on");
            took.push(last.elapsed().saturating_sub(Duration::from_millis(100)));
            last = Instant::now();
            let report: Value = serde_json::from_str(&line).expect("it is JSON");
            assert_eq!(containers(&report).len(), 100);
            assert!(containers(&report).iter().all(|it| it["process_count"] == 10));
        }
        watch.signal(libc::SIGKILL);
        for _ in 0..20 {
            let began = Instant::now();
            let page = exporter.get("/metrics").1;
            answered.push(began.elapsed());
            assert_eq!(page.matches("ration_container_memory_used_bytes{").count(), 100);
        }
        took.sort();
        answered.sort();
        (took[10], answered[10])
    };
    let is_good = |(took, answered): &(Duration, Duration)| {
        let most = if cfg!(debug_assertions) { 60 } else { 20 };
        *took < Duration::from_millis(50) && *answered < Duration::from_millis(most)
    };
    let judged = until_good(attempt, is_good);
    exporter.end(libc::SIGTERM);
    let Some((took, answered)) = judged else { return };
    support::report(
        "top",
        &format!(
            "ration top, 100 containers of 10 processes: a look takes {:.1} ms (median of 20); ration export answers in {:.1} ms\n",
            took.as_secs_f64() * 1e3,
            answered.as_secs_f64() * 1e3
        ),
    );
    assert!(is_good(&(took, answered)), "{took:?}, {answered:?}");
}
