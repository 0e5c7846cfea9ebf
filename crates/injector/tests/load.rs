//! What a webhook on one core stands: 500 admissions a second with a 99th percentile under 10 ms, in under 64 MiB.
//!
//! It takes half a minute of a quiet machine, so it runs when it is asked for:
//! `cargo test --release -p ration-injector --test load -- --ignored --nocapture`

#![allow(clippy::unwrap_used)] // in a test, a panic is how it fails

#[path = "serving/harness.rs"]
mod harness;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::{Program, Trust, asking, certificate, directory, install, memory};

/// Admissions a second.
const RATE: u32 = 500;
/// Connections that they come over, as from a few API servers.
const CONNECTIONS: u32 = 10;
/// How long.
const TIME: Duration = Duration::from_secs(20);

#[test]
#[ignore = "it measures, and needs a quiet machine"]
fn one_core_stands_500_admissions_a_second() {
    let (directory, stored) = (directory("load"), certificate());
    install(&stored, &directory);
    let program = Program::with_files(&directory, &["--log-level", "info"]);
    program.ready();
    let server_core = pin(&program);
    let trust = Trust::new(&[&stored.trusted]);
    let body = asking("load");
    // Each connection has its own times to send at, which do not move when an answer is late: what waits behind a slow one
    // counts as slow too.
    let period = Duration::from_secs(1) * CONNECTIONS / RATE;
    let before = cpu_seconds(program.id());
    let start = Instant::now() + Duration::from_millis(500);
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let (mut client, body) = (program.connect(&trust).unwrap(), body.clone());
            let first = start + period * number / CONNECTIONS;
            std::thread::spawn(move || {
                let mut latencies = Vec::new();
                for turn in 0.. {
                    let due = first + period * turn;
                    if due > start + TIME {
                        return latencies;
                    }
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    assert_eq!(client.post(&body).unwrap().review()["allowed"], true);
                    latencies.push(due.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies: Vec<Duration> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    let took = start.elapsed();
    let core = (cpu_seconds(program.id()) - before) / took.as_secs_f64();
    latencies.sort_unstable();
    let part = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    let peak = memory(program.id(), "VmHWM:");
    let rate = latencies.len() as f64 / took.as_secs_f64();
    // The same as the program itself saw it, without what the client and the machine's other work add.
    let within = |bound: &str| {
        let name = format!("ration_injector_admission_duration_seconds_bucket{{le=\"{bound}\"}}");
        let all = program.metric("ration_injector_admission_duration_seconds_count").unwrap();
        program.metric(&name).unwrap() / all * 100.0
    };
    let inside: String = ["0.0005", "0.001", "0.0025", "0.005", "0.01"]
        .iter()
        .map(|bound| format!("{:.2}% in {} ms, ", within(bound), bound.parse::<f64>().unwrap() * 1000.0))
        .collect();
    // As fast as it goes, on the same core, for as long as it takes to tell.
    let flood = flood(&program, &trust, &body);
    let build = if cfg!(debug_assertions) { "development" } else { "release" };
    let mut table = String::new();
    let _ = writeln!(table, "the webhook on one core ({server_core}), {build} build; review of {} bytes", body.len());
    let _ = writeln!(
        table,
        "  admissions a second       {rate:.0} over {CONNECTIONS} connections with TLS, {} in all",
        latencies.len()
    );
    for (name, share) in [("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("slowest", 1.0)] {
        let _ = writeln!(table, "  {name:<25} {:.2} ms", part(share).as_secs_f64() * 1000.0);
    }
    let _ = writeln!(table, "  by its own account        {}", inside.trim_end_matches(", "));
    let _ = writeln!(table, "  of its time on the core   {:.2} ms an admission", core * 1000.0 / rate);
    let _ = writeln!(table, "  of the core               {:.0}%", core * 100.0);
    let _ = writeln!(
        table,
        "  memory, at most           {peak:.1} MiB ({:.1} MiB after a flood)",
        memory(program.id(), "VmHWM:")
    );
    let _ = writeln!(table, "  as fast as it goes        {flood:.0} a second");
    print!("{table}");
    let report = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("report");
    std::fs::create_dir_all(&report).unwrap();
    std::fs::write(report.join("injector-load.txt"), &table).unwrap();
    assert!(rate > f64::from(RATE) * 0.98, "the load was not sent: {rate:.0} a second");
    assert!(part(0.99) < Duration::from_millis(10), "p99 is {:?}", part(0.99));
    assert!(memory(program.id(), "VmHWM:") < 64.0);
}

/// Admissions a second when every connection sends the next as soon as it has an answer.
fn flood(program: &Program, trust: &Trust, body: &[u8]) -> f64 {
    let until = Instant::now() + Duration::from_secs(5);
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (mut client, body) = (program.connect(trust).unwrap(), body.to_vec());
            std::thread::spawn(move || {
                let mut answered = 0;
                while Instant::now() < until {
                    client.post(&body).unwrap().review();
                    answered += 1;
                }
                f64::from(answered)
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum::<f64>() / 5.0
}

/// Puts the program on the last core, and ourselves on the others, if there are any.
fn pin(program: &Program) -> String {
    let cores = std::thread::available_parallelism().unwrap().get();
    set_cores(program.id(), cores - 1..cores);
    if cores > 1 {
        set_cores(std::process::id(), 0..cores - 1);
    }
    format!("core {} of {cores}", cores - 1)
}

/// For all threads that a process has, and those that they will start.
fn set_cores(process: u32, cores: std::ops::Range<usize>) {
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let thread: i32 = thread.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: a set is plain bits, for which all zeroes is a value; CPU_SET stays inside of it for cores below 1024; and
        // the call reads as many bytes as it is told that there are.
        let done = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            cores.clone().for_each(|core| libc::CPU_SET(core, &mut set));
            libc::sched_setaffinity(thread, size_of_val(&set), &raw const set)
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Time on a core so far.
fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let field = |number: usize| after_name.split_whitespace().nth(number - 3).unwrap().parse::<f64>().unwrap();
    // SAFETY: it reads a constant of the system.
    (field(14) + field(15)) / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}
