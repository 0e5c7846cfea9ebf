//! The simulated kernel module: what it does about a request, and how long that takes.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sim_world::layout::{CHANS, PROC_LIVE};
use sim_world::settings::KernelMode;
use sim_world::{Role, World, WorldSettings, rm};

use crate::objects::{FileId, Kind, Objects, Place};

static OBJECTS: Mutex<Objects> = Mutex::new(Objects::new());
static WORLD: Mutex<Option<(u32, &'static World)>> = Mutex::new(None);

type Outcome<T = ()> = Result<T, u32>;

/// The world, joined as one who only looks: the client is libcuda. A forked child joins it anew, for the world's lock is
/// taken in the name of a process.
fn world() -> Outcome<&'static World> {
    let mut joined = WORLD.lock();
    let pid = std::process::id();
    if let Some((_, world)) = joined.filter(|(owner, _)| *owner == pid) {
        return Ok(world);
    }
    let settings = WorldSettings::from_env(|name| std::env::var(name).ok()).map_err(|_| rm::INVALID)?;
    let world = World::join(&World::default_dir(), &settings, Role::Observer).map_err(|error| {
        eprintln!("ration-sim: the kernel module: {error}");
        rm::INVALID
    })?;
    let world: &'static World = Box::leak(Box::new(world));
    *joined = Some((pid, world));
    Ok(world)
}

fn mode() -> Outcome<KernelMode> {
    // libcuda has said what is wrong with it.
    KernelMode::from_env(|name| std::env::var(name).ok()).map_err(|_| rm::INVALID)
}

/// The module's lock, of the whole machine. A file of its own for each call: threads exclude each other, and the kernel lets
/// go of it when a process dies.
struct Busy {
    _file: File,
}

impl Busy {
    fn wait(world: &World) -> Outcome<Busy> {
        let path = world.dir().join("kernel");
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = open().or_else(|_| File::open(&path)).map_err(|_| rm::INVALID)?;
        loop {
            // SAFETY: the descriptor is open for the whole call.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
                return Ok(Busy { _file: file });
            }
            if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return Err(rm::INVALID);
            }
        }
    }
}

/// The caller waits, as the real module's does for the GPU's firmware.
fn spend(world: &World, simulated: u64) {
    let end = Instant::now() + world.real(simulated);
    // A sleep ends late; the last of it is waited for awake, and without giving the processor away.
    let early = Duration::from_micros(100);
    let left = || end.saturating_duration_since(Instant::now());
    while left() > 2 * early {
        std::thread::sleep(left().saturating_sub(early));
    }
    while !left().is_zero() {
        std::hint::spin_loop();
    }
}

/// Allocates an object; returns its handle.
pub(crate) fn allocate(file: FileId, asked: &rm::Alloc, params: &[u8]) -> Outcome<u32> {
    let world = world()?;
    let _busy = Busy::wait(world)?;
    let word = |at: usize| params.get(4 * at..4 * at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let mut objects = OBJECTS.lock();
    if asked.class == rm::CLIENT {
        let number = (world.slot() as u32) << 4 | (objects.clients() as u32 & 15);
        return Ok(objects.add_client(file, number));
    }
    let kind = match asked.class {
        rm::DEVICE => {
            let gpu = word(0) as usize;
            if gpu >= world.settings().gpus as usize {
                return Err(rm::INVALID);
            }
            Kind::Device(gpu)
        }
        rm::SUBDEVICE => match objects.kind(file, asked.client, asked.parent)? {
            Kind::Device(gpu) => Kind::Subdevice(gpu),
            _ => return Err(rm::INVALID),
        },
        // The third word is the address space, the fourth the engine: see `rm::GroupParams`.
        rm::GROUP if word(3) == rm::COMPUTE => Kind::Group(Some(place(world, word(2))?)),
        rm::GROUP => Kind::Group(None),
        class if rm::is_channel(class) => Kind::Channel { off: false },
        _ => Kind::Other,
    };
    let is_foreign = matches!(kind, Kind::Channel { .. }) && mode()? == KernelMode::Mps;
    objects.add(file, asked.client, (asked.parent, asked.object), kind, is_foreign)?;
    Ok(asked.object)
}

fn place(world: &World, address_space: u32) -> Outcome<Place> {
    let chan = (address_space as usize).checked_sub(1).filter(|chan| *chan < CHANS).ok_or(rm::INVALID)?;
    let channel = world.chan(chan);
    let slot = channel.proc.get();
    let generation = world.file().procs[slot as usize].generation.get();
    if channel.state.get() == 0 { Err(rm::INVALID) } else { Ok(Place { chan, slot, generation }) }
}

/// Whether that context is still there.
fn is_there(world: &World, place: &Place) -> bool {
    let (channel, proc) = (world.chan(place.chan), &world.file().procs[place.slot as usize]);
    let same = channel.proc.get() == place.slot && proc.generation.get() == place.generation;
    channel.state.get() != 0 && proc.state.get() == PROC_LIVE && same
}

/// Frees an object.
pub(crate) fn free(file: FileId, asked: &rm::Free) -> Outcome {
    let _busy = Busy::wait(world()?)?;
    OBJECTS.lock().free(file, asked.client, asked.object)
}

/// Controls an object.
pub(crate) fn control(file: FileId, asked: &rm::Control, params: &[u8]) -> Outcome {
    let world = world()?;
    let _busy = Busy::wait(world)?;
    let kind = OBJECTS.lock().kind(file, asked.client, asked.object)?;
    match (asked.command, kind) {
        (rm::SCHEDULE, Kind::Group(_)) => Ok(()),
        (rm::SET_SLICE, Kind::Group(place)) => {
            let us = params.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes)).ok_or(rm::INVALID)?;
            if us == 0 {
                return Err(rm::INVALID);
            }
            spend(world, duration(world, false)?);
            if let Some(place) = place.filter(|place| is_there(world, place)) {
                world.set_slice(place.chan, us.saturating_mul(1000));
            }
            Ok(())
        }
        (rm::DISABLE, Kind::Subdevice(gpu)) => switch(world, gpu, params),
        _ => Err(rm::NOT_SUPPORTED),
    }
}

fn duration(world: &World, off: bool) -> Outcome<u64> {
    let settings = world.settings();
    Ok(match mode()? {
        KernelMode::Slow(time) => time,
        _ if off => settings.off_call,
        _ => settings.on_call,
    })
}

fn switch(world: &World, gpu: usize, params: &[u8]) -> Outcome {
    if params.len() != size_of::<rm::Disable>() {
        return Err(rm::INVALID);
    }
    // SAFETY: the structure is made of integers, the bytes are as many as it has, and they are read unaligned.
    let list = unsafe { params.as_ptr().cast::<rm::Disable>().read_unaligned() };
    let count = list.count as usize;
    let (Some(clients), Some(channels)) = (list.clients.get(..count), list.channels.get(..count)) else {
        return Err(rm::INVALID);
    };
    let off = list.disable != 0;
    if mode()? == KernelMode::Refuse {
        return Err(rm::NOT_PERMITTED);
    }
    let named = clients.iter().copied().zip(channels.iter().copied());
    let effect = OBJECTS.lock().switch(named, off)?;
    // Channels are off well before the call ends, and on when it does. On an H200, one that is on from the end of one call to the
    // beginning of the other runs for 0.2 ms more.
    let whole = duration(world, off)?;
    let before = if off { whole * 4 / 11 } else { whole };
    spend(world, before);
    let there = effect.places.iter().filter(|(place, _)| is_there(world, place));
    for is_off in [true, false] {
        let chans = there.clone().filter(|(_, off)| *off == is_off).map(|(place, _)| place.chan);
        world.set_off(chans, is_off);
    }
    if effect.is_foreign {
        // The group is the server's, and everybody's work is in it.
        let all = (0..CHANS).filter(|chan| {
            let channel = world.chan(*chan);
            channel.state.get() != 0 && channel.gpu.get() == gpu as u64
        });
        world.set_off(all, off);
    }
    spend(world, whole - before);
    Ok(())
}
