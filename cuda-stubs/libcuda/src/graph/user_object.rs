//! User objects: something of the client's that lives as long as graphs refer to it.

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use super::graph;
use crate::abi::*;
use crate::api::{Out, Outcome};
use crate::handles::{Registry, Tag};
use crate::process::process;

static OBJECTS: Registry<UserObject> = Registry::new(Tag::UserObject);

pub(crate) struct UserObject {
    handle: usize,
    pointer: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
    references: Mutex<u64>,
}

/// References that a graph or an executable graph has.
#[derive(Clone)]
pub(crate) struct Held {
    object: Arc<UserObject>,
    count: u64,
}

impl UserObject {
    fn retain(&self, count: u64) {
        *self.references.lock() += count;
    }

    /// Gives references back; the last one takes the object with it, on this thread.
    fn release(&self, count: u64) -> Outcome {
        let left = {
            let mut references = self.references.lock();
            *references = references.checked_sub(count).ok_or(CUDA_ERROR_INVALID_VALUE)?;
            *references
        };
        if left == 0 && OBJECTS.remove(self.handle).is_some() {
            // SAFETY: the client gave the destructor and its argument to be called like this, once, with the last reference;
            // the registry hands the object out for removal only once.
            unsafe { (self.destroy)(self.pointer as *mut c_void) };
        }
        Ok(())
    }
}

impl Held {
    /// The same references once more, for a copy of their holder.
    pub(crate) fn again(all: &[Held]) -> Vec<Held> {
        for held in all {
            held.object.retain(held.count);
        }
        all.to_vec()
    }

    /// The holder is gone.
    pub(crate) fn release_all(all: Vec<Held>) {
        for held in all {
            // They were taken when this was made, so they are there to give back.
            let _ = held.object.release(held.count);
        }
    }
}

fn object(handle: CUuserObject) -> Outcome<Arc<UserObject>> {
    process()?;
    OBJECTS.get(handle as usize).ok_or(CUDA_ERROR_INVALID_VALUE)
}

fn positive(count: u32) -> Outcome<u64> {
    if count == 0 { Err(CUDA_ERROR_INVALID_VALUE) } else { Ok(u64::from(count)) }
}

api! {
    export fn cuUserObjectCreate(out: Out<CUuserObject>, pointer: *mut c_void, destroy: CUhostFn, count: u32, flags: u32) {
        process()?;
        out.required()?;
        let (destroy, references) = (destroy.ok_or(CUDA_ERROR_INVALID_VALUE)?, positive(count)?);
        // The driver knows no other way of calling a destructor, and wants to hear that the client knows it too.
        if flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let pointer = pointer as usize;
        let new = OBJECTS.insert_with(|handle| UserObject { handle, pointer, destroy, references: Mutex::new(references) });
        out.set(new.handle as CUuserObject)
    }
    export fn cuUserObjectRetain(handle: CUuserObject, count: u32) {
        object(handle)?.retain(positive(count)?);
        Ok(())
    }
    export fn cuUserObjectRelease(handle: CUuserObject, count: u32) { object(handle)?.release(positive(count)?) }
    export fn cuGraphRetainUserObject(graph_handle: CUgraph, handle: CUuserObject, count: u32, flags: u32) {
        let (graph, object, count) = (graph(graph_handle)?, object(handle)?, positive(count)?);
        if flags & !CU_GRAPH_USER_OBJECT_MOVE != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        // Moved references were counted when the caller got them.
        if flags & CU_GRAPH_USER_OBJECT_MOVE == 0 {
            object.retain(count);
        }
        graph.lock().objects.push(Held { object, count });
        Ok(())
    }
    export fn cuGraphReleaseUserObject(graph_handle: CUgraph, handle: CUuserObject, count: u32) {
        let (graph, object, mut count) = (graph(graph_handle)?, object(handle)?, positive(count)?);
        let released = count;
        {
            let mut inner = graph.lock();
            let mine = |held: &Held| Arc::ptr_eq(&held.object, &object);
            if inner.objects.iter().filter(|held| mine(held)).map(|held| held.count).sum::<u64>() < count {
                return Ok(()); // more than the graph holds: the real driver neither minds nor does anything
            }
            for held in inner.objects.iter_mut().filter(|held| mine(held)) {
                let taken = held.count.min(count);
                held.count -= taken;
                count -= taken;
            }
            inner.objects.retain(|held| held.count != 0);
        }
        object.release(released)
    }
}
