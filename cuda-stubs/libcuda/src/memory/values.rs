//! Waiting for and writing of values in memory by a stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::space::{self, Span, When};
use crate::abi::*;
use crate::api::{DefaultStream, In, Outcome};
use crate::effects::Effect;
use crate::lane::Piece;
use crate::process::process;
use crate::stream::{self, Stream};
use crate::work::{self, Work};

/// One operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueOp {
    Wait {
        address: u64,
        value: u64,
        wide: bool,
        flags: u32,
    },
    Write {
        address: u64,
        value: u64,
        wide: bool,
        flags: u32,
    },
    /// Orders what others see; everything here is in order anyway.
    Barrier {
        flags: u32,
    },
    Flush {
        flags: u32,
    },
}

const CONDITION: u32 = 3;

impl ValueOp {
    /// From the C form, checked.
    pub(crate) fn from_params(params: &CUstreamBatchMemOpParams) -> Outcome<ValueOp> {
        // SAFETY: every member of the union is plain data that begins with the operation, and the operation says which one
        // was written.
        let op = unsafe {
            match params.operation {
                CU_STREAM_MEM_OP_WAIT_VALUE_32 | CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
                    let of = params.waitValue;
                    let wide = params.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
                    let value = if wide { of.__bindgen_anon_1.value64 } else { u64::from(of.__bindgen_anon_1.value) };
                    ValueOp::Wait { address: of.address, value, wide, flags: of.flags }
                }
                CU_STREAM_MEM_OP_WRITE_VALUE_32 | CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
                    let of = params.writeValue;
                    let wide = params.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
                    let value = if wide { of.__bindgen_anon_1.value64 } else { u64::from(of.__bindgen_anon_1.value) };
                    ValueOp::Write { address: of.address, value, wide, flags: of.flags }
                }
                CU_STREAM_MEM_OP_BARRIER => ValueOp::Barrier { flags: params.memoryBarrier.flags },
                CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => ValueOp::Flush { flags: params.flushRemoteWrites.flags },
                _ => return Err(CUDA_ERROR_INVALID_VALUE),
            }
        };
        op.check()?;
        Ok(op)
    }

    /// The C form again.
    pub(crate) fn to_params(self) -> CUstreamBatchMemOpParams {
        let mut params = CUstreamBatchMemOpParams::default();
        match self {
            ValueOp::Wait { address, value, wide, flags } => {
                params.waitValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
                    operation: if wide { CU_STREAM_MEM_OP_WAIT_VALUE_64 } else { CU_STREAM_MEM_OP_WAIT_VALUE_32 },
                    address,
                    flags,
                    ..Default::default()
                };
                params.waitValue.__bindgen_anon_1.value64 = value;
            }
            ValueOp::Write { address, value, wide, flags } => {
                params.writeValue = CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
                    operation: if wide { CU_STREAM_MEM_OP_WRITE_VALUE_64 } else { CU_STREAM_MEM_OP_WRITE_VALUE_32 },
                    address,
                    flags,
                    ..Default::default()
                };
                params.writeValue.__bindgen_anon_1.value64 = value;
            }
            ValueOp::Barrier { flags } => {
                params.memoryBarrier = CUstreamBatchMemOpParams_union_CUstreamMemOpMemoryBarrierParams_st {
                    operation: CU_STREAM_MEM_OP_BARRIER,
                    flags,
                };
            }
            ValueOp::Flush { flags } => {
                params.flushRemoteWrites = CUstreamBatchMemOpParams_union_CUstreamMemOpFlushRemoteWritesParams_st {
                    operation: CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES,
                    flags,
                };
            }
        }
        params
    }

    fn check(&self) -> Outcome {
        let (known, place) = match *self {
            ValueOp::Wait { address, wide, flags, .. } => {
                (CONDITION | CU_STREAM_WAIT_VALUE_FLUSH, Some((address, wide, flags)))
            }
            ValueOp::Write { address, wide, flags, .. } => {
                (CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER, Some((address, wide, flags)))
            }
            ValueOp::Barrier { .. } | ValueOp::Flush { .. } => (0, None),
        };
        let Some((address, wide, flags)) = place else { return Ok(()) };
        if flags & !known != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        span(address, wide, When::AtLaunch).map(|_| ())
    }

    pub(crate) fn execute(&self, stream: &Arc<Stream>) -> Outcome {
        let lane = stream.lane()?;
        match *self {
            ValueOp::Wait { address, value, wide, flags } => {
                let span = span(address, wide, When::Now)?;
                let mark = lane.submit_marked(stream.queue, stream.order, Piece::GATE, &[]);
                let holds = move || read(&span, wide).is_some_and(|now| compare(now, value, wide, flags & CONDITION));
                process()?.effects.add(mark, Effect::Until(Box::new(holds)));
            }
            ValueOp::Write { address, value, wide, .. } => {
                let span = span(address, wide, When::Now)?;
                span.prepare()?;
                let mark = lane.submit_marked(stream.queue, stream.order, Piece::MARKER, &[]);
                process()?.effects.add(mark, Effect::After(Box::new(move || write(&span, value, wide))));
            }
            ValueOp::Barrier { .. } | ValueOp::Flush { .. } => {}
        }
        Ok(())
    }
}

fn bytes(wide: bool) -> u64 {
    if wide { 8 } else { 4 }
}

fn span(address: u64, wide: bool, when: When) -> Outcome<Span> {
    if !address.is_multiple_of(bytes(wide)) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    space::resolve(address, bytes(wide), when)
}

fn read(span: &Span, wide: bool) -> Option<u64> {
    let mut value = None;
    let found = span.each(0, bytes(wide), |at, _| {
        // SAFETY: `span` checked that the address is aligned and in memory of this size; others may write it meanwhile, so
        // it is read as an atomic.
        value = Some(unsafe {
            match wide {
                true => (*at.cast::<AtomicU64>()).load(Ordering::Acquire),
                false => u64::from((*at.cast::<AtomicU32>()).load(Ordering::Acquire)),
            }
        });
    });
    found.ok().and(value)
}

fn write(span: &Span, value: u64, wide: bool) {
    let _ = span.each(0, bytes(wide), |at, _| {
        // SAFETY: as in `read`; the client asked for the value to be written there.
        unsafe {
            match wide {
                true => (*at.cast::<AtomicU64>()).store(value, Ordering::Release),
                false => (*at.cast::<AtomicU32>()).store(value as u32, Ordering::Release),
            }
        }
    });
}

fn compare(now: u64, value: u64, wide: bool, condition: u32) -> bool {
    match (condition, wide) {
        // Cyclic: a counter that wrapped round is still ahead.
        (CU_STREAM_WAIT_VALUE_GEQ, true) => now.wrapping_sub(value) as i64 >= 0,
        (CU_STREAM_WAIT_VALUE_GEQ, false) => (now as u32).wrapping_sub(value as u32) as i32 >= 0,
        (CU_STREAM_WAIT_VALUE_EQ, true) => now == value,
        (CU_STREAM_WAIT_VALUE_EQ, false) => now as u32 == value as u32,
        (CU_STREAM_WAIT_VALUE_AND, true) => now & value != 0,
        (CU_STREAM_WAIT_VALUE_AND, false) => (now & value) as u32 != 0,
        (_, true) => !(now | value) != 0,
        (_, false) => !(now as u32 | value as u32) != 0,
    }
}

fn one(op: ValueOp, stream: CUstream, default: DefaultStream) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    op.check()?;
    work::enqueue(&stream, Work::Values(vec![op]))
}

fn batch(
    stream: CUstream,
    count: u32,
    params: In<CUstreamBatchMemOpParams>,
    flags: u32,
    default: DefaultStream,
) -> Outcome {
    let stream = stream::resolve(stream, default)?;
    if count > 256 || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let ops: Outcome<Vec<ValueOp>> = params.array(count as usize)?.iter().map(ValueOp::from_params).collect();
    let ops = ops?;
    if ops.is_empty() { Ok(()) } else { work::enqueue(&stream, Work::Values(ops)) }
}

api! {
    export fn cuStreamWaitValue32 | cuStreamWaitValue32_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) {
        one(ValueOp::Wait { address, value: value.into(), wide: false, flags }, stream, default)
    }
    export fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) {
        one(ValueOp::Wait { address, value: value.into(), wide: false, flags }, stream, default)
    }
    export fn cuStreamWaitValue64 | cuStreamWaitValue64_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) {
        one(ValueOp::Wait { address, value, wide: true, flags }, stream, default)
    }
    export fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) {
        one(ValueOp::Wait { address, value, wide: true, flags }, stream, default)
    }
    export fn cuStreamWriteValue32 | cuStreamWriteValue32_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) {
        one(ValueOp::Write { address, value: value.into(), wide: false, flags }, stream, default)
    }
    export fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u32, flags: u32) {
        one(ValueOp::Write { address, value: value.into(), wide: false, flags }, stream, default)
    }
    export fn cuStreamWriteValue64 | cuStreamWriteValue64_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) {
        one(ValueOp::Write { address, value, wide: true, flags }, stream, default)
    }
    export fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(default; stream: CUstream, address: CUdeviceptr, value: u64, flags: u32) {
        one(ValueOp::Write { address, value, wide: true, flags }, stream, default)
    }
    export fn cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz(default; stream: CUstream, count: u32, params: In<CUstreamBatchMemOpParams>, flags: u32) {
        batch(stream, count, params, flags, default)
    }
    export fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz(default; stream: CUstream, count: u32, params: In<CUstreamBatchMemOpParams>, flags: u32) {
        batch(stream, count, params, flags, default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_cyclic_and_of_the_right_width() {
        let geq = CU_STREAM_WAIT_VALUE_GEQ;
        assert!(compare(5, 5, false, geq) && compare(6, 5, false, geq) && !compare(4, 5, false, geq));
        assert!(compare(2, u64::from(u32::MAX), false, geq), "wrapped round");
        assert!(!compare(2, u64::from(u32::MAX), true, geq), "in 64 bits it has not");
        assert!(
            compare(1 << 33 | 7, 7, false, CU_STREAM_WAIT_VALUE_EQ)
                && !compare(1 << 33 | 7, 7, true, CU_STREAM_WAIT_VALUE_EQ)
        );
        assert!(compare(6, 2, true, CU_STREAM_WAIT_VALUE_AND) && !compare(6, 1, true, CU_STREAM_WAIT_VALUE_AND));
        assert!(
            compare(0, 1, false, CU_STREAM_WAIT_VALUE_NOR)
                && !compare(u64::from(u32::MAX), 0, false, CU_STREAM_WAIT_VALUE_NOR)
        );
    }

    #[test]
    fn the_c_form_survives_the_round_trip() {
        for op in [
            ValueOp::Wait { address: 64, value: 1 << 40, wide: true, flags: 1 },
            ValueOp::Write { address: 64, value: 7, wide: false, flags: 0 },
            ValueOp::Barrier { flags: 1 },
            ValueOp::Flush { flags: 0 },
        ] {
            let form = op.to_params();
            // SAFETY: every member begins with the operation.
            let operation = unsafe { form.operation };
            assert!(matches!(operation, 1..=6), "{operation}");
        }
    }
}
