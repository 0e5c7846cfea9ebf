//! `nvmlDeviceGetFieldValues`: many figures by number in one call, each with an answer of its own.

use std::ffi::{c_int, c_uint};

use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::gpu::{Gpu, Load};
use crate::library::realtime_us;
use crate::power::{LIMITS, milliwatts};

/// A field's value, with its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Uint(c_uint),
    Int(c_int),
    Ulonglong(u64),
}

/// Part of the power that is the memory's: thousandths.
const MEMORY_POWER: u64 = 300;

fn field(load: Load, id: c_uint, scope: c_uint) -> Outcome<Value> {
    use Value::{Int, Uint, Ulonglong};
    let gpu_only = |value: Value| match scope {
        NVML_POWER_SCOPE_GPU => Ok(value),
        NVML_POWER_SCOPE_MEMORY => Err(NVML_ERROR_INVALID_ARGUMENT),
        _ => Err(NVML_ERROR_NOT_SUPPORTED),
    };
    Ok(match id {
        NVML_FI_DEV_ECC_CURRENT | NVML_FI_DEV_ECC_PENDING => Ulonglong(1),
        NVML_FI_DEV_ECC_SBE_VOL_TOTAL..=NVML_FI_DEV_ECC_DBE_AGG_TOTAL => Ulonglong(0),
        NVML_FI_DEV_REMAPPED_COR..=NVML_FI_DEV_REMAPPED_FAILURE => Ulonglong(0),
        NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION
        | NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS
        | NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS => Ulonglong(load.clock - load.busy),
        NVML_FI_DEV_PERF_POLICY_POWER..=NVML_FI_DEV_PERF_POLICY_RELIABILITY => Ulonglong(0),
        NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN..=NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN => {
            Ulonglong(0)
        }
        NVML_FI_DEV_MEMORY_TEMP => Uint(load.temperature() + 2),
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => Ulonglong(load.energy()),
        NVML_FI_DEV_ENERGY => gpu_only(Ulonglong(load.energy())).map_err(|_| NVML_ERROR_NOT_SUPPORTED)?,
        NVML_FI_DEV_PCIE_REPLAY_COUNTER | NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER => Uint(0),
        NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER => Uint(0),
        NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS..=NVML_FI_DEV_PCIE_COUNT_LANE_ERROR => Uint(0),
        NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED | NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE => Uint(0),
        NVML_FI_DEV_POWER_AVERAGE => match scope {
            NVML_POWER_SCOPE_GPU => Uint(load.power()),
            NVML_POWER_SCOPE_MEMORY => Uint((u64::from(load.power()) * MEMORY_POWER / 1000) as c_uint),
            _ => return Err(NVML_ERROR_NOT_SUPPORTED),
        },
        NVML_FI_DEV_POWER_INSTANT => gpu_only(Uint(milliwatts(load.instant))).map_err(|_| NVML_ERROR_NOT_SUPPORTED)?,
        NVML_FI_DEV_POWER_MIN_LIMIT => gpu_only(Uint(LIMITS.0))?,
        NVML_FI_DEV_POWER_MAX_LIMIT | NVML_FI_DEV_POWER_DEFAULT_LIMIT => gpu_only(Uint(LIMITS.1))?,
        NVML_FI_DEV_POWER_CURRENT_LIMIT | NVML_FI_DEV_POWER_REQUESTED_LIMIT => gpu_only(Uint(LIMITS.1))?,
        NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT => Int(-8),
        NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT => Int(-2),
        NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT | NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT => Int(0),
        NVML_FI_DEV_RESET_STATUS | NVML_FI_DEV_DRAIN_AND_RESET_STATUS => Uint(0),
        NVML_FI_DEV_PCIE_OUTBOUND_ATOMICS_MASK | NVML_FI_DEV_PCIE_INBOUND_ATOMICS_MASK => Uint(0),
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION => Uint(NVML_GPU_RECOVERY_ACTION_NONE),
        0 | NVML_FI_MAX => return Err(NVML_ERROR_INVALID_ARGUMENT),
        _ => return Err(NVML_ERROR_NOT_SUPPORTED),
    })
}

fn answer(load: Load, asked: &nvmlFieldValue_t) -> nvmlFieldValue_t {
    let mut told = nvmlFieldValue_t { timestamp: realtime_us() as i64, latencyUsec: 0, ..*asked };
    let (kind, value) = match field(load, asked.fieldId, asked.scopeId) {
        Ok(Value::Uint(value)) => (NVML_VALUE_TYPE_UNSIGNED_INT, nvmlValue_st { ullVal: u64::from(value) }),
        Ok(Value::Int(value)) => (NVML_VALUE_TYPE_SIGNED_INT, nvmlValue_st { ullVal: u64::from(value as c_uint) }),
        Ok(Value::Ulonglong(value)) => (NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, nvmlValue_st { ullVal: value }),
        Err(code) => {
            told.nvmlReturn = code;
            return told;
        }
    };
    (told.nvmlReturn, told.valueType, told.value) = (NVML_SUCCESS, kind, value);
    told
}

/// Figures for one GPU at one moment.
fn fill(gpu: Gpu, count: c_int, values: Out<nvmlFieldValue_t>) -> Outcome {
    let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
    let load = gpu.load();
    for index in 0..count {
        let value = values.at(index, count)?;
        value.set(answer(load, &value.get()?))?;
    }
    Ok(())
}

nvml! {
    export fn nvmlDeviceGetFieldValues(gpu: Gpu; count: c_int, values: Out<nvmlFieldValue_t>) {
        fill(gpu, count, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_an_answer_of_its_own() {
        let load = Load { clock: 4_000_000_000, busy: 1_000_000_000, last_second: 500, instant: 1000, used: 0 };
        let get = |id, scope| field(load, id, scope);
        assert_eq!(get(NVML_FI_DEV_POWER_AVERAGE, 0), Ok(Value::Uint(350_000)));
        assert_eq!(get(NVML_FI_DEV_POWER_INSTANT, 0), Ok(Value::Uint(625_000)));
        assert_eq!(get(NVML_FI_DEV_POWER_AVERAGE, 1), Err(NVML_ERROR_NOT_SUPPORTED), "no module sensor");
        assert_eq!(get(NVML_FI_DEV_POWER_MIN_LIMIT, 2), Err(NVML_ERROR_INVALID_ARGUMENT));
        assert_eq!(get(NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, 0), Ok(Value::Int(-8)));
        assert_eq!(get(NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, 0), Ok(Value::Ulonglong(3_000_000_000)));
        assert_eq!(get(NVML_FI_DEV_NVLINK_LINK_COUNT, 0), Err(NVML_ERROR_NOT_SUPPORTED));
        assert_eq!(
            (get(0, 0), get(NVML_FI_MAX, 0)),
            (Err(NVML_ERROR_INVALID_ARGUMENT), Err(NVML_ERROR_INVALID_ARGUMENT))
        );
    }
}
