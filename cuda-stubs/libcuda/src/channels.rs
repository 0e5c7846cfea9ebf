//! The process's dealings with the kernel module: a client, its GPUs, and for each context the channels that it has.
//!
//! They are what a library that looks on sees of a context: work goes to the world by other ways. Where the module does not
//! answer (it is `cuda-stubs/kernel`, preloaded), the process does without.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use sim_world::settings::KernelMode;
use sim_world::{World, rm};

/// Channels that a context's compute group has, and each of its copy groups.
const COMPUTE_CHANNELS: usize = 8;
const COPY_CHANNELS: usize = 4;
/// Handles that a driver chooses begin here.
const FIRST_HANDLE: u32 = 0x5c00_0001;
/// A group that an MPS server made, which its clients never see made.
const SERVERS_GROUP: u32 = 0x5c00_f000;

struct Client {
    node: OwnedFd,
    handle: u32,
    next: AtomicU32,
    /// By GPU.
    devices: Vec<u32>,
    mode: KernelMode,
}

static CLIENT: OnceLock<Option<Client>> = OnceLock::new();

/// Opens the node and allocates what a process has before its first context.
pub(crate) fn open(world: &World, mode: KernelMode) {
    CLIENT.get_or_init(|| Client::open(world.settings().gpus as usize, mode));
}

impl Client {
    fn open(gpus: usize, mode: KernelMode) -> Option<Client> {
        // SAFETY: the name is a C string; the descriptor that comes back is nobody else's.
        let node = unsafe {
            let fd = libc::memfd_create(rm::NODE.as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return None;
            }
            OwnedFd::from_raw_fd(fd)
        };
        let next = AtomicU32::new(FIRST_HANDLE);
        let mut client = Client { node, handle: 0, next, devices: Vec::new(), mode };
        let mut root = rm::Alloc { class: rm::CLIENT, ..rm::Alloc::default() };
        client.ask(rm::ALLOC, &mut root)?;
        if root.status != rm::OK {
            return None;
        }
        client.handle = root.object;
        for gpu in 0..gpus as u32 {
            let device = client.allocate(client.handle, rm::DEVICE, &gpu)?;
            client.allocate(device, rm::SUBDEVICE, &0u32)?;
            client.devices.push(device);
        }
        Some(client)
    }

    /// Through the symbol that everybody calls, so that a library that has it too sees it go by.
    fn ask<T>(&self, number: u64, asked: &mut T) -> Option<()> {
        let request = rm::request(number, size_of::<T>());
        // SAFETY: the structure is the one that the request code says, and lives for the call.
        let result = unsafe { libc::ioctl(self.node.as_raw_fd(), request as _, std::ptr::from_mut(asked)) };
        (result == 0).then_some(())
    }

    fn allocate<T>(&self, parent: u32, class: u32, params: &T) -> Option<u32> {
        let object = self.next.fetch_add(1, Ordering::Relaxed);
        let mut asked = rm::Alloc {
            client: self.handle,
            parent,
            object,
            class,
            params: std::ptr::from_ref(params) as u64,
            params_size: size_of::<T>() as u32,
            ..rm::Alloc::default()
        };
        self.ask(rm::ALLOC, &mut asked)?;
        (asked.status == rm::OK).then_some(object)
    }

    fn control<T>(&self, object: u32, command: u32, params: &T) {
        let mut asked = rm::Control {
            client: self.handle,
            object,
            command,
            params: std::ptr::from_ref(params) as u64,
            params_size: size_of::<T>() as u32,
            ..rm::Control::default()
        };
        // It only says how a group runs; one that it was not said of runs as well.
        let _ = self.ask(rm::CONTROL, &mut asked);
    }
}

/// A context's channels; freed with it.
pub(crate) struct Channels {
    client: &'static Client,
    /// Groups, and channels that are in none of ours, with what each is under.
    roots: Vec<(u32, u32)>,
}

impl Channels {
    /// For the context that has channel `chan` of the world. `None` without a module.
    pub(crate) fn new(world: &World, gpu: usize, chan: usize) -> Option<Channels> {
        let client = CLIENT.get()?.as_ref()?;
        let device = *client.devices.get(gpu)?;
        let mut channels = Channels { client, roots: Vec::new() };
        if client.mode == KernelMode::Mps {
            for _ in 0..COMPUTE_CHANNELS {
                let channel = client.allocate(SERVERS_GROUP, rm::CHANNEL, &0u32)?;
                channels.roots.push((SERVERS_GROUP, channel));
            }
        } else {
            let group = channels.group(device, rm::COMPUTE, chan, COMPUTE_CHANNELS)?;
            client.control(group, rm::SET_SLICE, &(world.settings().slice / 1000).max(1));
            client.control(group, rm::SCHEDULE, &1u16);
        }
        for engine in rm::COPY_ENGINES {
            channels.group(device, engine, chan, COPY_CHANNELS)?;
        }
        Some(channels)
    }

    fn group(&mut self, device: u32, engine: u32, chan: usize, count: usize) -> Option<u32> {
        let params = rm::GroupParams { engine, address_space: chan as u32 + 1, ..rm::GroupParams::default() };
        let group = self.client.allocate(device, rm::GROUP, &params)?;
        self.roots.push((device, group));
        for _ in 0..count {
            self.client.allocate(group, rm::CHANNEL, &0u32)?;
        }
        Some(group)
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        for (parent, object) in self.roots.drain(..) {
            let mut asked = rm::Free { client: self.client.handle, parent, object, status: 0 };
            // What cannot be freed goes with the process.
            let _ = self.client.ask(rm::FREE, &mut asked);
        }
    }
}
