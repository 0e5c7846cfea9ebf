//! Power, energy, temperature. All three follow utilization; nothing follows from them.

use std::ffi::c_uint;

use crate::abi::*;
use crate::api::Out;
use crate::gpu::Load;

/// Limits, milliwatts: lowest, default and highest.
pub(crate) const LIMITS: (c_uint, c_uint) = (200_000, 700_000);
const IDLE_WATTS: u64 = 75;
const WORK_WATTS: u64 = 550;
/// Shutdown, slowdown, memory's and GPU's highest operating temperature, Celsius.
const THRESHOLDS: [c_uint; 4] = [95, 89, 95, 87];
const COOL: u64 = 33;
const WARMTH: u64 = 27;

/// What is drawn at so many thousandths of utilization.
pub(crate) fn milliwatts(load: u64) -> c_uint {
    (IDLE_WATTS * 1000 + WORK_WATTS * load) as c_uint
}

impl Load {
    /// The average of the last second.
    pub(crate) fn power(self) -> c_uint {
        milliwatts(self.last_second)
    }

    /// Millijoules since the world began.
    pub(crate) fn energy(self) -> u64 {
        let millijoules = |watts: u64, ns: u64| (u128::from(watts) * u128::from(ns) / 1_000_000) as u64;
        millijoules(IDLE_WATTS, self.clock) + millijoules(WORK_WATTS, self.busy)
    }

    /// Celsius.
    pub(crate) fn temperature(self) -> c_uint {
        (COOL + WARMTH * self.last_second / 1000) as c_uint
    }

    /// What is left to the GPU's highest operating temperature.
    pub(crate) fn margin(self) -> i32 {
        THRESHOLDS[3] as i32 - self.temperature() as i32
    }
}

nvml! {
    export fn nvmlDeviceGetPowerUsage(gpu: Gpu; power: Out<c_uint>) {
        power.set(gpu.load().power())
    }

    export fn nvmlDeviceGetTotalEnergyConsumption(gpu: Gpu; energy: Out<u64>) {
        energy.set(gpu.load().energy())
    }

    export fn nvmlDeviceGetPowerManagementMode(gpu: Gpu; mode: Out<nvmlEnableState_t>) {
        mode.set(NVML_FEATURE_ENABLED)
    }

    export fn nvmlDeviceGetPowerManagementLimit | nvmlDeviceGetPowerManagementDefaultLimit
        | nvmlDeviceGetEnforcedPowerLimit (gpu: Gpu; limit: Out<c_uint>) {
        limit.set(LIMITS.1)
    }

    export fn nvmlDeviceGetPowerManagementLimitConstraints(gpu: Gpu; low: Out<c_uint>, high: Out<c_uint>) {
        low.set(LIMITS.0)?;
        high.set(LIMITS.1)
    }

    export fn nvmlDeviceGetPowerSource(gpu: Gpu; source: Out<nvmlPowerSource_t>) {
        source.set(NVML_POWER_SOURCE_AC)
    }

    export fn nvmlDeviceGetTemperature(gpu: Gpu; sensor: nvmlTemperatureSensors_t, temperature: Out<c_uint>) {
        if sensor != NVML_TEMPERATURE_GPU {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        temperature.set(gpu.load().temperature())
    }

    export fn nvmlDeviceGetTemperatureV(gpu: Gpu; temperature: Out<nvmlTemperature_t>) {
        // A call with an answer of its own to a wrong version.
        if temperature.version()? != nvmlTemperature_v1 {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        temperature.versioned(nvmlTemperature_v1, |temperature| {
            if temperature.sensorType != NVML_TEMPERATURE_GPU {
                return Err(NVML_ERROR_INVALID_ARGUMENT);
            }
            temperature.temperature = gpu.load().temperature() as i32;
            Ok(())
        })
    }

    export fn nvmlDeviceGetMarginTemperature(gpu: Gpu; margin: Out<nvmlMarginTemperature_t>) {
        margin.versioned(nvmlMarginTemperature_v1, |margin| {
            margin.marginTemperature = gpu.load().margin();
            Ok(())
        })
    }

    export fn nvmlDeviceGetTemperatureThreshold(
        gpu: Gpu;
        which: nvmlTemperatureThresholds_t,
        temperature: Out<c_uint>,
    ) {
        match THRESHOLDS.get(which as usize) {
            Some(threshold) => temperature.set(*threshold),
            None if which < NVML_TEMPERATURE_THRESHOLD_COUNT => Err(NVML_ERROR_NOT_SUPPORTED),
            None => Err(NVML_ERROR_INVALID_ARGUMENT),
        }
    }

    export fn nvmlDeviceGetThermalSettings(gpu: Gpu; sensor: c_uint, settings: Out<nvmlGpuThermalSettings_t>) {
        if sensor != 0 && sensor != NVML_THERMAL_TARGET_ALL as c_uint {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let mut all = nvmlGpuThermalSettings_t { count: 1, ..Default::default() };
        all.sensor[0].controller = NVML_THERMAL_CONTROLLER_GPU_INTERNAL;
        all.sensor[0].defaultMaxTemp = 127;
        all.sensor[0].currentTemp = gpu.load().temperature() as i32;
        all.sensor[0].target = NVML_THERMAL_TARGET_GPU;
        settings.set(all)
    }

    export fn nvmlDeviceGetNumFans(gpu: Gpu; fans: Out<c_uint>) {
        fans.set(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_busy_are_as_far_apart_as_on_the_machine() {
        let load =
            |part| Load { clock: 10_000_000_000, busy: 10_000_000 * part, last_second: part, instant: part, used: 0 };
        assert_eq!((load(0).power(), load(1000).power()), (75_000, 625_000));
        assert!(load(1000).power() <= LIMITS.1);
        assert_eq!((load(0).energy(), load(1000).energy()), (750_000, 6_250_000), "ten seconds of it");
        assert_eq!((load(0).temperature(), load(1000).temperature()), (33, 60));
        assert_eq!(load(1000).margin(), 27);
    }
}
