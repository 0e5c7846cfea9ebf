//! What a thread brings to captures: who it is, and how careful its calls are to be.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::process::process;

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Never used again for another thread, unlike what the system numbers them with.
    static ME: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    static MODE: Cell<CUstreamCaptureMode> = const { Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// The calling thread; 0 for one that is ending.
pub(super) fn this() -> u64 {
    ME.try_with(|me| *me).unwrap_or(0)
}

/// The calling thread's mode.
pub(super) fn mode() -> CUstreamCaptureMode {
    MODE.try_with(Cell::get).unwrap_or(CU_STREAM_CAPTURE_MODE_GLOBAL)
}

/// A mode that there is.
pub(super) fn known(mode: CUstreamCaptureMode) -> Outcome<CUstreamCaptureMode> {
    match mode {
        CU_STREAM_CAPTURE_MODE_GLOBAL | CU_STREAM_CAPTURE_MODE_THREAD_LOCAL | CU_STREAM_CAPTURE_MODE_RELAXED => {
            Ok(mode)
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

api! {
    export fn cuThreadExchangeStreamCaptureMode(mode: Out<CUstreamCaptureMode>) {
        process()?;
        let new = known(mode.get()?)?;
        mode.set(MODE.try_with(|held| held.replace(new)).unwrap_or(CU_STREAM_CAPTURE_MODE_GLOBAL))
    }
}
