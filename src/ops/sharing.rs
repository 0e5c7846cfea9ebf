//! Memory that crosses processes. Whoever made it pays for it, as long as the driver has it in that one's figure; when that one
//! lets go, it becomes another's who has it open, or a descriptor's.

use std::ffi::{c_int, c_ulonglong, c_void};

use super::{Call, Outcome};
use crate::abi::cuda::*;
use crate::driver::calls;
use crate::ledger::{self, Changing, book, marks, shared};

/// The allocation that an address is in.
fn base_of(address: CUdeviceptr) -> Option<u64> {
    let (mut base, mut bytes) = (0, 0usize);
    // SAFETY: places to write to; an address that the driver does not know is an error.
    let told = unsafe { calls::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) };
    (told == CUDA_SUCCESS).then_some(base)
}

/// `cuMemExportToShareableHandle`
pub unsafe fn export(
    call: &mut Call<'_>,
    to: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS && kind == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        // SAFETY: the driver has just written a descriptor there.
        book::exported(handle, unsafe { *to.cast::<c_int>() });
    }
    Outcome::Done(result)
}

/// `cuIpcGetMemHandle`
pub unsafe fn ipc_handle(call: &mut Call<'_>, address: CUdeviceptr) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS
        && let Some(base) = base_of(address)
    {
        shared::share(base, None);
    }
    Outcome::Done(result)
}

/// `cuMemGetHandleForAddressRange`
pub unsafe fn dma_buf(
    call: &mut Call<'_>,
    to: *mut c_void,
    address: CUdeviceptr,
    _bytes: usize,
    kind: CUmemRangeHandleType,
    _flags: c_ulonglong,
) -> Outcome {
    let result = call.driver();
    if result == CUDA_SUCCESS && kind == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD {
        // SAFETY: the driver has just written a descriptor there.
        let file = marks::identity(unsafe { *to.cast::<c_int>() });
        if let (Some(file), Some(base)) = (file, base_of(address))
            && !shared::share(base, Some(file))
        {
            book::dma_buf(address, file);
        }
    }
    Outcome::Done(result)
}

/// `cuMemImportFromShareableHandle`: not charged.
pub unsafe fn import(call: &mut Call<'_>, to: *mut CUmemGenericAllocationHandle) -> Outcome {
    let _changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        // SAFETY: the driver has just written a handle there.
        book::imported(unsafe { *to });
    }
    Outcome::Done(result)
}

/// `cuIpcOpenMemHandle` and its like: not charged.
pub unsafe fn open(call: &mut Call<'_>) -> Outcome {
    let _changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        shared::begin_import();
    }
    Outcome::Done(result)
}

/// `cuIpcCloseMemHandle`
pub unsafe fn close(call: &mut Call<'_>) -> Outcome {
    let changing = ledger::changing();
    let result = call.driver();
    if result == CUDA_SUCCESS {
        shared::end_import();
        let_go(&changing);
    }
    Outcome::Done(result)
}

/// This process has let go of something that another made. If it was in this one's figure, it may be in a third one's now.
pub fn let_go(changing: &Changing) {
    for slice in ledger::all() {
        slice.hand_over();
        slice.is_to_be_learned();
        slice.learn(changing);
    }
}
