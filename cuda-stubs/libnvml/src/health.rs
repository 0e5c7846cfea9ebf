//! Errors, of which there never are any.

use std::ffi::c_uint;

use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::library::realtime_us;

/// What `nvmlDeviceGetRemappedRows_v2` fills; NVIDIA's header for R580 does not declare it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct RemappedRows {
    corrected: c_uint,
    corrected_inactive: c_uint,
    uncorrected: c_uint,
    uncorrected_inactive: c_uint,
    pending: c_uint,
    failed: c_uint,
}

fn counters(error: nvmlMemoryErrorType_t, counter: nvmlEccCounterType_t) -> Outcome {
    let known = error < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT;
    if known { Ok(()) } else { Err(NVML_ERROR_INVALID_ARGUMENT) }
}

nvml! {
    export fn nvmlDeviceGetEccMode(gpu: Gpu; current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>) {
        current.set(NVML_FEATURE_ENABLED)?;
        pending.set(NVML_FEATURE_ENABLED)
    }

    export fn nvmlDeviceGetDefaultEccMode(gpu: Gpu; mode: Out<nvmlEnableState_t>) {
        mode.set(NVML_FEATURE_ENABLED)
    }

    export fn nvmlDeviceGetTotalEccErrors(
        gpu: Gpu;
        error: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        count: Out<u64>,
    ) {
        counters(error, counter)?;
        count.set(0)
    }

    export fn nvmlDeviceGetDetailedEccErrors(
        gpu: Gpu;
        error: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        counts: Out<nvmlEccErrorCounts_t>,
    ) {
        counters(error, counter)?;
        counts.set(nvmlEccErrorCounts_t::default())
    }

    export fn nvmlDeviceGetMemoryErrorCounter(
        gpu: Gpu;
        error: nvmlMemoryErrorType_t,
        counter: nvmlEccCounterType_t,
        place: nvmlMemoryLocation_t,
        count: Out<u64>,
    ) {
        counters(error, counter)?;
        match place {
            NVML_MEMORY_LOCATION_DRAM | NVML_MEMORY_LOCATION_SRAM => count.set(0),
            place if place < NVML_MEMORY_LOCATION_COUNT => Err(NVML_ERROR_NOT_SUPPORTED),
            _ => Err(NVML_ERROR_INVALID_ARGUMENT),
        }
    }

    export fn nvmlDeviceGetSramEccErrorStatus(gpu: Gpu; status: Out<nvmlEccSramErrorStatus_t>) {
        status.versioned(nvmlEccSramErrorStatus_v1, |status| {
            *status = nvmlEccSramErrorStatus_t { version: status.version, ..Default::default() };
            Ok(())
        })
    }

    export fn nvmlDeviceGetRepairStatus(gpu: Gpu; status: Out<nvmlRepairStatus_t>) {
        status.versioned(nvmlRepairStatus_v1, |status| {
            (status.bChannelRepairPending, status.bTpcRepairPending) = (0, 0);
            Ok(())
        })
    }

    export fn nvmlDeviceGetRemappedRows(
        gpu: Gpu;
        corrected: Out<c_uint>,
        uncorrected: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>,
    ) {
        corrected.set(0)?;
        uncorrected.set(0)?;
        pending.set(0)?;
        failed.set(0)
    }

    unlisted export fn nvmlDeviceGetRemappedRows_v2(gpu: Gpu; rows: Out<RemappedRows>) {
        rows.set(RemappedRows::default())
    }

    unlisted export fn nvmlDeviceGetUnrepairableMemoryFlag_v1(gpu: Gpu; flag: Out<c_uint>) {
        flag.set(0)
    }

    export fn nvmlDeviceGetRowRemapperHistogram(gpu: Gpu; values: Out<nvmlRowRemapperHistogramValues_t>) {
        values.set(nvmlRowRemapperHistogramValues_t { max: 3072, high: 0, partial: 0, low: 0, none: 0 })
    }

    export fn nvmlDeviceGetViolationStatus(
        gpu: Gpu;
        policy: nvmlPerfPolicyType_t,
        violation: Out<nvmlViolationTime_t>,
    ) {
        let load = gpu.load();
        let low = match policy {
            NVML_PERF_POLICY_POWER | NVML_PERF_POLICY_THERMAL | NVML_PERF_POLICY_SYNC_BOOST => 0,
            NVML_PERF_POLICY_BOARD_LIMIT | NVML_PERF_POLICY_RELIABILITY => 0,
            // Nanoseconds below the highest clock, for want of work.
            NVML_PERF_POLICY_LOW_UTILIZATION => load.clock - load.busy,
            NVML_PERF_POLICY_TOTAL_APP_CLOCKS | NVML_PERF_POLICY_TOTAL_BASE_CLOCKS => load.clock - load.busy,
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        violation.set(nvmlViolationTime_t { referenceTime: realtime_us(), violationTime: low })
    }
}
