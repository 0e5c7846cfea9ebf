//! Managed memory that is moved to a GPU: there it takes as much as where it was made.
//!
//! It is held against the limit of every GPU that it was told to go to, all of the allocation and once, until it is freed: the
//! driver keeps a place for it there even when it goes elsewhere again, and no process's figure tells of it. Where there is
//! no room, the program is told so instead of being moved. (What a kernel of another GPU touches moves there by itself; that
//! cannot be foreseen.)

use super::memory::REFUSED;
use super::{Call, Outcome};
use crate::abi::cuda::*;
use crate::driver::calls;
use crate::ledger::slice::in_blocks;
use crate::ledger::{self, Changing, Slice, Unheld, book};

/// Makes room for one range on one device. `None`: it is there, or the driver knows of no such range.
fn room(address: CUdeviceptr, slice: &'static Slice, changing: &Changing) -> Result<Option<book::Moved>, Outcome> {
    let (mut base, mut bytes) = (0, 0usize);
    // SAFETY: places to write to; the driver checks the address.
    let told = unsafe { calls::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    if told != CUDA_SUCCESS || book::is_charged(base, slice) {
        return Ok(None);
    }
    let bytes = in_blocks(bytes as u64);
    match slice.reserve(bytes, changing) {
        Ok(hold) => Ok(Some(book::Moved { hold, slice, base, bytes })),
        Err(_) => Err(REFUSED),
    }
}

fn moved(call: &mut Call<'_>, ranges: impl Iterator<Item = (CUdeviceptr, CUdevice)>) -> Outcome {
    let changing = ledger::changing();
    let (mut moves, mut unheld) = (Vec::new(), Unheld::NoLimit);
    for (address, device) in ranges {
        match ledger::of(device, &changing).map(|slice| room(address, slice, &changing)) {
            Ok(Ok(one)) => moves.extend(one),
            Ok(Err(refused)) => return refused,
            Err(Unheld::NoLimit) => {}
            Err(why) => unheld = why,
        }
    }
    let outcome = unheld.ask(call);
    if call.result() == Some(CUDA_SUCCESS) {
        moves.into_iter().for_each(book::keep_moved);
    }
    outcome
}

/// `cuMemPrefetchAsync` and its per-thread form
pub unsafe fn prefetch(call: &mut Call<'_>, address: CUdeviceptr, device: CUdevice) -> Outcome {
    moved(call, [(address, device)].into_iter())
}

fn device_of(location: CUmemLocation) -> CUdevice {
    if location.type_ == CU_MEM_LOCATION_TYPE_DEVICE { location.id } else { -1 }
}

/// `cuMemPrefetchAsync_v2` and its per-thread form
pub unsafe fn prefetch_to(call: &mut Call<'_>, address: CUdeviceptr, location: CUmemLocation) -> Outcome {
    moved(call, [(address, device_of(location))].into_iter())
}

/// `cuMemPrefetchBatchAsync` and its like: each location is for the ranges from an index on, up to the next one's.
pub unsafe fn prefetch_batch(
    call: &mut Call<'_>,
    addresses: *mut CUdeviceptr,
    count: usize,
    locations: *mut CUmemLocation,
    first: *mut usize,
    location_count: usize,
) -> Outcome {
    if addresses.is_null() || locations.is_null() || first.is_null() || location_count == 0 {
        return Unheld::NoArgument.ask(call);
    }
    // SAFETY: arrays of the caller's, as long as it says, which the driver reads too.
    let (addresses, locations, first) = unsafe {
        (
            std::slice::from_raw_parts(addresses, count),
            std::slice::from_raw_parts(locations, location_count),
            std::slice::from_raw_parts(first, location_count),
        )
    };
    let ranges = addresses.iter().enumerate().filter_map(|(at, address)| {
        let which = first.iter().rposition(|first| *first <= at)?;
        Some((*address, device_of(locations[which])))
    });
    moved(call, ranges)
}
