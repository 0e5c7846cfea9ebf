//! Copies and sets.

use std::sync::Arc;

use crate::api::Outcome;
use crate::stream::Stream;

/// A copy of any shape.
#[derive(Clone)]
pub(crate) struct Copy {}

impl Copy {
    pub(crate) fn execute(&self, _stream: &Arc<Stream>) -> Outcome {
        Ok(())
    }
}

/// A fill of any shape.
#[derive(Clone)]
pub(crate) struct Set {}

impl Set {
    pub(crate) fn execute(&self, _stream: &Arc<Stream>) -> Outcome {
        Ok(())
    }
}
