//! What GPU memory a code image takes, told from the image before the driver loads it.
//!
//! A program hands the driver a pointer and no length. Behind it is one of four forms, each of which says itself where it
//! ends: PTX text (`ptx`), a cubin (`cubin`), a fat binary of several of these (`fatbin`, whose members may be compressed:
//! `packed`), or the record by which the CUDA runtime refers to a fat binary, [`Wrapper`].
//!
//! Only the driver knows what it will really do. What is told here is what an H200's driver was seen to do with images of
//! every form; `tests/facts/images` has them. Bytes are the program's and may be anything: nothing here trusts a length, an
//! offset or a count, and what cannot be read makes the answer incomplete, never wrong in a way that could hurt.

mod bytes;
mod cubin;
mod fatbin;
mod packed;
mod ptx;

use std::ffi::c_void;
use std::slice;

use bytes::Bytes;

/// No image is larger. The tools that make them count in 32 bits in many places.
const LARGEST: u64 = 1 << 32;

/// What the driver takes for an image when it loads it into a context. The sums are of bytes as the driver deals them out;
/// it takes them from the GPU in whole blocks, of which the last ones of earlier images may have room left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Variables: `__device__` and `__constant__`. Taken as soon as the image is loaded into a context.
    pub data: u64,
    /// Machine code. Taken with the variables, or, where loading is lazy, kernel by kernel when they are first used. For PTX,
    /// which the driver compiles first, an estimate.
    pub code: u64,
    /// `__managed__` variables: managed memory, which is in no process's figure.
    pub managed: u64,
    /// Whether a kernel uses the heap on the device (`malloc` or `free` in device code), for which the driver sets memory
    /// aside: 138 MiB on an H200 as soon as the first such image is loaded, and the size of the heap at its first launch.
    pub heap: bool,
    /// Whether all of it could be read. If not there may be more: variables that are not counted here.
    pub complete: bool,
}

impl Needs {
    /// An image that needs nothing.
    const NOTHING: Needs = Needs { data: 0, code: 0, managed: 0, heap: false, complete: true };

    /// One of two is loaded, and it is not known which.
    fn either(self, other: Needs) -> Needs {
        Needs {
            data: self.data.max(other.data),
            code: self.code.max(other.code),
            managed: self.managed.max(other.managed),
            heap: self.heap || other.heap,
            complete: self.complete && other.complete,
        }
    }

    /// Both are loaded.
    fn and(self, other: Needs) -> Needs {
        Needs {
            data: self.data.saturating_add(other.data),
            code: self.code.saturating_add(other.code),
            managed: self.managed.saturating_add(other.managed),
            heap: self.heap || other.heap,
            complete: self.complete && other.complete,
        }
    }
}

/// The driver takes memory from the GPU in blocks of this size.
const BLOCK: u64 = 2 << 20;
/// What shares a block with others begins at a multiple of this.
const GRAIN: u64 = 256;
/// What each kernel takes beside its code.
const BESIDE_CODE: u64 = 2304;

/// What a variable takes: blocks of its own, or its part of one that as many of its size share as fit into it.
fn room_for_variable(size: u64) -> u64 {
    match size {
        0 => 0,
        1..BLOCK => BLOCK / (BLOCK / size.next_multiple_of(GRAIN)),
        _ => size.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX),
    }
}

/// What a kernel takes, or a function that is called by others.
fn room_for_function(size: u64) -> u64 {
    size.saturating_add(BESIDE_CODE)
}

/// What an image needs of which all bytes are at hand, as those of a file are. `sm` is the GPU's compute capability as ten
/// times major plus minor, 0 if the GPU is not known. `None`: not a form that is known here.
pub fn of_bytes(image: &[u8], sm: u32) -> Option<Needs> {
    let image = &image[..image.len().min(LARGEST as usize)];
    if fatbin::is_one(image) {
        fatbin::needs(Bytes(image), sm)
    } else if cubin::is_one(image) {
        cubin::needs(Bytes(image))
    } else {
        ptx::needs(ptx::up_to_nul(image))
    }
}

/// What an image needs that a program hands to the driver by a pointer to it. `None`: not a form that is known here.
///
/// # Safety
/// `image` is what the program gives to a function of the driver that loads code, and nobody changes it meanwhile. The
/// driver reads the same bytes: it has no other way to learn where the image ends.
pub unsafe fn of_pointer(image: *const c_void, sm: u32) -> Option<Needs> {
    let image = Pointer::new(image)?;
    // SAFETY: the caller's word. The first bytes are looked at one by one, so that a short text is not read past its end;
    // what follows is in the header of the form that they name.
    unsafe {
        if image.begins_with(&Wrapper::MAGIC) {
            return Wrapper::at(image).needs(sm);
        }
        of_bytes(image.extent()?, sm)
    }
}

/// Where an image begins.
#[derive(Clone, Copy)]
struct Pointer(*const u8);

impl Pointer {
    fn new(image: *const c_void) -> Option<Pointer> {
        (!image.is_null()).then_some(Pointer(image.cast()))
    }

    /// # Safety
    /// As for [`of_pointer`].
    unsafe fn begins_with(self, magic: &[u8]) -> bool {
        // SAFETY: bytes are read up to the first that differs. None of the magics has a NUL in it, so that this stays inside
        // of a text.
        magic.iter().enumerate().all(|(at, &byte)| unsafe { self.0.add(at).read() } == byte)
    }

    /// # Safety
    /// The image has this many bytes.
    unsafe fn bytes<'a>(self, length: u64) -> &'a [u8] {
        // SAFETY: the caller's word; and no more than fits into a slice.
        unsafe { slice::from_raw_parts(self.0, length.min(LARGEST) as usize) }
    }

    /// All of the image, as long as its own headers say.
    ///
    /// # Safety
    /// As for [`of_pointer`], and the image is no [`Wrapper`].
    unsafe fn extent<'a>(self) -> Option<&'a [u8]> {
        // SAFETY: each step asks for what the step before has shown to be there: the fixed header of the form; the table
        // that this header places; the contents that this table places. The driver takes the same steps. A text ends at
        // its NUL, and only what begins like one is searched for it.
        unsafe {
            if self.begins_with(&fatbin::MAGIC) {
                return Some(self.bytes(fatbin::length(self.bytes(fatbin::HEADER))?));
            }
            if self.begins_with(&cubin::MAGIC) {
                let headers = self.bytes(cubin::length_of_headers(self.bytes(cubin::HEADER))?);
                return Some(self.bytes(cubin::length(headers)?));
            }
            if ptx::may_begin_with(self.0.read()) {
                return Some(self.bytes(libc::strnlen(self.0.cast(), LARGEST as usize) as u64));
            }
            None
        }
    }
}

/// The record by which compiled programs refer to their fat binaries, laid out as the toolkit's `fatbinary_section.h` has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wrapper {
    magic: [u8; 4],
    version: u32,
    fatbin: *const c_void,
    /// In version 1 the name of a file, or nothing. In version 2 an array that ends in a null pointer: the fat binaries
    /// that the first one was linked from, for a driver that must link them itself.
    more: *const *const c_void,
}

impl Wrapper {
    const MAGIC: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
    const LINKED: u32 = 2;
    /// More parts than a program has; a bound for the walk over an array that has none.
    const MOST_PARTS: usize = 1 << 16;

    /// # Safety
    /// As for [`of_pointer`], and the image begins with [`Wrapper::MAGIC`].
    unsafe fn at(image: Pointer) -> Wrapper {
        // SAFETY: the magic says that there is a record; it may lie anywhere.
        unsafe { image.0.cast::<Wrapper>().read_unaligned() }
    }

    /// # Safety
    /// As for [`of_pointer`]: what the record points to is as its version says.
    unsafe fn needs(self, sm: u32) -> Option<Needs> {
        // SAFETY: as above. A wrapper in place of the fat binary is no form of the toolkit's, and is not followed.
        let part = |fatbin: *const c_void| unsafe {
            let fatbin = Pointer::new(fatbin)?;
            let bytes = fatbin.begins_with(&fatbin::MAGIC).then(|| fatbin.extent())??;
            Some(Bytes(bytes))
        };
        let linked = part(self.fatbin)?;
        if self.version != Wrapper::LINKED || self.more.is_null() || fatbin::has_code_for(linked, sm) {
            return fatbin::needs(linked, sm);
        }
        // The linked binary has nothing for this GPU, so the driver links the parts for it. What they need adds up.
        let mut needs = Needs::NOTHING;
        for at in 0..Wrapper::MOST_PARTS {
            // SAFETY: the array goes on until a null pointer, which has not been met yet.
            let next = unsafe { self.more.add(at).read_unaligned() };
            if next.is_null() {
                return Some(needs);
            }
            needs = needs.and(part(next).and_then(|part| fatbin::needs(part, sm))?);
        }
        Some(Needs { complete: false, ..needs })
    }
}

#[cfg(test)]
mod tests;
