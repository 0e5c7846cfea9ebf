//! Finding, making and joining a world.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path as FsPath, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use crate::layout::{MAGIC, PROC_LIVE, VERSION, WorldFile};
use crate::lock::Tx;
use crate::settings::WorldSettings;
use crate::{life, procs};

/// A joined world: the file, mapped, and this process's slot in it.
pub struct World {
    file: &'static WorldFile,
    dir: PathBuf,
    slot: usize,
    generation: u64,
    /// Kept open as a real driver keeps its `/dev/nvidiactl`, of which the descriptors of exported memory are too. Nothing here
    /// needs it: a program may close it.
    node: Option<File>,
}

/// How a process takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It uses the GPUs.
    Client,
    /// It only looks.
    Observer,
}

impl World {
    /// Where `RATION_SIM_DIR` says, else a place of this user's in shared memory.
    pub fn default_dir() -> PathBuf {
        if let Some(dir) = std::env::var_os("RATION_SIM_DIR").filter(|d| !d.is_empty()) {
            return dir.into();
        }
        // SAFETY: geteuid has no preconditions.
        let user = unsafe { libc::geteuid() };
        let base = if FsPath::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        format!("{base}/ration-sim-{user}").into()
    }

    /// Joins the world in `dir`, making it when there is none (or only one that nobody lives in and that was made with other
    /// settings).
    pub fn join(dir: &FsPath, wanted: &WorldSettings, role: Role) -> io::Result<World> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", dir.display()));
        if !dir.is_dir() {
            match std::fs::DirBuilder::new().recursive(true).mode(0o777).create(dir) {
                // Several users' containers may share a world, as they share a GPU; a umask must not decide that.
                Ok(()) => drop(std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777))),
                Err(_) if dir.is_dir() => {}
                Err(e) => return Err(named(e)),
            }
        }
        let path = dir.join("world");
        let handle = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o666)
            .custom_flags(libc::O_CLOEXEC)
            .open(&path)
            .map_err(named)?;
        let joining = Joining::wait(&handle).map_err(named)?;
        let size = std::mem::size_of::<WorldFile>() as u64;
        match handle.metadata()?.len() {
            0 => {
                let _ = handle.set_permissions(std::fs::Permissions::from_mode(0o666));
                handle.set_len(size)?;
            }
            len if len != size => return Err(named(other_version())),
            _ => {}
        }
        let mut file = map(&handle).map_err(named)?;
        let good = |f: &WorldFile| f.ready.load(Ordering::Acquire) == 1;
        if good(file)
            && (file.magic.get(), file.version.load(Ordering::Acquire), file.size.get()) != (MAGIC, VERSION, size)
        {
            return Err(named(other_version()));
        }
        let deserted = |f: &WorldFile| !f.procs.iter().any(|p| p.state.get() == PROC_LIVE && !life::is_over(&p.life));
        if !good(file) || (file.settings != *wanted && role == Role::Client && deserted(file)) {
            if good(file) {
                // SAFETY: nothing keeps a reference into the old mapping; the world it showed is replaced below.
                unsafe { libc::munmap(std::ptr::from_ref(file).cast_mut().cast(), size as usize) };
                handle.set_len(0)?;
                handle.set_len(size)?;
                for entry in std::fs::read_dir(dir)?.flatten() {
                    if entry.file_name().to_string_lossy().starts_with("heap-") {
                        let _ = std::fs::remove_file(entry.path());
                    }
                }
                file = map(&handle).map_err(named)?;
            }
            create(file, wanted);
        }
        let mut world = World { file, dir: dir.to_owned(), slot: usize::MAX, generation: 0, node: None };
        (world.slot, world.generation) = procs::claim(&world, role)?;
        drop(joining);
        world.node = (role == Role::Client).then_some(handle);
        Ok(world)
    }

    /// The mapped file.
    pub fn file(&self) -> &'static WorldFile {
        self.file
    }

    /// What the world was made with.
    pub fn settings(&self) -> &'static WorldSettings {
        &self.file.settings
    }

    /// The directory it lies in.
    pub fn dir(&self) -> &FsPath {
        &self.dir
    }

    /// This process's slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The number of this use of the slot.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Takes the lock.
    pub fn lock(&self) -> Tx<'_> {
        Tx::begin(self)
    }

    /// Simulated time.
    #[inline]
    pub fn now(&self) -> u64 {
        let real = monotonic().saturating_sub(self.file.epoch.get());
        match self.file.settings.speed {
            1000 => real,
            speed => (u128::from(real) * u128::from(speed) / 1000) as u64,
        }
    }

    /// Real time that a stretch of simulated time takes.
    pub fn real(&self, simulated: u64) -> std::time::Duration {
        std::time::Duration::from_nanos((u128::from(simulated) * 1000 / u128::from(self.file.settings.speed)) as u64)
    }
}

/// Held while making or joining a world; the kernel drops it if we are killed in between.
struct Joining<'f>(&'f File);

impl<'f> Joining<'f> {
    fn wait(file: &'f File) -> io::Result<Joining<'f>> {
        // SAFETY: the descriptor is open for the whole call.
        match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
            0 => Ok(Joining(file)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        // Closing would not do: the mapping keeps the open file, and so its lock, alive.
        // SAFETY: the descriptor is open for as long as `self` borrows it.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Its processes may be alive and are not ours to disturb.
fn other_version() -> io::Error {
    io::Error::other(
        "made by another version of the simulated GPU: remove it, or set RATION_SIM_DIR to another directory",
    )
}

/// CLOCK_MONOTONIC in nanoseconds, as the machine has it: the one clock that all of its processes agree on, those in time namespaces
/// too.
pub fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime fills the timespec it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64).wrapping_sub(ahead())
}

/// By so much this process's clock is ahead of the machine's.
fn ahead() -> u64 {
    static AHEAD: OnceLock<u64> = OnceLock::new();
    *AHEAD.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let of_monotonic = text.lines().find_map(|line| line.strip_prefix("monotonic"));
        let mut words =
            of_monotonic.unwrap_or_default().split_whitespace().map(|word| word.parse::<i64>().unwrap_or(0));
        let (seconds, rest) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        (seconds.wrapping_mul(1_000_000_000).wrapping_add(rest)) as u64
    })
}

fn map(handle: &File) -> io::Result<&'static WorldFile> {
    let size = std::mem::size_of::<WorldFile>();
    // SAFETY: a shared mapping of a file that has at least this size; it is never unmapped while referenced, and every field
    // that changes is an atomic, so that other processes' writes are defined behaviour here.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            handle.as_raw_fd(),
            0,
        );
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(&*at.cast::<WorldFile>())
    }
}

fn create(file: &'static WorldFile, settings: &WorldSettings) {
    file.ready.store(0, Ordering::Release);
    // SAFETY: the caller holds the file's flock and nobody reads the settings before `ready` is 1.
    unsafe { std::ptr::from_ref(&file.settings).cast_mut().write(*settings) };
    file.lock.store(0, Ordering::Release);
    file.epoch.publish(monotonic().saturating_sub(1_000_000_000));
    file.size.publish(std::mem::size_of::<WorldFile>() as u64);
    file.version.store(VERSION, Ordering::Release);
    file.magic.publish(MAGIC);
    file.ready.store(1, Ordering::Release);
}
