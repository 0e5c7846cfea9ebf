//! What the driver says of a device.

use crate::abi::cuda::{self, CUdevice, CUuuid};
use crate::driver::calls;
use crate::ledger::{native, truth};
use crate::log;

/// One of the numbers that describe it; 0 if the driver does not tell.
pub fn attribute(device: CUdevice, attribute: cuda::CUdevice_attribute) -> u32 {
    let mut value = 0;
    // SAFETY: a place to write to.
    unsafe { calls::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    u32::try_from(value).unwrap_or(0)
}

/// How many threads a device can hold at a time.
pub fn threads(device: CUdevice) -> u64 {
    let each = attribute(device, cuda::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    u64::from(attribute(device, cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)) * u64::from(each)
}

/// The version of a device's instructions.
pub fn sm(device: CUdevice) -> u32 {
    let major = attribute(device, cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    10 * major + attribute(device, cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
}

/// So many bytes, or less where the driver holds the container to a limit of its own.
pub fn within_the_drivers(device: CUdevice, uuid: &[u8; 16], bytes: u64) -> u64 {
    let native = truth::handle_of(device, uuid).and_then(native::cap);
    let cap = native.map_or(bytes, |native| native.min(bytes));
    if cap < bytes {
        log::info!("GPU {device}: the driver's own limit of {cap} bytes is less than the {bytes} that were set");
    }
    cap
}

/// As everybody names it.
pub fn uuid(device: CUdevice) -> Option<[u8; 16]> {
    let mut uuid = CUuuid::default();
    // SAFETY: a place to write to.
    let told = unsafe {
        let told = calls::cuDeviceGetUuid_v2(&raw mut uuid, device);
        if told == cuda::CUDA_SUCCESS { told } else { calls::cuDeviceGetUuid(&raw mut uuid, device) }
    };
    (told == cuda::CUDA_SUCCESS).then(|| uuid.bytes.map(|byte| byte as u8))
}

/// Whether the process sees a GPU with this number.
pub fn is_there(device: CUdevice) -> bool {
    let mut count = 0;
    // SAFETY: a place to write to.
    let told = unsafe { calls::cuDeviceGetCount(&raw mut count) };
    told == cuda::CUDA_SUCCESS && (0..count).contains(&device)
}

/// The GPUs that the process sees, in the order in which it counts them.
pub fn gpus() -> Vec<[u8; 16]> {
    let mut count = 0;
    // SAFETY: a place to write to.
    unsafe { calls::cuDeviceGetCount(&raw mut count) };
    (0..count).map_while(uuid).collect()
}
