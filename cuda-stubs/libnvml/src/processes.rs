//! Who uses a GPU, and with how much memory.

use std::ffi::{c_char, c_uint};

use sim_world::layout::Proc;
use sim_world::{WorldFile, accounts};

use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::gpu::Gpu;
use crate::pids::{Known, View};

/// There are no instances without MIG.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// A client of a GPU that the caller can see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    /// In the caller's PID namespace.
    pub pid: c_uint,
    /// Its memory, as the driver counts it.
    pub bytes: u64,
}

/// What the world knows of a process, for [`View`].
pub(crate) fn known(proc: &Proc) -> Known {
    Known { pid: proc.pid.get(), namespace: proc.pid_namespace.get(), name: proc.name_text() }
}

/// The living processes that hold a context or memory of a GPU.
pub(crate) fn clients(file: &'static WorldFile, gpu: usize) -> impl Iterator<Item = (&'static Proc, u64)> {
    file.procs.iter().enumerate().filter(|(_, proc)| proc.alive()).filter_map(move |(slot, proc)| {
        let bytes = accounts::figure(&proc.gpu[gpu]);
        let of_proc = |chan: &&sim_world::layout::Chan| {
            chan.state.get() != 0 && chan.proc.get() == slot as u64 && chan.gpu.get() == gpu as u64
        };
        (bytes != 0 || file.chans.iter().any(|chan| of_proc(&chan))).then_some((proc, bytes))
    })
}

/// The clients of a GPU that the caller can see.
pub(crate) fn running(gpu: Gpu) -> Vec<Running> {
    let clients: Vec<_> = gpu.look(|file| clients(file, gpu.index).map(|(proc, bytes)| (known(proc), bytes)).collect());
    let mut view = View::own();
    clients.iter().filter_map(|(known, bytes)| Some(Running { pid: view.pid(known)?, bytes: *bytes })).collect()
}

fn first_form(running: &[Running]) -> Vec<nvmlProcessInfo_v1_t> {
    running.iter().map(|p| nvmlProcessInfo_v1_t { pid: p.pid, usedGpuMemory: p.bytes }).collect()
}

fn second_form(running: &[Running]) -> Vec<nvmlProcessInfo_v2_t> {
    let entry = |p: &Running| nvmlProcessInfo_v2_t {
        pid: p.pid,
        usedGpuMemory: p.bytes,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    };
    running.iter().map(entry).collect()
}

/// How a process calls itself: the first of its arguments, or its command's name where it has none.
pub(crate) fn process_name(pid: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    if first.is_empty() {
        return Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned());
    }
    Some(String::from_utf8_lossy(first).into_owned())
}

nvml! {
    export fn nvmlDeviceGetComputeRunningProcesses(gpu: Gpu; count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) {
        infos.list(count, &first_form(&running(gpu)))
    }

    export fn nvmlDeviceGetComputeRunningProcesses_v2 | nvmlDeviceGetComputeRunningProcesses_v3 (
        gpu: Gpu;
        count: Out<c_uint>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        infos.list(count, &second_form(&running(gpu)))
    }

    export fn nvmlDeviceGetGraphicsRunningProcesses | nvmlDeviceGetMPSComputeRunningProcesses (
        gpu: Gpu;
        count: Out<c_uint>,
        infos: Out<nvmlProcessInfo_v1_t>,
    ) {
        infos.list(count, &[])
    }

    export fn nvmlDeviceGetGraphicsRunningProcesses_v2 | nvmlDeviceGetGraphicsRunningProcesses_v3
        | nvmlDeviceGetMPSComputeRunningProcesses_v2 | nvmlDeviceGetMPSComputeRunningProcesses_v3 (
        gpu: Gpu;
        count: Out<c_uint>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        infos.list(count, &[])
    }

    export fn nvmlDeviceGetRunningProcessDetailList(gpu: Gpu; list: Out<nvmlProcessDetailList_t>) {
        let fill = |list: &mut nvmlProcessDetailList_t| -> Outcome {
            let processes = match list.mode {
                0 => running(gpu),  // compute
                1 | 2 => Vec::new(), // graphics, MPS
                _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
            };
            let entry = |p: &Running| nvmlProcessDetail_v1_t {
                pid: p.pid,
                usedGpuMemory: p.bytes,
                gpuInstanceId: NO_INSTANCE,
                computeInstanceId: NO_INSTANCE,
                usedGpuCcProtectedMemory: 0,
            };
            let entries: Vec<_> = processes.iter().map(entry).collect();
            // SAFETY: an array of `numProcArrayEntries`, or null where that is 0.
            let array = unsafe { Out::member(list.procArray) };
            array.fit(&mut list.numProcArrayEntries, &entries)
        };
        // Another call with an answer of its own to a wrong version.
        if list.version()? != nvmlProcessDetailList_v1 {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        list.versioned(nvmlProcessDetailList_v1, fill)
    }

    export fn nvmlSystemGetProcessName(lib: Library; pid: c_uint, name: Out<c_char>, length: c_uint) {
        if name.is_null() || length == 0 {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        let mut text = process_name(pid).ok_or(NVML_ERROR_NOT_FOUND)?;
        let mut end = text.len().min(length as usize - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        name.text(length, &text)
    }
}
