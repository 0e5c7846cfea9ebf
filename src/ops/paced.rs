//! What steering has to know besides launches.

use super::{Call, Outcome};
use crate::abi::cuda::{CUDA_ERROR_NOT_READY, CUstream};
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

/// Whether something is done: another way to wait, if it is asked again and again.
pub unsafe fn asks(call: &mut Call<'_>) -> Outcome {
    let result = call.driver();
    if result == CUDA_ERROR_NOT_READY {
        steer::is_not_done();
    }
    Outcome::Done(result)
}

/// A copy from the host. Where the memory is not pinned, the driver may wait for the stream until there is room for so much.
pub unsafe fn sends<T: TryInto<u64>>(call: &mut Call<'_>, bytes: T) -> Outcome {
    // Up to so much the driver takes over at once, by CUDA's own documentation.
    const AT_ONCE: u64 = 64 << 10;
    if bytes.try_into().is_ok_and(|bytes| bytes > AT_ONCE) {
        steer::before_asking();
    }
    Outcome::Done(call.driver())
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
