//! How busy the GPU is: with the container's own work.
//!
//! What part of it is the container's own is the driver's word until shares of GPU time are counted in the region. The driver
//! samples: five times a second it notes how busy the GPU was, and one process that was on it. So the part is an estimate over
//! seconds; of the GPU's own figure it is all where nobody else is busy. Where the samples cannot be told apart (in a PID
//! namespace R580 names processes by numbers of the whole machine), figures of the device stay the whole GPU's.

use std::ffi::c_uint;

use super::super::{Call, Outcome};
use super::processes::{Entry, entries, keep, listed, members};
use crate::abi::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_NOT_FOUND, NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES,
    NVML_SUCCESS, NVML_VALUE_TYPE_UNSIGNED_INT, nvmlDevice_t, nvmlGpuDynamicPstatesInfo_t,
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_t,
    nvmlProcessesUtilizationInfo_v1, nvmlSample_t, nvmlSamplingType_t, nvmlUtilization_t, nvmlValueType_t,
};
use crate::driver::calls;
use crate::ledger::outside::Members;

entries!(nvmlProcessUtilizationSample_t, nvmlProcessUtilizationInfo_v1_t);

/// How far to look back for whose the work was, microseconds: 25 samples.
const WINDOW: u64 = 5_000_000;

/// The container's part in what the GPU did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Part {
    /// Of the time with a kernel on it: the container's, and everybody's.
    gpu: (u64, u64),
    /// Of the time with its memory read or written.
    memory: (u64, u64),
}

impl Part {
    /// The container's part of a figure of the GPU.
    fn of_gpu(self, figure: c_uint) -> c_uint {
        part_of(figure, self.gpu)
    }

    /// The same of a figure of its memory. Where nobody used that enough to be seen, it is as with the GPU.
    fn of_memory(self, figure: c_uint) -> c_uint {
        part_of(figure, if self.memory.1 == 0 { self.gpu } else { self.memory })
    }
}

fn part_of(figure: c_uint, (own, all): (u64, u64)) -> c_uint {
    (u64::from(figure) * own.min(all) + all / 2).checked_div(all).map_or(figure, |part| part as c_uint)
}

/// The container's part in what a GPU did lately, or since a moment if that is longer ago. `None`: nobody can tell it from that
/// of others.
///
/// The one place that knows: when the region counts GPU time, its figures belong here, before the driver's.
fn own(device: nvmlDevice_t, since: u64) -> Option<Part> {
    let samples = sampled(device, now().saturating_sub(WINDOW).min(since))?;
    let members = members(device)?;
    if !are_told_apart(device, &members, &samples) {
        return None;
    }
    let mut part = Part::default();
    for sample in &samples {
        let (gpu, memory) = (u64::from(sample.smUtil), u64::from(sample.memUtil));
        (part.gpu.1, part.memory.1) = (part.gpu.1 + gpu, part.memory.1 + memory);
        if members.has(sample.pid) {
            (part.gpu.0, part.memory.0) = (part.gpu.0 + gpu, part.memory.0 + memory);
        }
    }
    Some(part)
}

/// What the driver says that each process did since a moment. `None`: it does not say that.
fn sampled(device: nvmlDevice_t, since: u64) -> Option<Vec<nvmlProcessUtilizationSample_t>> {
    let mut room = 128;
    for _ in 0..4 {
        let mut samples = vec![nvmlProcessUtilizationSample_t::default(); room];
        let mut count = room as c_uint;
        // SAFETY: a handle with which NVML has just succeeded, and as many places to write to as is said.
        match unsafe { calls::nvmlDeviceGetProcessUtilization(device, samples.as_mut_ptr(), &raw mut count, since) } {
            NVML_SUCCESS => {
                samples.truncate(count as usize);
                return Some(samples);
            }
            NVML_ERROR_NOT_FOUND => return Some(Vec::new()),
            NVML_ERROR_INSUFFICIENT_SIZE => room = count as usize + 64,
            _ => return None,
        }
    }
    None
}

/// Whether the processes in the samples can be recognised.
fn are_told_apart<T: Entry>(device: nvmlDevice_t, members: &Members, samples: &[T]) -> bool {
    let busy: Vec<u32> = samples.iter().map(Entry::pid).collect();
    members.are_meant_by(&busy, || listed(device))
}

/// Now, as NVML's time stamps count: microseconds since 1970.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place to write the time to.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// `nvmlDeviceGetUtilizationRates`
pub unsafe fn rates(call: &mut Call<'_>, device: nvmlDevice_t, rates: *mut nvmlUtilization_t) -> Outcome {
    let result = call.driver();
    if result == NVML_SUCCESS
        // SAFETY: NVML has just written it, if it is there.
        && let Some(rates) = unsafe { rates.as_mut() }
        && let Some(own) = own(device, u64::MAX)
    {
        (rates.gpu, rates.memory) = (own.of_gpu(rates.gpu), own.of_memory(rates.memory));
    }
    Outcome::Done(result)
}

/// `nvmlDeviceGetDynamicPstatesInfo`, which has the same figures among others.
pub unsafe fn pstates(call: &mut Call<'_>, device: nvmlDevice_t, info: *mut nvmlGpuDynamicPstatesInfo_t) -> Outcome {
    let result = call.driver();
    if result == NVML_SUCCESS
        // SAFETY: NVML has just written it, if it is there.
        && let Some(info) = unsafe { info.as_mut() }
        && let Some(own) = own(device, now().saturating_sub(WINDOW))
    {
        let [gpu, memory, ..] = &mut info.utilization;
        (gpu.percentage, memory.percentage) = (own.of_gpu(gpu.percentage), own.of_memory(memory.percentage));
    }
    Outcome::Done(result)
}

/// `nvmlDeviceGetSamples`: the GPU's own ups and downs, as large as the container's part in them.
pub unsafe fn samples(
    call: &mut Call<'_>,
    device: nvmlDevice_t,
    kind: nvmlSamplingType_t,
    since: u64,
    value_type: *mut nvmlValueType_t,
    count: *mut c_uint,
    samples: *mut nvmlSample_t,
) -> Outcome {
    // SAFETY: a caller that gives a count at all gives the room in its buffer.
    let room = unsafe { count.as_ref() }.copied().unwrap_or(0);
    let result = call.driver();
    if result == NVML_SUCCESS
        && [NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES].contains(&kind)
        && !samples.is_null()
        // SAFETY: NVML has just written both, if they are there.
        && let (Some(value_type), Some(count)) = (unsafe { (value_type.as_ref(), count.as_ref()) })
        && *value_type == NVML_VALUE_TYPE_UNSIGNED_INT
        && let Some(own) = own(device, since)
    {
        // SAFETY: NVML has just written so many, into a buffer of the caller's with this room.
        for sample in unsafe { std::slice::from_raw_parts_mut(samples, (*count).min(room) as usize) } {
            // SAFETY: the type of the values says that it is this one of their forms.
            let figure = unsafe { &mut sample.sampleValue.uiVal };
            *figure = if kind == NVML_GPU_UTILIZATION_SAMPLES { own.of_gpu(*figure) } else { own.of_memory(*figure) };
        }
    }
    Outcome::Done(result)
}

/// What the driver found, cut down to the container's own: as if the others had done nothing.
///
/// # Safety
/// The driver has just written `count` entries to `list`, which has room for `room`.
unsafe fn cut<T: Entry>(device: nvmlDevice_t, room: c_uint, count: &mut c_uint, list: *mut T) -> u32 {
    let Some(members) = members(device) else { return NVML_SUCCESS };
    // SAFETY: as the caller of this says.
    let samples = unsafe { std::slice::from_raw_parts_mut(list, (*count).min(room) as usize) };
    let are_told_apart = are_told_apart(device, &members, samples);
    *count = keep(samples, |pid| are_told_apart && members.has(pid)) as c_uint;
    if *count > 0 {
        return NVML_SUCCESS;
    }
    // So NVML leaves it where it finds nobody.
    *count = room;
    NVML_ERROR_NOT_FOUND
}

/// `nvmlDeviceGetProcessUtilization`
pub unsafe fn of_processes(
    call: &mut Call<'_>,
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
) -> Outcome {
    // SAFETY: a caller that gives a count at all gives the room in its buffer.
    let room = unsafe { count.as_ref() }.copied().unwrap_or(0);
    let result = call.driver();
    // SAFETY: NVML has just written it, if it is there.
    match unsafe { count.as_mut() } {
        Some(count) if result == NVML_SUCCESS && !samples.is_null() => {
            // SAFETY: NVML has just written so many.
            Outcome::Done(unsafe { cut(device, room, count, samples) })
        }
        _ => Outcome::Done(result),
    }
}

/// `nvmlDeviceGetProcessesUtilizationInfo`
pub unsafe fn of_processes_info(
    call: &mut Call<'_>,
    device: nvmlDevice_t,
    info: *mut nvmlProcessesUtilizationInfo_t,
) -> Outcome {
    // SAFETY: a caller that gives a struct at all gives one that begins with its version.
    let version = (!info.is_null()).then(|| unsafe { (*info).version });
    if version != Some(nvmlProcessesUtilizationInfo_v1) {
        // A layout that is not known here is left alone.
        return Outcome::Done(call.driver());
    }
    // SAFETY: the version says that it is this struct.
    let room = unsafe { (*info).processSamplesCount };
    let result = call.driver();
    // SAFETY: as above.
    let info = unsafe { &mut *info };
    if result != NVML_SUCCESS || info.procUtilArray.is_null() {
        return Outcome::Done(result);
    }
    // SAFETY: NVML has just written so many.
    Outcome::Done(unsafe { cut(device, room, &mut info.processSamplesCount, info.procUtilArray) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_the_containers_part_of_the_gpus() {
        let part = Part { gpu: (30, 70), memory: (0, 0) };
        assert_eq!((part.of_gpu(70), part.of_gpu(35), part.of_gpu(0)), (30, 15, 0));
        assert_eq!(part.of_memory(70), 30, "as with the GPU");
        assert_eq!(Part { memory: (1, 4), ..part }.of_memory(8), 2);
        let alone = Part { gpu: (66, 66), memory: (9, 9) };
        assert_eq!((alone.of_gpu(97), alone.of_memory(41)), (97, 41), "all of it, to the last per cent");
        assert_eq!(Part::default().of_gpu(12), 12, "nobody was seen: it is not known whose it is");
        assert_eq!(Part { gpu: (0, 80), ..part }.of_gpu(80), 0);
        assert_eq!(Part { gpu: (u64::MAX, 1), ..part }.of_gpu(100), 100, "never more than the GPU's");
    }
}
