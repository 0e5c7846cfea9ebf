//! The file that a region lies in: found, made, checked and mapped. No descriptor outlives the mapping.

use std::ffi::{CString, c_int};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Gpu;
use crate::error::OpenError;
use crate::layout::{Header, MAGIC, MAJOR, MINOR, SIZE, version};
use crate::memory::Mapping;
use crate::sync::SeqCst;
use crate::sys::{Clock, File, RoomForFile, boot, outcome, pid};

/// A UUID as people write it.
pub struct Dashed<'a>(pub &'a [u8; 16]);

impl fmt::Display for Dashed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&at) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A path, and what goes wrong with it.
struct Place {
    path: PathBuf,
    text: CString,
}

impl Place {
    fn new(path: PathBuf) -> Result<Place, OpenError> {
        match CString::new(path.as_os_str().as_bytes()) {
            Ok(text) => Ok(Place { path, text }),
            Err(_) => Err(OpenError::System { what: "name", path, errno: libc::EINVAL }),
        }
    }

    fn error(&self, what: &'static str, errno: c_int) -> OpenError {
        OpenError::System { what, path: self.path.clone(), errno }
    }

    fn is_not_a_region(&self, why: &'static str) -> OpenError {
        OpenError::NotARegion { path: self.path.clone(), why }
    }

    fn open(&self, flags: c_int) -> Result<File, c_int> {
        File::open(&self.text, flags | libc::O_RDWR | libc::O_NOFOLLOW)
    }
}

/// Makes sure that the disk has room for all of it. A hole in the file would be filled when it is first written to, and if
/// there is no room then, the process that writes is killed.
fn fill(file: &File) -> Result<(), c_int> {
    // SAFETY: plain numbers.
    match outcome(unsafe { libc::syscall(libc::SYS_fallocate, file.0, 0, 0i64, SIZE as i64) }) {
        Err(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
        other => other.map(drop),
    }
}

/// The file for a GPU.
pub fn path(dir: &Path, gpu: &Gpu) -> PathBuf {
    dir.join(format!("gpu-{}.region", Dashed(&gpu.uuid)))
}

/// Finds the GPU's region in the directory, or makes it, and maps it.
pub fn open(dir: &Path, gpu: &Gpu) -> Result<Mapping, OpenError> {
    let place = Place::new(path(dir, gpu))?;
    // Somebody may remove the file again and again. That is not worth many tries.
    for _ in 0..3 {
        match place.open(0) {
            Ok(file) => return map(&place, &file, gpu),
            Err(libc::ENOENT) => make(dir, &place, gpu)?,
            // Somebody has it for itself, to see whether it may be removed. That takes a moment.
            Err(libc::EAGAIN) => crate::sys::sleep(std::time::Duration::from_millis(30)),
            Err(error) => return Err(place.error("open", error)),
        }
    }
    Err(place.error("open", libc::ENOENT))
}

/// Makes the region, complete, under another name, and then gives it its own, unless somebody else was faster.
fn make(dir: &Path, place: &Place, gpu: &Gpu) -> Result<(), OpenError> {
    make_directory(dir, gpu)?;
    let draft = draft(dir, gpu)?;
    let file = draft.open(libc::O_CREAT | libc::O_EXCL).map_err(|error| draft.error("make", error))?;
    let header = Header::new();
    header.describe(&gpu.uuid, gpu.total, boot());
    // SAFETY: a header is plain words without gaps, as the assertions on its size and offsets say.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const header).cast::<u8>(), size_of::<Header>()) };
    let room = RoomForFile::of(SIZE as u64);
    let sized = room.as_ref().map_err(|error| *error).and_then(|_| file.write(&[0], SIZE - 1));
    let written = sized.and_then(|()| fill(&file)).and_then(|()| file.write(bytes, 0));
    // Processes of other users come too, whatever this one's umask is.
    // SAFETY: plain numbers.
    let written = written.and_then(|()| outcome(unsafe { libc::syscall(libc::SYS_fchmod, file.0, 0o666) }).map(drop));
    let done = match written {
        Ok(()) => name(&draft, place).map_err(|error| place.error("make", error)),
        Err(error) => Err(draft.error("write", error)),
    };
    // SAFETY: a path that ends in NUL. If it was renamed, there is nothing to remove.
    unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, draft.text.as_ptr(), 0) };
    done
}

/// Gives the draft its name; that somebody else has it already is fine.
fn name(draft: &Place, place: &Place) -> Result<(), c_int> {
    let (from, to) = (draft.text.as_ptr(), place.text.as_ptr());
    // SAFETY: paths that end in NUL.
    let linked = outcome(unsafe { libc::syscall(libc::SYS_linkat, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) });
    let named = match linked {
        // Not every file system has links.
        Err(libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK) => {
            let no_replace = libc::RENAME_NOREPLACE;
            // SAFETY: as above.
            outcome(unsafe { libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, no_replace) })
        }
        other => other,
    };
    match named {
        Ok(_) | Err(libc::EEXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A name that nobody else uses: processes in several PID namespaces may have the same number.
fn draft(dir: &Path, gpu: &Gpu) -> Result<Place, OpenError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write the time to.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    let process = pid();
    let stack = (&raw const time) as usize;
    let (seconds, nanoseconds) = (time.tv_sec, time.tv_nsec);
    Place::new(dir.join(format!(".gpu-{}.{process}.{number}.{seconds:x}.{nanoseconds:x}.{stack:x}", Dashed(&gpu.uuid))))
}

/// Makes the directory, unless there is one. Whatever the umask is, everybody may make a region in it, and nobody remove
/// another's; and from the first moment on, so it gets its name when it is ready.
fn make_directory(dir: &Path, gpu: &Gpu) -> Result<(), OpenError> {
    let place = Place::new(dir.to_owned())?;
    let path = place.text.as_ptr();
    // SAFETY: a path that ends in NUL.
    if outcome(unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, libc::F_OK) }).is_ok() {
        return Ok(());
    }
    let draft = draft(dir.parent().unwrap_or(dir), gpu)?;
    let made = open_directory(&draft).and_then(|()| {
        let (from, to, no_replace) = (draft.text.as_ptr(), path, libc::RENAME_NOREPLACE);
        // SAFETY: paths that end in NUL.
        let named = unsafe { libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, no_replace) };
        outcome(named).map(drop).inspect_err(|_| {
            // SAFETY: as above; nobody else knows of it.
            unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, from, libc::AT_REMOVEDIR) };
        })
    });
    match made {
        Ok(()) | Err(libc::EEXIST) => Ok(()),
        // Not every kernel and file system can do that.
        Err(_) => match open_directory(&place) {
            Ok(()) | Err(libc::EEXIST) => Ok(()),
            Err(error) => Err(place.error("make", error)),
        },
    }
}

/// Makes a directory that is open to all.
fn open_directory(place: &Place) -> Result<(), c_int> {
    let path = place.text.as_ptr();
    // SAFETY: a path that ends in NUL.
    outcome(unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path, 0o1777) })?;
    // SAFETY: as above; the directory was made just now.
    outcome(unsafe { libc::syscall(libc::SYS_fchmodat, libc::AT_FDCWD, path, 0o1777) }).map(drop)
}

/// Maps a file after a look at what it says it is.
fn map(place: &Place, file: &File, gpu: &Gpu) -> Result<Mapping, OpenError> {
    let failed = |error| place.error("read", error);
    let (plain, size) = file.kind().map_err(failed)?;
    if !plain {
        return Err(place.is_not_a_region("not a plain file"));
    }
    let mut begin = [0; 16];
    let there = file.read(&mut begin).map_err(failed)?;
    let (magic, rest) = begin.split_at(8);
    if there < begin.len() || magic != MAGIC.to_le_bytes() {
        return Err(place.is_not_a_region("it does not begin as one"));
    }
    let theirs = (u16::from_le_bytes([rest[0], rest[1]]), u16::from_le_bytes([rest[2], rest[3]]));
    if theirs.0 != MAJOR {
        return Err(OpenError::Version { path: place.path.clone(), theirs });
    }
    if size < SIZE as u64 {
        return Err(place.is_not_a_region("it is too short"));
    }
    fill(file).map_err(|error| place.error("fill", error))?;
    let mapping = Mapping::new(Some(file.0)).map_err(|error| place.error("map", error))?;
    let header = &mapping.table().header;
    if !header.is_laid_out_as_ours() {
        return Err(place.is_not_a_region("its slots are not where they should be"));
    }
    if header.uuid() != gpu.uuid {
        return Err(OpenError::OtherGpu { path: place.path.clone(), uuid: header.uuid() });
    }
    if is_from_another_boot(&mapping) {
        renew(file, &mapping).map_err(|error| place.error("lock", error))?;
    }
    // The newest minor version that has been here: see docs/region.md.
    if theirs.1 < MINOR {
        let (found, ours) = (version(MAJOR, theirs.1), version(MAJOR, MINOR));
        let _ = header.version.compare_exchange(found, ours, SeqCst, SeqCst);
    }
    Ok(mapping)
}

fn is_from_another_boot(mapping: &Mapping) -> bool {
    let (theirs, ours) = (mapping.table().header.boot(), boot());
    theirs != ours && theirs != [0; 2] && ours != [0; 2]
}

/// How long to wait for somebody else who does this.
const PATIENCE: Duration = Duration::from_secs(2);

/// Wipes a region that was left by another boot of the machine, as when it lies on a disk and the power failed: the kernel had
/// no time to mark the dead.
///
/// Its own lock is not to be trusted, so this is done under a lock on the file, which ends with whoever holds it. The boot is
/// written last: if this one is killed, the next does it again.
fn renew(file: &File, mapping: &Mapping) -> Result<(), c_int> {
    let flock = |how: c_int| {
        // SAFETY: plain numbers.
        outcome(unsafe { libc::syscall(libc::SYS_flock, file.0, how) }).map(drop)
    };
    let mut clock = Clock::start();
    while let Err(error) = flock(libc::LOCK_EX | libc::LOCK_NB) {
        if ![libc::EWOULDBLOCK, libc::EINTR].contains(&error) || clock.nap() > PATIENCE {
            return Err(error);
        }
    }
    if is_from_another_boot(mapping) {
        mapping.table().wipe();
        mapping.table().header.set_boot(boot());
    }
    // Not left to the closing: a process forked meanwhile would go on holding it.
    flock(libc::LOCK_UN)
}
