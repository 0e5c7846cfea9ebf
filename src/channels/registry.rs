//! Which channels the driver has made for this process, in which groups, on which GPU.

use std::ffi::{c_int, c_ulong, c_void};

use super::{Trouble, abi};
use crate::abi::cuda::CUdevice;
use crate::ledger::marks::{self, FileId};

/// What a request of the driver's did.
pub enum Seen {
    /// A client, which answers on the descriptor that made it and on no other.
    Client(u32),
    /// What controls of a whole GPU go to.
    Subdevice {
        client: u32,
        device: u32,
        object: u32,
    },
    Group {
        client: u32,
        device: u32,
        object: u32,
        engine: u32,
    },
    Channel {
        client: u32,
        parent: u32,
        object: u32,
    },
    Freed {
        client: u32,
        object: u32,
    },
    /// The driver took channels off or put them on.
    Switched,
}

impl Seen {
    /// What a request is about to do, of what must be known before.
    ///
    /// # Safety
    /// The argument is the request's, or null.
    pub unsafe fn before(request: c_ulong, argument: *const c_void) -> Option<Seen> {
        if request != abi::FREE || argument.is_null() {
            return None;
        }
        // SAFETY: the argument of this request.
        let free = unsafe { argument.cast::<abi::Free>().read_unaligned() };
        Some(Seen::Freed { client: free.client, object: free.object })
    }

    /// What a request has done.
    ///
    /// # Safety
    /// The argument is the request's, or null.
    pub unsafe fn after(request: c_ulong, argument: *const c_void) -> Option<Seen> {
        if argument.is_null() {
            return None;
        }
        match request {
            abi::ALLOC | abi::ALLOC_SHORT => {
                let status = if request == abi::ALLOC { abi::ALLOC_STATUS } else { abi::ALLOC_SHORT_STATUS };
                // SAFETY: the argument of this request, of which both forms begin so; the module's answer is inside, too.
                let (alloc, status) = unsafe {
                    let status = argument.byte_add(status).cast::<u32>().read_unaligned();
                    (argument.cast::<abi::Alloc>().read_unaligned(), status)
                };
                if status != 0 {
                    return None;
                }
                let (client, object) = (alloc.client, alloc.object);
                match alloc.class {
                    abi::ROOT => Some(Seen::Client(object)),
                    abi::SUBDEVICE => Some(Seen::Subdevice { client, device: alloc.parent, object }),
                    abi::GROUP => {
                        // SAFETY: a group's parameters have more words than these.
                        let engine = (!alloc.params.is_null()).then(|| unsafe { *alloc.params.add(abi::ENGINE_WORD) });
                        Some(Seen::Group { client, device: alloc.parent, object, engine: engine.unwrap_or(u32::MAX) })
                    }
                    class if abi::is_channel(class) => Some(Seen::Channel { client, parent: alloc.parent, object }),
                    _ => None,
                }
            }
            abi::CONTROL => {
                // SAFETY: the argument of this request.
                let control = unsafe { argument.cast::<abi::Control>().read_unaligned() };
                (control.command == abi::SWITCH && control.status == 0).then_some(Seen::Switched)
            }
            _ => None,
        }
    }
}

struct Client {
    handle: u32,
    descriptor: c_int,
    /// Which file that is, so that another one under the same number is not taken for it.
    file: Option<FileId>,
}

struct Subdevice {
    client: u32,
    device: u32,
    object: u32,
}

pub struct Group {
    pub client: u32,
    pub object: u32,
    /// The GPU, as an object of the client's.
    device: u32,
    engine: u32,
    /// The GPU, as the process numbers it, if that was known when it was made.
    ordinal: Option<CUdevice>,
}

struct Channel {
    client: u32,
    group: u32,
    object: u32,
}

/// All of them.
pub struct Registry {
    clients: Vec<Client>,
    subdevices: Vec<Subdevice>,
    groups: Vec<Group>,
    channels: Vec<Channel>,
    /// Channels of this process lie in groups that it did not make.
    shared: bool,
    /// The driver itself uses the control.
    drivers_own: bool,
    /// Moves when compute channels come or go.
    pub generation: u64,
    /// By bit: GPUs of which compute channels were there at some time.
    there: u64,
}

fn bit(device: CUdevice) -> u64 {
    1 << (device % 64)
}

impl Registry {
    pub const fn new() -> Registry {
        Registry {
            clients: Vec::new(),
            subdevices: Vec::new(),
            groups: Vec::new(),
            channels: Vec::new(),
            shared: false,
            drivers_own: false,
            generation: 0,
            there: 0,
        }
    }

    pub fn note(&mut self, seen: &Seen, descriptor: c_int, file: Option<FileId>) {
        match *seen {
            Seen::Client(handle) => {
                self.clients.retain(|client| client.handle != handle);
                self.clients.push(Client { handle, descriptor, file });
            }
            Seen::Subdevice { client, device, object } => self.subdevices.push(Subdevice { client, device, object }),
            Seen::Group { client, device, object, engine } => {
                self.groups.push(Group { client, object, device, engine, ordinal: super::device_of_this_thread() });
                self.generation += 1;
            }
            Seen::Channel { client, parent, object } => {
                // A channel of its own hangs on the device; it has no slice to share and is none of ours.
                let is_on_device = self.subdevices.iter().any(|it| it.client == client && it.device == parent);
                if let Some(group) = self.groups.iter().find(|it| it.client == client && it.object == parent) {
                    if abi::COMPUTE_ENGINES.contains(&group.engine) {
                        self.there |= group.ordinal.map_or(0, bit);
                    }
                    self.channels.push(Channel { client, group: parent, object });
                    self.generation += 1;
                } else if !is_on_device {
                    self.shared = true;
                }
            }
            Seen::Switched => self.drivers_own = true,
            Seen::Freed { .. } => {}
        }
    }

    /// An object is about to go, and all that is under it.
    pub fn forget(&mut self, client: u32, object: u32) {
        let of = |it: u32| it == client;
        if object == client {
            self.clients.retain(|it| it.handle != client);
            self.subdevices.retain(|it| !of(it.client));
            self.groups.retain(|it| !of(it.client));
            self.channels.retain(|it| !of(it.client));
            self.generation += 1;
            return;
        }
        self.subdevices.retain(|it| !(of(it.client) && (it.object == object || it.device == object)));
        let before = self.groups.len() + self.channels.len();
        self.groups.retain(|it| !(of(it.client) && (it.object == object || it.device == object)));
        let groups = &self.groups;
        self.channels.retain(|it| {
            !(of(it.client) && it.object == object)
                && groups.iter().any(|group| group.client == it.client && group.object == it.group)
        });
        if self.groups.len() + self.channels.len() != before {
            self.generation += 1;
        }
    }

    /// Whether a file is one that clients were made on.
    pub fn is_clients(&self, file: Option<FileId>) -> bool {
        file.is_some() && self.clients.iter().any(|client| client.file == file)
    }

    /// The descriptor on which a client answers, if it is still the one.
    pub fn descriptor_of(&self, client: u32) -> Option<c_int> {
        let client = self.clients.iter().find(|it| it.handle == client)?;
        (client.file.is_some() && marks::identity(client.descriptor) == client.file).then_some(client.descriptor)
    }

    /// The groups whose kernels run on a GPU. Where it is not known on which one a group is, it is on the only one there is.
    pub fn compute_groups(&self, device: CUdevice) -> impl Iterator<Item = &Group> {
        let only = self.has_one_gpu();
        self.groups.iter().filter(move |group| {
            abi::COMPUTE_ENGINES.contains(&group.engine)
                && (only || group.ordinal == Some(device))
                && self.channels.iter().any(|it| it.client == group.client && it.group == group.object)
        })
    }

    fn has_one_gpu(&self) -> bool {
        let mut devices = self.groups.iter().map(|group| (group.client, group.device));
        let first = devices.next();
        devices.all(|other| Some(other) == first)
    }

    pub fn is_drivable(&self, device: CUdevice) -> Result<(), Trouble> {
        if self.shared {
            Err(Trouble::Shared)
        } else if self.drivers_own {
            Err(Trouble::DriversOwn)
        } else if self.compute_groups(device).next().is_none() {
            Err(Trouble::Unseen)
        } else {
            Ok(())
        }
    }

    /// As [`Registry::is_drivable`]. Of channels that were made on nobody knows which GPU, that is only known by this.
    pub fn looks_drivable(&mut self, device: CUdevice) -> Result<(), Trouble> {
        self.is_drivable(device)?;
        self.there |= bit(device);
        Ok(())
    }

    /// Whether there are compute channels of a GPU, or were. A context may have come and gone before anybody asked.
    pub fn were_there(&self, device: CUdevice) -> bool {
        self.there & bit(device) != 0
    }

    /// What to tell the module so that a GPU's compute channels go off or on: a list for each client, and more where one is full.
    pub fn switches(&self, device: CUdevice, on: bool) -> Vec<List> {
        let mut lists: Vec<List> = Vec::new();
        for group in self.compute_groups(device) {
            let under = |it: &&Subdevice| it.client == group.client && it.device == group.device;
            let Some(subdevice) = self.subdevices.iter().find(under) else { continue };
            let channels = self.channels.iter().filter(|it| it.client == group.client && it.group == group.object);
            for channel in channels {
                let is_open = |list: &&mut List| {
                    list.client == group.client && list.subdevice == subdevice.object && list.count() < abi::LISTED
                };
                match lists.iter_mut().find(is_open) {
                    Some(list) => list.add(channel.client, channel.object),
                    None => {
                        let mut list = List::new(group.client, subdevice.object, on);
                        list.add(channel.client, channel.object);
                        lists.push(list);
                    }
                }
            }
        }
        lists
    }
}

/// Channels that go off or on by one call.
pub struct List {
    pub client: u32,
    pub subdevice: u32,
    params: Box<abi::SwitchParams>,
}

impl List {
    fn new(client: u32, subdevice: u32, on: bool) -> List {
        let params = abi::SwitchParams {
            off: u8::from(!on),
            padding: [0; 3],
            count: 0,
            only_scheduling: 0,
            rewind: 0,
            more_padding: [0; 6],
            event: 0,
            clients: [0; abi::LISTED],
            channels: [0; abi::LISTED],
        };
        List { client, subdevice, params: Box::new(params) }
    }

    fn add(&mut self, client: u32, channel: u32) {
        let at = self.params.count as usize;
        self.params.clients[at] = client;
        self.params.channels[at] = channel;
        self.params.count += 1;
    }

    pub fn count(&self) -> usize {
        self.params.count as usize
    }

    pub fn params(&mut self) -> (*mut c_void, usize) {
        ((&raw mut *self.params).cast(), size_of::<abi::SwitchParams>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::Thread;

    const CLIENT: u32 = 0xc1d0_0026;

    /// A client with one GPU and one context, as driver 580 makes them.
    fn with_a_context(registry: &mut Registry, group: u32) {
        registry.note(&Seen::Group { client: CLIENT, device: 2, object: group, engine: 1 }, 8, None);
        for channel in 1..=8 {
            registry.note(&Seen::Channel { client: CLIENT, parent: group, object: group + channel }, 8, None);
        }
        registry.note(&Seen::Group { client: CLIENT, device: 2, object: group + 20, engine: 11 }, 8, None);
        registry.note(&Seen::Channel { client: CLIENT, parent: group + 20, object: group + 21 }, 8, None);
    }

    fn fresh() -> Registry {
        let mut registry = Registry::new();
        registry.note(&Seen::Client(CLIENT), 8, None);
        registry.note(&Seen::Subdevice { client: CLIENT, device: 2, object: 3 }, 8, None);
        registry
    }

    #[test]
    fn channels_that_went_before_anybody_asked_were_there() {
        let mut registry = fresh();
        {
            let _making = Thread::attach().expect("a block").makes(1);
            with_a_context(&mut registry, 0x5c00_0010);
        }
        registry.forget(CLIENT, CLIENT);
        assert_eq!(registry.looks_drivable(1), Err(Trouble::Unseen));
        assert!(registry.were_there(1) && !registry.were_there(0));
        // Nobody knows of which GPU these are, but while they are there they are of the only one.
        let mut registry = fresh();
        with_a_context(&mut registry, 0x5c00_0010);
        assert!(!registry.were_there(0));
        assert_eq!(registry.looks_drivable(0), Ok(()));
        registry.forget(CLIENT, CLIENT);
        assert!(registry.were_there(0));
    }

    #[test]
    fn compute_channels_are_listed_and_copy_channels_are_not() {
        let mut registry = fresh();
        assert_eq!(registry.is_drivable(0), Err(Trouble::Unseen));
        with_a_context(&mut registry, 100);
        assert_eq!(registry.is_drivable(0), Ok(()));
        let lists = registry.switches(0, false);
        assert_eq!((lists.len(), lists[0].count(), lists[0].client, lists[0].subdevice), (1, 8, CLIENT, 3));
        assert_eq!((lists[0].params.off, lists[0].params.channels[7]), (1, 108));
    }

    #[test]
    fn more_channels_than_a_list_holds_go_into_two() {
        let mut registry = fresh();
        (1..=9).for_each(|context| with_a_context(&mut registry, 100 * context));
        let counts: Vec<usize> = registry.switches(0, true).iter().map(List::count).collect();
        assert_eq!(counts, [64, 8]);
    }

    #[test]
    fn what_is_freed_takes_what_is_under_it() {
        let mut registry = fresh();
        with_a_context(&mut registry, 100);
        with_a_context(&mut registry, 200);
        let before = registry.generation;
        registry.forget(CLIENT, 100);
        assert_eq!(registry.switches(0, true).iter().map(List::count).sum::<usize>(), 8);
        assert_ne!(registry.generation, before);
        registry.forget(CLIENT, 201);
        assert_eq!(registry.switches(0, true).iter().map(List::count).sum::<usize>(), 7);
        registry.forget(0xc1d0_0099, 200);
        assert_eq!(registry.compute_groups(0).count(), 1, "another client's object of the same number");
        registry.forget(CLIENT, 2);
        assert_eq!(registry.is_drivable(0), Err(Trouble::Unseen), "the device took all with it");
        registry.forget(CLIENT, CLIENT);
        assert!(registry.channels.is_empty() && registry.clients.is_empty());
    }

    #[test]
    fn a_channel_in_a_group_of_another_is_left_alone() {
        let mut registry = fresh();
        registry.note(&Seen::Channel { client: CLIENT, parent: 77, object: 78 }, 8, None);
        assert_eq!(registry.is_drivable(0), Err(Trouble::Shared));
    }

    #[test]
    fn a_driver_that_switches_by_itself_is_left_to_it() {
        let mut registry = fresh();
        with_a_context(&mut registry, 100);
        registry.note(&Seen::Switched, 8, None);
        assert_eq!(registry.is_drivable(0), Err(Trouble::DriversOwn));
    }
}
