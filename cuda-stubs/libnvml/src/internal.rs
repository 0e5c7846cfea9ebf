//! The private table that `nvidia-smi` works through.
//!
//! `nvidia-smi` asks `nvmlInternalGetExportTable` for a table of functions that NVIDIA documents nowhere, and does not
//! start without it: process lists, for one, it has from there and not from the public calls. What is here was seen by
//! putting a recording library between `nvidia-smi` 580.159.04 and the NVML of the same driver on an H200, for all of
//! its views. The first word of the table is its size in bytes, the others are functions; those that `nvidia-smi` never
//! called there only say that they are not modelled.

use std::ffi::{c_char, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::*;
use crate::api::{Handle, In, Out, Outcome, chars, contain};
use crate::device::GPU_PART;
use crate::gpu::{Gpu, MEMORY_PART};
use crate::library::{current, realtime_us};
use crate::power::LIMITS;
use crate::processes::{process_name, running};
use crate::utilization::{Share, shares};

/// The table's identity.
const ID: [u8; 16] = [0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4];

/// How many words it has in R580.
const WORDS: usize = 270;

#[repr(C)]
struct Table {
    bytes: usize,
    functions: [Function; WORDS - 1],
}

/// The address of a function; its arguments are its own affair.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Function(*const ());

// SAFETY: the address of a function is the same for every thread and never written through.
unsafe impl Sync for Function {}

static TABLE: Table = {
    let mut functions = [Function(not_modelled as *const ()); WORDS - 1];
    let known = [
        (23, Function(common_ancestor as *const ())),
        (26, Function(log as *const ())),
        (72, Function(can_be_watched as *const ())),
        (81, Function(bus_id_by_index as *const ())),
        (108, Function(requested_power_limit as *const ())),
        (138, Function(thermal_violation as *const ())),
        (145, Function(process_samples as *const ())),
        (213, Function(compute_processes as *const ())),
        (214, Function(no_processes as *const ())), // graphics
        (215, Function(no_processes as *const ())), // MPS
        (230, Function(host_link_generation as *const ())),
        (231, Function(gpu_part_number as *const ())),
        (232, Function(zero as *const ())),       // deferred memory clock: none
        (237, Function(empty_text as *const ())), // FRU part number: none
        (249, Function(zero as *const ())),       // sparse operation mode: off
    ];
    let mut i = 0;
    while i < known.len() {
        functions[known[i].0 - 1] = known[i].1;
        i += 1;
    }
    Table { bytes: WORDS * size_of::<usize>(), functions }
};

nvml! {
    unlisted export fn nvmlInternalGetExportTable(; table: Out<*const c_void>, id: In<[u8; 16]>) {
        if id.get()? != ID {
            table.set(std::ptr::null())?;
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        table.set(std::ptr::from_ref(&TABLE).cast())
    }
}

const ONE_OF_THEM: &str = "a function of NVML's private table";

/// Runs a function of the table on a GPU.
fn on(device: Handle, body: impl FnOnce(Gpu) -> Outcome) -> nvmlReturn_t {
    contain(ONE_OF_THEM, || body(current()?.gpu(device)?))
}

extern "C" fn not_modelled() -> nvmlReturn_t {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "ration-sim: part of NVML's private table is not modelled by the simulated GPU: NVML_ERROR_NOT_SUPPORTED"
        );
    }
    NVML_ERROR_NOT_SUPPORTED
}

/// How near two PCI addresses are. With one GPU there was nothing to ask this about; what it is shows in what it is
/// given.
extern "C" fn common_ancestor(one: In<c_char>, other: In<c_char>, level: Out<c_uint>) -> nvmlReturn_t {
    const HOST_BRIDGE: c_uint = 2; // from 0, one PCIe switch, to 4, another processor's bridge
    contain(ONE_OF_THEM, || {
        let lib = current()?;
        let there = |address: &str| lib.each().any(|gpu| gpu.bus_id() == address);
        if !there(one.text()?) || !there(other.text()?) {
            return Err(NVML_ERROR_NOT_FOUND);
        }
        level.set(HOST_BRIDGE)
    })
}

/// `nvidia-smi` repeats its output here for the driver's own log. The arguments are those of a printf.
extern "C" fn log() -> nvmlReturn_t {
    NVML_SUCCESS
}

/// Asked before `dmon` and `pmon` begin.
extern "C" fn can_be_watched(device: Handle, yes: Out<c_uint>) -> nvmlReturn_t {
    on(device, |_| yes.set(1))
}

extern "C" fn bus_id_by_index(index: c_uint, bus_id: Out<c_char>, length: c_uint) -> nvmlReturn_t {
    contain(ONE_OF_THEM, || {
        let gpu = current()?.gpu_at(index as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        bus_id.text(length, &gpu.bus_id_legacy())
    })
}

extern "C" fn requested_power_limit(device: Handle, limit: Out<c_uint>) -> nvmlReturn_t {
    on(device, |_| limit.set(LIMITS.1))
}

extern "C" fn thermal_violation(device: Handle, violation: Out<nvmlViolationTime_t>) -> nvmlReturn_t {
    on(device, |_| violation.set(nvmlViolationTime_t { referenceTime: realtime_us(), violationTime: 0 }))
}

extern "C" fn host_link_generation(device: Handle) -> nvmlReturn_t {
    on(device, |_| Err(NVML_ERROR_NOT_SUPPORTED))
}

extern "C" fn gpu_part_number(device: Handle, part: Out<c_char>, length: c_uint) -> nvmlReturn_t {
    on(device, |_| part.text(length, GPU_PART))
}

extern "C" fn empty_text(device: Handle, text: Out<c_char>, length: c_uint) -> nvmlReturn_t {
    on(device, |_| text.text(length, ""))
}

extern "C" fn zero(device: Handle, value: Out<c_uint>) -> nvmlReturn_t {
    on(device, |_| value.set(0))
}

/// A process, as the table's lists have it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Process {
    detail: nvmlProcessDetail_v1_t,
    name: [c_char; 4096],
}

extern "C" fn compute_processes(device: Handle, count: Out<c_uint>, list: Out<Process>) -> nvmlReturn_t {
    on(device, |gpu| {
        let entry = |process: crate::processes::Running| Process {
            detail: nvmlProcessDetail_v1_t {
                pid: process.pid,
                usedGpuMemory: process.bytes,
                gpuInstanceId: c_uint::MAX,
                computeInstanceId: c_uint::MAX,
                usedGpuCcProtectedMemory: 0,
            },
            name: chars(&process_name(process.pid).unwrap_or_default()),
        };
        list.list(count, &running(gpu).into_iter().map(entry).collect::<Vec<_>>())
    })
}

extern "C" fn no_processes(device: Handle, count: Out<c_uint>) -> nvmlReturn_t {
    on(device, |_| count.set(0))
}

/// Who used each of the engines in a period that ended at `timestamp`: SMs, memory, encoder, decoder, JPEG, optical
/// flow. A sample names one process per engine, so a process's share is in how many of the samples are its own.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sample {
    timestamp: u64,
    engines: [Engine; 6],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Engine {
    percent: c_uint,
    unused: c_uint,
    pid: c_uint,
    unknown: [c_uint; 17],
}

impl Engine {
    fn used(percent: c_uint, pid: c_uint) -> Engine {
        Engine { percent, unused: 0, pid, unknown: [0; 17] }
    }
}

impl Sample {
    fn idle(timestamp: u64) -> Sample {
        Sample { timestamp, engines: [Engine::used(0, c_uint::MAX); 6] }
    }
}

/// A hundred samples, of which each process has as many as its share is per cent: `nvidia-smi` averages over all of
/// them.
fn samples(shares: &[Share]) -> Vec<Sample> {
    const SAMPLES: usize = 100;
    let until = shares.first().map_or(0, |share| share.until);
    let mut found = Vec::with_capacity(SAMPLES);
    for share in shares {
        let mut sample = Sample::idle(until);
        sample.engines[0] = Engine::used(100, share.pid);
        sample.engines[1] = Engine::used(MEMORY_PART as c_uint, share.pid);
        found.extend(std::iter::repeat_n(sample, share.compute() as usize));
    }
    found.resize(SAMPLES, Sample::idle(until));
    found
}

extern "C" fn process_samples(
    device: Handle,
    since: u64,
    value_type: Out<nvmlValueType_t>,
    count: Out<c_uint>,
    list: Out<Sample>,
) -> nvmlReturn_t {
    on(device, |gpu| {
        // Before R550 a sample had fewer engines.
        if gpu.lib.world.settings().driver < 12_040 {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        value_type.set(NVML_VALUE_TYPE_UNSIGNED_INT)?;
        let mut found = samples(&shares(gpu, since)?);
        found.truncate(count.get()? as usize);
        list.list(count, &found)
    })
}

const _: () = assert!(size_of::<Process>() == 4128 && size_of::<Sample>() == 488);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_average_to_the_shares() {
        let share = |pid, part| Share { pid, until: 7, part };
        let found = samples(&[share(10, 390), share(11, 5), share(12, 600)]);
        for (pid, percent) in [(10, 39), (11, 1), (12, 60)] {
            let of_pid = found.iter().map(|sample| sample.engines[0]).filter(|engine| engine.pid == pid);
            assert_eq!(
                of_pid.map(|engine| engine.percent).sum::<c_uint>() / found.len() as c_uint,
                percent,
                "process {pid}"
            );
        }
        assert_eq!(samples(&[share(1, 1000), share(2, 900)]).len(), 100, "rounding makes no more of them");
    }

    #[test]
    fn the_table_is_as_long_as_it_says() {
        assert_eq!(TABLE.bytes, size_of::<Table>());
        assert_eq!(TABLE.functions[81 - 1].0, bus_id_by_index as *const ());
    }
}
