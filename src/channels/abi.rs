//! How the driver talks to its kernel module, as far as it concerns channels. The same in every driver from 515 to 595.

use std::ffi::{c_ulong, c_void};

/// Requests are numbered in the kernel's usual way: direction and size above, then the letter F, then the number.
const fn request(size: c_ulong, number: c_ulong) -> c_ulong {
    3 << 30 | size << 16 | (b'F' as c_ulong) << 8 | number
}

/// An object is freed.
pub const FREE: c_ulong = request(16, 0x29);
/// An object is controlled.
pub const CONTROL: c_ulong = request(32, 0x2a);
/// An object is made. Both forms begin alike.
pub const ALLOC: c_ulong = request(48, 0x2b);
pub const ALLOC_SHORT: c_ulong = request(32, 0x2b);
/// Where in each of them the module's answer stands; 0: done.
pub const ALLOC_STATUS: usize = 40;
pub const ALLOC_SHORT_STATUS: usize = 28;

/// A request as the kernel takes it, which looks at 32 bits: a C program may have made it a negative number on its way.
#[inline(always)]
pub const fn as_taken(request: c_ulong) -> c_ulong {
    request & 0xffff_ffff
}

/// Whether a request may be one of these.
#[inline(always)]
pub const fn is_drivers(request: c_ulong) -> bool {
    matches!(as_taken(request), FREE | CONTROL | ALLOC | ALLOC_SHORT)
}

/// The root of a client's objects.
pub const ROOT: u32 = 0x41;
pub const SUBDEVICE: u32 = 0x2080;
pub const GROUP: u32 = 0xa06c;

/// A channel's class ends in this, whatever the generation of the GPU.
pub const fn is_channel(class: u32) -> bool {
    class & 0xff == 0x6f && class > 0xff
}

/// The engine that kernels run on. (0: an older driver, which made groups for it alone.)
pub const COMPUTE_ENGINES: std::ops::RangeInclusive<u32> = 0..=1;
/// Which word of a group's parameters says the engine.
pub const ENGINE_WORD: usize = 3;

/// On a group: its slice in microseconds.
pub const SET_SLICE: u32 = 0xa06c_0103;
/// On a subdevice: channels off the GPU, or on.
pub const SWITCH: u32 = 0x2080_110b;

/// [`CONTROL`]'s argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Control {
    pub client: u32,
    pub object: u32,
    pub command: u32,
    pub flags: u32,
    pub params: u64,
    pub params_size: u32,
    /// What the module answers; 0: done.
    pub status: u32,
}

/// How [`ALLOC`]'s argument begins.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Alloc {
    pub client: u32,
    pub parent: u32,
    pub object: u32,
    pub class: u32,
    pub params: *const u32,
}

/// [`FREE`]'s argument.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Free {
    pub client: u32,
    pub parent: u32,
    pub object: u32,
    pub status: u32,
}

/// How many channels one [`SWITCH`] can list.
pub const LISTED: usize = 64;

/// [`SWITCH`]'s parameters.
#[repr(C)]
pub struct SwitchParams {
    pub off: u8,
    pub padding: [u8; 3],
    pub count: u32,
    pub only_scheduling: u8,
    pub rewind: u8,
    pub more_padding: [u8; 6],
    pub event: u64,
    pub clients: [u32; LISTED],
    pub channels: [u32; LISTED],
}

const _: () = assert!(size_of::<Control>() == 32 && size_of::<Free>() == 16);
const _: () = assert!(size_of::<SwitchParams>() == 24 + 8 * LISTED && size_of::<*mut c_void>() == 8);
