//! The processes that ask the driver, and those that a limit is tried on: plain programs, which the doctor starts as others are started.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::cuda::Cuda;
use super::said::{Card, Said, say};
use crate::library::NAME;
use crate::nvml::{Nvml, OwnLimit};

/// Asks the driver something. `ration doctor` starts it.
#[derive(Debug, Args)]
pub struct Arguments {
    question: Question,
    /// The GPU, as CUDA counts
    #[arg(long, default_value_t = 0)]
    gpu: i32,
    /// Bytes: what is below the cap
    #[arg(long, default_value_t = 0)]
    under: u64,
    /// How long it works before that counts
    #[arg(long, default_value_t = 0)]
    warm_ms: u64,
    /// How long it works then
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
}

/// What is to be found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// What CUDA says
    Cuda,
    /// What NVML says
    Nvml,
    /// Which copies of the library are in this process
    Library,
    /// What is refused of memory
    Memory,
    /// How much of the GPU's time there is
    Work,
}

/// Kernels that are waited for at a time: some milliseconds of work, so that the GPU has no pauses that count.
const BATCH: u32 = 32;
/// So long somebody who reads what it said has for looking at the region.
const LINGER: Duration = Duration::from_millis(200);

/// The command's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    // Whoever wanted to know may be killed. Where this is not to be had, a pipe that nobody reads ends it at the next line.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let told = match arguments.question {
        Question::Cuda => cuda(),
        Question::Nvml => nvml(),
        Question::Library => {
            say(&Said::Loaded(loaded()));
            Ok(())
        }
        Question::Memory => memory(arguments),
        Question::Work => work(arguments),
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(said) => {
            say(&said);
            ExitCode::FAILURE
        }
    }
}

fn cuda() -> Result<(), Said> {
    let cuda = Cuda::open()?;
    say(&Said::Cuda(cuda.version()?));
    for index in 0..cuda.count()? {
        say(&cuda.device(index)?);
    }
    Ok(())
}

fn nvml() -> Result<(), Said> {
    say(&Said::At("nvmlInit".into()));
    let missing = |error: crate::nvml::NvmlError| Said::Missing(error.to_string());
    let nvml = Nvml::open().map_err(missing)?;
    say(&Said::At("asking NVML".into()));
    if let Some(release) = nvml.release() {
        say(&Said::Release(release));
    }
    let group = super::surroundings::own_cgroup();
    for gpu in nvml.gpus().map_err(missing)? {
        let limit = group.as_deref().map_or(OwnLimit::Unknown, |group| nvml.own_limit(gpu.index, group));
        say(&Said::Card(Card {
            index: gpu.index,
            uuid: gpu.uuid,
            name: gpu.name,
            memory: gpu.memory.map(|it| (it.total, it.used)),
            mig: gpu.mig,
            compute_mode: gpu.compute_mode,
            has_limits: limit != OwnLimit::Unknown,
            limit: match limit {
                OwnLimit::Set(bytes) => Some(bytes),
                OwnLimit::Unknown | OwnLimit::None => None,
            },
        }));
    }
    Ok(())
}

/// The copies of the library in this process, in the order of their addresses.
fn loaded() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    copies(&maps)
}

fn copies(maps: &str) -> Vec<String> {
    let mut copies: Vec<String> = Vec::new();
    // The path is the sixth word, and may have spaces.
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    for path in maps.lines().filter_map(path) {
        if path.rsplit('/').next() == Some(NAME) && !copies.contains(&path) {
            copies.push(path);
        }
    }
    copies
}

fn memory(arguments: &Arguments) -> Result<(), Said> {
    let cuda = Cuda::open()?;
    cuda.enter(arguments.gpu)?;
    let total = cuda.memory()?;
    // All that there is said to be is too much, for there is a context.
    let (over, under) = (cuda.tried(total), cuda.tried(arguments.under));
    say(&Said::Memory { total, over, under });
    Ok(())
}

fn work(arguments: &Arguments) -> Result<(), Said> {
    let cuda = Cuda::open()?;
    cuda.enter(arguments.gpu)?;
    let work = cuda.work()?;
    say(&Said::At("working".into()));
    say(&Said::Ready);
    let mut done = 0;
    for time in [arguments.warm_ms, arguments.work_ms] {
        let end = Instant::now() + Duration::from_millis(time);
        while Instant::now() < end {
            cuda.repeat(&work, BATCH)?;
            done += u64::from(BATCH);
        }
        say(&Said::Done(done));
    }
    // What it has told of itself in the region is looked at while it is there.
    std::thread::sleep(LINGER);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_told_by_their_name() {
        let maps = "\
7f00-7f01 r--p 00000000 08:01 1 /opt/a place/libration.so
7f01-7f02 r-xp 00001000 08:01 1 /opt/a place/libration.so
7f02-7f03 r--p 00000000 08:01 2 /lib/libc.so.6
7f03-7f04 rw-p 00000000 00:00 0
7f04-7f05 r--p 00000000 08:01 3 /other/libration.so
7f05-7f06 r--p 00000000 08:01 4 /other/libration.so.old
";
        assert_eq!(copies(maps), ["/opt/a place/libration.so", "/other/libration.so"]);
        assert_eq!(loaded(), [""; 0], "nobody preloads it into a test");
    }
}
