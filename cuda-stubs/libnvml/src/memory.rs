//! How much memory a GPU has and how much of it is taken.

use std::ffi::c_uint;

use sim_world::GpuSettings;

use crate::abi::*;
use crate::api::Out;
use crate::gpu::Gpu;

/// What the driver itself maps of the memory, besides what clients hold.
const BAR1_OWN: u64 = (1 << 20) + (11 << 16);

/// A GPU's memory in the second form, which has what the driver keeps apart.
fn memory(gpu: Gpu) -> nvmlMemory_v2_t {
    let (settings, taken) = (gpu.settings(), gpu.load().used);
    let used = GpuSettings::BASELINE + taken;
    let free = settings.memory.saturating_sub(settings.reserved + used);
    nvmlMemory_v2_t { version: nvmlMemory_v2, total: settings.memory, reserved: settings.reserved, free, used }
}

nvml! {
    /// The first form, in which what the driver keeps counts as used.
    export fn nvmlDeviceGetMemoryInfo(gpu: Gpu; info: Out<nvmlMemory_t>) {
        let now = memory(gpu);
        info.set(nvmlMemory_t { total: now.total, free: now.free, used: now.total - now.free })
    }

    export fn nvmlDeviceGetMemoryInfo_v2(gpu: Gpu; info: Out<nvmlMemory_v2_t>) {
        // The driver has another answer to a wrong version here than elsewhere.
        if info.version()? != nvmlMemory_v2 {
            return Err(NVML_ERROR_FUNCTION_NOT_FOUND);
        }
        let now = memory(gpu);
        info.versioned(nvmlMemory_v2, |info| {
            (info.total, info.reserved, info.free, info.used) = (now.total, now.reserved, now.free, now.used);
            Ok(())
        })
    }

    export fn nvmlDeviceGetBAR1MemoryInfo(gpu: Gpu; info: Out<nvmlBAR1Memory_t>) {
        let total = gpu.settings().memory.next_power_of_two();
        let used = (memory(gpu).used + BAR1_OWN).min(total);
        info.set(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - used, bar1Used: used })
    }

    export fn nvmlDeviceGetMemoryBusWidth(gpu: Gpu; width: Out<c_uint>) {
        width.set(6016)
    }

    export fn nvmlDeviceGetConfComputeMemSizeInfo(gpu: Gpu; info: Out<nvmlConfComputeMemSizeInfo_t>) {
        let unprotected = gpu.settings().cuda_total() >> 10;
        info.set(nvmlConfComputeMemSizeInfo_t { protectedMemSizeKib: 0, unprotectedMemSizeKib: unprotected })
    }

    export fn nvmlDeviceGetConfComputeProtectedMemoryUsage(gpu: Gpu; info: Out<nvmlMemory_t>) {
        info.set(nvmlMemory_t::default())
    }
}
