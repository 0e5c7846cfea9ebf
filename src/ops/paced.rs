//! What steering has to know besides launches.

use super::{Call, Outcome};
use crate::abi::cuda::CUstream;
use crate::driver::Stream;
use crate::steer;

/// Whether there is nothing to do about waits: nobody counts launches.
#[inline(always)]
pub fn passes() -> bool {
    !steer::is_any_counted()
}

/// The program waits for the GPU.
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    if !steer::is_any_counted() {
        return wait();
    }
    steer::before_wait();
    let result = wait();
    steer::after_wait();
    result
}

/// A copy after which the host goes on: it waits for what was launched before.
pub unsafe fn wait(call: &mut Call<'_>) -> Outcome {
    Outcome::Done(waiting(|| call.driver()))
}

fn begins(call: &mut Call<'_>, stream: Stream) -> Outcome {
    if steer::is_any_counted() {
        steer::forget_stream(stream);
    }
    Outcome::Done(call.driver())
}

/// `cuStreamBeginCapture` and its like, and `cuStreamDestroy`: the stream takes no more marks of ours
pub unsafe fn before_capture(call: &mut Call<'_>, stream: CUstream) -> Outcome {
    begins(call, Stream::given(stream, false))
}

/// The same for per-thread streams
pub unsafe fn before_capture_ptsz(call: &mut Call<'_>, stream: CUstream) -> Outcome {
    begins(call, Stream::given(stream, true))
}
