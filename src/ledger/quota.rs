//! The quota file, which an injector puts where the program can read but not change it; and what it, or the environment, says
//! of one GPU.
//!
//! Whoever runs the machine may change the file while the program runs: each process looks at it once a second, when it launches
//! work or asks for memory, and what has changed in it holds from then on. A file that makes no sense any more, or is gone,
//! changes nothing.
//!
//! Where there is a quota file, what it says holds in each process whatever the region says, which other programs can write to. The
//! region's words are then there for others to read.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ration_contract::{Priority, Settings};
use ration_policy::Share;
use ration_region::Entitled;

use super::{Slice, all};
use crate::thread::Guarded;
use crate::{log, sys};

/// Where an injector puts the limits.
const QUOTA_FILE: &CStr = c"/etc/ration/quota";
/// And the pod's name, where it does not know that.
const POD_FILE: &CStr = c"/etc/ration/pod";

/// As often as this it is looked at again, in nanoseconds.
const BETWEEN_LOOKS: u64 = 1_000_000_000;

/// What it says, if there was one at first.
static SAID: Guarded<Option<Said>> = Guarded::new(None);
/// When that was.
static LOOKED: AtomicU64 = AtomicU64::new(0);
/// There was one at first.
static IS_THERE: AtomicBool = AtomicBool::new(false);

struct Said {
    /// When it was last looked at.
    last: String,
    /// When it last made sense.
    good: String,
}

/// What it says, if there is one, at first.
pub fn read() -> Option<String> {
    let text = now();
    SAID.with(|said| *said = text.clone().map(|text| Said { last: text.clone(), good: text }));
    IS_THERE.store(text.is_some(), Ordering::Relaxed);
    text
}

/// Whether there is one, so that it counts, and not what the region says.
#[inline]
pub fn is_there() -> bool {
    IS_THERE.load(Ordering::Relaxed)
}

/// The same as [`follow`], by a thread of the program's that asks for memory or for how much there is.
#[inline]
pub fn follow_now() {
    if is_there() {
        follow(sys::nanoseconds());
    }
}

fn now() -> Option<String> {
    let text = sys::read(QUOTA_FILE)?;
    if !text.contains(ration_contract::POD) {
        return Some(text);
    }
    // Without a pod's name, the container's is refused, with the reason.
    Some(sys::read(POD_FILE).map_or(text.clone(), |pod| ration_contract::with_pod(&text, pod.trim())))
}

/// Does what the file says, if that has changed.
pub fn follow(time: u64) {
    if time.saturating_sub(LOOKED.load(Ordering::Relaxed)) < BETWEEN_LOOKS {
        return;
    }
    LOOKED.store(time, Ordering::Relaxed);
    super::come_back();
    let changed = SAID.with(|said| {
        let said = said.as_mut()?;
        let text = now().filter(|text| *text != said.last)?;
        said.last.clone_from(&text);
        Some((said.good.clone(), text))
    });
    let Some((before, text)) = changed else { return };
    // The environment may have been written over since; and what it says has not changed.
    let parsed = |text: &str| Settings::read(&|_| None, Some(text));
    match parsed(&text) {
        Ok(after) => {
            log::info!("the quota file has changed, and holds from now on");
            let before = parsed(&before).unwrap_or_default();
            all().for_each(|slice| slice.changes(&before, &after, time));
            SAID.with(|said| said.iter_mut().for_each(|said| said.good.clone_from(&text)));
        }
        Err(errors) => {
            errors.iter().for_each(|error| log::warn!("{error}"));
            log::warn!("the quota file was changed to this; what it said before holds on");
        }
    }
}

/// What the settings say of one GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// How much memory, in bytes; all of it, if there is no limit.
    pub memory: Option<u64>,
    pub limit: Option<Share>,
    pub request: Option<Share>,
    pub urgency: ration_policy::Priority,
}

impl Asked {
    /// What the container is entitled to of the GPU's time.
    pub fn entitled(&self) -> Entitled {
        let limit = self.limit.unwrap_or(Share::WHOLE);
        Entitled { limit, request: self.request, priority: self.urgency }
    }

    /// Of the GPU that the process gives this number to.
    pub fn of(settings: &Settings, device: u32, uuid: &[u8; 16], total: u64) -> Asked {
        let request = settings.compute_request.for_gpu(device, uuid).map(|share| share.ppm()).filter(|ppm| *ppm > 0);
        Asked {
            memory: settings.memory.for_gpu(device, uuid).map(|amount| amount.bytes(total)),
            limit: settings.compute_limit.for_gpu(device, uuid).map(|limit| Share::from_ppm(limit.ppm())),
            request: request.map(Share::from_ppm),
            urgency: match settings.priority {
                Priority::Latency => ration_policy::Priority::Latency,
                Priority::Normal => ration_policy::Priority::Normal,
                Priority::Batch => ration_policy::Priority::Batch,
            },
        }
    }

    /// Nothing is.
    pub fn is_nothing(&self) -> bool {
        self.memory.is_none()
            && self.limit.is_none()
            && self.request.is_none()
            && self.urgency == ration_policy::Priority::Normal
    }
}

impl Slice {
    /// What is asked for has changed.
    fn changes(&self, before: &Settings, after: &Settings, now: u64) {
        let device = u32::try_from(self.device).unwrap_or(u32::MAX);
        let of = |settings: &Settings| Asked::of(settings, device, &self.uuid, self.total);
        let (before, after) = (of(before), of(after));
        if before.memory != after.memory {
            self.set_cap(after.memory.unwrap_or(self.total));
        }
        self.set_time(&before, &after);
        let compute = self.compute();
        if before.limit != after.limit {
            compute.set_limit(after.limit.unwrap_or(Share::WHOLE), now);
        }
        if before.request != after.request {
            compute.set_request(after.request);
        }
        if before.urgency != after.urgency {
            compute.set_priority(after.urgency);
        }
    }
}
