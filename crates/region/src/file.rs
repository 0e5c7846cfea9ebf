//! The files that a region lies in, its own and the public one: found, made, checked and mapped. No descriptor outlives the mapping.

use std::ffi::{CString, c_int};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::Gpu;
use crate::around::{Around, Home};
use crate::error::OpenError;
use crate::layout::{
    CONTAINERS, Header, MAGIC, MAJOR, MINOR, PUBLIC_MAGIC, PUBLIC_SIZE, Page, Public, PublicHeader, SIZE, Table,
    version,
};
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
fn fill(file: &File, what: What) -> Result<(), c_int> {
    // SAFETY: plain numbers.
    match outcome(unsafe { libc::syscall(libc::SYS_fallocate, file.0, 0, 0i64, what.size() as i64) }) {
        Err(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(()),
        other => other.map(drop),
    }
}

/// The files of a container, or of several, for one GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Its own: who holds how much, who is there.
    Region,
    /// What it tells everybody.
    Public,
}

impl What {
    fn size(self) -> usize {
        match self {
            What::Region => SIZE,
            What::Public => PUBLIC_SIZE,
        }
    }

    fn magic(self) -> u64 {
        match self {
            What::Region => MAGIC,
            What::Public => PUBLIC_MAGIC,
        }
    }

    fn name(self, gpu: &[u8; 16]) -> String {
        let end = if self == What::Region { "region" } else { "public" };
        format!("gpu-{}.{end}", Dashed(gpu))
    }

    /// Who may do what with it, in a directory that all users may write to, or in one of this user's own.
    fn mode(self, is_for_all: bool) -> libc::mode_t {
        match self {
            _ if is_for_all => 0o666,
            What::Region => 0o600,
            What::Public => 0o644,
        }
    }
}

/// The name of a GPU's region.
pub fn region_name(gpu: &[u8; 16]) -> String {
    What::Region.name(gpu)
}

/// The name of a GPU's public file.
pub fn public_name(gpu: &[u8; 16]) -> String {
    What::Public.name(gpu)
}

/// Finds the GPU's region, or makes it, and maps it. The public file beside it is for who says something: see [`publish`].
pub fn open(home: &Home, gpu: &Gpu) -> Result<Mapping, OpenError> {
    let dir = home.ready()?;
    let place = Place::new(dir.join(What::Region.name(&gpu.uuid)))?;
    let is_for_all = is_for_all(&dir);
    // Somebody may remove the file again and again. That is not worth many tries.
    for _ in 0..3 {
        match place.open(0) {
            Ok(file) => {
                return map(&place, &file, gpu, Around::of(home, &dir, gpu));
            }
            Err(libc::ENOENT) => make(&dir, &place, gpu, What::Region, is_for_all)?,
            // Somebody has it for itself, to see whether it may be removed. That takes a moment.
            Err(libc::EAGAIN) => crate::sys::sleep(std::time::Duration::from_millis(30)),
            Err(error) => return Err(place.error("open", error)),
        }
    }
    Err(place.error("open", libc::ENOENT))
}

/// Maps a region that is there, to look at it: nothing is made, and nothing is told to anybody.
pub fn look(dir: &Path, gpu: &Gpu) -> Result<Mapping, OpenError> {
    let place = Place::new(dir.join(What::Region.name(&gpu.uuid)))?;
    let mut opened = place.open(0);
    if opened.as_ref().is_err_and(|error| *error == libc::EAGAIN) {
        // As above.
        crate::sys::sleep(Duration::from_millis(30));
        opened = place.open(0);
    }
    let file = opened.map_err(|error| place.error("open", error))?;
    map(&place, &file, gpu, Around::of(&Home::alone(dir), dir, gpu))
}

/// As [`open`], in a directory that is the container's own: what is there and is no region, or one that is damaged, is replaced. Whoever is in
/// it finds that it has lost its name ([`is_at_its_place`]).
pub fn mend(home: &Home, gpu: &Gpu) -> Result<Mapping, OpenError> {
    let opened = open(home, gpu);
    let is_damaged = match &opened {
        Err(OpenError::NotARegion { .. }) => true,
        Err(OpenError::System { what: "open", errno, .. }) => [libc::ELOOP, libc::ENXIO].contains(errno),
        _ => false,
    };
    match home.find().map(|dir| Place::new(dir.join(What::Region.name(&gpu.uuid)))) {
        Some(Ok(place)) if is_damaged => {
            remove(&place);
            open(home, gpu)
        }
        _ => opened,
    }
}

/// Whether the region's name leads to the file that is mapped.
pub fn is_at_its_place(mapping: &Mapping) -> bool {
    let Some(around) = &mapping.around else { return true };
    about(&around.dir.join(What::Region.name(&around.gpu))).is_ok_and(|about| mapping.is_of(about.st_ino))
}

/// Whether users who are not the owner may make files in a directory.
fn is_for_all(dir: &Path) -> bool {
    about(dir).is_ok_and(|about| about.st_mode & 0o002 != 0)
}

/// What the system says of a path, no link being followed.
pub fn about(path: &Path) -> Result<libc::stat, c_int> {
    let text = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
    // SAFETY: numbers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    let (here, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: a path that ends in NUL, and a place to write to, in the kernel's form, which is the C library's too.
    outcome(unsafe { libc::syscall(libc::SYS_newfstatat, here, text.as_ptr(), &raw mut about, flags) }).map(|_| about)
}

/// Makes the public file, if need be, and tells there what is told from now on.
pub fn publish(mapping: &Mapping) -> Result<(), OpenError> {
    let Some(around) = &mapping.around else { return Ok(()) };
    let gpu = Gpu { uuid: around.gpu, total: 0 };
    let place = Place::new(around.dir.join(What::Public.name(&gpu.uuid)))?;
    for _ in 0..4 {
        match place.open(0) {
            Ok(file) => {
                match begin(&place, &file, What::Public) {
                    Ok(begin) if begin.boot == boot() => {}
                    // What was told in another boot of the machine is by another clock; and in one that is damaged nobody believes
                    // anything. Whoever tells something now begins anew.
                    Ok(_) | Err(OpenError::NotARegion { .. }) => {
                        remove(&place);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                fill(&file, What::Public).map_err(|error| place.error("fill", error))?;
                let number = file.number().map_err(|error| place.error("read", error))?;
                return mapping.publish(file.0, number).map_err(|error| place.error("map", error));
            }
            Err(libc::ENOENT) => make(&around.dir, &place, &gpu, What::Public, is_for_all(&around.dir))?,
            // Something else has its name: a link, or a file that may not be read.
            Err(libc::ELOOP | libc::ENXIO | libc::EACCES) => remove(&place),
            Err(error) => return Err(place.error("open", error)),
        }
    }
    Err(place.error("open", libc::ENOENT))
}

fn remove(place: &Place) {
    // SAFETY: a path that ends in NUL.
    unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, place.text.as_ptr(), 0) };
}

/// Writes a header at the beginning of a file.
fn write<T>(file: &File, header: &T) -> Result<(), c_int> {
    // SAFETY: headers are plain words without gaps, as the assertions on their sizes and offsets say.
    file.write(unsafe { std::slice::from_raw_parts(std::ptr::from_ref(header).cast::<u8>(), size_of::<T>()) }, 0)
}

/// Makes the file, complete, under another name, and then gives it its own, unless somebody else was faster.
fn make(dir: &Path, place: &Place, gpu: &Gpu, what: What, is_for_all: bool) -> Result<(), OpenError> {
    let draft = draft(dir, gpu)?;
    let file = draft.open(libc::O_CREAT | libc::O_EXCL).map_err(|error| draft.error("make", error))?;
    let room = RoomForFile::of(what.size() as u64);
    let sized = room.as_ref().map_err(|error| *error).and_then(|_| file.write(&[0], what.size() - 1));
    let filled = sized.and_then(|()| fill(&file, what));
    let written = filled.and_then(|()| match what {
        What::Region => {
            let header = Header::new();
            header.describe(&gpu.uuid, gpu.total, boot());
            write(&file, &header)
        }
        What::Public => {
            let header = PublicHeader::new();
            header.describe(&gpu.uuid, boot());
            write(&file, &header)
        }
    });
    // Whatever this process's umask is.
    let mode = what.mode(is_for_all);
    // SAFETY: plain numbers.
    let written = written.and_then(|()| outcome(unsafe { libc::syscall(libc::SYS_fchmod, file.0, mode) }).map(drop));
    let done = match written {
        Ok(()) => name(&draft, place).map_err(|error| place.error("make", error)),
        Err(error) => Err(draft.error("write", error)),
    };
    // If it was renamed, there is nothing to remove.
    remove(&draft);
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

/// Makes a directory, unless there is one. Whatever the umask is, everybody may make files in it, and nobody remove another's; and from
/// the first moment on, so it gets its name when it is ready.
pub fn make_directory(dir: &Path) -> Result<(), OpenError> {
    let place = Place::new(dir.to_owned())?;
    let path = place.text.as_ptr();
    // SAFETY: a path that ends in NUL.
    if outcome(unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path, libc::F_OK) }).is_ok() {
        return Ok(());
    }
    let draft = draft(dir.parent().unwrap_or(dir), &Gpu { uuid: [0; 16], total: 0 })?;
    let made = new_directory(&draft, 0o1777).and_then(|()| {
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
        Err(_) => match new_directory(&place, 0o1777) {
            Ok(()) | Err(libc::EEXIST) => Ok(()),
            Err(error) => Err(place.error("make", error)),
        },
    }
}

/// Makes a directory with this mode, whatever the umask is.
fn new_directory(place: &Place, mode: libc::mode_t) -> Result<(), c_int> {
    let path = place.text.as_ptr();
    // SAFETY: a path that ends in NUL.
    outcome(unsafe { libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, path, mode) })?;
    // SAFETY: as above; the directory was made just now.
    outcome(unsafe { libc::syscall(libc::SYS_fchmodat, libc::AT_FDCWD, path, mode) }).map(drop)
}

/// Makes a directory of this user's own, which others may look into, unless there is one. `EEXIST`: something else has that name.
pub fn make_own_directory(dir: &Path) -> Result<(), OpenError> {
    let place = Place::new(dir.to_owned())?;
    match new_directory(&place, 0o755) {
        Ok(()) => return Ok(()),
        Err(libc::EEXIST) => {}
        Err(error) => return Err(place.error("make", error)),
    }
    let about = about(dir).map_err(|error| place.error("read", error))?;
    // SAFETY: takes nothing and always succeeds.
    let is_own = about.st_mode & libc::S_IFMT == libc::S_IFDIR && about.st_uid == unsafe { libc::geteuid() };
    if is_own { Ok(()) } else { Err(place.error("make", libc::EEXIST)) }
}

/// What a file begins with that is laid out as ours.
struct Begin {
    minor: u16,
    /// Of a public file, where both have it at the same place.
    boot: [u64; 2],
}

/// Looks at what a file says it is.
fn begin(place: &Place, file: &File, what: What) -> Result<Begin, OpenError> {
    let failed = |error| place.error("read", error);
    let (plain, size) = file.kind().map_err(failed)?;
    if !plain {
        return Err(place.is_not_a_region("not a plain file"));
    }
    let mut begin = [0; 64];
    let there = file.read(&mut begin).map_err(failed)?;
    let word = |at: usize| begin[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if there < 16 || word(0) != what.magic() {
        return Err(place.is_not_a_region("it does not begin as one"));
    }
    let version = word(8) as u32;
    let theirs = (version as u16, (version >> 16) as u16);
    if theirs.0 != MAJOR {
        return Err(OpenError::Version { path: place.path.clone(), theirs });
    }
    if size < what.size() as u64 {
        return Err(place.is_not_a_region("it is too short"));
    }
    Ok(Begin { minor: theirs.1, boot: [word(48), word(56)] })
}

/// Copies a region's file after a look at what it says it is. Nobody is in one from another boot.
pub fn read_region(file: &File, path: PathBuf, gpu: &[u8; 16], table: &mut Table) -> Result<(), OpenError> {
    let place = Place::new(path)?;
    begin(&place, file, What::Region)?;
    // SAFETY: the table is made of words without gaps, is aligned for more than words of 8 bytes, and nobody else has it; any bytes
    // are a value of it.
    let words = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(table).cast::<u64>(), SIZE / 8) };
    if !file.read_words(words, 0) {
        return Err(place.is_not_a_region("it is too short"));
    }
    if !table.header.is_laid_out_as_ours() {
        return Err(place.is_not_a_region("its slots are not where they should be"));
    }
    let uuid = table.header.uuid();
    if uuid != *gpu {
        return Err(OpenError::OtherGpu { path: place.path, uuid });
    }
    if is_another(table.header.boot()) {
        table.wipe();
    }
    Ok(())
}

/// The same with a public file.
pub fn read_public(file: &File, path: PathBuf, gpu: &[u8; 16], public: &mut Public) -> Result<(), OpenError> {
    let place = Place::new(path)?;
    let boot = begin(&place, file, What::Public)?.boot;
    // SAFETY: as above.
    let words = unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(public).cast::<u64>(), PUBLIC_SIZE / 8) };
    if !file.read_words(words, 0) {
        return Err(place.is_not_a_region("it is too short"));
    }
    let header = &public.header;
    let pages = (header.pages.load(SeqCst) as usize, header.page_size.load(SeqCst) as usize);
    if pages != (CONTAINERS, size_of::<Page>()) {
        return Err(place.is_not_a_region("its pages are not where they should be"));
    }
    let mut uuid = [0; 16];
    for (word, bytes) in header.uuid.iter().zip(uuid.as_chunks_mut().0) {
        *bytes = word.load(SeqCst).to_le_bytes();
    }
    if uuid != *gpu {
        return Err(OpenError::OtherGpu { path: place.path, uuid });
    }
    if is_another(boot) {
        public.pages.iter().for_each(Page::clear);
    }
    Ok(())
}

/// Maps a region's file after a look at what it says it is.
fn map(place: &Place, file: &File, gpu: &Gpu, around: Around) -> Result<Mapping, OpenError> {
    let minor = begin(place, file, What::Region)?.minor;
    fill(file, What::Region).map_err(|error| place.error("fill", error))?;
    let mapping = Mapping::new(Some(file), Some(around)).map_err(|error| place.error("map", error))?;
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
    #[allow(clippy::absurd_extreme_comparisons, reason = "a major version's first minor one is 0")]
    if minor < MINOR {
        let (found, ours) = (version(MAJOR, minor), version(MAJOR, MINOR));
        let _ = header.version.compare_exchange(found, ours, SeqCst, SeqCst);
    }
    Ok(mapping)
}

fn is_from_another_boot(mapping: &Mapping) -> bool {
    is_another(mapping.table().header.boot())
}

/// Whether it is not this boot of the machine, so that nobody is there any more who was there then.
fn is_another(theirs: [u64; 2]) -> bool {
    let ours = boot();
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
