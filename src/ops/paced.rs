//! What the pace of a container has to know besides launches.

use super::launches::paced;
use super::{Call, Outcome};
use crate::abi::cuda::CUstream;
use crate::driver::Stream;
use crate::pace::costs::Work;
use crate::{ledger, pace, steer, sys};

/// Whether there is nothing to do about work: nobody holds it up.
#[inline(always)]
pub fn passes() -> bool {
    !pace::is_any_gated()
}

/// A copy or a fill, told from others by its function and its size; 0 where that is not told.
pub unsafe fn copy(call: &mut Call<'_>, function: usize, bytes: u64, stream: CUstream) -> Outcome {
    copied(call, function, bytes, Stream::given(stream, false))
}

/// The same for per-thread streams
pub unsafe fn copy_ptsz(call: &mut Call<'_>, function: usize, bytes: u64, stream: CUstream) -> Outcome {
    copied(call, function, bytes, Stream::given(stream, true))
}

fn copied(call: &mut Call<'_>, function: usize, bytes: u64, stream: Stream) -> Outcome {
    // Where channels are driven, those of copies stay on, and their time counts for nothing.
    if !pace::is_any_gated() || steer::is_in_use() {
        return Outcome::Done(call.driver());
    }
    paced(call, stream, || Work::copy(function as u64, bytes), |call| Outcome::Done(call.driver()))
}

/// The program waits for the GPU.
pub fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    if !pace::is_any_gated() {
        return wait();
    }
    if steer::is_in_use() {
        steer::before_wait();
        let result = wait();
        steer::after_wait();
        return result;
    }
    ledger::all().for_each(|slice| slice.pace.before_wait());
    let began = sys::nanoseconds();
    let result = wait();
    let now = sys::nanoseconds();
    ledger::all().for_each(|slice| slice.pace.after_wait(slice, now - began, now));
    result
}

fn begins(call: &mut Call<'_>, stream: Stream) -> Outcome {
    if pace::is_any_gated() {
        ledger::all().for_each(|slice| slice.pace.before_capture(stream));
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
