//! Who holds how many bytes. The driver's truth, which tests compare with what others believe.

use crate::layout::{PROC_LIVE, Path, ProcGpu};
use crate::lock::Tx;
use crate::open::World;
use crate::procs;
use crate::settings::GpuSettings;

/// There is not enough left on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

impl World {
    /// Takes bytes of a GPU for this process, or nothing.
    pub fn charge(&self, gpu: usize, path: Path, bytes: u64) -> Result<(), OutOfMemory> {
        self.charge_all(gpu, &[(path, bytes)])
    }

    /// Takes several amounts, all or none.
    pub fn charge_all(&self, gpu: usize, amounts: &[(Path, u64)]) -> Result<(), OutOfMemory> {
        let tx = self.lock();
        let file = tx.file();
        let total: u64 = amounts.iter().map(|(_, bytes)| bytes).sum();
        let limit = self.settings().gpu[gpu].cuda_total() - GpuSettings::BASELINE;
        let fits = || file.gpus[gpu].used.get().checked_add(total).is_some_and(|sum| sum <= limit);
        if !fits() {
            procs::reap(&tx);
            if !fits() {
                return Err(OutOfMemory);
            }
        }
        let proc = &file.procs[self.slot()];
        if proc.state.get() != PROC_LIVE || proc.generation.get() != self.generation() {
            return Err(OutOfMemory); // this process is being killed, and was buried already
        }
        let held = &proc.gpu[gpu];
        for (path, bytes) in amounts {
            tx.add(&held.own[*path as usize], *bytes);
        }
        tx.add(&file.gpus[gpu].used, total);
        note_peak(&tx, held);
        Ok(())
    }

    /// Gives bytes back.
    pub fn refund(&self, gpu: usize, path: Path, bytes: u64) {
        let tx = self.lock();
        let file = tx.file();
        let held = &file.procs[self.slot()].gpu[gpu];
        let bytes = bytes.min(held.own[path as usize].get());
        tx.take(&held.own[path as usize], bytes);
        tx.take(&file.gpus[gpu].used, bytes);
    }

    /// Bytes free on a GPU, as CUDA says it.
    pub fn free_bytes(&self, gpu: usize) -> u64 {
        let tx = self.lock();
        procs::reap(&tx);
        let limit = self.settings().gpu[gpu].cuda_total() - GpuSettings::BASELINE;
        limit.saturating_sub(tx.file().gpus[gpu].used.get())
    }
}

/// The process's figure as NVML counts it.
pub fn figure(held: &ProcGpu) -> u64 {
    let own: u64 = Path::ALL.iter().filter(|p| p.in_process_figure()).map(|p| held.own[*p as usize].get()).sum();
    own + held.shared.get()
}

pub(crate) fn note_peak(tx: &Tx<'_>, held: &ProcGpu) {
    let now = figure(held);
    if now > held.peak.get() {
        tx.set(&held.peak, now);
    }
}
