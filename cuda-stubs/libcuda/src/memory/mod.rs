//! Memory of all kinds: what it takes of a GPU, where it is, and the bytes in it.
//!
//! [`space`] knows every allocation by its address. Behind an address is a [`blocks::Block`], which holds the bytes
//! ([`backing`]), the addresses ([`address`]) and the bytes taken in the world's accounts ([`charge`]). Each kind of memory has
//! a room of its own; copies and fills are described by [`copy`] and [`set`], and done when the timeline has come to them.

mod address;
mod advice;
mod array;
mod backing;
mod blocks;
mod charge;
mod copies_api;
pub(crate) mod copy;
pub(crate) mod graphpool;
mod host;
mod ipc;
mod linear;
pub(crate) mod managed;
pub(crate) mod module;
mod pointer;
pub(crate) mod pool;
mod pool_api;
mod poolspace;
mod segments;
mod set;
mod sets_api;
mod shapes_api;
mod space;
mod texture;
mod texture_reference;
pub(crate) mod values;
mod vmm;

use crate::context::Context;

/// A context is gone: so is all it had.
pub(crate) fn forget_context(context: &Context) {
    texture::forget_context(context);
    linear::forget_context(context);
    managed::forget_context(context);
    host::forget_context(context);
    array::forget_context(context);
    ipc::forget_context(context);
    graphpool::forget_context(context);
    pool::forget_context(context);
}

/// Somebody waited for work to be done: pools may give back what is free.
pub(crate) fn synchronized() {
    pool::synchronized();
}
