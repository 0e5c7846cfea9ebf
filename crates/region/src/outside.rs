//! What somebody sees who is in no container: copies of the files that containers have in a directory, read and not mapped.
//!
//! Whoever may write to a file may write anything to it, cut it short, or put something else in its place, at any time. So nothing is
//! mapped, no link is followed, nothing is waited for, and what is no file of ours is named with the reason. A copy is looked at with the
//! same care as the region itself. Its words were read one after the other: those of several slots may not have been true at one moment.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::RefCell;
use std::ffi::{CString, OsStr};
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread::LocalKey;

use ration_policy::{Priority, Share};

use crate::compute::priority;
use crate::error::OpenError;
use crate::file::{public_name, read_public, read_region, region_name};
use crate::layout::{CONTAINERS, NAME_BYTES, Public, Table};
use crate::sync::SeqCst;
use crate::sys::Directory;
use crate::view::{ContainerView, Name};

/// So many names of a directory are looked at: a GPU has no more containers than that, and who makes more names than that keeps nobody
/// busy with them.
const MOST_NAMES: usize = 4096;
/// In a container's directory there are two for each GPU.
const MOST_FILES: usize = 256;

/// A region, as it was when it was read.
pub struct RegionCopy(Lent<Table>);

impl RegionCopy {
    /// The containers in it, also those whose processes have all gone.
    pub fn containers(&self) -> impl Iterator<Item = ContainerView<'_>> {
        (0..CONTAINERS).filter_map(|index| ContainerView::of(&self.0, index))
    }

    /// The GPU's memory, in bytes, as whoever made the region saw it.
    pub fn total(&self) -> u64 {
        self.0.header.total.load(SeqCst)
    }
}

/// A public file, as it was when it was read.
pub struct PublicCopy(Lent<Public>);

/// What a container tells everybody of itself. Nobody else says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageView {
    /// Its index, and how often its slot had been given to a container: those of [`ContainerView::slot`].
    pub slot: (usize, u64),
    /// Its name.
    pub name: Name,
    /// When it last said something, in nanoseconds of its own clock; 0: it is not there.
    pub said: u64,
    /// What it weighs among others.
    pub weight: Share,
    /// What it asked for, if it did.
    pub request: Option<Share>,
    /// What it may have at most.
    pub limit: Share,
    /// How urgent its work is.
    pub priority: Priority,
    /// What it uses of the GPU's time, and what it would use if it had the GPU for itself, in millionths.
    pub usage: u64,
    /// As above.
    pub demand: u64,
    /// It would use more.
    pub wants: bool,
    /// How many of its processes use the GPU.
    pub processes: u64,
}

impl PublicCopy {
    /// The pages that somebody has written to.
    pub fn pages(&self) -> impl Iterator<Item = PageView> {
        (0..CONTAINERS).filter_map(|index| {
            let page = &self.0.pages[index];
            let generation = page.generation.load(SeqCst);
            let length = page.name_length.load(SeqCst).min(NAME_BYTES as u64) as usize;
            if generation == 0 || length == 0 {
                return None;
            }
            let mut bytes = [0; NAME_BYTES];
            for (word, bytes) in page.name.iter().zip(bytes.as_chunks_mut().0) {
                *bytes = word.load(SeqCst).to_le_bytes();
            }
            let share = |ppm: u64| Share::from_ppm(u32::try_from(ppm).unwrap_or(u32::MAX));
            let request = page.request.load(SeqCst);
            Some(PageView {
                slot: (index, generation),
                name: Name::new(bytes, length),
                said: self.0.header.said[index].load(SeqCst),
                weight: share(page.weight.load(SeqCst)),
                request: (request != 0).then(|| share(request)),
                limit: share(page.limit.load(SeqCst)),
                priority: priority(page.priority.load(SeqCst)),
                usage: page.usage.load(SeqCst),
                demand: page.demand.load(SeqCst),
                wants: page.flags.load(SeqCst) & crate::steering::WANTS != 0,
                processes: page.processes.load(SeqCst),
            })
        })
    }
}

/// The files of a directory for one GPU. `None`: there is none of the kind.
pub struct Seen {
    /// The directory.
    pub dir: PathBuf,
    /// The number of the user whose directory it is.
    pub owner: u32,
    /// The GPU's UUID.
    pub gpu: [u8; 16],
    /// The region, which others than its own user may not read.
    pub region: Option<Result<RegionCopy, OpenError>>,
    /// What is said to everybody.
    pub public: Option<Result<PublicCopy, OpenError>>,
}

impl Seen {
    /// Where the region is, or would be.
    pub fn region_path(&self) -> PathBuf {
        self.dir.join(region_name(&self.gpu))
    }

    /// Where the public file is, or would be.
    pub fn public_path(&self) -> PathBuf {
        self.dir.join(public_name(&self.gpu))
    }
}

/// Something that is not what belongs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strange {
    /// What.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

/// Looks at the directories of all containers in one, and shows each thing that is there. Copies are large:
/// who looks at many had better not keep them.
pub fn look_among(among: &Path, strange: &mut Vec<Strange>, see: &mut dyn FnMut(Seen)) {
    let Some(directory) = open(among, strange) else { return };
    for name in directory.names(MOST_NAMES) {
        // Files that are being made have names with a dot first.
        if name.as_bytes().starts_with(b".") {
            continue;
        }
        let path = among.join(OsStr::from_bytes(name.as_bytes()));
        match directory.inner(&name) {
            Ok(inner) => look_inside(&inner, &path, strange, see),
            Err(libc::ENOTDIR | libc::ELOOP) => {
                strange.push(Strange { path, why: "no directory of a container's".into() });
            }
            // It went just now.
            Err(libc::ENOENT) => {}
            Err(errno) => strange.push(Strange { path, why: said(errno) }),
        }
    }
}

/// Looks at a container's directory.
pub fn look_at(dir: &Path, strange: &mut Vec<Strange>) -> Vec<Seen> {
    let mut seen = Vec::new();
    if let Some(directory) = open(dir, strange) {
        look_inside(&directory, dir, strange, &mut |it| seen.push(it));
    }
    seen
}

fn open(path: &Path, strange: &mut Vec<Strange>) -> Option<Directory> {
    let text = CString::new(path.as_os_str().as_bytes()).ok()?;
    match Directory::open(&text) {
        Ok(directory) => Some(directory),
        Err(libc::ENOENT) => None,
        Err(errno) => {
            strange.push(Strange { path: path.to_owned(), why: said(errno) });
            None
        }
    }
}

fn look_inside(directory: &Directory, dir: &Path, strange: &mut Vec<Strange>, see: &mut dyn FnMut(Seen)) {
    let mut gpus: Vec<[u8; 16]> = Vec::new();
    for name in directory.names(MOST_FILES).iter().filter(|name| !name.as_bytes().starts_with(b".")) {
        match gpu_of(name.as_bytes()) {
            Some(gpu) if gpus.contains(&gpu) => {}
            Some(gpu) => gpus.push(gpu),
            None => {
                let path = dir.join(OsStr::from_bytes(name.as_bytes()));
                strange.push(Strange { path, why: "no file of a container's".into() });
            }
        }
    }
    for gpu in gpus {
        let region = copy(directory, dir, &region_name(&gpu), |file, path, table| read_region(file, path, &gpu, table));
        let public = copy(directory, dir, &public_name(&gpu), |file, path, all| read_public(file, path, &gpu, all));
        see(Seen {
            dir: dir.to_owned(),
            owner: directory.owner(),
            gpu,
            region: region.map(|it| it.map(RegionCopy)),
            public: public.map(|it| it.map(PublicCopy)),
        });
    }
}

/// A file's words, in memory of our own.
fn copy<T: Words>(
    directory: &Directory,
    dir: &Path,
    name: &str,
    read: impl FnOnce(&crate::sys::File, PathBuf, &mut T) -> Result<(), OpenError>,
) -> Option<Result<Lent<T>, OpenError>> {
    let path = dir.join(name);
    let file = match directory.file(&CString::new(name).ok()?) {
        Ok(file) => file,
        Err(libc::ENOENT) => return None,
        Err(errno) => return Some(Err(OpenError::System { what: "open", path, errno })),
    };
    let mut words = Lent::new();
    Some(read(&file, path, &mut words).map(|()| words))
}

/// Something that is made of words only.
///
/// # Safety
/// Any bytes are a value of it.
unsafe trait Words: Sized + 'static {
    /// Where one is kept that nobody needs just now.
    fn spare() -> &'static LocalKey<RefCell<Option<Box<Self>>>>;

    /// All of its words are zero. On the heap from the beginning, because it is larger than a stack may be.
    fn zeros() -> Box<Self> {
        let layout = Layout::new::<Self>();
        // SAFETY: neither of those that this is done for is empty.
        let place = unsafe { alloc_zeroed(layout) };
        if place.is_null() {
            handle_alloc_error(layout);
        }
        // SAFETY: memory of its layout from the allocator that a box gives it back to, with a value in it: zeros are one.
        unsafe { Box::from_raw(place.cast()) }
    }
}

thread_local! {
    static TABLE: RefCell<Option<Box<Table>>> = const { RefCell::new(None) };
    static PUBLIC: RefCell<Option<Box<Public>>> = const { RefCell::new(None) };
}

// SAFETY: atomic words without gaps, as the assertions on its layout say.
unsafe impl Words for Table {
    fn spare() -> &'static LocalKey<RefCell<Option<Box<Table>>>> {
        &TABLE
    }
}

// SAFETY: as above.
unsafe impl Words for Public {
    fn spare() -> &'static LocalKey<RefCell<Option<Box<Public>>>> {
        &PUBLIC
    }
}

/// Words to read into, which whoever needs some next gets again: fresh memory for each of a hundred files would cost four times as much
/// as reading them. What stands in them is the last reader's, until all of it was read.
struct Lent<T: Words>(Option<Box<T>>);

impl<T: Words> Lent<T> {
    fn new() -> Lent<T> {
        let spare = T::spare().try_with(|spare| spare.take()).ok().flatten();
        Lent(Some(spare.unwrap_or_else(T::zeros)))
    }
}

impl<T: Words> Drop for Lent<T> {
    fn drop(&mut self) {
        let words = self.0.take();
        let _ = T::spare().try_with(|spare| spare.replace(words)); // a thread that ends keeps none
    }
}

impl<T: Words> Deref for Lent<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().expect("taken by drop alone")
    }
}

impl<T: Words> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_deref_mut().expect("taken by drop alone")
    }
}

/// The GPU that a file is about, by its name.
fn gpu_of(name: &[u8]) -> Option<[u8; 16]> {
    let text = std::str::from_utf8(name).ok()?.strip_prefix("gpu-")?;
    let text = text.strip_suffix(".region").or_else(|| text.strip_suffix(".public"))?;
    let digits: String = text.chars().filter(|it| *it != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    let gpu = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
    // Written in one way only, so that each file has one GPU.
    [region_name(&gpu), public_name(&gpu)].iter().any(|it| it.as_bytes() == name).then_some(gpu)
}

fn said(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::{OpenOptions, create_dir, write};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::{Change, Facts, Gpu, Heard, Home, Region};

    const GPU: Gpu = Gpu { uuid: [9; 16], total: 1 << 30 };

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Dir {
            Dir(std::env::temp_dir().join(format!("ration-outside-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_names_its_gpu_in_one_way() {
        let gpu: [u8; 16] = std::array::from_fn(|at| at as u8);
        assert_eq!(gpu_of(region_name(&gpu).as_bytes()), Some(gpu));
        assert_eq!(gpu_of(public_name(&gpu).as_bytes()), Some(gpu));
        for name in
            ["gpu-.region", "gpu-00.region", "region", "gpu-000102030405060708090a0b0c0d0e0f.region", "\u{2603}"]
        {
            assert_eq!(gpu_of(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn a_copy_says_what_the_region_does() {
        let dir = Dir::new("copy");
        let region = Region::open_at(&Home::among(&dir.0, "box"), &GPU).expect("a region");
        let member = region.join("box", Some(1 << 20)).expect("room");
        member.reserve(4096).expect("room");
        let facts = Facts { usage: 250_000, wants: true, ..Facts::default() };
        member.compute().says(&Heard::new(), &facts, 1_000_000_000);
        let (mut seen, mut strange) = (Vec::new(), Vec::new());
        look_among(&dir.0, &mut strange, &mut |it| seen.push(it));
        assert_eq!((seen.len(), strange), (1, vec![]));
        let Some(Ok(copy)) = &seen[0].region else { panic!("no region") };
        let view = copy.containers().next().expect("a container");
        assert_eq!((view.name.as_bytes(), view.cap, view.used()), (&b"box"[..], Some(1 << 20), 4096));
        assert_eq!(view.members().map(|it| it.pid).collect::<Vec<_>>(), [std::process::id()]);
        let Some(Ok(public)) = &seen[0].public else { panic!("no page") };
        let page = public.pages().next().expect("a page");
        assert_eq!((page.name, page.slot, page.usage, page.wants), (view.name, view.slot(), 250_000, true));
    }

    #[test]
    fn what_is_none_of_ours_is_named_and_waited_for_by_nobody() {
        let dir = Dir::new("strange");
        drop(Region::open_at(&Home::among(&dir.0, "box"), &GPU).expect("a region"));
        let inner = Home::among(&dir.0, "box").find().expect("it was made");
        let region = inner.join(region_name(&GPU.uuid));
        write(dir.0.join("a-file"), "text").expect("ours");
        symlink(&inner, dir.0.join("a-link")).expect("ours");
        create_dir(inner.join("a-directory")).expect("ours");
        let look = || {
            let (mut seen, mut strange) = (Vec::new(), Vec::new());
            look_among(&dir.0, &mut strange, &mut |it| seen.push(it));
            assert_eq!(strange.len(), 3, "{strange:?}");
            seen.into_iter().next().and_then(|it| it.region).expect("it is there").err()
        };
        assert_eq!(look(), None);
        for length in [300_000, 4096, 20, 3, 0] {
            OpenOptions::new().write(true).open(&region).and_then(|it| it.set_len(length)).expect("ours");
            assert!(matches!(look(), Some(OpenError::NotARegion { .. })), "{length} bytes");
        }
        write(&region, vec![0xff; crate::layout::SIZE]).expect("ours");
        assert!(matches!(look(), Some(OpenError::NotARegion { .. })));
        std::fs::remove_file(&region).expect("ours");
        let path = CString::new(region.as_os_str().as_bytes()).expect("no NUL");
        // SAFETY: a path that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        assert!(matches!(look(), Some(OpenError::NotARegion { .. })));
        std::fs::remove_file(&region).expect("ours");
        symlink("/dev/zero", &region).expect("ours");
        assert!(matches!(look(), Some(OpenError::System { errno: libc::ELOOP, .. })));
    }

    #[test]
    fn what_is_changed_from_outside_holds_for_who_is_in() {
        let dir = Dir::new("change");
        let region = Region::open_at(&Home::among(&dir.0, "box"), &GPU).expect("a region");
        let member = region.join("box", Some(1 << 20)).expect("room");
        let half = Share::from_ppm(500_000);
        let change = Change { cap: Some(1 << 21), limit: Some(half), request: Some(Some(half)), ..Change::default() };
        let outside = Region::look(&Home::among(&dir.0, "box").find().expect("made"), &GPU).expect("a region");
        assert_eq!(outside.change("box", &change, 1), Some(true));
        assert_eq!(outside.change("box", &change, 1), Some(false), "it says so already");
        assert_eq!(outside.change("other", &change, 1), None);
        assert_eq!((member.cap(), member.compute().limit()), (Some(1 << 21), half));
        let view = member.container().expect("it is there").compute();
        assert_eq!((view.request, view.priority), (Some(half), Priority::Normal));
    }
}
