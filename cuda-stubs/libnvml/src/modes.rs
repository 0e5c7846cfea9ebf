//! How a GPU is set up. None of it can be changed here.

use std::ffi::c_uint;

use crate::abi::*;
use crate::api::{Out, Outcome};

nvml! {
    export fn nvmlDeviceGetPersistenceMode(gpu: Gpu; mode: Out<nvmlEnableState_t>) {
        mode.set(NVML_FEATURE_ENABLED)
    }

    export fn nvmlDeviceGetComputeMode(gpu: Gpu; mode: Out<nvmlComputeMode_t>) {
        mode.set(NVML_COMPUTEMODE_DEFAULT)
    }

    export fn nvmlDeviceGetDisplayMode(gpu: Gpu; mode: Out<nvmlEnableState_t>) {
        mode.set(NVML_FEATURE_ENABLED)
    }

    export fn nvmlDeviceGetDisplayActive(gpu: Gpu; active: Out<nvmlEnableState_t>) {
        active.set(NVML_FEATURE_DISABLED)
    }

    export fn nvmlDeviceGetVirtualizationMode(gpu: Gpu; mode: Out<nvmlGpuVirtualizationMode_t>) {
        mode.set(NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH)
    }

    export fn nvmlDeviceGetC2cModeInfoV(gpu: Gpu; info: Out<nvmlC2cModeInfo_v1_t>) {
        info.set(nvmlC2cModeInfo_v1_t { isC2cEnabled: 0 })
    }

    export fn nvmlDeviceGetAddressingMode(gpu: Gpu; mode: Out<nvmlDeviceAddressingMode_t>) {
        mode.versioned(nvmlDeviceAddressingMode_v1, |mode| {
            mode.value = NVML_DEVICE_ADDRESSING_MODE_NONE;
            Ok(())
        })
    }

    /// Modes are current, wanted, and possible, as bits.
    export fn nvmlDeviceGetPowerMizerMode_v1(gpu: Gpu; modes: Out<nvmlDevicePowerMizerModes_v1_t>) {
        modes.set(nvmlDevicePowerMizerModes_v1_t { currentMode: 0, mode: 0, supportedPowerMizerModes: 0b111 })
    }

    export fn nvmlDeviceGetAPIRestriction(gpu: Gpu; api: nvmlRestrictedAPI_t, restricted: Out<nvmlEnableState_t>) {
        match api {
            NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS => Err(NVML_ERROR_NOT_SUPPORTED),
            NVML_RESTRICTED_API_SET_AUTO_BOOSTED_CLOCKS => restricted.set(NVML_FEATURE_DISABLED),
            _ => Err(NVML_ERROR_INVALID_ARGUMENT),
        }
    }

    export fn nvmlDeviceGetMigMode(gpu: Gpu; current: Out<c_uint>, pending: Out<c_uint>) {
        current.set(NVML_DEVICE_MIG_DISABLE)?;
        pending.set(NVML_DEVICE_MIG_DISABLE)
    }

    export fn nvmlDeviceIsMigDeviceHandle(gpu: Gpu; mig: Out<c_uint>) {
        mig.set(0)
    }

    export fn nvmlDeviceGetMaxMigDeviceCount(gpu: Gpu; count: Out<c_uint>) {
        count.set(0)
    }

    export fn nvmlDeviceGetAccountingMode(gpu: Gpu; mode: Out<nvmlEnableState_t>) {
        mode.set(NVML_FEATURE_DISABLED)
    }

    export fn nvmlDeviceGetAccountingBufferSize(gpu: Gpu; size: Out<c_uint>) {
        size.set(4000)
    }

    export fn nvmlDeviceGetAccountingPids(gpu: Gpu; count: Out<c_uint>, pids: Out<c_uint>) {
        pids.list(count, &[])?;
        if pids.is_null() { Err(NVML_ERROR_INSUFFICIENT_SIZE) } else { Ok(()) }
    }

    export fn nvmlDeviceGetGridLicensableFeatures | nvmlDeviceGetGridLicensableFeatures_v2
        | nvmlDeviceGetGridLicensableFeatures_v3 | nvmlDeviceGetGridLicensableFeatures_v4 (
        gpu: Gpu;
        features: Out<nvmlGridLicensableFeatures_t>,
    ) {
        let none = nvmlGridLicensableFeatures_t::default();
        features.set_first(std::mem::offset_of!(nvmlGridLicensableFeatures_t, gridLicensableFeatures), &none)
    }

    /// Metrics of this kind come from counters that have no model, so there are none.
    export fn nvmlGpmQueryDeviceSupport(gpu: Gpu; support: Out<nvmlGpmSupport_t>) {
        support.versioned(NVML_GPM_SUPPORT_VERSION, |support| {
            support.isSupportedDevice = 0;
            Ok(())
        })
    }

    export fn nvmlGpmQueryIfStreamingEnabled(gpu: Gpu; state: Out<c_uint>) {
        state.set(0)
    }

    export fn nvmlGpmMetricsGet(lib: Library; metrics: Out<nvmlGpmMetricsGet_t>) {
        let refused: Outcome = Err(NVML_ERROR_NOT_SUPPORTED);
        metrics.versioned(NVML_GPM_METRICS_GET_VERSION, |_| refused)
    }

    export fn nvmlDeviceGetEncoderCapacity(gpu: Gpu; kind: nvmlEncoderType_t, capacity: Out<c_uint>) {
        match kind {
            NVML_ENCODER_QUERY_H264 | NVML_ENCODER_QUERY_HEVC => capacity.set(100),
            _ => Err(NVML_ERROR_NOT_SUPPORTED),
        }
    }

    export fn nvmlDeviceGetEncoderStats(gpu: Gpu; sessions: Out<c_uint>, fps: Out<c_uint>, latency: Out<c_uint>) {
        sessions.set(0)?;
        fps.set(0)?;
        latency.set(0)
    }

    export fn nvmlDeviceGetEncoderSessions(gpu: Gpu; count: Out<c_uint>, sessions: Out<nvmlEncoderSessionInfo_t>) {
        sessions.list_somewhere(count, &[])
    }

    export fn nvmlDeviceGetFBCStats(gpu: Gpu; stats: Out<nvmlFBCStats_t>) {
        stats.set(nvmlFBCStats_t::default())
    }

    export fn nvmlDeviceGetFBCSessions(gpu: Gpu; count: Out<c_uint>, sessions: Out<nvmlFBCSessionInfo_t>) {
        sessions.list_somewhere(count, &[])
    }
}
