//! The private tables that NVIDIA's own runtime asks for through `cuGetExportTable`.
//!
//! What it needs to find its way is here: which context is a device's primary one, storage per context, flags that say no
//! tool is attached. One table is not, and will not be: the one by which the runtime has the driver prove that it is
//! NVIDIA's. This driver is not, says so, and the runtime then declines to work on it (docs/simulated-gpu.md).

use std::ffi::c_void;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::{self, Context};
use crate::module;
use crate::process::{context, process};

/// A table: addresses and sizes, read by others.
struct Table<const N: usize>([usize; N]);

type Entry = extern "C" fn() -> CUresult;

extern "C" fn fine() -> CUresult {
    CUDA_SUCCESS
}

extern "C" fn unknown_slot() -> CUresult {
    unmodelled!("a function of a private table")
}

fn code(outcome: Outcome) -> CUresult {
    outcome.err().unwrap_or(CUDA_SUCCESS)
}

/// The handle that a device's primary context has or will have; nothing is retained or made active.
extern "C" fn primary_handle(out: Out<CUcontext>, dev: CUdevice) -> CUresult {
    code(
        process()
            .and_then(|p| p.device(dev))
            .and_then(|device| out.set(context::primary_object(device).handle as CUcontext)),
    )
}

extern "C" fn module_from_fatbin(
    out: Out<CUmodule>,
    wrapper: *const c_void,
    _: *mut c_void,
    _: *mut c_void,
    _: u32,
) -> CUresult {
    code(module::load_from_pointer(out, wrapper))
}

/// Flags by callback number: none is ever set, since no tool is attached.
static NO_CALLBACKS: [u32; 2048] = [0; 2048];
static NO_DOMAINS: [u32; 64] = [0; 64];

extern "C" fn callback_flags(flags: Out<*const u32>, count: Out<usize>) {
    flags.maybe(NO_CALLBACKS.as_ptr());
    count.maybe(1024);
}

extern "C" fn domain_flags(flags: Out<*const u32>, count: Out<usize>) {
    flags.maybe(NO_DOMAINS.as_ptr());
    count.maybe(32);
}

type Destructor = Option<unsafe extern "C" fn(CUcontext, *mut c_void, *mut c_void)>;

/// A value that a client library keeps with a context.
struct Stored {
    context: usize,
    key: usize,
    value: usize,
    destructor: Destructor,
}

static STORAGE: Mutex<Vec<Stored>> = Mutex::new(Vec::new());

fn context_or_current(handle: CUcontext) -> Outcome<Arc<Context>> {
    let found = if handle.is_null() { context::current() } else { context(handle) }?;
    if found.is_active() { Ok(found) } else { Err(CUDA_ERROR_INVALID_CONTEXT) }
}

extern "C" fn storage_put(ctx: CUcontext, key: *mut c_void, value: *mut c_void, destructor: Destructor) -> CUresult {
    code(context_or_current(ctx).map(|context| {
        let mut all = STORAGE.lock();
        all.retain(|s| (s.context, s.key) != (context.handle, key as usize));
        all.push(Stored { context: context.handle, key: key as usize, value: value as usize, destructor });
    }))
}

extern "C" fn storage_delete(ctx: CUcontext, key: *mut c_void) -> CUresult {
    code(
        context_or_current(ctx)
            .map(|context| STORAGE.lock().retain(|s| (s.context, s.key) != (context.handle, key as usize))),
    )
}

extern "C" fn storage_get(value: Out<*mut c_void>, ctx: CUcontext, key: *mut c_void) -> CUresult {
    let look = || {
        let context = context_or_current(ctx)?;
        let all = STORAGE.lock();
        let found = all
            .iter()
            .find(|s| (s.context, s.key) == (context.handle, key as usize))
            .ok_or(CUDA_ERROR_INVALID_HANDLE)?;
        value.set(found.value as *mut c_void)
    };
    code(look())
}

/// A context is gone: its stored values' destructors run, without a lock, since they may come back to us.
pub(crate) fn forget_context(context: &Context) {
    let gone: Vec<Stored> = {
        let mut all = STORAGE.lock();
        let (gone, kept) = all.drain(..).partition(|s| s.context == context.handle);
        *all = kept;
        gone
    };
    for stored in gone {
        if let Some(destructor) = stored.destructor {
            // SAFETY: the client stored the destructor with this key and value to be called like this, once.
            unsafe { destructor(context.handle as CUcontext, stored.key as *mut c_void, stored.value as *mut c_void) };
        }
    }
}

extern "C" fn context_kind(_ctx: CUcontext, kind: Out<i32>, underlying: Out<CUcontext>) -> CUresult {
    kind.maybe(0); // a plain one, not a green one
    underlying.maybe(std::ptr::null_mut());
    CUDA_SUCCESS
}

/// Who a table is for, by the first bytes of its name.
fn table(uuid: &[u8; 16]) -> Option<*const c_void> {
    fn leak<const N: usize>(entries: [usize; N]) -> *const c_void {
        std::ptr::from_ref(Box::leak(Box::new(Table(entries)))).cast()
    }
    let at = |f: Entry| f as *const () as usize;
    let size = |slots: usize| slots * 8;
    let other = at(unknown_slot);
    Some(match uuid {
        // The runtime's interface.
        [0x6b, 0xd5, 0xfb, 0x6c, ..] => {
            let mut t = [other; 13];
            t[0] = size(13);
            t[2] = primary_handle as *const () as usize;
            t[6] = module_from_fatbin as *const () as usize;
            t[7] = at(fine);
            t[12] = at(fine);
            leak(t)
        }
        // Hooks for tools.
        [0xa0, 0x94, 0x79, 0x8c, ..] => {
            let mut t = [other; 7];
            t[0] = size(7);
            t[2] = callback_flags as *const () as usize;
            t[6] = domain_flags as *const () as usize;
            leak(t)
        }
        // Storage of tools per thread: asked for, never called while no tool is attached.
        [0x42, 0xd8, 0x5a, 0x81, ..] => leak([size(3), other, other]),
        // Storage per context.
        [0xc6, 0x93, 0x33, 0x6e, ..] => leak([
            storage_put as *const () as usize,
            storage_delete as *const () as usize,
            storage_get as *const () as usize,
        ]),
        // What kind of context one is.
        [0x26, 0x3e, 0x88, 0x60, ..] => {
            let mut t = [other; 15];
            t[0] = size(15);
            t[2] = context_kind as *const () as usize;
            t[3] = at(fine);
            leak(t)
        }
        // Streams of tools: asked for, never called while no tool is attached.
        [0x21, 0x31, 0x8c, 0x60, ..] => {
            let mut t = [other; 93];
            t[0] = size(93);
            leak(t)
        }
        _ => return None,
    })
}

static HANDED_OUT: Mutex<Vec<([u8; 16], usize)>> = Mutex::new(Vec::new());

api! {
    export fn cuGetExportTable(out: Out<*const c_void>, id: In<CUuuid>) {
        out.required()?;
        let uuid = id.get()?.bytes.map(|b| b as u8);
        let mut known = HANDED_OUT.lock();
        let at = match known.iter().find(|(name, _)| *name == uuid) {
            Some((_, at)) => *at as *const c_void,
            None => {
                let Some(at) = table(&uuid) else {
                    let name: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
                    return Err(if uuid[..4] == [0xd4, 0x08, 0x20, 0x55] {
                        unmodelled!("the table {name}, by which the CUDA runtime has the driver prove that it is NVIDIA's,")
                    } else {
                        unmodelled!("the private table {name} (and perhaps others)")
                    });
                };
                known.push((uuid, at as usize));
                at
            }
        };
        out.set(at)
    }
}
