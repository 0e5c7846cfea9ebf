//! Where the demo plays: a simulated GPU of its own, in a directory of its own, and what that GPU's record says.

use std::collections::HashMap;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use sim_world::{Role, World, WorldSettings};

/// The simulated GPU. The directory goes when this goes.
pub struct Stage {
    world: World,
    /// Removes the directory; after `world`, which is in it.
    dir: PrivateDir,
    seen_runs: u64,
}

/// The GPU's record at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Simulated time.
    pub clock_ns: u64,
    /// Time spent between programs.
    pub switching_ns: u64,
    /// Those that have used the GPU, by process.
    pub users: HashMap<u32, Usage>,
}

/// A process on the GPU, by the GPU's record.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    /// Its slot in the record, by which runs name it.
    pub slot: usize,
    /// Time on the GPU.
    pub busy_ns: u64,
    /// Of that, time in which its kernels got on.
    pub work_ns: u64,
    /// What it holds, as NVML counts it.
    pub memory_bytes: u64,
    /// The most that it ever held.
    pub peak_bytes: u64,
}

/// An uninterrupted time on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Whose, as the slot in the record.
    pub slot: usize,
    /// Simulated time.
    pub start_ns: u64,
    /// Simulated time; of one that lasts, the moment of looking.
    pub end_ns: u64,
}

impl Stage {
    /// Makes a world that nobody else uses.
    pub fn open() -> io::Result<Stage> {
        let settings = WorldSettings::from_env(|name| std::env::var(name).ok()).map_err(io::Error::other)?;
        let dir = PrivateDir::make()?;
        let world = World::join(&dir.0, &settings, Role::Observer)?;
        Ok(Stage { world, dir, seen_runs: 0 })
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// The GPU's name.
    pub fn gpu_name(&self) -> String {
        self.world.settings().gpu[0].name_text()
    }

    /// The GPU's memory, as NVML gives it.
    pub fn gpu_bytes(&self) -> u64 {
        self.world.record().gpus[0].memory_bytes
    }

    /// The record now.
    pub fn look(&self) -> Snapshot {
        let record = self.world.record();
        let users = record.processes.iter().filter(|p| !p.observer).filter_map(|process| {
            let held = process.gpus.get(&0)?;
            let usage = Usage {
                slot: process.key.split('.').next()?.parse().ok()?,
                busy_ns: held.busy_ns,
                work_ns: held.work_ns,
                memory_bytes: held.figure_bytes,
                peak_bytes: held.peak_bytes,
            };
            Some((u32::try_from(process.pid).ok()?, usage))
        });
        Snapshot { clock_ns: record.clock_ns, switching_ns: record.gpus[0].switching_ns, users: users.collect() }
    }

    /// The runs that ended since this was asked last, and the one that lasts, if any.
    pub fn runs(&mut self) -> (Vec<Run>, Option<Run>) {
        let ended = self.world.intervals(self.seen_runs);
        self.seen_runs += ended.len() as u64;
        let runs = ended.iter().filter(|i| i.gpu == 0);
        let runs = runs.map(|i| Run { slot: i.slot, start_ns: i.start_ns, end_ns: i.end_ns }).collect();
        // Under the lock, so that nobody switches while we look.
        let held = self.world.lock();
        let (file, gpu) = (self.world.file(), &self.world.file().gpus[0]);
        let lasting = match (gpu.run_since.get(), gpu.resident.get()) {
            (0, _) | (_, 0) => None,
            (since, resident) => file.chans.get(resident as usize - 1).map(|channel| Run {
                slot: channel.proc.get() as usize,
                start_ns: since,
                end_ns: file.clock.get(),
            }),
        };
        drop(held);
        (runs, lasting)
    }
}

/// A directory that is removed at the end.
struct PrivateDir(PathBuf);

impl PrivateDir {
    fn make() -> io::Result<PrivateDir> {
        let memory = Path::new("/dev/shm");
        let bases = [memory.to_owned(), std::env::temp_dir()];
        let mut failure = io::Error::other("no directory to put a simulated GPU into");
        for base in bases.iter().filter(|base| base.is_dir()) {
            for attempt in 0..100 {
                let dir = base.join(format!("ration-demo-{}-{attempt}", std::process::id()));
                match DirBuilder::new().mode(0o700).create(&dir) {
                    Ok(()) => return Ok(PrivateDir(dir)),
                    // Left behind by a demo that was killed, or somebody's trap.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => {
                        failure = io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
                        break;
                    }
                }
            }
        }
        Err(failure)
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_leaves_nothing_behind() {
        let mut stage = Stage::open().expect("a stage");
        let dir = stage.dir().to_owned();
        assert!(dir.join("world").exists());
        assert!(stage.look().users.is_empty());
        assert_eq!(stage.runs(), (vec![], None));
        drop(stage);
        assert!(!dir.exists());
    }

    #[test]
    fn two_stages_are_two_worlds() {
        let (one, other) = (Stage::open().expect("a stage"), Stage::open().expect("another"));
        assert_ne!(one.dir(), other.dir());
    }
}
