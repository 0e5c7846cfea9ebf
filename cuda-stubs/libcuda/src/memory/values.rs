//! Waiting for and writing of values in memory by a stream.

use std::sync::Arc;

use crate::api::Outcome;
use crate::stream::Stream;

/// One operation of a batch.
#[derive(Clone)]
pub(crate) struct ValueOp {}

impl ValueOp {
    pub(crate) fn execute(&self, _stream: &Arc<Stream>) -> Outcome {
        Ok(())
    }
}
