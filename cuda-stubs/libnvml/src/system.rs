//! What concerns no GPU: versions, and the words for error codes.

use std::ffi::{CStr, c_char, c_int, c_uint};

use sim_world::WorldSettings;

use crate::abi::*;
use crate::api::{Out, Outcome, chars};
use crate::library::{self, Library};

/// The driver that brought each CUDA version (major * 1000 + minor * 10), newest first.
const RELEASES: [(u64, &str); 20] = [
    (13_000, "580.159.04"),
    (12_090, "575.51.03"),
    (12_080, "570.86.10"),
    (12_070, "565.57.01"),
    (12_060, "560.28.03"),
    (12_050, "555.42.02"),
    (12_040, "550.54.14"),
    (12_030, "545.23.06"),
    (12_020, "535.54.03"),
    (12_010, "530.30.02"),
    (12_000, "525.60.13"),
    (11_080, "520.61.05"),
    (11_070, "515.43.04"),
    (11_060, "510.39.01"),
    (11_050, "495.29.05"),
    (11_040, "470.42.01"),
    (11_030, "465.19.01"),
    (11_020, "460.32.03"),
    (11_010, "455.23.05"),
    (11_000, "450.51.06"),
];

/// The driver's version for a CUDA version.
pub(crate) fn driver_version(cuda: u64) -> &'static str {
    RELEASES.iter().find(|(since, _)| *since <= cuda).map_or(RELEASES[RELEASES.len() - 1].1, |(_, version)| version)
}

impl Library {
    /// The driver's version.
    pub(crate) fn driver_version(&self) -> &'static str {
        driver_version(self.world.settings().driver)
    }
}

nvml! {
    export fn nvmlSystemGetDriverVersion(lib: Library; version: Out<c_char>, length: c_uint) {
        version.text(length, lib.driver_version())
    }

    export fn nvmlSystemGetNVMLVersion(; version: Out<c_char>, length: c_uint) {
        // Answered before nvmlInit too, so from the settings alone unless the world is there.
        let settings = || WorldSettings::from_env(|name| std::env::var(name).ok());
        let cuda = match library::joined() {
            Some(lib) => lib.world.settings().driver,
            None => settings().map_or(RELEASES[0].0, |settings| settings.driver),
        };
        version.text(length, &format!("{}.{}", cuda / 1000, driver_version(cuda)))
    }

    export fn nvmlSystemGetCudaDriverVersion | nvmlSystemGetCudaDriverVersion_v2 (lib: Library; version: Out<c_int>) {
        version.set(lib.world.settings().driver as c_int)
    }

    export fn nvmlSystemGetDriverBranch(lib: Library; info: Out<nvmlSystemDriverBranchInfo_t>, length: c_uint) {
        let driver = lib.driver_version();
        let branch = match driver {
            "580.159.04" => "r582_49".to_owned(), // as measured
            other => format!("r{}_00", &other[..3]),
        };
        info.versioned(nvmlSystemDriverBranchInfo_v1, |info| {
            if branch.len() >= info.branch.len().min(length as usize) {
                return Err(NVML_ERROR_INSUFFICIENT_SIZE);
            }
            info.branch = chars(&branch);
            Ok(())
        })
    }

    export fn nvmlSystemGetHicVersion(lib: Library; count: Out<c_uint>, entries: Out<nvmlHwbcEntry_t>) {
        entries.list(count, &[])
    }

    export fn nvmlGetExcludedDeviceCount(lib: Library; count: Out<c_uint>) {
        count.set(0)
    }

    /// The name that it had before.
    unlisted export fn nvmlGetBlacklistDeviceCount(lib: Library; count: Out<c_uint>) {
        count.set(0)
    }

    export fn nvmlUnitGetCount(lib: Library; count: Out<c_uint>) {
        count.set(0)
    }

    export fn nvmlSystemGetNvlinkBwMode(lib: Library; mode: Out<c_uint>) {
        mode.set(0)
    }

    export fn nvmlSystemGetConfComputeCapabilities(lib: Library; caps: Out<nvmlConfComputeSystemCaps_t>) {
        caps.set(nvmlConfComputeSystemCaps_t { cpuCaps: 0, gpusCaps: NVML_CC_SYSTEM_GPUS_CC_CAPABLE })
    }

    export fn nvmlSystemGetConfComputeState(lib: Library; state: Out<nvmlConfComputeSystemState_t>) {
        state.set(nvmlConfComputeSystemState_t::default())
    }

    export fn nvmlSystemGetConfComputeSettings(lib: Library; settings: Out<nvmlSystemConfComputeSettings_t>) {
        settings.versioned(nvmlSystemConfComputeSettings_v1, |settings| {
            *settings = nvmlSystemConfComputeSettings_t { version: settings.version, ..Default::default() };
            Ok(())
        })
    }

    export fn nvmlSystemGetConfComputeKeyRotationThresholdInfo(
        lib: Library;
        info: Out<nvmlConfComputeGetKeyRotationThresholdInfo_t>,
    ) {
        info.versioned(nvmlConfComputeGetKeyRotationThresholdInfo_v1, |info| {
            info.attackerAdvantage = 60;
            Ok(())
        })
    }

    export fn nvmlSystemGetConfComputeGpusReadyState(lib: Library; ready: Out<c_uint>) {
        ready.set(0)
    }
}

const WORDS: [&CStr; 31] = [
    c"Success",
    c"Uninitialized",
    c"Invalid Argument",
    c"Not Supported",
    c"Insufficient Permissions",
    c"Already Initialized",
    c"Not Found",
    c"Insufficient Size",
    c"Insufficient External Power",
    c"Driver Not Loaded",
    c"Timeout",
    c"Interrupt Request Issue",
    c"NVML Shared Library Not Found",
    c"Function Not Found",
    c"Corrupted infoROM",
    c"GPU is lost",
    c"GPU requires reset",
    c"GPU access blocked by the operating system",
    c"Driver/library version mismatch",
    c"In use by another client",
    c"Insufficient Memory",
    c"No data",
    c"vGPU ECC not supported",
    c"Insufficient Resources",
    c"Invalid Frequency",
    c"Argument version mismatch",
    c"Requested functionality has been deprecated",
    c"System is not in ready state",
    c"No supported GPUs were found",
    c"Resource not in correct state to perform requested operation",
    c"Reset type is not supported for given device",
];

/// The words for a code. The text is never freed.
#[allow(non_snake_case)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    const INDEX: usize = sim_world::surface::nvml_index("nvmlErrorString");
    let counted = || -> Outcome { Ok(()) };
    crate::api::enter(INDEX, counted);
    WORDS.get(result as usize).copied().unwrap_or(c"Unknown Error").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cuda_version_names_its_driver() {
        assert_eq!(driver_version(13_000), "580.159.04");
        assert_eq!(driver_version(12_040), "550.54.14");
        assert_eq!(driver_version(11_990), "520.61.05");
        assert_eq!(driver_version(11_000), "450.51.06");
        assert!(RELEASES.is_sorted_by(|a, b| a.0 > b.0));
    }

    #[test]
    fn every_code_has_its_words() {
        let words = |code| {
            // SAFETY: the library's texts are static.
            unsafe { CStr::from_ptr(nvmlErrorString(code)) }.to_str().expect("ASCII")
        };
        assert_eq!(words(NVML_SUCCESS), "Success");
        assert_eq!(words(NVML_ERROR_ARGUMENT_VERSION_MISMATCH), "Argument version mismatch");
        assert_eq!(words(NVML_ERROR_RESET_TYPE_NOT_SUPPORTED), "Reset type is not supported for given device");
        assert_eq!(words(NVML_ERROR_UNKNOWN), "Unknown Error");
        assert_eq!(words(31), "Unknown Error");
    }
}
