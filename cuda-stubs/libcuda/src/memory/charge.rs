//! Bytes taken of a GPU in the world's accounts, for as long as the object lives.

use std::collections::HashMap;

use parking_lot::Mutex;
use sim_world::Path;
use sim_world::shared::ShareHandle;

use super::backing::Backing;
use super::{graphpool, managed, pool};
use crate::abi::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use crate::api::Outcome;
use crate::process::process;

/// Bytes of a GPU that this process holds.
pub(crate) struct Charge {
    gpu: usize,
    path: Path,
    bytes: u64,
    /// Once exported, the bytes are held together with others.
    share: Mutex<Option<ShareHandle>>,
}

/// Shares that this process holds: how often. The world knows only that it does.
static HELD: Mutex<Option<HashMap<(u64, u64), usize>>> = Mutex::new(None);

impl Charge {
    /// Takes the bytes, or fails with `CUDA_ERROR_OUT_OF_MEMORY` and changes nothing.
    pub(crate) fn take(gpu: usize, path: Path, bytes: u64) -> Outcome<Charge> {
        charge(gpu, path, bytes)?;
        Ok(Charge { gpu, path, bytes, share: Mutex::new(None) })
    }

    /// Joins in holding what another process, or this one, exported.
    pub(crate) fn imported(share: ShareHandle, path: Path) -> Outcome<Charge> {
        let mut held = HELD.lock();
        let times = held.get_or_insert_default().entry((share.index, share.id)).or_default();
        if *times == 0 && !process()?.world.hold(&share) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        *times += 1;
        Ok(Charge { gpu: share.gpu as usize, path, bytes: share.bytes, share: Mutex::new(Some(share)) })
    }

    /// Lets others hold the bytes too. `offset`: where in the heap file their contents are.
    pub(crate) fn share(&self, offset: u64) -> Outcome<ShareHandle> {
        let mut share = self.share.lock();
        if let Some(share) = *share {
            return Ok(share);
        }
        let mut held = HELD.lock();
        let new = process()?.world.share(self.gpu, self.path, self.bytes, offset).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        held.get_or_insert_default().insert((new.index, new.id), 1);
        *share = Some(new);
        Ok(new)
    }

    /// Adds bytes that the process holds besides to what is held together with others: what a pool lends.
    pub(crate) fn lend(&self, bytes: u64) {
        if let (Some(share), Ok(process)) = (*self.share.lock(), process()) {
            process.world.lend(&share, self.path, bytes);
        }
    }

    /// They are the process's no more. They are free when nobody holds the pool.
    pub(crate) fn end_lending(&self, bytes: u64) {
        if let (Some(share), Ok(process)) = (*self.share.lock(), process()) {
            process.world.end_lending(&share, bytes);
        }
    }

    /// Ends it. Whoever was the last to hold exported memory also gives the pages of the heap file back.
    pub(crate) fn end(self, backing: &Backing) {
        let share = *self.share.lock();
        drop(self);
        let (Some(share), Ok(process)) = (share, process()) else { return };
        process.world.free_bytes(share.gpu as usize); // notices the dead: they may have been the others who held it
        if process.world.file().shares[share.index as usize].id.get() != share.id {
            backing.punch();
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let Ok(process) = process() else { return };
        let Some(share) = *self.share.get_mut() else {
            process.world.refund(self.gpu, self.path, self.bytes);
            return;
        };
        let mut held = HELD.lock();
        let all = held.get_or_insert_default();
        let Some(times) = all.get_mut(&(share.index, share.id)) else { return };
        *times -= 1;
        if *times == 0 {
            process.world.let_go(&share);
            all.remove(&(share.index, share.id));
        }
    }
}

/// Takes bytes that the caller gives back itself. Where there is no room, what this process keeps for later makes some: pools
/// and graph memory give up all that lies unused, managed memory as much as is needed. So does the real driver.
pub(crate) fn charge(gpu: usize, path: Path, bytes: u64) -> Outcome {
    let world = process()?.world;
    let take = || world.charge(gpu, path, bytes).is_ok();
    if take() {
        return Ok(());
    }
    if bytes > world.settings().gpu[gpu].cuda_total() {
        return Err(CUDA_ERROR_OUT_OF_MEMORY); // no making room for that
    }
    pool::make_room(gpu);
    graphpool::make_room(gpu);
    if take() {
        return Ok(());
    }
    managed::make_room(gpu, bytes.saturating_sub(world.free_bytes(gpu)));
    if take() { Ok(()) } else { Err(CUDA_ERROR_OUT_OF_MEMORY) }
}

/// Gives bytes back.
pub(crate) fn refund(gpu: usize, path: Path, bytes: u64) {
    if bytes != 0
        && let Ok(process) = process()
    {
        process.world.refund(gpu, path, bytes);
    }
}
