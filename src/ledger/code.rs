//! Code: what an image takes of a GPU is known from the image, and it is taken when it is loaded into a context.
//!
//! A module is loaded by the call that makes it. A library is loaded into each context by the first use of anything in it,
//! which may be a launch; so it is remembered what each takes, and where it lies already.

use std::collections::{BTreeMap, BTreeSet};

use super::Slice;
use super::slice::{BLOCK, in_blocks};
use crate::abi::cuda::{CUcontext, CUfunction, CUlibrary, CUmodule};
use crate::image::Needs;
use crate::thread::Guarded;

/// With lazy loading a kernel's instructions are loaded when it is first launched, and not all of an image's at once; this
/// is more than any one kernel was seen to take.
const CODE_AT_ONCE: u64 = 8 << 20;
/// What is taken when code that uses the heap is first loaded into a context; 140 MiB on an H200.
const HEAP_CODE: u64 = 144 << 20;

/// What loading an image into a context takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Foreseen {
    /// At most so much of what NVML counts as the process's.
    pub own: u64,
    /// Managed variables, which it does not.
    pub beside: u64,
    /// It uses the heap, so its kernels may make the driver make one.
    pub heap: bool,
}

impl Foreseen {
    /// Of an image, in a context of the slice's GPU; `all_at_once`: with the code of all of its kernels.
    pub fn of(needs: &Needs, slice: &Slice, context: CUcontext, all_at_once: bool) -> Foreseen {
        let heap = if needs.heap && !slice.has_heap_code(context) { HEAP_CODE } else { 0 };
        let code = if all_at_once { needs.code } else { needs.code.min(CODE_AT_ONCE) };
        let own = in_blocks(needs.data).saturating_add(in_blocks(code.max(1))).saturating_add(heap);
        Foreseen { own, beside: in_blocks(needs.managed), heap: needs.heap }
    }

    /// Both.
    pub fn and(self, other: Foreseen) -> Foreseen {
        Foreseen {
            own: self.own.saturating_add(other.own),
            beside: self.beside.saturating_add(other.beside),
            heap: self.heap || other.heap,
        }
    }
}

struct Library {
    needs: Needs,
    /// Where it is loaded, and what was charged there for managed variables.
    contexts: BTreeMap<usize, (&'static Slice, u64)>,
}

struct Known {
    libraries: BTreeMap<usize, Library>,
    /// Kernels of libraries.
    kernels: BTreeMap<usize, usize>,
    /// Modules with managed variables: their context, and what was charged for them.
    modules: BTreeMap<usize, (usize, &'static Slice, u64)>,
}

const NOTHING: Known = Known { libraries: BTreeMap::new(), kernels: BTreeMap::new(), modules: BTreeMap::new() };
static KNOWN: Guarded<Known> = Guarded::new(NOTHING);

/// In a forked child: none.
pub fn forget_the_parent() {
    KNOWN.renew(NOTHING);
}

/// A module was loaded, and so much was charged for its managed variables.
pub fn keep_module(module: CUmodule, context: CUcontext, slice: &'static Slice, beside: u64) {
    if beside > 0 {
        KNOWN.with(|known| known.modules.insert(module as usize, (context as usize, slice, beside)));
    }
}

/// A module was unloaded.
pub fn forget_module(module: CUmodule) {
    if let Some((_, slice, beside)) = KNOWN.with(|known| known.modules.remove(&(module as usize))) {
        slice.refund_beside(beside);
    }
}

/// A library was made of an image that takes so much.
pub fn keep_library(library: CUlibrary, needs: Needs) {
    KNOWN.with(|known| known.libraries.insert(library as usize, Library { needs, contexts: BTreeMap::new() }));
}

/// A library was unloaded, from every context.
pub fn forget_library(library: CUlibrary) {
    let gone = KNOWN.with(|known| {
        known.kernels.retain(|_, of| *of != library as usize);
        known.libraries.remove(&(library as usize))
    });
    for (slice, beside) in gone.into_iter().flat_map(|library| library.contexts.into_values()) {
        slice.refund_beside(beside);
    }
}

/// A library gave this kernel.
pub fn keep_kernel(kernel: CUfunction, library: CUlibrary) {
    KNOWN.with(|known| known.kernels.insert(kernel as usize, library as usize));
}

/// The library that a kernel is of; `None` for the function of a module.
pub fn library_of(kernel: CUfunction) -> Option<CUlibrary> {
    KNOWN.with(|known| known.kernels.get(&(kernel as usize)).map(|library| *library as CUlibrary))
}

/// What the first use of a library in a context takes. `None`: it lies there already, or nothing is known of it.
pub fn first_use(library: CUlibrary, slice: &Slice, context: CUcontext) -> Option<Foreseen> {
    let needs = KNOWN.with(|known| {
        let library = known.libraries.get(&(library as usize))?;
        (!library.contexts.contains_key(&(context as usize))).then_some(library.needs)
    })?;
    // With eager loading, it would lie there already.
    Some(Foreseen::of(&needs, slice, context, false))
}

/// It is loaded there now. `false`: another thread was first, and what was charged for managed variables is that one's.
pub fn used(library: CUlibrary, slice: &'static Slice, context: CUcontext, beside: u64) -> bool {
    KNOWN.with(|known| {
        let Some(library) = known.libraries.get_mut(&(library as usize)) else { return false };
        match library.contexts.entry(context as usize) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert((slice, beside));
                true
            }
            std::collections::btree_map::Entry::Occupied(_) => false,
        }
    })
}

/// What a new context takes for libraries where they are loaded into every context at once.
pub fn eager(slice: &Slice) -> u64 {
    let all: Vec<Needs> = KNOWN.with(|known| known.libraries.values().map(|library| library.needs).collect());
    all.iter().map(|needs| in_blocks(needs.data) + in_blocks(needs.code)).fold(0, u64::saturating_add).min(slice.total)
}

/// The context is gone, and all that was loaded into it.
pub fn forget_context(context: CUcontext) {
    let refunds: Vec<(&'static Slice, u64)> = KNOWN.with(|known| {
        let libraries = known.libraries.values_mut().filter_map(|library| library.contexts.remove(&(context as usize)));
        let mut refunds: Vec<_> = libraries.collect();
        let modules: BTreeSet<usize> =
            known.modules.iter().filter(|(_, of)| of.0 == context as usize).map(|(module, _)| *module).collect();
        refunds
            .extend(modules.iter().filter_map(|module| known.modules.remove(module)).map(|(_, slice, b)| (slice, b)));
        refunds
    });
    refunds.into_iter().for_each(|(slice, beside)| slice.refund_beside(beside));
}

/// The heap that a context has unless it asks for another: 8 MiB, and a block for its books.
pub const USUAL_HEAP: u64 = (8 << 20) + BLOCK;
