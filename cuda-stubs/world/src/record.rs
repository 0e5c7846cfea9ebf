//! The record, as a reader outside sees it: the side door for tests. No driver or NVML call can change it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::layout::{Chan, Path, TRACE};
use crate::open::World;
use crate::{accounts, procs, surface, timeline};

/// Everything, at one moment.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Simulated time.
    pub clock_ns: u64,
    /// How often a killed process had to be relieved of the world's lock.
    pub takeovers: u64,
    /// By index.
    pub gpus: Vec<GpuRecord>,
    /// Living and dead, in no order that means anything.
    pub processes: Vec<ProcessRecord>,
}

/// A GPU.
#[derive(Debug, Clone, Serialize)]
pub struct GpuRecord {
    /// `GPU-…`.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// NVML's total.
    pub memory_bytes: u64,
    /// Taken by clients, all together.
    pub used_bytes: u64,
    /// Of those, held by nobody's figure alone: exported memory.
    pub shared_bytes: u64,
    /// Time with a kernel on the compute engine.
    pub busy_ns: u64,
    /// Time spent switching contexts.
    pub switching_ns: u64,
}

/// A process.
#[derive(Debug, Clone, Serialize)]
pub struct ProcessRecord {
    /// Slot and use of it: unique in a world.
    pub key: String,
    /// As the process sees itself.
    pub pid: u64,
    /// Its command's name.
    pub name: String,
    /// Whether it lives.
    pub alive: bool,
    /// Whether it only looks.
    pub observer: bool,
    /// Simulated time.
    pub started_ns: u64,
    /// Simulated time; 0 while alive.
    pub ended_ns: u64,
    /// By GPU index, those it used.
    pub gpus: BTreeMap<usize, Use>,
    /// Driver and NVML calls by symbol, those it made.
    pub calls: BTreeMap<&'static str, u64>,
}

/// What a process holds of a GPU and did on it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Use {
    /// The process's figure, as NVML counts it.
    pub figure_bytes: u64,
    /// The most it ever was.
    pub peak_bytes: u64,
    /// By path.
    pub bytes: BTreeMap<&'static str, u64>,
    /// Held together with other processes.
    pub shared_bytes: u64,
    /// Time on the compute engine.
    pub busy_ns: u64,
    /// Of that, time in which kernels made progress.
    pub work_ns: u64,
    /// Copy engine time.
    pub copying_ns: u64,
    /// Kernels finished.
    pub kernels: u64,
    /// Times on the engine.
    pub slices: u64,
    /// Times that channels of it were taken off the GPU or put back on.
    pub switches: u64,
    /// Its contexts' compute channel groups.
    pub groups: Vec<GroupRecord>,
}

/// A context's compute channel group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GroupRecord {
    /// Its time slice.
    pub slice_ns: u64,
    /// Whether it is on: false while its channels are taken off the GPU.
    pub on: bool,
}

/// An uninterrupted time on a compute engine.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Interval {
    /// GPU index.
    pub gpu: usize,
    /// The process, as its slot.
    pub slot: usize,
    /// Simulated time.
    pub start_ns: u64,
    /// Simulated time.
    pub end_ns: u64,
}

impl World {
    /// Brings the timeline up to now, notices the dead, and copies the record out.
    pub fn record(&self) -> Record {
        let tx = self.lock();
        timeline::advance(&tx, self.now());
        procs::reap(&tx);
        let file = self.file();
        let gpus = file.settings.gpus as usize;
        Record {
            clock_ns: file.clock.get(),
            takeovers: file.takeovers.get(),
            gpus: (0..gpus).map(|index| self.gpu_record(index)).collect(),
            processes: (0..file.procs.len()).filter_map(|slot| self.process_record(slot)).collect(),
        }
    }

    fn gpu_record(&self, index: usize) -> GpuRecord {
        let file = self.file();
        let (gpu, settings) = (&file.gpus[index], &file.settings.gpu[index]);
        let shares = file.shares.iter().filter(|s| s.id.get() != 0 && s.gpu.get() == index as u64);
        GpuRecord {
            uuid: settings.uuid_text(),
            name: settings.name_text(),
            memory_bytes: settings.memory,
            used_bytes: gpu.used.get(),
            shared_bytes: shares.map(|s| s.bytes.get()).sum(),
            busy_ns: gpu.busy.get(),
            switching_ns: gpu.switching.get(),
        }
    }

    fn process_record(&self, slot: usize) -> Option<ProcessRecord> {
        let proc = &self.file().procs[slot];
        if proc.state.get() == crate::layout::PROC_FREE {
            return None;
        }
        let mut gpus = BTreeMap::new();
        for (index, held) in proc.gpu.iter().enumerate().take(self.settings().gpus as usize) {
            let bytes: BTreeMap<_, _> =
                Path::ALL.iter().map(|p| (p.label(), held.own[*p as usize].get())).filter(|(_, b)| *b != 0).collect();
            if held.peak.get() != 0 || held.busy.get() != 0 || held.shared.get() != 0 || !bytes.is_empty() {
                gpus.insert(
                    index,
                    Use {
                        figure_bytes: accounts::figure(held),
                        peak_bytes: held.peak.get(),
                        bytes,
                        shared_bytes: held.shared.get(),
                        busy_ns: held.busy.get(),
                        work_ns: held.work.get(),
                        copying_ns: held.copying.get(),
                        kernels: held.kernels.get(),
                        slices: held.slices.get(),
                        switches: held.switches.get(),
                        groups: self.group_records(slot, index),
                    },
                );
            }
        }
        let calls = proc.calls.iter().enumerate().map(|(i, n)| (surface::counted_symbol(i), n.load(Ordering::Relaxed)));
        Some(ProcessRecord {
            key: format!("{slot}.{}", proc.generation.get()),
            pid: proc.pid.get(),
            name: proc.name_text(),
            alive: proc.alive(),
            observer: proc.observer.load(Ordering::Relaxed) != 0,
            started_ns: proc.started.get(),
            ended_ns: proc.ended.get(),
            gpus,
            calls: calls.filter(|(_, n)| *n != 0).collect(),
        })
    }

    fn group_records(&self, slot: usize, gpu: usize) -> Vec<GroupRecord> {
        let own = |c: &&Chan| c.state.get() != 0 && (c.proc.get(), c.gpu.get()) == (slot as u64, gpu as u64);
        let groups = self.file().chans.iter().filter(own);
        groups.map(|c| GroupRecord { slice_ns: c.slice.get(), on: c.off.get() == 0 }).collect()
    }

    /// The intervals that the record still holds, oldest first, from the `skip`th ever written on.
    pub fn intervals(&self, skip: u64) -> Vec<Interval> {
        let tx = self.lock();
        timeline::advance(&tx, self.now());
        let file = self.file();
        let len = file.trace_len.get();
        (len.saturating_sub(TRACE as u64).max(skip)..len)
            .map(|i| {
                let entry = &file.trace[i as usize % TRACE];
                let who = entry.who.get();
                Interval {
                    gpu: (who >> 32) as usize,
                    slot: (who & 0xffff_ffff) as usize,
                    start_ns: entry.start.get(),
                    end_ns: entry.end.get(),
                }
            })
            .collect()
    }

    /// What is wrong with the accounts, if anything: sums that do not match, the dead that still hold something.
    pub fn inconsistencies(&self) -> Vec<String> {
        let tx = self.lock();
        timeline::advance(&tx, self.now());
        procs::reap(&tx);
        let file = self.file();
        let mut wrong = Vec::new();
        for index in 0..file.settings.gpus as usize {
            let own: u64 = file.procs.iter().flat_map(|p| p.gpu[index].own.iter()).map(|w| w.get()).sum();
            let shared: u64 = file
                .shares
                .iter()
                .filter(|s| s.id.get() != 0 && s.gpu.get() == index as u64)
                .map(|s| s.bytes.get())
                .sum();
            let used = file.gpus[index].used.get();
            if own + shared != used {
                wrong
                    .push(format!("GPU {index}: processes hold {own} and shares {shared} bytes, but {used} are taken"));
            }
        }
        for (slot, proc) in file.procs.iter().enumerate() {
            let held: u64 = proc.gpu.iter().flat_map(|g| g.own.iter().chain([&g.shared])).map(|w| w.get()).sum();
            if !proc.alive() && held != 0 {
                wrong.push(format!("slot {slot} is dead and holds {held} bytes"));
            }
        }
        for (chan, channel) in file.chans.iter().enumerate() {
            let proc = &file.procs[channel.proc.get() as usize];
            if channel.state.get() != 0 && !proc.alive() {
                wrong.push(format!("channel {chan} belongs to the dead process {}", proc.pid.get()));
            }
        }
        wrong
    }
}
