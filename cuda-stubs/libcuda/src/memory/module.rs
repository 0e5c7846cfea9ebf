//! Device memory of modules: where their variables are.

use std::sync::Arc;

use parking_lot::Mutex;
use sim_world::Path;

use super::address::GRANULE;
use super::blocks::{ABSURD, Block};
use super::space::{self, Kind, Region};
use crate::abi::CUDA_ERROR_OUT_OF_MEMORY;
use crate::api::Outcome;
use crate::context::Context;

/// Each module's variables, by the module's handle.
static VARIABLES: Mutex<Vec<(usize, Arc<Region>)>> = Mutex::new(Vec::new());

/// Device memory for the variables of a module: in steps of 2 MiB, and of nobody else's.
pub(crate) fn allocate(context: &Context, module: usize, bytes: u64) -> Outcome<u64> {
    if bytes > ABSURD {
        return Err(CUDA_ERROR_OUT_OF_MEMORY);
    }
    let block = Block::on_device(context.device.gpu, Path::Module, bytes.next_multiple_of(GRANULE), false)?;
    let region = space::insert(Region::new(block.base, bytes, Kind::Module, Arc::new(block), context));
    let base = region.base;
    VARIABLES.lock().push((module, region));
    Ok(base)
}

/// Gives a module's variables back.
pub(crate) fn free(module: usize) {
    let mut gone = Vec::new();
    VARIABLES.lock().retain(|(owner, region)| {
        let stays = *owner != module;
        if !stays {
            gone.push(Arc::clone(region));
        }
        stays
    });
    for region in gone {
        let _ = space::remove(&region);
    }
}
