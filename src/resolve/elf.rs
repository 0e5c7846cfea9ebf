//! The objects that are loaded into the process, read as the loader left them in memory.
//!
//! `dlsym` cannot tell who comes behind us for `dlsym` itself, and what it answers depends on who asks. The loader's own
//! list and each object's symbol table have the answers, need no lock of ours and run nobody's code.

use std::ffi::{CStr, c_int, c_void};
use std::ops::ControlFlow;
use std::slice;

use crate::process;

/// An entry of an object's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// An object in memory. It is only looked at while the loader holds it still, inside of [`each`], or when it is one that
/// stays: the driver, libc, ourselves.
#[derive(Clone, Copy)]
pub struct Object {
    base: usize,
    segments: &'static [libc::Elf64_Phdr],
    strings: *const u8,
    symbols: *const libc::Elf64_Sym,
    gnu_hash: *const u32,
    old_hash: *const u32,
    soname: Option<usize>,
    dynamic: *const Dynamic,
}

impl Object {
    /// # Safety
    /// `info` describes an object that is loaded, with the segments that it has in memory.
    unsafe fn read(info: &libc::dl_phdr_info) -> Option<Object> {
        let base = info.dlpi_addr as usize;
        // SAFETY: the loader gives the object's program headers and their number.
        let segments = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let dynamic = segments.iter().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
        let dynamic = (base + dynamic.p_vaddr as usize) as *const Dynamic;
        let mut object = Object {
            base,
            segments,
            strings: std::ptr::null(),
            symbols: std::ptr::null(),
            gnu_hash: std::ptr::null(),
            old_hash: std::ptr::null(),
            soname: None,
            dynamic,
        };
        // The loader has made absolute addresses of these in most objects, but not in the kernel's own.
        let absolute = |value: usize| if value < base { base + value } else { value };
        for &Dynamic { tag, value } in object.entries() {
            match tag {
                DT_STRTAB => object.strings = absolute(value) as *const u8,
                DT_SYMTAB => object.symbols = absolute(value) as *const libc::Elf64_Sym,
                DT_GNU_HASH => object.gnu_hash = absolute(value) as *const u32,
                DT_HASH => object.old_hash = absolute(value) as *const u32,
                DT_SONAME => object.soname = Some(value),
                _ => {}
            }
        }
        (!object.strings.is_null() && !object.symbols.is_null()).then_some(object)
    }

    fn entries(&self) -> &'static [Dynamic] {
        // SAFETY: the dynamic section is an array that ends in an entry with tag DT_NULL.
        unsafe {
            let length = (0..).find(|&at| (*self.dynamic.add(at)).tag == DT_NULL).unwrap_or(0);
            slice::from_raw_parts(self.dynamic, length)
        }
    }

    fn string(&self, at: usize) -> &CStr {
        // SAFETY: an offset into the object's string table, whose strings end in NUL.
        unsafe { CStr::from_ptr(self.strings.add(at).cast()) }
    }

    /// The name that other objects need it by.
    pub fn soname(&self) -> Option<&CStr> {
        self.soname.map(|at| self.string(at))
    }

    /// The names of the objects that it needs.
    fn needed(&self) -> impl Iterator<Item = &CStr> {
        self.entries().iter().filter(|entry| entry.tag == DT_NEEDED).map(|entry| self.string(entry.value))
    }

    /// Whether an address lies in its code or data.
    pub fn contains(&self, address: usize) -> bool {
        self.segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD).any(|segment| {
            let start = self.base + segment.p_vaddr as usize;
            (start..start + segment.p_memsz as usize).contains(&address)
        })
    }

    /// The function that it exports under a name.
    pub fn function(&self, name: &CStr) -> Option<*const ()> {
        // SAFETY: the tables belong to this object, and are laid out as the ELF specification and GNU's hash table say.
        let symbol = unsafe {
            if !self.gnu_hash.is_null() {
                self.by_gnu_hash(name)
            } else if !self.old_hash.is_null() {
                self.by_old_hash(name)
            } else {
                None
            }
        }?;
        Some((self.base + symbol.st_value as usize) as *const ())
    }

    /// # Safety
    /// `index` is below the number of symbols.
    unsafe fn exported(&self, index: u32, name: &CStr) -> Option<&libc::Elf64_Sym> {
        const FUNCTION: u8 = 2;
        // SAFETY: the caller's word for the index.
        let symbol = unsafe { &*self.symbols.add(index as usize) };
        let defined = symbol.st_shndx != 0 && symbol.st_value != 0 && symbol.st_info & 0xf == FUNCTION;
        (defined && self.string(symbol.st_name as usize) == name).then_some(symbol)
    }

    /// # Safety
    /// `gnu_hash` is the object's GNU hash table: a header of four words, the bloom filter, the buckets, the chains.
    unsafe fn by_gnu_hash(&self, name: &CStr) -> Option<&libc::Elf64_Sym> {
        let hash = name.to_bytes().iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        // SAFETY: by the layout above; a chain ends at a hash whose lowest bit is set.
        unsafe {
            let [buckets, first, bloom, _shift] = self.gnu_hash.cast::<[u32; 4]>().read();
            if buckets == 0 {
                return None;
            }
            let bucket = self.gnu_hash.add(4 + 2 * bloom as usize);
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((hash % buckets) as usize).read();
            if index < first {
                return None;
            }
            loop {
                let here = chain.add((index - first) as usize).read();
                if here | 1 == hash | 1
                    && let Some(symbol) = self.exported(index, name)
                {
                    return Some(symbol);
                }
                if here & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// `old_hash` is the object's System V hash table: numbers of buckets and chains, the buckets, the chains.
    unsafe fn by_old_hash(&self, name: &CStr) -> Option<&libc::Elf64_Sym> {
        let hash = name.to_bytes().iter().fold(0u32, |hash, &byte| {
            let hash = (hash << 4).wrapping_add(byte.into());
            let high = hash & 0xf000_0000;
            (hash ^ (high >> 24)) & !high
        });
        // SAFETY: by the layout above; a chain ends at index 0.
        unsafe {
            let [buckets, _chains] = self.old_hash.cast::<[u32; 2]>().read();
            if buckets == 0 {
                return None;
            }
            let bucket = self.old_hash.add(2);
            let chain = bucket.add(buckets as usize);
            let mut index = bucket.add((hash % buckets) as usize).read();
            while index != 0 {
                if let Some(symbol) = self.exported(index, name) {
                    return Some(symbol);
                }
                index = chain.add(index as usize).read();
            }
            None
        }
    }
}

/// Shows every loaded object, in the order of loading, until told to stop. The loader holds its list still meanwhile.
pub fn each(look: impl FnMut(Object) -> ControlFlow<()>) {
    let _walking = process::walking();
    walk(look);
}

fn walk(mut look: impl FnMut(Object) -> ControlFlow<()>) {
    unsafe extern "C" fn one<F: FnMut(Object) -> ControlFlow<()>>(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        look: *mut c_void,
    ) -> c_int {
        // SAFETY: `look` is the closure that `walk` passes, and the loader holds the object still meanwhile.
        unsafe {
            let look = &mut *look.cast::<F>();
            Object::read(&*info).map_or(0, |object| look(object).is_break().into())
        }
    }
    fn callback<F: FnMut(Object) -> ControlFlow<()>>(
        _: &F,
    ) -> unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int {
        one::<F>
    }
    let callback = callback(&look);
    // SAFETY: the callback is the one for this closure, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(callback), (&raw mut look).cast()) };
}

/// The object that is loaded under a soname.
pub fn loaded_as(soname: &CStr) -> Option<Object> {
    let mut found = None;
    each(|object| {
        if object.soname() == Some(soname) {
            found = Some(object);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    found
}

/// Whether it is the library that this function is in.
fn is_ours(object: &Object) -> bool {
    object.contains(is_ours as *const () as usize)
}

/// Whether we are the first object that is loaded under a soname: another may be a copy of ourselves from another file.
pub fn is_first_of_its_name(soname: &CStr) -> bool {
    loaded_as(soname).is_none_or(|first| is_ours(&first))
}

/// The first object behind us that exports a function, and that function.
pub fn function_behind_us(name: &CStr) -> Option<*const ()> {
    let mut past_us = false;
    let mut found = None;
    each(|object| {
        if past_us {
            found = object.function(name);
        }
        past_us |= is_ours(&object);
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

/// Whether any object behind us exports a function of this name other than the one given.
pub fn others_behind_us(name: &CStr, besides: *const ()) -> bool {
    let mut past_us = false;
    let mut others = false;
    each(|object| {
        others = past_us && object.function(name).is_some_and(|function| function != besides);
        past_us |= is_ours(&object);
        if others { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    others
}

/// Whether the object that has the code at `caller` was loaded together with the one under a soname, by a `dlopen` that kept
/// both out of the global scope. Then they find each other's symbols, and nobody else does.
pub fn loaded_together(caller: usize, soname: &CStr) -> bool {
    let mut together = false;
    // The list must not change while it is walked back and forth, and the loader holds it still while it shows one object.
    each(|_| {
        let mut objects = Vec::new();
        walk(|object| {
            objects.push(object);
            ControlFlow::Continue(())
        });
        together = share_a_root(&objects, caller, soname);
        ControlFlow::Break(())
    });
    together
}

fn share_a_root(objects: &[Object], caller: usize, soname: &CStr) -> bool {
    let mut names: Vec<_> =
        objects.iter().enumerate().filter_map(|(at, object)| Some((object.soname()?, at))).collect();
    names.sort_unstable();
    let find = |name: &CStr| names.binary_search_by_key(&name, |entry| entry.0).ok().map(|found| names[found].1);
    let needs: Vec<Vec<usize>> = objects.iter().map(|object| object.needed().filter_map(find).collect()).collect();
    let caller = objects.iter().position(|object| object.contains(caller));
    let (Some(caller), Some(wanted)) = (caller, find(soname)) else { return false };
    // Every object that needs the one at `leaf`, or needs one that does, and so on; and that one itself.
    let roots = |leaf: usize| {
        let mut needing = vec![false; objects.len()];
        needing[leaf] = true;
        while let Some(more) =
            (0..objects.len()).find(|&at| !needing[at] && needs[at].iter().any(|&other| needing[other]))
        {
            needing[more] = true;
        }
        needing
    };
    let of_caller = roots(caller);
    // What the program itself is made of, first in the list, lives in the global scope alone.
    !of_caller[0] && of_caller.iter().zip(roots(wanted)).any(|(&caller, wanted)| caller && wanted)
}

/// Where a caller stands in the order of loading, for a look-up of a symbol in what comes behind it.
pub enum Standing {
    /// In front of us: a look-up comes to us, or to somebody in front of us.
    InFront,
    /// Behind us, and an object behind the caller, other than the one named, exports the symbol too.
    BehindWithOthers,
    /// Behind us, with nobody else.
    Behind,
}

/// Where the object stands that has the code at `caller`.
pub fn standing(caller: usize, name: &CStr, besides: *const ()) -> Standing {
    let mut past_us = false;
    let mut past_caller = false;
    let mut standing = Standing::Behind;
    each(|object| {
        if past_caller && object.function(name).is_some_and(|function| function != besides) && !is_ours(&object) {
            standing = Standing::BehindWithOthers;
            return ControlFlow::Break(());
        }
        if object.contains(caller) {
            if !past_us {
                standing = Standing::InFront;
                return ControlFlow::Break(());
            }
            past_caller = true;
        }
        past_us |= is_ours(&object);
        ControlFlow::Continue(())
    });
    standing
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::{Object, each, loaded_as};

    #[test]
    fn libc_is_loaded_and_exports_what_dlsym_finds() {
        let libc = loaded_as(c"libc.so.6").expect("a test is linked to libc");
        for name in [c"getpid", c"dl_iterate_phdr", c"_exit"] {
            // SAFETY: a look-up of a function by name.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(libc.function(name), Some(expected.cast_const().cast()), "{name:?}");
        }
        assert_eq!(libc.function(c"cuInit"), None);
        assert_eq!(libc.function(c""), None);
    }

    #[test]
    fn the_old_hash_table_gives_the_same_answers() {
        // Many objects carry only one of the two tables; where one carries both they must agree.
        each(|object| {
            if !object.gnu_hash.is_null() && !object.old_hash.is_null() {
                let old = Object { gnu_hash: std::ptr::null(), ..object };
                for name in [c"getpid", c"dlsym", c"malloc", c"__vdso_clock_gettime", c"nothing_like_it"] {
                    assert_eq!(old.function(name), object.function(name), "{name:?} in {:?}", object.soname());
                }
            }
            ControlFlow::Continue(())
        });
    }

    #[test]
    fn an_address_is_in_one_object() {
        let mut owners = 0;
        each(|object| {
            owners += u32::from(object.contains(loaded_as as *const () as usize));
            ControlFlow::Continue(())
        });
        assert_eq!(owners, 1);
    }
}
