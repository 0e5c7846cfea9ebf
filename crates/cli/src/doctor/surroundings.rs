//! What is around programs and can keep slices from working well: MPS, the clock, limits on processes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::check::Check;

/// Where MPS listens, unless it is told otherwise.
const PIPES: &str = "/tmp/nvidia-mps";
/// Its programs.
const MPS: [&str; 2] = ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control"];

/// Whether programs that are started from here become clients of MPS.
pub fn mps(pipes: Option<&str>) -> Check {
    mps_found(pipes, &running(Path::new("/proc")))
}

fn mps_found(pipes: Option<&str>, running: &[String]) -> Check {
    let directory = pipes.filter(|it| !it.is_empty()).unwrap_or(PIPES);
    if !Path::new(directory).join("control").exists() {
        return match running.is_empty() {
            true => Check::ok("mps", "off"),
            false => {
                Check::ok("mps", format!("{} runs, and programs started from here do not use it", running.join(", ")))
            }
        };
    }
    let who = match running.is_empty() {
        true => "its daemon is not to be seen from here".to_owned(),
        false => format!("{} runs", running.join(", ")),
    };
    Check::warning(
        "mps",
        format!("on: its pipes are in {directory}, and {who}"),
        "Under MPS the channels are the server's, so that launches are held in their calls instead, and shares are looser. Memory limits \
         hold as ever. For shares by ration alone, end it: echo quit | nvidia-cuda-mps-control",
    )
}

/// Those of MPS's programs that run.
fn running(proc: &Path) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(proc).into_iter().flatten().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let program = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let program = String::from_utf8_lossy(program);
        let name = program.rsplit('/').next().unwrap_or_default();
        if MPS.contains(&name) && !found.iter().any(|it| it == name) {
            found.push(name.to_owned());
        }
    }
    found.sort();
    found
}

/// The directory of the control group that this process is in, if groups are those of the second version.
pub fn own_cgroup() -> Option<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end_matches('/');
    if path.split('/').any(|part| part == "..") {
        return None;
    }
    let group = root.join(path.trim_start_matches('/'));
    // In a container the group may be seen as the root.
    Some(if group.is_dir() { group } else { root.to_owned() })
}

/// A limit on processes: its name for people, what `ulimit` calls it, the value, what CUDA and the library need, why.
type Limit = (&'static str, &'static str, Option<u64>, u64, &'static str);

/// Limits under which CUDA, or the library, cannot work.
pub fn limits() -> Check {
    let value = |resource| getrlimit(resource).current;
    limits_found(&[
        (
            "address space",
            "-v",
            value(Resource::As),
            64 << 30,
            "CUDA reserves as many addresses as there is memory on GPUs and host",
        ),
        ("open files", "-n", value(Resource::Nofile), 256, "a CUDA program has dozens open for each GPU"),
        ("processes and threads", "-u", value(Resource::Nproc), 64, "the driver and the library start threads"),
        ("size of a file", "-f", value(Resource::Fsize), 1 << 20, "a region has some 370 kB for each GPU"),
    ])
}

fn limits_found(limits: &[Limit]) -> Check {
    let low = |(name, option, value, least, why): &Limit| {
        let value = value.filter(|value| value < least)?;
        Some(Check::warning(
            "limits",
            format!("the limit on {name} is {value}: {why}"),
            format!("Raise it where programs are started: ulimit {option} unlimited, or as much as may be"),
        ))
    };
    Check::of_all(limits.iter().filter_map(low).collect())
        .unwrap_or_else(|| Check::ok("limits", "none on processes that would be in the way (ulimit)"))
}

/// So often a thread sleeps, for so long.
const SLEEPS: u32 = 50;
const SLEEP: Duration = Duration::from_millis(1);
/// Later than this on average, or once, and the GPU is passed on late.
const LATE: Duration = Duration::from_millis(1);
const VERY_LATE: Duration = Duration::from_millis(50);

/// How this machine's clock goes, and its sleepers wake.
pub struct Clock {
    steps_back: u32,
    /// The monotonic clock's speed by the raw one's.
    rate: f64,
    late: Duration,
    latest: Duration,
    /// Of the time namespace, in seconds.
    offset: i64,
}

fn nanoseconds(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

impl Clock {
    /// Watches it for a twentieth of a second or more.
    pub fn watch() -> Clock {
        let read =
            || (nanoseconds(clock_gettime(ClockId::Monotonic)), nanoseconds(clock_gettime(ClockId::MonotonicRaw)));
        let (began, mut last, mut steps_back) = (read(), 0, 0);
        let (mut late, mut latest) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..SLEEPS {
            let slept = Instant::now();
            std::thread::sleep(SLEEP);
            let over = slept.elapsed().saturating_sub(SLEEP);
            (late, latest) = (late + over, latest.max(over));
            for _ in 0..100 {
                let now = read().0;
                steps_back += u32::from(now < last);
                last = now;
            }
        }
        let ended = read();
        let rate = (ended.0 - began.0) as f64 / (ended.1 - began.1).max(1) as f64;
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Clock { steps_back, rate, late: late / SLEEPS, latest, offset: offset(&offsets) }
    }

    pub fn check(&self) -> Check {
        let ms = |time: Duration| crate::text::ms(time.as_secs_f64() * 1e3);
        if self.steps_back > 0 {
            return Check::problem(
                "clock",
                format!("CLOCK_MONOTONIC went back {} times while it was read", self.steps_back),
                "Shares are counted by it. Have the kernel use another clock: /sys/devices/system/clocksource/clocksource0",
            );
        }
        if !(0.99..1.01).contains(&self.rate) {
            return Check::problem(
                "clock",
                format!("CLOCK_MONOTONIC goes {:.3} times as fast as the hardware's clock", self.rate),
                "Shares are counted by it. See what steers the clock on this machine (chronyd, ntpd), and its clocksource",
            );
        }
        let namespace = match self.offset {
            0 => String::new(),
            offset => format!(", in a time namespace ({offset:+} s), which is fine"),
        };
        let woken = format!("sleepers wake {} ms late on average, {} ms at most", ms(self.late), ms(self.latest));
        if self.late > LATE || self.latest > VERY_LATE {
            return Check::warning(
                "clock",
                format!("it goes{namespace}; but {woken}"),
                "The GPU is passed on by a thread in each program, which needs a processor in time: see that containers are not short of \
                 CPU, and that the machine's own host is not too full",
            );
        }
        Check::ok("clock", format!("it goes{namespace}; {woken}"))
    }
}

/// Seconds that this time namespace's monotonic clock is off.
fn offset(text: &str) -> i64 {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::check::Status;
    use super::*;

    #[test]
    fn mps_is_told_by_its_pipes() {
        let dir = std::env::temp_dir().join(format!("ration-doctor-mps-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temporary files can be made");
        let pipes = dir.to_str();
        assert_eq!(mps_found(pipes, &[]), Check::ok("mps", "off"));
        assert_eq!(mps_found(pipes, &[MPS[0].into()]).status, Status::Ok, "it is not ours");
        std::fs::write(dir.join("control"), "").expect("ours");
        let check = mps_found(pipes, &[]);
        assert!(check.status == Status::Warning && check.found.contains("not to be seen"), "{check:?}");
        assert!(mps_found(pipes, &[MPS[0].into()]).found.ends_with("nvidia-cuda-mps-server runs"));
        let process = dir.join("12");
        std::fs::create_dir(&process).expect("ours");
        std::fs::write(process.join("cmdline"), "/usr/bin/nvidia-cuda-mps-control\0-d\0").expect("ours");
        assert_eq!(running(&dir), [MPS[1]]);
        std::fs::remove_dir_all(&dir).expect("ours");
    }

    #[test]
    fn limits_that_are_too_low_are_named() {
        let limit = |value| ("open files", "-n", value, 256, "many");
        assert_eq!(limits_found(&[limit(None), limit(Some(256))]).status, Status::Ok);
        let check = limits_found(&[limit(Some(255))]);
        assert!(check.status == Status::Warning && check.found.contains("open files is 255"), "{check:?}");
        assert!(check.remedy.is_some_and(|it| it.contains("ulimit -n")));
    }

    #[test]
    fn a_clock_is_judged_by_what_matters() {
        let good = || Clock { steps_back: 0, rate: 1.0, late: Duration::ZERO, latest: Duration::ZERO, offset: 0 };
        assert_eq!(good().check().status, Status::Ok);
        assert!(Clock { offset: -5, ..good() }.check().found.contains("time namespace (-5 s)"));
        assert_eq!(Clock { steps_back: 1, ..good() }.check().status, Status::Problem);
        assert_eq!(Clock { rate: 1.2, ..good() }.check().status, Status::Problem);
        let late = Duration::from_millis(3);
        assert_eq!(Clock { late, latest: late, ..good() }.check().status, Status::Warning);
        assert_eq!(Clock { latest: Duration::from_millis(90), ..good() }.check().status, Status::Warning);
        let seen = Clock::watch();
        assert!(seen.steps_back == 0 && (0.9..1.1).contains(&seen.rate));
    }

    #[test]
    fn the_offset_is_the_monotonic_clocks() {
        assert_eq!(offset("monotonic           0         0\nboottime   7 0\n"), 0);
        assert_eq!(offset("monotonic       -3600         0\n"), -3600);
        assert_eq!(offset(""), 0);
    }
}
