//! What NVML says of the GPUs meanwhile. A driver in trouble can keep whoever asks it for ever, so a thread asks, and nobody waits for
//! it for long.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::look::Report;
use crate::nvml::{Gpu, Nvml};

/// So often: what is taken of the memory changes, names and numbers do not.
const EVERY: Duration = Duration::from_secs(1);

/// What is known of the GPUs.
#[derive(Clone, Default)]
pub struct Cards(Arc<(Mutex<Known>, Condvar)>);

#[derive(Default)]
struct Known {
    gpus: Vec<Gpu>,
    /// An answer has come, or will not come.
    is_answered: bool,
}

impl Cards {
    /// Begins to ask, until this process ends.
    pub fn ask() -> Cards {
        let cards = Cards::default();
        let told = cards.clone();
        std::thread::spawn(move || {
            let nvml = Nvml::open().ok();
            loop {
                // Without NVML, or with one that does not answer now, what was known stays.
                let gpus = nvml.as_ref().and_then(|nvml| nvml.gpus().ok());
                let mut known = told.known();
                known.gpus = gpus.unwrap_or(std::mem::take(&mut known.gpus));
                known.is_answered = true;
                drop(known);
                told.0.1.notify_all();
                if nvml.is_none() {
                    return;
                }
                std::thread::sleep(EVERY);
            }
        });
        cards
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the first answer, but not for long.
    pub fn wait(&self, most: Duration) {
        let known = self.known();
        drop(self.0.1.wait_timeout_while(known, most, |known| !known.is_answered));
    }

    /// Adds what is known to a report.
    pub fn tell(&self, report: &mut Report) {
        let known = self.known();
        for gpu in &mut report.gpus {
            if let Some(card) = known.gpus.iter().find(|card| card.uuid == gpu.uuid) {
                (gpu.index, gpu.name) = (Some(card.index), Some(card.name.clone()));
                gpu.taken_bytes = card.memory.map(|memory| memory.used);
                gpu.memory_bytes = card.memory.map(|memory| memory.total).or(gpu.memory_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::tests::report;
    use crate::nvml::Memory;

    #[test]
    fn what_is_known_is_told_of_the_gpu_that_it_is_about() {
        let cards = Cards::default();
        let mut told = report();
        cards.tell(&mut told);
        assert_eq!((told.gpus[0].index, told.gpus[0].taken_bytes), (None, None));
        let memory = Some(Memory { total: 141 << 30, used: 5 << 30 });
        let uuid = told.gpus[0].uuid.clone();
        let gpu =
            |index, uuid: &str| Gpu { index, uuid: uuid.into(), name: "NVIDIA H200".into(), memory, ..Gpu::default() };
        cards.known().gpus = vec![gpu(0, "GPU-else"), gpu(1, &uuid)];
        cards.tell(&mut told);
        let gpu = &told.gpus[0];
        assert_eq!((gpu.index, gpu.name.as_deref(), gpu.taken_bytes), (Some(1), Some("NVIDIA H200"), Some(5 << 30)));
        assert_eq!(gpu.memory_bytes, Some(141 << 30));
    }
}
