//! The accounts: what this process holds of each GPU, and whether it may have more.
//!
//! A [`Slice`] is the process's place in its container's slice of one GPU. The bytes are counted in the region, where all
//! processes of the container meet; what is known about each allocation is in [`book`]. The order is always the same:
//! reserve, ask the driver, keep or give back. So the container is over its cap at no moment, whoever else is asking.

pub mod book;
pub mod code;
pub mod heap;
pub mod lent;
pub mod marks;
pub mod native;
pub mod outside;
pub mod pools;
pub mod quota;
pub mod rescue;
pub mod shared;
pub mod slice;
pub mod truth;

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering, fence};

use ration_contract::Settings;
use ration_region::Home;

use crate::abi::cuda::CUdevice;
use crate::thread::{Tally, Thread};
use crate::{entry, left, log, steer, sys};

pub use slice::Slice;

/// What the settings say.
static STATE: AtomicU8 = AtomicU8::new(OFF);
/// Nothing was asked for: calls pass.
const OFF: u8 = 0;
/// There is a slice.
const ON: u8 = 1;
/// What was asked for cannot be understood, so that nobody knows what the limit is: no GPU work.
const REFUSING: u8 = 2;
/// There was a slice, and where its processes met is lost to one that was to be held strictly: no GPU work from then on. What it
/// holds is still known.
const LOST: u8 = 3;

static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(null_mut());
/// By the device's number. Null: not looked at yet; [`NONE`]: a GPU without a limit.
static SLICES: [AtomicPtr<Slice>; 64] = [const { AtomicPtr::new(null_mut()) }; 64];
const NONE: *mut Slice = std::ptr::without_provenance_mut(1);

/// Reads the settings. Called once, at the process's first hooked call.
pub fn begin() {
    let get = |name: &str| {
        let name = std::ffi::CString::new(name).ok()?;
        // A limit holds for programs with more rights than their user too; where files are made is not the user's to say.
        let is_path = [c"RATION_DIR", c"RATION_OWN_DIR"].contains(&name.as_c_str());
        let value = if is_path { sys::setting(&name) } else { sys::setting_of_anybody(&name) };
        Some(value?.to_string_lossy().into_owned())
    };
    let file = quota::read();
    match Settings::read(&get, file.as_deref()) {
        Ok(settings) if settings.asks_for_nothing() => {}
        Ok(settings) => {
            for warning in &settings.warnings {
                log::warn!("{warning}");
            }
            SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
            STATE.store(ON, Ordering::Release);
            entry::watch_for(entry::SLICED);
        }
        Err(errors) => refuse(&errors),
    }
}

fn refuse(errors: &[ration_contract::Error]) {
    for error in errors {
        log::error!("{error}");
    }
    log::error!("no GPU work until that is put right: without knowing the limit, none is allowed");
    refuse_in(REFUSING);
}

/// Calls that take something are refused from now on; those that are under way end as they began. Says whether none was refused
/// before.
fn refuse_in(state: u8) -> bool {
    let refuse = |now| (!matches!(now, REFUSING | LOST)).then_some(state);
    let is_new = STATE.fetch_update(Ordering::AcqRel, Ordering::Acquire, refuse).is_ok();
    entry::watch_for(entry::REFUSING);
    is_new
}

/// The driver has started, so that the GPUs are known: the last at which a program can be told that it must not go on.
pub fn check(changing: &Changing) {
    static CHECKED: AtomicBool = AtomicBool::new(false);
    // SAFETY: made by `begin`, before the state said so, and never taken away.
    let Some(settings) = (unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }) else { return };
    if CHECKED.swap(true, Ordering::AcqRel) {
        return;
    }
    let gpus = slice::gpus();
    if let Err(errors) = settings.check(&gpus) {
        return refuse(&errors);
    }
    if settings.strict {
        // A slice that cannot be had as it should be says so when it is made.
        for device in 0..CUdevice::try_from(gpus.len()).unwrap_or(0) {
            let _ = of(device, changing);
        }
        if all().next().is_some() {
            // Whoever only copies would never look whether its region is lost.
            steer::begin();
        }
    }
}

/// How often somebody began to hold the books against what the driver says, and how often that ended.
static LOOKS_BEGUN: AtomicU64 = AtomicU64::new(0);
static LOOKS_ENDED: AtomicU64 = AtomicU64::new(0);

/// A call during which the driver may let go of something, while the program waits for the GPU. That may take long, so it is no
/// [`Changing`]: nothing could be learned until it ends.
pub struct Wait {
    looks_ended: u64,
}

impl Wait {
    /// The driver is about to be asked.
    pub fn begin() -> Wait {
        Wait { looks_ended: LOOKS_ENDED.load(Ordering::SeqCst) }
    }

    /// The driver has answered, and what it let go of is about to be taken out of the books. Says whether anything was learned
    /// meanwhile: it may be wrong, having been held against books that had in them what the driver no longer had.
    pub fn end(self, _changing: &Changing) -> bool {
        // Who is looking right now has either begun before this, or finds the change and does not believe what it was told.
        fence(Ordering::SeqCst);
        LOOKS_BEGUN.load(Ordering::SeqCst) != self.looks_ended
    }
}

/// Calls that change what the driver holds for this process: in the low half how many are under way, in the high half how
/// many there ever were. Each thread counts its own; here are those of threads without a block.
static CHANGES: AtomicU64 = AtomicU64::new(0);
pub const UNDER_WAY: u64 = 0xffff_ffff;
const ONE: u64 = (UNDER_WAY + 1) + 1;

/// To be held from before the driver is asked until the books are right again. Of a thread with a block: how many ops it had left
/// when this began; it ends with the next that it leaves.
pub struct Changing(Option<(&'static Thread, u32)>);

/// A call begins that changes what the driver holds for this process.
#[inline]
pub fn changing() -> Changing {
    let thread = Thread::attached().map(|thread| (thread, thread.under_way.times()));
    match thread {
        // A plain write, before the driver's: whoever finds in the driver what this call changes there, finds this too, because
        // the processor keeps a thread's writes in order.
        Some((thread, _)) => thread.changes.add(ONE),
        None => _ = CHANGES.fetch_add(ONE, Ordering::SeqCst),
    }
    Changing(thread)
}

impl Drop for Changing {
    #[inline]
    fn drop(&mut self) {
        self.end();
        if MISSED.load(Ordering::Relaxed) {
            learn_late();
        }
    }
}

/// Somebody could not learn what the driver holds, because others were in the middle of something. Nobody may ever ask again, so who
/// ends such a thing does it.
static MISSED: AtomicBool = AtomicBool::new(false);

/// It is to be learned by whoever was in the way.
pub fn has_missed() {
    MISSED.store(true, Ordering::SeqCst);
}

#[cold]
fn learn_late() {
    // One does it. Who finds others in the way again leaves it to them.
    if MISSED.swap(false, Ordering::SeqCst) {
        let changing = ManuallyDrop::new(changing());
        for slice in all() {
            slice.learn_late(&changing);
        }
        changing.end();
    }
}

impl Changing {
    #[inline]
    fn end(&self) {
        match self.0 {
            Some((thread, times)) if thread.under_way.times() == times => thread.changes.add(1u64.wrapping_neg()),
            Some(_) => {}
            None => _ = CHANGES.fetch_sub(1, Ordering::SeqCst),
        }
    }

    /// What the driver says at a moment at which this is the only change under way, so that the books can be held against
    /// it. `None`: there was no such moment.
    fn alone<T>(&self, ask: impl FnOnce() -> Option<T>) -> Option<T> {
        let changes = || {
            fence(Ordering::SeqCst);
            let sum = Tally::total(|thread| &thread.changes).wrapping_add(CHANGES.load(Ordering::SeqCst));
            fence(Ordering::SeqCst);
            sum
        };
        let before = changes();
        if before & UNDER_WAY != 1 {
            has_missed();
            return None;
        }
        let own = self.0.map(|(thread, _)| &thread.under_way.looks);
        LOOKS_BEGUN.fetch_add(1, Ordering::SeqCst);
        own.inspect(|own| own.set(true));
        let told = ask();
        let was_alone = changes() == before;
        if !was_alone {
            has_missed();
        }
        let told = told.filter(|_| was_alone);
        // Unless it was put right meanwhile.
        if own.is_none_or(Cell::take) {
            has_looked();
        }
        told
    }
}

/// Somebody who held the books against what the driver says has ended that.
pub fn has_looked() {
    LOOKS_ENDED.fetch_add(1, Ordering::SeqCst);
}

/// Whether GPU work is refused altogether.
pub fn is_refusing() -> bool {
    matches!(STATE.load(Ordering::Acquire), REFUSING | LOST)
}

/// Whether what nobody can hold must not be had.
pub fn wants_all_held() -> bool {
    is_strict() || is_refusing()
}

/// Whether processes of a container that cannot meet must not go on.
fn is_strict() -> bool {
    // SAFETY: made by `begin`, before the state said so, and never taken away.
    unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }.is_some_and(|settings| settings.strict)
}

/// How often this process has lost its place in a region.
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// How often this process has lost its place in a region.
pub fn losses() -> u64 {
    LOSSES.load(Ordering::Relaxed)
}

/// A slice is lost to a process that is to be held strictly.
fn refuse_from_now_on() {
    if refuse_in(LOST) {
        LOOKED_BACK.store(sys::nanoseconds(), Ordering::Relaxed);
        LOSSES.fetch_add(1, Ordering::Relaxed);
        log::error!(
            "no GPU work from now on: the region was damaged or cut short, and RATION_STRICT wants the container's processes \
             to be held to their limit together"
        );
    }
}

/// When it was last looked whether a region that was lost is there again, in nanoseconds.
static LOOKED_BACK: AtomicU64 = AtomicU64::new(0);

/// Who had to leave the container's others goes back to them, if there is a whole region again; then nothing is refused any more for
/// want of one. Looked into once a second at most.
fn come_back() {
    const BETWEEN_LOOKS: u64 = 1_000_000_000;
    // SAFETY: made by `begin`, before the state said so, and never taken away.
    let Some(settings) = (unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }) else { return };
    let (now, last) = (sys::nanoseconds(), LOOKED_BACK.load(Ordering::Relaxed));
    if now.saturating_sub(last) < BETWEEN_LOOKS
        || LOOKED_BACK.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    let away = all().filter(|slice| !slice.comes_back(settings)).count();
    if away == 0 && STATE.compare_exchange(LOST, ON, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        entry::stop_watching_for(entry::REFUSING);
        if is_refusing() {
            // It was lost again in between.
            entry::watch_for(entry::REFUSING);
        } else {
            log::warn!("GPU work goes on");
        }
    }
}

/// Whether what is refused needs not be any more.
pub fn refuses_no_more() -> bool {
    if STATE.load(Ordering::Acquire) == LOST {
        let _errno = sys::Errno::kept();
        // Not from inside of an op, which may be in the middle of this.
        if let Some(thread) = Thread::attached() {
            left::within(thread, || _ = std::panic::catch_unwind(come_back));
        }
    }
    !is_refusing()
}

/// Why a call is held to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unheld {
    /// Nothing was asked for on that GPU; or it is no GPU's memory.
    NoLimit,
    /// No context is current, so that there is no GPU to speak of.
    NoContext,
    /// There is no such GPU.
    NoDevice,
    /// An argument is null that the driver needs, too.
    NoArgument,
    /// The driver does not tell what has to be known.
    Untold,
}

/// The slice of a GPU.
pub fn of(device: CUdevice, changing: &Changing) -> Result<&'static Slice, Unheld> {
    match STATE.load(Ordering::Acquire) {
        ON | LOST => {}
        REFUSING => return Err(Unheld::Untold),
        _ => return Err(Unheld::NoLimit),
    }
    // Less than nothing is the host.
    let Ok(number) = usize::try_from(device) else { return Err(Unheld::NoLimit) };
    let untold = || if slice::is_there(device) { Unheld::Untold } else { Unheld::NoDevice };
    let word = SLICES.get(number).ok_or_else(untold)?;
    let mut slice = word.load(Ordering::Acquire);
    if slice.is_null() {
        // SAFETY: made by `begin`, before the state said so, and never taken away.
        let settings = unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }.ok_or(Unheld::NoLimit)?;
        let made = Slice::make(device, settings, changing).ok_or_else(untold)?;
        if settings.strict && made.as_ref().is_some_and(|slice| !slice.is_shared()) {
            refuse_alone();
            return Err(Unheld::Untold);
        }
        let made = made.map_or(NONE, |slice| Box::into_raw(Box::new(slice)));
        slice = match word.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                if made != NONE {
                    // SAFETY: it came from a box just above, and nobody else has seen it.
                    drop(unsafe { Box::from_raw(made) });
                }
                other
            }
        };
    }
    // SAFETY: not the mark for none, so it came from a box that is never freed.
    if slice == NONE { Err(Unheld::NoLimit) } else { unsafe { slice.as_ref() }.ok_or(Unheld::Untold) }
}

/// The container's processes cannot meet, and are to be held strictly.
fn refuse_alone() {
    if refuse_in(REFUSING) {
        log::error!("no GPU work: RATION_STRICT wants the container's processes to be held to their limit together");
    }
}

/// Every slice that is in use.
pub fn all() -> impl Iterator<Item = &'static Slice> {
    SLICES.iter().filter_map(|word| {
        let slice = word.load(Ordering::Acquire);
        // SAFETY: as in `of`.
        if slice == NONE { None } else { unsafe { slice.as_ref() } }
    })
}

/// In a forked child: it holds nothing, and its parent's allocations are not its own.
pub fn forget_the_parent() {
    ration_region::forget_in_child();
    for count in [&CHANGES, &LOOKS_BEGUN, &LOOKS_ENDED, &LOSSES] {
        count.store(0, Ordering::SeqCst);
    }
    MISSED.store(false, Ordering::SeqCst);
    for word in &SLICES {
        word.store(null_mut(), Ordering::Release);
    }
    book::forget_the_parent();
    code::forget_the_parent();
    lent::forget_the_parent();
    pools::forget_the_parent();
    shared::forget_the_parent();
    truth::forget_the_parent();
}

/// Where the region may lie: in the place that was set, the node's, or one of this user's own; with the directory in which all lie.
fn homes(settings: &Settings) -> Vec<(String, Home)> {
    let name = slice::name(settings);
    if let Some(own) = &settings.own_dir {
        let home = match &settings.dir {
            Some(dir) if dir != own => Home::given(Path::new(own), Path::new(dir)),
            _ => Home::alone(Path::new(own)),
        };
        return vec![(own.clone(), home)];
    }
    directories(settings).into_iter().map(|dir| (dir.clone(), Home::among(Path::new(&dir), &name))).collect()
}

fn directories(settings: &Settings) -> Vec<String> {
    if let Some(dir) = &settings.dir {
        return vec![dir.clone()];
    }
    // SAFETY: takes nothing and always succeeds.
    let user = unsafe { libc::geteuid() };
    let node = "/run/ration".to_owned();
    let own = format!("/dev/shm/ration-{user}");
    if Path::new(&node).is_dir() { vec![node, own] } else { vec![own] }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    type Work = extern "C" fn(*mut c_void) -> *mut c_void;

    extern "C" fn change_with_a_block(_: *mut c_void) -> *mut c_void {
        Thread::attach();
        drop(changing());
        null_mut()
    }

    extern "C" fn change_without_a_block(_: *mut c_void) -> *mut c_void {
        drop(changing());
        null_mut()
    }

    extern "C" fn change_that_does_not_end(_: *mut c_void) -> *mut c_void {
        Thread::attach();
        std::mem::forget(changing());
        null_mut()
    }

    fn in_another_thread(work: Work) {
        let mut thread = 0;
        // SAFETY: a function that takes nothing, in a thread that is waited for.
        unsafe {
            assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), work, null_mut()), 0);
            assert_eq!(libc::pthread_join(thread, null_mut()), 0);
        }
    }

    #[test]
    fn only_who_is_alone_learns() {
        Thread::attach();
        let mine = changing();
        let meanwhile = |work: Work| {
            mine.alone(|| {
                in_another_thread(work);
                Some(())
            })
        };
        assert_eq!(mine.alone(|| Some(())), Some(()));
        for work in [change_with_a_block as Work, change_without_a_block] {
            in_another_thread(work);
            assert_eq!(mine.alone(|| Some(())), Some(()), "it came and went before");
            assert_eq!(meanwhile(work), None, "it came and went meanwhile");
        }
        assert_eq!(mine.alone(|| Some(())), Some(()));
        assert_eq!(meanwhile(change_that_does_not_end), None);
        assert_eq!(mine.alone(|| Some(())), None, "it is under way");
    }

    #[test]
    fn a_wait_knows_whether_something_was_learned_meanwhile() {
        Thread::attach();
        let changing = changing();
        assert!(!Wait::begin().end(&changing));
        let wait = Wait::begin();
        assert_eq!(changing.alone(|| Some(())), Some(()));
        assert!(wait.end(&changing));
        assert!(!Wait::begin().end(&changing));
        let within = changing.alone(|| Some(Wait::begin())).expect("nobody else is there");
        assert!(within.end(&changing), "that was begun before");
    }
}
