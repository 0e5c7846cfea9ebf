//! How busy a GPU is, and who keeps it so.

use std::ffi::c_uint;

use sim_world::layout::{HISTORY, HISTORY_NS};

use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::gpu::{Gpu, MEMORY_PART, at_tick, percent, thousandths};
use crate::pids::View;
use crate::power::milliwatts;
use crate::processes::{clients, known};

/// The sampling period that encoders and the like report, microseconds.
const PERIOD_US: c_uint = 100_000;

/// How many samples the driver keeps: fourteen seconds of its own. A caller that wants to know what processes did must have
/// room for as many, however few there are.
const KEPT: c_uint = 72;

/// What a process did between two moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// See [`View::number`].
    pub pid: c_uint,
    /// The end of the time looked at, as a timestamp.
    pub until: u64,
    /// Thousandths of that time on the GPU.
    pub part: u64,
}

impl Share {
    pub(crate) fn compute(self) -> c_uint {
        percent(self.part)
    }

    pub(crate) fn memory(self) -> c_uint {
        percent(self.part * MEMORY_PART / 100)
    }
}

/// What processes did on a GPU since a timestamp, as far back as the history goes: all of them, whatever the caller's PID
/// namespace. Those that did nothing are left out, and without any there is nothing to be found: so the driver has it.
pub(crate) fn shares(gpu: Gpu, since: u64) -> Outcome<Vec<Share>> {
    let (until, found) = gpu.look(|file| {
        let newest = file.history_tick.get();
        let oldest = newest.saturating_sub(HISTORY as u64 - 1);
        let seen = |tick: &u64| gpu.lib.timestamp(tick * HISTORY_NS) <= since;
        let from = (oldest..=newest).take_while(seen).last().unwrap_or(oldest);
        let share = |history| at_tick(history, newest).saturating_sub(at_tick(history, from));
        let busy = clients(file, gpu.index).map(|(proc, _)| (known(proc), share(&proc.gpu[gpu.index].history)));
        let time = (newest - from) * HISTORY_NS;
        let found: Vec<_> =
            busy.filter(|(_, busy)| *busy != 0).map(|(known, busy)| (known, thousandths(busy, time))).collect();
        (gpu.lib.timestamp(newest * HISTORY_NS), found)
    });
    let mut view = View::own();
    let shares: Vec<_> =
        found.iter().map(|(known, part)| Share { pid: view.number(known), until, part: *part }).collect();
    if shares.is_empty() { Err(NVML_ERROR_NOT_FOUND) } else { Ok(shares) }
}

/// The GPU's utilization in each history period since a timestamp: when it ended, and thousandths.
fn samples(gpu: Gpu, since: u64) -> Vec<(u64, u64)> {
    gpu.look(|file| {
        let history = &file.gpus[gpu.index].history;
        let newest = file.history_tick.get();
        let periods = newest.saturating_sub(HISTORY as u64 - 2)..=newest;
        let sample = |tick: u64| {
            let busy = at_tick(history, tick).saturating_sub(at_tick(history, tick.saturating_sub(1)));
            (gpu.lib.timestamp(tick * HISTORY_NS), thousandths(busy, HISTORY_NS))
        };
        periods.map(sample).filter(|(ended, _)| *ended > since).collect()
    })
}

nvml! {
    export fn nvmlDeviceGetUtilizationRates(gpu: Gpu; rates: Out<nvmlUtilization_t>) {
        let load = gpu.load();
        rates.set(nvmlUtilization_t { gpu: load.percent(), memory: load.memory_percent() })
    }

    export fn nvmlDeviceGetEncoderUtilization | nvmlDeviceGetDecoderUtilization | nvmlDeviceGetJpgUtilization
        | nvmlDeviceGetOfaUtilization (gpu: Gpu; utilization: Out<c_uint>, period: Out<c_uint>) {
        utilization.set(0)?;
        period.set(PERIOD_US)
    }

    export fn nvmlDeviceGetDynamicPstatesInfo(gpu: Gpu; info: Out<nvmlGpuDynamicPstatesInfo_t>) {
        let load = gpu.load();
        let mut all = nvmlGpuDynamicPstatesInfo_t::default();
        for (domain, percent) in all.utilization.iter_mut().zip([load.percent(), load.memory_percent(), 0, 0]) {
            (domain.bIsPresent, domain.percentage) = (1, percent);
        }
        info.set(all)
    }

    export fn nvmlDeviceGetProcessUtilization(
        gpu: Gpu;
        samples: Out<nvmlProcessUtilizationSample_t>,
        count: Out<c_uint>,
        since: u64,
    ) {
        if samples.is_null() || count.get()? < KEPT {
            count.set(KEPT)?;
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        let sample = |share: &Share| nvmlProcessUtilizationSample_t {
            pid: share.pid,
            timeStamp: share.until,
            smUtil: share.compute(),
            memUtil: share.memory(),
            encUtil: 0,
            decUtil: 0,
        };
        let shares: Vec<_> = shares(gpu, since)?.iter().map(sample).collect();
        samples.list(count, &shares)
    }

    export fn nvmlDeviceGetProcessesUtilizationInfo(gpu: Gpu; info: Out<nvmlProcessesUtilizationInfo_t>) {
        info.versioned(nvmlProcessesUtilizationInfo_v1, |info| {
            if info.procUtilArray.is_null() || info.processSamplesCount < KEPT {
                info.processSamplesCount = KEPT;
                return Err(NVML_ERROR_INSUFFICIENT_SIZE);
            }
            let entry = |share: &Share| nvmlProcessUtilizationInfo_v1_t {
                timeStamp: share.until,
                pid: share.pid,
                smUtil: share.compute(),
                memUtil: share.memory(),
                encUtil: 0,
                decUtil: 0,
                jpgUtil: 0,
                ofaUtil: 0,
            };
            let shares: Vec<_> = shares(gpu, info.lastSeenTimeStamp)?.iter().map(entry).collect();
            // SAFETY: an array of `processSamplesCount`; that it is not null was seen above.
            let array = unsafe { Out::member(info.procUtilArray) };
            array.fit(&mut info.processSamplesCount, &shares)
        })
    }

    export fn nvmlDeviceGetSamples(
        gpu: Gpu;
        kind: nvmlSamplingType_t,
        since: u64,
        value_type: Out<nvmlValueType_t>,
        count: Out<c_uint>,
        buffer: Out<nvmlSample_t>,
    ) {
        let value: fn(u64) -> c_uint = match kind {
            NVML_TOTAL_POWER_SAMPLES => milliwatts,
            NVML_GPU_UTILIZATION_SAMPLES => percent,
            NVML_MEMORY_UTILIZATION_SAMPLES => |part| percent(part * MEMORY_PART / 100),
            NVML_ENC_UTILIZATION_SAMPLES | NVML_DEC_UTILIZATION_SAMPLES => |_| 0,
            NVML_JPG_UTILIZATION_SAMPLES | NVML_OFA_UTILIZATION_SAMPLES => |_| 0,
            NVML_PROCESSOR_CLK_SAMPLES | NVML_MEMORY_CLK_SAMPLES => return Err(NVML_ERROR_NOT_FOUND),
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        value_type.set(NVML_VALUE_TYPE_UNSIGNED_INT)?;
        if buffer.is_null() {
            return count.set(HISTORY as c_uint);
        }
        let entry = |(ended, part): (u64, u64)| nvmlSample_t {
            timeStamp: ended,
            sampleValue: nvmlValue_st { ullVal: u64::from(value(part)) },
        };
        let mut entries: Vec<_> = samples(gpu, since).into_iter().map(entry).collect();
        if entries.is_empty() {
            return Err(NVML_ERROR_NOT_FOUND);
        }
        // With less room than there are, the oldest.
        entries.truncate(count.get()? as usize);
        buffer.list(count, &entries)
    }
}
