//! Graphs.

use std::sync::Arc;

use crate::api::Outcome;
use crate::stream::Stream;

/// Work that only graphs have.
#[derive(Clone)]
pub(crate) enum GraphWork {}

impl GraphWork {
    pub(crate) fn execute(&self, _stream: &Arc<Stream>) -> Outcome {
        match *self {}
    }
}
