//! What a GPU is connected to: PCIe, and other GPUs through it. There is no NVLink, as in a machine of one.

use std::ffi::{c_uint, c_ulong};

use crate::abi::*;
use crate::api::{Handle, Out, Outcome};

/// PCIe generation and lanes.
const GENERATION: c_uint = 5;
const LANES: c_uint = 16;
/// GPUs meet at the host bridge.
const BETWEEN: nvmlGpuTopologyLevel_t = NVML_TOPOLOGY_HOSTBRIDGE;

/// KB/s over PCIe: a little even when nothing is copied. Copies show only as the time they take, so they are not in it.
const TRAFFIC: [c_uint; 2] = [837, 443];

/// A bit for each processor of the machine, or for its one memory node.
fn set_bits(set: Out<c_ulong>, words: c_uint, bits: usize) -> Outcome {
    let word = c_ulong::BITS as usize;
    if words == 0 {
        return Err(NVML_ERROR_INVALID_ARGUMENT);
    }
    if bits > words as usize * word {
        return Err(NVML_ERROR_INSUFFICIENT_SIZE);
    }
    let ones = |index: usize| match bits.saturating_sub(index * word) {
        0 => 0,
        some if some >= word => c_ulong::MAX,
        some => (1 << some) - 1,
    };
    set.array(&(0..words as usize).map(ones).collect::<Vec<_>>())
}

/// A list of GPUs: asked for its length with neither room nor an array, else with both.
fn neighbours(count: Out<c_uint>, devices: Out<nvmlDevice_t>, handles: &[nvmlDevice_t]) -> Outcome {
    match (count.get()?, devices.is_null()) {
        (0, true) => count.set(handles.len() as c_uint),
        (0, false) | (_, true) => Err(NVML_ERROR_INVALID_ARGUMENT),
        _ => devices.list(count, handles),
    }
}

fn processors() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) }).unwrap_or(1).max(1)
}

fn scope(scope: nvmlAffinityScope_t) -> Outcome {
    let known = [NVML_AFFINITY_SCOPE_NODE, NVML_AFFINITY_SCOPE_SOCKET].contains(&scope);
    if known { Ok(()) } else { Err(NVML_ERROR_INVALID_ARGUMENT) }
}

nvml! {
    export fn nvmlDeviceGetMaxPcieLinkGeneration | nvmlDeviceGetGpuMaxPcieLinkGeneration
        | nvmlDeviceGetCurrPcieLinkGeneration (gpu: Gpu; generation: Out<c_uint>) {
        generation.set(GENERATION)
    }

    export fn nvmlDeviceGetMaxPcieLinkWidth | nvmlDeviceGetCurrPcieLinkWidth (gpu: Gpu; width: Out<c_uint>) {
        width.set(LANES)
    }

    export fn nvmlDeviceGetPcieLinkMaxSpeed(gpu: Gpu; speed: Out<c_uint>) {
        speed.set(NVML_PCIE_LINK_MAX_SPEED_32000MBPS)
    }

    export fn nvmlDeviceGetPcieSpeed(gpu: Gpu; speed: Out<c_uint>) {
        speed.set(32_000)
    }

    export fn nvmlDeviceGetPcieReplayCounter(gpu: Gpu; count: Out<c_uint>) {
        count.set(0)
    }

    export fn nvmlDeviceGetPcieThroughput(gpu: Gpu; counter: nvmlPcieUtilCounter_t, value: Out<c_uint>) {
        value.set(*TRAFFIC.get(counter as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?)
    }

    export fn nvmlDeviceGetTopologyCommonAncestor(gpu: Gpu; other: Handle, level: Out<nvmlGpuTopologyLevel_t>) {
        let other = gpu.lib.gpu(other)?;
        if other.index == gpu.index {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        level.set(BETWEEN)
    }

    export fn nvmlDeviceGetTopologyNearestGpus(
        gpu: Gpu;
        level: nvmlGpuTopologyLevel_t,
        count: Out<c_uint>,
        devices: Out<nvmlDevice_t>,
    ) {
        let others = gpu.lib.each().filter(|other| other.index != gpu.index && level == BETWEEN);
        let handles: Vec<_> = others.map(|other| other.handle()).collect();
        neighbours(count, devices, &handles)
    }

    export fn nvmlSystemGetTopologyGpuSet(lib: Library; cpu: c_uint, count: Out<c_uint>, devices: Out<nvmlDevice_t>) {
        if cpu as usize >= processors() {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let handles: Vec<_> = lib.each().map(|gpu| gpu.handle()).collect();
        neighbours(count, devices, &handles)
    }

    export fn nvmlDeviceGetP2PStatus(
        gpu: Gpu;
        other: Handle,
        index: nvmlGpuP2PCapsIndex_t,
        status: Out<nvmlGpuP2PStatus_t>,
    ) {
        gpu.lib.gpu(other)?;
        status.set(if index < NVML_P2P_CAPS_INDEX_UNKNOWN { NVML_P2P_STATUS_OK } else { NVML_P2P_STATUS_UNKNOWN })
    }

    export fn nvmlDeviceGetCpuAffinity(gpu: Gpu; words: c_uint, set: Out<c_ulong>) {
        set_bits(set, words, processors())
    }

    export fn nvmlDeviceGetCpuAffinityWithinScope(
        gpu: Gpu;
        words: c_uint,
        set: Out<c_ulong>,
        within: nvmlAffinityScope_t,
    ) {
        scope(within)?;
        set_bits(set, words, processors())
    }

    export fn nvmlDeviceGetMemoryAffinity(gpu: Gpu; words: c_uint, set: Out<c_ulong>, within: nvmlAffinityScope_t) {
        scope(within)?;
        set_bits(set, words, 1)
    }

    export fn nvmlDeviceGetGpuFabricInfo(gpu: Gpu; info: Out<nvmlGpuFabricInfo_t>) {
        info.set(nvmlGpuFabricInfo_t::default())
    }

    export fn nvmlDeviceGetGpuFabricInfoV(gpu: Gpu; info: Out<nvmlGpuFabricInfoV_t>) {
        let version = info.version()?;
        if version == nvmlGpuFabricInfo_v2 {
            // The third form, which is the prototype's, without its last member.
            let len = std::mem::offset_of!(nvmlGpuFabricInfo_v3_t, healthSummary);
            return info.set_first(len, &nvmlGpuFabricInfoV_t { version, ..Default::default() });
        }
        info.versioned(nvmlGpuFabricInfo_v3, |info| {
            *info = nvmlGpuFabricInfoV_t { version, ..Default::default() };
            Ok(())
        })
    }
}
