//! How a driver talks to NVIDIA's kernel module: the part of it that the simulated one answers.
//!
//! Requests are made by `ioctl` on a descriptor of `/dev/nvidiactl`. Three of them matter: to allocate an object of some
//! class under a parent, to control one, to free one. The result of the call says only that the request was read; how it went
//! is in the structure. Numbers and layouts are those of drivers 515 to 595, in our own words.

/// The type of all requests.
pub const TYPE: u64 = b'F' as u64;
/// Frees an object and all under it: [`Free`].
pub const FREE: u64 = 0x29;
/// Controls an object: [`Control`].
pub const CONTROL: u64 = 0x2a;
/// Allocates an object: [`Alloc`], or [`ShortAlloc`].
pub const ALLOC: u64 = 0x2b;

/// The request code for a structure of this size, which the kernel reads and writes.
pub const fn request(number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | TYPE << 8 | number
}

/// To allocate an object.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Alloc {
    /// The client that it is of; 0 for a client.
    pub client: u32,
    /// The object that it is under.
    pub parent: u32,
    /// Its handle, chosen by the caller; for a client 0, and the module writes it here.
    pub object: u32,
    /// What it is.
    pub class: u32,
    /// Address of the class's own parameters.
    pub params: u64,
    /// Address of the rights asked for; not looked at.
    pub rights: u64,
    /// Size of the parameters.
    pub params_size: u32,
    /// Not looked at.
    pub flags: u32,
    /// How it went.
    pub status: u32,
    /// Nothing.
    pub pad: u32,
}

/// The same in an older form.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ShortAlloc {
    /// As in [`Alloc`], as the next four.
    pub client: u32,
    /// See [`Alloc`].
    pub parent: u32,
    /// See [`Alloc`].
    pub object: u32,
    /// See [`Alloc`].
    pub class: u32,
    /// See [`Alloc`].
    pub params: u64,
    /// Size of the parameters.
    pub params_size: u32,
    /// How it went.
    pub status: u32,
}

/// To control an object.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Control {
    /// The client that it is of.
    pub client: u32,
    /// Its handle.
    pub object: u32,
    /// What is asked.
    pub command: u32,
    /// Not looked at.
    pub flags: u32,
    /// Address of the command's parameters.
    pub params: u64,
    /// Their size.
    pub params_size: u32,
    /// How it went.
    pub status: u32,
}

/// To free an object.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Free {
    /// The client that it is of.
    pub client: u32,
    /// The object that it is under.
    pub parent: u32,
    /// Its handle.
    pub object: u32,
    /// How it went.
    pub status: u32,
}

/// A client: the root of all that a process has.
pub const CLIENT: u32 = 0x41;
/// A GPU; its parameters begin with the GPU's number, 32 bits.
pub const DEVICE: u32 = 0x80;
/// The one part of a GPU, on which channels are taken off and put on.
pub const SUBDEVICE: u32 = 0x2080;
/// A channel group: [`GroupParams`].
pub const GROUP: u32 = 0xa06c;
/// A channel of Hopper's.
pub const CHANNEL: u32 = 0xc86f;

/// Whether objects of a class are channels, of whatever generation.
pub const fn is_channel(class: u32) -> bool {
    class & 0xff == 0x6f
}

/// What a channel group is made of.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupParams {
    /// Not looked at.
    pub error: u32,
    /// Not looked at.
    pub ecc_error: u32,
    /// The address space, of which a context has one: here the context's channel in the world, and 1.
    pub address_space: u32,
    /// What it runs on: [`COMPUTE`], or a copy engine.
    pub engine: u32,
    /// Not looked at.
    pub plugin: u32,
}

/// The compute engine.
pub const COMPUTE: u32 = 1;
/// The copy engines that a context has groups for.
pub const COPY_ENGINES: [u32; 3] = [9, 10, 11];

/// On a group: lets it run, by one byte. A 0 answers success and changes nothing.
pub const SCHEDULE: u32 = 0xa06c_0101;
/// On a group: sets its time slice, 64 bits of microseconds.
pub const SET_SLICE: u32 = 0xa06c_0103;
/// On a subdevice: takes channels off, or puts them on: [`Disable`].
pub const DISABLE: u32 = 0x2080_110b;

/// Which channels to take off or to put on.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Disable {
    /// 1: off; 0: on.
    pub disable: u8,
    /// Nothing.
    pub pad: [u8; 3],
    /// How many of the lists count.
    pub count: u32,
    /// Not looked at.
    pub only_scheduling: u8,
    /// Not looked at.
    pub rewind: u8,
    /// Nothing.
    pub pad2: [u8; 6],
    /// Not looked at.
    pub event: u64,
    /// The clients that they are of.
    pub clients: [u32; 64],
    /// Their handles.
    pub channels: [u32; 64],
}

/// It was done.
pub const OK: u32 = 0;
/// The caller may not.
pub const NOT_PERMITTED: u32 = 0x1b;
/// The request makes no sense; also a client on another descriptor than its own.
pub const INVALID: u32 = 0x1f;
/// There is no such thing here.
pub const NOT_SUPPORTED: u32 = 0x56;
/// There is no such object.
pub const NOT_FOUND: u32 = 0x57;

/// What a descriptor of the simulated `/dev/nvidiactl` is called: a file in memory.
pub const NODE: &std::ffi::CStr = c"nvidiactl";

const _: () = assert!(std::mem::size_of::<Alloc>() == 48 && std::mem::size_of::<ShortAlloc>() == 32);
const _: () = assert!(std::mem::size_of::<Control>() == 32 && std::mem::size_of::<Free>() == 16);
const _: () = assert!(std::mem::size_of::<Disable>() == 536 && std::mem::size_of::<GroupParams>() == 20);
