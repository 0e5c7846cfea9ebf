//! Clocks. They are up while the GPU has had work within the last second, and down otherwise; work takes the same time
//! at either.

use std::ffi::{c_int, c_uint};

use crate::abi::*;
use crate::api::{Out, Outcome, chars};
use crate::gpu::Gpu;

/// The lowest and the highest graphics clock, MHz; between them, one every [`STEP`].
const GRAPHICS: (c_uint, c_uint) = (345, 1980);
const STEP: usize = 15;
const VIDEO: (c_uint, c_uint) = (765, 1545);
/// The memory's clock in performance states 0 and 2.
const MEMORY: [c_uint; 2] = [3201, 2201];

/// A clock's range.
fn range(kind: nvmlClockType_t) -> Outcome<(c_uint, c_uint)> {
    match kind {
        NVML_CLOCK_GRAPHICS | NVML_CLOCK_SM => Ok(GRAPHICS),
        NVML_CLOCK_MEM => Ok((MEMORY[0], MEMORY[0])),
        NVML_CLOCK_VIDEO => Ok(VIDEO),
        _ => Err(NVML_ERROR_INVALID_ARGUMENT),
    }
}

fn current(gpu: Gpu, kind: nvmlClockType_t) -> Outcome<c_uint> {
    let (low, high) = range(kind)?;
    Ok(if gpu.load().awake() { high } else { low })
}

/// What applications get if they ask for nothing.
fn application(kind: nvmlClockType_t) -> Outcome<c_uint> {
    match kind {
        NVML_CLOCK_VIDEO => Err(NVML_ERROR_NOT_SUPPORTED),
        kind => Ok(range(kind)?.1),
    }
}

fn customer_boost(kind: nvmlClockType_t) -> Outcome<c_uint> {
    match kind {
        NVML_CLOCK_MEM | NVML_CLOCK_VIDEO => Err(NVML_ERROR_NOT_SUPPORTED),
        kind => Ok(range(kind)?.1),
    }
}

/// The text form in which settings tools read one performance state's clocks.
fn in_words(graphics: c_uint, memory: c_uint) -> String {
    let (low, high) = GRAPHICS;
    let fixed = |label: &str, value: c_uint| {
        format!("{label}={value}, {label}min={value}, {label}max={value}, {label}editable=0")
    };
    format!(
        "nvclock={graphics}, nvclockmin={low}, nvclockmax={high}, nvclockeditable=0, {}, {}",
        fixed("memclock", memory),
        fixed("memTransferRate", 2 * memory)
    )
}

nvml! {
    export fn nvmlDeviceGetClockInfo(gpu: Gpu; kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.set(current(gpu, kind).map_err(|_| NVML_ERROR_NOT_SUPPORTED)?)
    }

    export fn nvmlDeviceGetMaxClockInfo(gpu: Gpu; kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.set(range(kind)?.1)
    }

    export fn nvmlDeviceGetApplicationsClock | nvmlDeviceGetDefaultApplicationsClock (
        gpu: Gpu;
        kind: nvmlClockType_t,
        clock: Out<c_uint>,
    ) {
        clock.set(application(kind)?)
    }

    export fn nvmlDeviceGetMaxCustomerBoostClock(gpu: Gpu; kind: nvmlClockType_t, clock: Out<c_uint>) {
        clock.set(customer_boost(kind)?)
    }

    export fn nvmlDeviceGetClock(gpu: Gpu; kind: nvmlClockType_t, id: nvmlClockId_t, clock: Out<c_uint>) {
        clock.set(match id {
            NVML_CLOCK_ID_CURRENT => current(gpu, kind)?,
            NVML_CLOCK_ID_APP_CLOCK_TARGET | NVML_CLOCK_ID_APP_CLOCK_DEFAULT => application(kind)?,
            NVML_CLOCK_ID_CUSTOMER_BOOST_MAX => customer_boost(kind)?,
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        })
    }

    export fn nvmlDeviceGetSupportedMemoryClocks(gpu: Gpu; count: Out<c_uint>, clocks: Out<c_uint>) {
        clocks.list_somewhere(count, &MEMORY)
    }

    export fn nvmlDeviceGetSupportedGraphicsClocks(gpu: Gpu; memory: c_uint, count: Out<c_uint>, clocks: Out<c_uint>) {
        match memory {
            0 => return Err(NVML_ERROR_INVALID_ARGUMENT),
            clock if !MEMORY.contains(&clock) => return Err(NVML_ERROR_NOT_FOUND),
            _ => {}
        }
        let all: Vec<c_uint> = (GRAPHICS.0..=GRAPHICS.1).rev().step_by(STEP).collect();
        clocks.list_somewhere(count, &all)
    }

    export fn nvmlDeviceGetPerformanceState | nvmlDeviceGetPowerState (gpu: Gpu; state: Out<nvmlPstates_t>) {
        state.set(NVML_PSTATE_0)
    }

    export fn nvmlDeviceGetSupportedPerformanceStates(gpu: Gpu; states: Out<nvmlPstates_t>, bytes: c_uint) {
        let room = bytes as usize / size_of::<nvmlPstates_t>();
        if room == 0 {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let mut all = [NVML_PSTATE_UNKNOWN; NVML_MAX_GPU_PERF_PSTATES as usize];
        (all[0], all[1]) = (NVML_PSTATE_2, NVML_PSTATE_0);
        states.array(&all[..room.min(all.len())])
    }

    export fn nvmlDeviceGetMinMaxClockOfPState(
        gpu: Gpu;
        kind: nvmlClockType_t,
        state: nvmlPstates_t,
        low: Out<c_uint>,
        high: Out<c_uint>,
    ) {
        let (lowest, highest) = match (kind, state) {
            (NVML_CLOCK_MEM, NVML_PSTATE_2) => (MEMORY[1], MEMORY[1]),
            (kind, NVML_PSTATE_0 | NVML_PSTATE_2) => range(kind)?,
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        low.set(lowest)?;
        high.set(highest)
    }

    export fn nvmlDeviceGetPerformanceModes(gpu: Gpu; modes: Out<nvmlDevicePerfModes_t>) {
        let words = |mode: usize, memory| format!("perf={mode}, {}", in_words(GRAPHICS.0, memory));
        let text = format!("{} ; {}", words(0, MEMORY[1]), words(1, MEMORY[0]));
        modes.versioned(nvmlDevicePerfModes_v1, |modes| {
            modes.str_ = chars(&text);
            Ok(())
        })
    }

    export fn nvmlDeviceGetCurrentClockFreqs(gpu: Gpu; clocks: Out<nvmlDeviceCurrentClockFreqs_t>) {
        let text = in_words(current(gpu, NVML_CLOCK_GRAPHICS)?, MEMORY[0]);
        clocks.versioned(nvmlDeviceCurrentClockFreqs_v1, |clocks| {
            clocks.str_ = chars(&text);
            Ok(())
        })
    }

    export fn nvmlDeviceGetClockOffsets(gpu: Gpu; offset: Out<nvmlClockOffset_t>) {
        offset.versioned(nvmlClockOffset_v1, |offset| {
            (offset.clockOffsetMHz, offset.minClockOffsetMHz, offset.maxClockOffsetMHz) = (0, 0, 0);
            Ok(())
        })
    }

    export fn nvmlDeviceGetGpcClkVfOffset | nvmlDeviceGetMemClkVfOffset (gpu: Gpu; offset: Out<c_int>) {
        offset.set(0)
    }

    export fn nvmlDeviceGetGpcClkMinMaxVfOffset | nvmlDeviceGetMemClkMinMaxVfOffset (
        gpu: Gpu;
        low: Out<c_int>,
        high: Out<c_int>,
    ) {
        low.set(0)?;
        high.set(0)
    }

    export fn nvmlDeviceGetAdaptiveClockInfoStatus(gpu: Gpu; status: Out<c_uint>) {
        status.set(NVML_ADAPTIVE_CLOCKING_INFO_STATUS_ENABLED)
    }

    export fn nvmlDeviceGetCurrentClocksEventReasons | nvmlDeviceGetCurrentClocksThrottleReasons (
        gpu: Gpu;
        reasons: Out<u64>,
    ) {
        let idle = if gpu.load().awake() { nvmlClocksEventReasonNone } else { nvmlClocksEventReasonGpuIdle };
        reasons.set(u64::from(idle))
    }

    export fn nvmlDeviceGetSupportedClocksEventReasons | nvmlDeviceGetSupportedClocksThrottleReasons (
        gpu: Gpu;
        reasons: Out<u64>,
    ) {
        reasons.set(u64::from(nvmlClocksEventReasonAll))
    }
}
