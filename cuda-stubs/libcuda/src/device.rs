//! Devices: which GPUs this process sees, and what they say of themselves.

use std::ffi::c_char;
use std::sync::Arc;

use parking_lot::Mutex;
use sim_world::{GpuSettings, World};

use crate::abi::*;
use crate::api::{In, Out, Outcome};
use crate::context::Context;
use crate::process::process;

/// A GPU as this process sees it.
pub(crate) struct Device {
    /// Its number here.
    pub ordinal: usize,
    /// Its number in the world.
    pub gpu: usize,
    pub settings: &'static GpuSettings,
    pub primary: Mutex<Primary>,
    /// Held while the primary context is made or unmade, so that nobody retains one that is on its way out.
    pub changing: Mutex<()>,
}

/// The primary context of a device. Its handle is known before it is active and stays the same when it is made anew.
#[derive(Default)]
pub(crate) struct Primary {
    pub context: Option<Arc<Context>>,
    pub retained: u32,
    pub flags: u32,
}

impl Device {
    /// The GPUs that `CUDA_VISIBLE_DEVICES` leaves, in its order.
    pub(crate) fn visible(world: &'static World) -> Vec<Device> {
        let settings = world.settings();
        let gpus = &settings.gpu[..settings.gpus as usize];
        let by_bus = std::env::var("CUDA_DEVICE_ORDER").is_ok_and(|order| order == "PCI_BUS_ID");
        let order = numbering(gpus, by_bus);
        let order = match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => visible_order(&list, gpus, &order),
            Err(_) => order,
        };
        let make = |(ordinal, gpu): (usize, usize)| Device {
            ordinal,
            gpu,
            settings: &settings.gpu[gpu],
            primary: Mutex::default(),
            changing: Mutex::default(),
        };
        order.into_iter().enumerate().map(make).collect()
    }

    /// An attribute, as the H200 answered it, but for what the settings say and for what is not modelled.
    pub(crate) fn attribute(&self, attribute: u32) -> Option<i32> {
        Some(match attribute {
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => self.settings.sms as i32,
            CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => 6 + self.gpu as i32,
            CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID => self.gpu as i32,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED => 0,
            _ => H200.iter().find(|(number, _)| *number == attribute)?.1,
        })
    }
}

/// How the driver numbers GPUs: by their place on the bus, as NVML always does, or with the fastest first, which for want of a
/// model of speed is the one with the most multiprocessors.
fn numbering(gpus: &[GpuSettings], by_bus: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..gpus.len()).collect();
    if !by_bus {
        order.sort_by_key(|gpu| std::cmp::Reverse(gpus[*gpu].sms));
    }
    order
}

/// What `CUDA_VISIBLE_DEVICES` leaves of `gpus`: numbers or UUIDs (or unambiguous beginnings of one), up to the first that is
/// none, as the driver has it.
fn visible_order(list: &str, gpus: &[GpuSettings], numbering: &[usize]) -> Vec<usize> {
    let mut order = Vec::new();
    for item in list.split(',').map(str::trim) {
        let found = match item.parse::<usize>() {
            Ok(number) => numbering.get(number).copied(),
            Err(_) if item.starts_with("GPU-") => {
                let mut matching = gpus.iter().enumerate().filter(|(_, g)| g.uuid_text().starts_with(item));
                matching.next().map(|(i, _)| i).filter(|_| matching.next().is_none())
            }
            Err(_) => None,
        };
        match found {
            Some(index) if !order.contains(&index) => order.push(index),
            _ => break,
        }
    }
    order
}

/// Every attribute of the H200 under driver 580.159.04.
#[rustfmt::skip]
const H200: [(u32, i32); 147] = [
    (1, 1024), (2, 1024), (3, 1024), (4, 64), (5, 2147483647), (6, 65535), (7, 65535), (8, 49152), (9, 65536),
    (10, 32), (11, 2147483647), (12, 65536), (13, 1980000), (14, 512), (15, 1), (16, 132), (17, 0), (18, 0),
    (19, 1), (20, 0), (21, 131072), (22, 131072), (23, 65536), (24, 16384), (25, 16384), (26, 16384), (27, 32768),
    (28, 32768), (29, 2048), (30, 512), (31, 1), (32, 1), (33, 0), (34, 6), (35, 0), (36, 3201000), (37, 6016),
    (38, 62914560), (39, 2048), (40, 3), (41, 1), (42, 32768), (43, 2048), (44, 1), (45, 32768), (46, 32768),
    (47, 8192), (48, 8192), (49, 32768), (50, 0), (51, 32), (52, 32768), (53, 32768), (54, 2046), (55, 32768),
    (56, 131072), (57, 65536), (58, 16384), (59, 16384), (60, 16384), (61, 32768), (62, 2048), (63, 32768),
    (64, 32768), (65, 2048), (66, 32768), (67, 32768), (68, 2046), (69, 268435456), (70, 131072), (71, 65000),
    (72, 2097120), (73, 32768), (74, 32768), (75, 9), (76, 0), (77, 32768), (78, 1), (79, 1), (80, 1),
    (81, 233472), (82, 65536), (83, 1), (84, 0), (85, 0), (86, 0), (87, 2), (88, 0), (89, 1), (90, 1), (91, 1),
    (92, 0), (93, 0), (94, 0), (95, 1), (96, 1), (97, 232448), (98, 0), (99, 1), (100, 0), (101, 0), (102, 1),
    (103, 1), (104, 0), (105, 0), (106, 32), (107, 1), (108, 39321600), (109, 134217728), (110, 1), (111, 1024),
    (112, 1), (113, 1), (114, 1), (115, 1), (116, 1), (117, 1), (118, 100), (119, 9), (120, 1), (121, 1), (122, 1),
    (123, 1), (124, 1), (125, 1), (126, 4), (127, 1), (128, 1), (129, 1), (130, 0), (131, -1), (132, 0), (133, 0),
    (134, 0), (135, 0), (136, 0), (137, 0), (138, 0), (139, 590680286), (140, 415174878), (141, 1), (142, 1),
    (143, 0), (144, 1), (145, 1), (146, 0), (147, 0),
];

fn text_into(text: &str, to: Out<c_char>, room: i32) -> Outcome {
    to.required()?;
    let room = usize::try_from(room).ok().filter(|n| *n > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    for (i, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
        to.set_at(i, byte as c_char);
    }
    Ok(())
}

fn pci_bus_id(device: &Device) -> String {
    format!("0000:00:{:02X}.0", 6 + device.gpu)
}

fn uuid_of(device: &Device) -> CUuuid {
    let mut uuid = CUuuid::default();
    for (to, from) in uuid.bytes.iter_mut().zip(device.settings.uuid) {
        *to = from as _;
    }
    uuid
}

fn get(device: Out<CUdevice>, ordinal: i32) -> Outcome {
    let found = process()?.device(ordinal)?;
    device.set(found.ordinal as CUdevice)
}

api! {
    export fn cuDeviceGet(device: Out<CUdevice>, ordinal: i32) { get(device, ordinal) }

    export fn cuDeviceGetCount(count: Out<i32>) { count.set(process()?.devices.len() as i32) }

    export fn cuDeviceGetName(name: Out<c_char>, len: i32, dev: CUdevice) {
        text_into(&process()?.device(dev)?.settings.name_text(), name, len)
    }

    export fn cuDeviceGetUuid(uuid: Out<CUuuid>, dev: CUdevice) { uuid.set(uuid_of(process()?.device(dev)?)) }

    export fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, dev: CUdevice) { uuid.set(uuid_of(process()?.device(dev)?)) }

    export fn cuDeviceGetLuid(luid: Out<c_char>, mask: Out<u32>, dev: CUdevice) {
        process()?.device(dev)?;
        let _ = (luid, mask);
        Err(CUDA_ERROR_NOT_SUPPORTED) // a Windows notion; the real driver says the same on Linux
    }

    export fn cuDeviceTotalMem_v2(bytes: Out<usize>, dev: CUdevice) {
        bytes.set(process()?.device(dev)?.settings.cuda_total() as usize)
    }

    export fn cuDeviceTotalMem(bytes: Out<u32>, dev: CUdevice) {
        bytes.set(process()?.device(dev)?.settings.cuda_total().min(u64::from(u32::MAX)) as u32)
    }

    export fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, dev: CUdevice) {
        let device = process()?.device(dev)?;
        value.set(device.attribute(attribute).ok_or(CUDA_ERROR_INVALID_VALUE)?)
    }

    export fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, dev: CUdevice) {
        let device = process()?.device(dev)?;
        major.required()?;
        minor.required()?;
        major.set(device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).unwrap_or(0))?;
        minor.set(device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR).unwrap_or(0))
    }

    export fn cuDeviceGetProperties(prop: Out<CUdevprop>, dev: CUdevice) {
        let device = process()?.device(dev)?;
        let of = |attribute| device.attribute(attribute).unwrap_or(0);
        prop.set(CUdevprop {
            maxThreadsPerBlock: of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            maxThreadsDim: [of(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X), of(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y), of(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)],
            maxGridSize: [of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X), of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y), of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)],
            sharedMemPerBlock: of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            totalConstantMemory: of(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
            SIMDWidth: of(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
            memPitch: of(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
            regsPerBlock: of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
            clockRate: of(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            textureAlign: of(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
        })
    }

    export fn cuDeviceGetPCIBusId(id: Out<c_char>, len: i32, dev: CUdevice) {
        text_into(&pci_bus_id(process()?.device(dev)?), id, len)
    }

    export fn cuDeviceGetByPCIBusId(dev: Out<CUdevice>, id: In<c_char>) {
        let wanted = id.text()?.to_string_lossy().to_uppercase();
        let wanted = wanted.strip_prefix("0000").filter(|rest| rest.len() > 8).unwrap_or(&wanted).to_owned();
        let found = process()?.devices.iter().find(|d| {
            let full = pci_bus_id(d);
            full == wanted || full.strip_prefix("0000:") == Some(wanted.as_str())
        });
        dev.set(found.ok_or(CUDA_ERROR_INVALID_DEVICE)?.ordinal as CUdevice)
    }

    export fn cuDeviceCanAccessPeer(can: Out<i32>, dev: CUdevice, peer: CUdevice) {
        let process = process()?;
        let (device, peer) = (process.device(dev)?, process.device(peer)?);
        can.set(i32::from(device.gpu != peer.gpu))
    }

    export fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, src: CUdevice, dst: CUdevice) {
        let process = process()?;
        let (from, to) = (process.device(src)?, process.device(dst)?);
        if from.gpu == to.gpu {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        value.set(match attribute {
            CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => 0,
            CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED | CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED => 1,
            CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 1,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        })
    }

    export fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, kind: u32, dev: CUdevice) {
        process()?.device(dev)?;
        if kind != CU_EXEC_AFFINITY_TYPE_SM_COUNT {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        supported.set(0) // only clients of MPS have it
    }

    export fn cuProfilerStart() { process().map(|_| ()) }

    export fn cuProfilerStop() { process().map(|_| ()) }

    export fn cuFlushGPUDirectRDMAWrites(_target: u32, _scope: u32) { process().map(|_| ()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_follow_the_drivers_rules() {
        let mut settings =
            sim_world::WorldSettings::from_env(|n| (n == "RATION_SIM_GPUS").then(|| "3".into())).expect("good");
        settings.gpu[1].uuid = [0xab; 16];
        let visible = |list| visible_order(list, &settings.gpu[..3], &[0, 1, 2]);
        assert_eq!(visible("2,0"), [2, 0]);
        assert_eq!(visible("0,7,1"), [0], "what comes after a bad entry is gone");
        assert_eq!(visible(""), [] as [usize; 0]);
        assert_eq!(visible("-1"), [] as [usize; 0]);
        assert_eq!(visible("GPU-abab"), [1]);
        assert_eq!(visible("GPU-"), [] as [usize; 0], "ambiguous");
        assert_eq!(visible("1,1"), [1]);
    }

    #[test]
    fn the_fastest_is_first_unless_the_bus_is_to_decide() {
        let mut settings =
            sim_world::WorldSettings::from_env(|n| (n == "RATION_SIM_GPUS").then(|| "3".into())).expect("good");
        settings.gpu[0].sms = 16;
        let gpus = &settings.gpu[..3];
        assert_eq!(numbering(gpus, false), [1, 2, 0], "equals stay as the bus has them");
        assert_eq!(numbering(gpus, true), [0, 1, 2]);
        assert_eq!(visible_order("2,0", gpus, &numbering(gpus, false)), [0, 1], "numbers mean that order");
    }
}
