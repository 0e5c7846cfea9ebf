//! NVML as this program uses it: what GPUs there are, and what each is at.
//!
//! It is found at run time, and what an older one lacks is not known, rather than an error. A driver in trouble can keep any of these calls
//! for ever: whoever must not wait for it asks from another process.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;
use std::path::Path;
use std::ptr::null_mut;

use libloading::Library;

/// What programs load.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Room for a name, a UUID or a version: NVML says that none of them is longer.
const TEXT: usize = 96;
/// A machine has no more GPUs than that.
const MOST: u32 = 256;

type Device = *mut c_void;

/// Why NVML says nothing.
#[derive(Debug)]
pub enum NvmlError {
    /// No such library, in the loader's words.
    NotFound(String),
    /// The library has no such function.
    Lacks(&'static str),
    /// It answered with this code.
    Refused(&'static str, i32),
}

impl fmt::Display for NvmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NvmlError::NotFound(why) => write!(f, "{LIBRARY} cannot be loaded: {why}"),
            NvmlError::Lacks(symbol) => write!(f, "{LIBRARY} has no {symbol}"),
            NvmlError::Refused(call, code) => match meaning(*code) {
                Some(meaning) => write!(f, "{call} answered {code}, {meaning}"),
                None => write!(f, "{call} answered {code}"),
            },
        }
    }
}

fn meaning(code: i32) -> Option<&'static str> {
    const MEANINGS: [(i32, &str); 7] = [
        (3, "not supported"),
        (4, "no permission"),
        (9, "the driver is not loaded"),
        (15, "the GPU has fallen off the bus"),
        (17, "the operating system has blocked the request"),
        (18, "the library and the kernel module are of two versions"),
        (999, "unknown error"),
    ];
    MEANINGS.iter().find(|(known, _)| *known == code).map(|(_, meaning)| *meaning)
}

/// What a GPU is, and what it is at. What is `None` is not known here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's number for it, which need not be CUDA's.
    pub index: u32,
    /// As `nvidia-smi -L` shows it.
    pub uuid: String,
    /// Such as `NVIDIA H200`.
    pub name: String,
    /// Bytes.
    pub memory: Option<Memory>,
    /// For which part of the last second or so anything has run, in per cent.
    pub utilization: Option<u32>,
    /// Whether it is cut into MIG devices.
    pub mig: Option<bool>,
    /// 0: any number of processes may use it; 2: none; 3: one at a time.
    pub compute_mode: Option<u32>,
}

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All.
    pub total: u64,
    /// What is taken, by whomever.
    pub used: u64,
}

/// A limit of the driver's own for a cgroup's memory on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnLimit {
    /// This driver has no such limits.
    Unknown,
    /// It has them, and none is set.
    None,
    /// Bytes.
    Set(u64),
}

/// What NVML says of a GPU in words.
#[derive(Clone, Copy)]
enum Text {
    Uuid,
    Name,
}

/// NVML, begun. It is never ended: NVML counts who has begun it, and what is loaded stays so until this program ends.
pub struct Nvml(Library);

/// A function of NVML's by its name, with the arguments that it takes.
macro_rules! function {
    ($nvml:expr, $symbol:literal ( $($argument:ty),* )) => {{
        // SAFETY: the type is that of NVML's published interface, which a library under this name has. What is found is called within
        // the expression or statement that asked for it, while `Nvml` keeps the library.
        let found = unsafe { $nvml.0.get::<unsafe extern "C" fn($($argument),*) -> i32>($symbol) };
        found.map(|it| *it).map_err(|_| NvmlError::Lacks($symbol))
    }};
}

/// Bytes as `nvmlDeviceGetMemoryInfo` gives them.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// The same as `nvmlDeviceGetMemoryInfo_v2` gives them, with what the driver keeps for itself apart.
#[repr(C)]
#[derive(Default)]
struct MemoryInfoApart {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// Per cent as `nvmlDeviceGetUtilizationRates` gives them.
#[repr(C)]
#[derive(Default)]
struct Rates {
    gpu: u32,
    memory: u32,
}

/// What `nvmlDeviceGetMemoryLimits_v1` is asked, and answers.
#[repr(C)]
struct Limits {
    group: *const c_char,
    soft: u64,
    hard: u64,
    used: u64,
}

impl Nvml {
    /// Loads it and begins it.
    pub fn open() -> Result<Nvml, NvmlError> {
        // SAFETY: loading runs the library's initialisers. It is the one that comes with the driver, which nvidia-smi and every
        // framework load in the same way.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|error| {
            let loader = std::error::Error::source(&error).map(ToString::to_string);
            NvmlError::NotFound(loader.unwrap_or_else(|| error.to_string()))
        })?;
        let nvml = Nvml(library);
        let begin = function!(nvml, "nvmlInit_v2"())?;
        // SAFETY: takes nothing.
        checked("nvmlInit", unsafe { begin() })?;
        Ok(nvml)
    }

    /// The driver's release, such as `580.159.04`.
    pub fn release(&self) -> Option<String> {
        let ask = function!(self, "nvmlSystemGetDriverVersion"(*mut c_char, u32)).ok()?;
        // SAFETY: `text` hands a place to write to, and how long it is.
        text(|place, length| unsafe { ask(place, length) })
    }

    /// All GPUs that this process may see.
    pub fn gpus(&self) -> Result<Vec<Gpu>, NvmlError> {
        let ask = function!(self, "nvmlDeviceGetCount_v2"(*mut u32))?;
        let mut count = 0;
        // SAFETY: a place to write to.
        checked("nvmlDeviceGetCount", unsafe { ask(&raw mut count) })?;
        Ok((0..count.min(MOST)).filter_map(|index| self.gpu(index)).collect())
    }

    /// One of them.
    fn gpu(&self, index: u32) -> Option<Gpu> {
        let device = self.device(index)?;
        Some(Gpu {
            index,
            uuid: self.text(device, Text::Uuid)?,
            name: self.text(device, Text::Name).unwrap_or_default(),
            memory: self.memory(device),
            utilization: self.utilization(device),
            mig: self.mig(device),
            compute_mode: self.compute_mode(device),
        })
    }

    fn text(&self, device: Device, which: Text) -> Option<String> {
        let ask = match which {
            Text::Uuid => function!(self, "nvmlDeviceGetUUID"(Device, *mut c_char, u32)),
            Text::Name => function!(self, "nvmlDeviceGetName"(Device, *mut c_char, u32)),
        };
        let ask = ask.ok()?;
        // SAFETY: NVML's own handle, and a place to write to with its length.
        text(|place, length| unsafe { ask(device, place, length) })
    }

    fn device(&self, index: u32) -> Option<Device> {
        let ask = function!(self, "nvmlDeviceGetHandleByIndex_v2"(u32, *mut Device)).ok()?;
        let mut device = null_mut();
        // SAFETY: a place to write to.
        (unsafe { ask(index, &raw mut device) } == 0).then_some(device)
    }

    /// What the driver keeps is taken by nobody: only a driver too old for the second form counts it.
    fn memory(&self, device: Device) -> Option<Memory> {
        if let Ok(ask) = function!(self, "nvmlDeviceGetMemoryInfo_v2"(Device, *mut MemoryInfoApart)) {
            let version = size_of::<MemoryInfoApart>() as u32 | 2 << 24;
            let mut info = MemoryInfoApart { version, ..MemoryInfoApart::default() };
            // SAFETY: NVML's own handle, and a structure of the layout that its version says.
            if unsafe { ask(device, &raw mut info) } == 0 {
                return Some(Memory { total: info.total, used: info.used });
            }
        }
        let ask = function!(self, "nvmlDeviceGetMemoryInfo"(Device, *mut MemoryInfo)).ok()?;
        let mut info = MemoryInfo::default();
        // SAFETY: NVML's own handle, and a structure of the layout that this function fills.
        let told = unsafe { ask(device, &raw mut info) };
        (told == 0).then_some(Memory { total: info.total, used: info.used })
    }

    fn utilization(&self, device: Device) -> Option<u32> {
        let ask = function!(self, "nvmlDeviceGetUtilizationRates"(Device, *mut Rates)).ok()?;
        let mut rates = Rates::default();
        // SAFETY: as for the memory.
        (unsafe { ask(device, &raw mut rates) } == 0).then_some(rates.gpu)
    }

    fn mig(&self, device: Device) -> Option<bool> {
        let ask = function!(self, "nvmlDeviceGetMigMode"(Device, *mut u32, *mut u32)).ok()?;
        let (mut now, mut next) = (0, 0);
        // SAFETY: NVML's own handle, and two places to write to.
        (unsafe { ask(device, &raw mut now, &raw mut next) } == 0).then_some(now == 1)
    }

    fn compute_mode(&self, device: Device) -> Option<u32> {
        let ask = function!(self, "nvmlDeviceGetComputeMode"(Device, *mut u32)).ok()?;
        let mut mode = 0;
        // SAFETY: NVML's own handle, and a place to write to.
        (unsafe { ask(device, &raw mut mode) } == 0).then_some(mode)
    }

    /// The limit that the driver itself holds a cgroup to, by the cgroup's directory.
    pub fn own_limit(&self, index: u32, group: &Path) -> OwnLimit {
        use std::os::unix::ffi::OsStrExt as _;
        let ask = function!(self, "nvmlDeviceGetMemoryLimits_v1"(Device, *mut Limits));
        let (Ok(ask), Some(device)) = (ask, self.device(index)) else { return OwnLimit::Unknown };
        let Ok(group) = CString::new(group.as_os_str().as_bytes()) else { return OwnLimit::Unknown };
        let mut limits = Limits { group: group.as_ptr(), soft: 0, hard: 0, used: 0 };
        // SAFETY: NVML's own handle, a structure of the layout that this function reads and fills, and in it a path that outlives the call.
        match unsafe { ask(device, &raw mut limits) } {
            // All ones: no limit.
            0 if limits.hard == u64::MAX => OwnLimit::None,
            0 => OwnLimit::Set(limits.hard),
            _ => OwnLimit::Unknown,
        }
    }
}

fn checked(call: &'static str, code: i32) -> Result<(), NvmlError> {
    if code == 0 { Ok(()) } else { Err(NvmlError::Refused(call, code)) }
}

/// A text that NVML writes into a place of this length.
fn text(ask: impl FnOnce(*mut c_char, u32) -> i32) -> Option<String> {
    let mut place = [0u8; TEXT];
    if ask(place.as_mut_ptr().cast(), TEXT as u32) != 0 {
        return None;
    }
    Some(CStr::from_bytes_until_nul(&place).ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_which_call_and_what_it_means() {
        let said = NvmlError::Refused("nvmlInit", 18).to_string();
        assert_eq!(said, "nvmlInit answered 18, the library and the kernel module are of two versions");
        assert_eq!(NvmlError::Refused("nvmlInit", 77).to_string(), "nvmlInit answered 77");
    }

    #[test]
    fn a_text_ends_where_it_ends() {
        let write = |place: *mut c_char, length: u32| {
            assert!(length as usize == TEXT);
            // SAFETY: `text` gives a place of that length, which is longer than what is written.
            unsafe { place.cast::<[u8; 4]>().write(*b"abc\0") };
            0
        };
        assert_eq!(text(write).as_deref(), Some("abc"));
        assert_eq!(text(|_, _| 3), None);
    }
}
