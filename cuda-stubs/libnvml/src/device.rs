//! Which GPUs there are, and what they are.

use std::ffi::{c_char, c_int, c_uint};

use sim_world::GpuSettings;

use crate::abi::*;
use crate::api::{Handle, In, Out, Outcome, chars};
use crate::gpu::Gpu;

const DEVICE_ID: c_uint = 0x2335_10de;
const SUBSYSTEM_ID: c_uint = 0x18bf_10de;
/// The board's part number, as other boards of its kind have it.
const BOARD_PART: &str = "692-2G520-0282-001";
/// The GPU's.
pub(crate) const GPU_PART: &str = "2335-895-A1";

fn pci_info(gpu: Gpu) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: chars(&gpu.bus_id_legacy()),
        domain: 0,
        bus: 0,
        device: gpu.pci_device(),
        pciDeviceId: DEVICE_ID,
        pciSubSystemId: SUBSYSTEM_ID,
        busId: chars(&gpu.bus_id()),
    }
}

/// Reads a PCI address: `domain:bus:device.function`, the first and the last of which may be left out. Only function 0
/// is a GPU.
fn pci_device(text: &str) -> Option<u32> {
    let (place, function) = text.split_once('.').unwrap_or((text, "0"));
    let hex = |part: &str| u32::from_str_radix(part, 16).ok().filter(|_| (1..=8).contains(&part.len()));
    let parts = place.split(':').map(hex).collect::<Option<Vec<_>>>()?;
    let (above, device) = match parts[..] {
        [bus, device] => (bus, device),
        [domain, bus, device] => (domain | bus, device),
        _ => return None,
    };
    // Another bus is a good address, with no GPU of ours at it.
    (hex(function)? == 0).then_some(if above == 0 { device } else { u32::MAX })
}

fn same_uuid(settings: &GpuSettings, text: &str) -> bool {
    let own = settings.uuid_text();
    text == own || own.strip_prefix("GPU-") == Some(text)
}

fn find(lib: &'static crate::library::Library, device: Out<nvmlDevice_t>, which: impl Fn(Gpu) -> bool) -> Outcome {
    let found = lib.each().find(|gpu| which(*gpu)).map(Gpu::handle);
    device.set(found.unwrap_or(std::ptr::null_mut()))?;
    found.map(drop).ok_or(NVML_ERROR_NOT_FOUND)
}

nvml! {
    export fn nvmlDeviceGetCount | nvmlDeviceGetCount_v2 (lib: Library; count: Out<c_uint>) {
        count.set(lib.gpus() as c_uint)
    }

    export fn nvmlDeviceGetHandleByIndex | nvmlDeviceGetHandleByIndex_v2 (
        lib: Library;
        index: c_uint,
        device: Out<nvmlDevice_t>,
    ) {
        device.set(lib.gpu_at(index as usize).ok_or(NVML_ERROR_INVALID_ARGUMENT)?.handle())
    }

    export fn nvmlDeviceGetHandleByUUID(lib: Library; uuid: In<c_char>, device: Out<nvmlDevice_t>) {
        let wanted = uuid.text()?;
        find(lib, device, |gpu| same_uuid(gpu.settings(), wanted))
    }

    export fn nvmlDeviceGetHandleByUUIDV(lib: Library; uuid: In<nvmlUUID_t>, device: Out<nvmlDevice_t>) {
        let uuid = uuid.get()?;
        if uuid.version != nvmlUUID_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        // SAFETY: both members of the union are arrays of characters, which any bits are.
        let (text, bytes) = unsafe { (uuid.value.str_, uuid.value.bytes) };
        let text: String = text.iter().take_while(|c| **c != 0).map(|c| char::from(*c as u8)).collect();
        match uuid.type_ {
            NVML_UUID_TYPE_ASCII => find(lib, device, |gpu| same_uuid(gpu.settings(), &text)),
            NVML_UUID_TYPE_BINARY => find(lib, device, |gpu| gpu.settings().uuid == bytes),
            _ => Err(NVML_ERROR_INVALID_ARGUMENT),
        }
    }

    export fn nvmlDeviceGetHandleBySerial(lib: Library; serial: In<c_char>, device: Out<nvmlDevice_t>) {
        let wanted = serial.text()?;
        find(lib, device, |gpu| gpu.serial() == wanted)
    }

    export fn nvmlDeviceGetHandleByPciBusId | nvmlDeviceGetHandleByPciBusId_v2 (
        lib: Library;
        address: In<c_char>,
        device: Out<nvmlDevice_t>,
    ) {
        let wanted = pci_device(address.text()?).ok_or(NVML_ERROR_INVALID_ARGUMENT)?;
        find(lib, device, |gpu| gpu.pci_device() == wanted)
    }

    export fn nvmlDeviceGetName(gpu: Gpu; name: Out<c_char>, length: c_uint) {
        name.text(length, &gpu.settings().name_text())
    }

    export fn nvmlDeviceGetUUID(gpu: Gpu; uuid: Out<c_char>, length: c_uint) {
        uuid.text(length, &gpu.settings().uuid_text())
    }

    export fn nvmlDeviceGetSerial(gpu: Gpu; serial: Out<c_char>, length: c_uint) {
        serial.text(length, &gpu.serial())
    }

    export fn nvmlDeviceGetBoardPartNumber(gpu: Gpu; part: Out<c_char>, length: c_uint) {
        part.text(length, BOARD_PART)
    }

    export fn nvmlDeviceGetVbiosVersion(gpu: Gpu; version: Out<c_char>, length: c_uint) {
        version.text(length, "96.00.A5.00.1A")
    }

    export fn nvmlDeviceGetInforomImageVersion(gpu: Gpu; version: Out<c_char>, length: c_uint) {
        version.text(length, "G520.0282.02.02")
    }

    export fn nvmlDeviceGetInforomVersion(gpu: Gpu; object: nvmlInforomObject_t, version: Out<c_char>, length: c_uint) {
        match object {
            NVML_INFOROM_OEM => version.text(length, "2.1"),
            NVML_INFOROM_ECC => version.text(length, "7.16"),
            NVML_INFOROM_POWER | NVML_INFOROM_DEN => Err(NVML_ERROR_NOT_SUPPORTED),
            _ => Err(NVML_ERROR_INVALID_ARGUMENT),
        }
    }

    export fn nvmlDeviceGetInforomConfigurationChecksum(gpu: Gpu; checksum: Out<c_uint>) {
        checksum.set(0)
    }

    export fn nvmlDeviceValidateInforom(gpu: Gpu) {
        Ok(())
    }

    export fn nvmlDeviceGetIndex(gpu: Gpu; index: Out<c_uint>) {
        index.set(gpu.index as c_uint)
    }

    export fn nvmlDeviceGetMinorNumber(gpu: Gpu; minor: Out<c_uint>) {
        minor.set(gpu.index as c_uint)
    }

    export fn nvmlDeviceGetModuleId(gpu: Gpu; module: Out<c_uint>) {
        module.set(1 + gpu.index as c_uint)
    }

    export fn nvmlDeviceGetBoardId(gpu: Gpu; board: Out<c_uint>) {
        board.set(gpu.pci_device())
    }

    export fn nvmlDeviceGetMultiGpuBoard(gpu: Gpu; several: Out<c_uint>) {
        several.set(0)
    }

    export fn nvmlDeviceOnSameBoard(gpu: Gpu; other: Handle, same: Out<c_int>) {
        let other = gpu.lib.gpu(other)?;
        same.set(c_int::from(gpu.index == other.index))
    }

    export fn nvmlDeviceGetIrqNum(gpu: Gpu; irq: Out<c_uint>) {
        irq.set(41 + gpu.index as c_uint)
    }

    export fn nvmlDeviceGetPdi(gpu: Gpu; pdi: Out<nvmlPdi_t>) {
        pdi.versioned(nvmlPdi_v1, |pdi| {
            pdi.value = gpu.fingerprint();
            Ok(())
        })
    }

    export fn nvmlDeviceGetPlatformInfo(gpu: Gpu; info: Out<nvmlPlatformInfo_t>) {
        // The one versioned struct whose version the driver does not look at.
        let (version, moduleId) = (info.version()?, 1 + gpu.index as u8);
        info.set(nvmlPlatformInfo_t { version, hostId: 1, moduleId, ..Default::default() })
    }

    /// The oldest form: up to the device's ID.
    export fn nvmlDeviceGetPciInfo(gpu: Gpu; pci: Out<nvmlPciInfo_t>) {
        pci.set_first(std::mem::offset_of!(nvmlPciInfo_t, pciSubSystemId), &pci_info(gpu))
    }

    /// With the subsystem's ID.
    export fn nvmlDeviceGetPciInfo_v2(gpu: Gpu; pci: Out<nvmlPciInfo_t>) {
        pci.set_first(std::mem::offset_of!(nvmlPciInfo_t, busId), &pci_info(gpu))
    }

    export fn nvmlDeviceGetPciInfo_v3(gpu: Gpu; pci: Out<nvmlPciInfo_t>) {
        pci.set(pci_info(gpu))
    }

    export fn nvmlDeviceGetPciInfoExt(gpu: Gpu; pci: Out<nvmlPciInfoExt_t>) {
        pci.versioned(nvmlPciInfoExt_v1, |pci| {
            *pci = nvmlPciInfoExt_t {
                version: pci.version,
                domain: 0,
                bus: 0,
                device: gpu.pci_device(),
                pciDeviceId: DEVICE_ID,
                pciSubSystemId: SUBSYSTEM_ID,
                baseClass: 3, // display controller
                subClass: 2,  // 3D
                busId: chars(&gpu.bus_id()),
            };
            Ok(())
        })
    }

    export fn nvmlDeviceGetCudaComputeCapability(gpu: Gpu; major: Out<c_int>, minor: Out<c_int>) {
        major.set(9)?;
        minor.set(0)
    }

    export fn nvmlDeviceGetArchitecture(gpu: Gpu; architecture: Out<nvmlDeviceArchitecture_t>) {
        architecture.set(NVML_DEVICE_ARCH_HOPPER)
    }

    export fn nvmlDeviceGetBrand(gpu: Gpu; brand: Out<nvmlBrandType_t>) {
        brand.set(NVML_BRAND_NVIDIA)
    }

    export fn nvmlDeviceGetBusType(gpu: Gpu; bus: Out<nvmlBusType_t>) {
        bus.set(NVML_BUS_TYPE_PCIE)
    }

    export fn nvmlDeviceGetNumGpuCores(gpu: Gpu; cores: Out<c_uint>) {
        cores.set(128 * gpu.settings().sms as c_uint)
    }

    export fn nvmlDeviceGetGspFirmwareVersion(gpu: Gpu; version: Out<c_char>) {
        version.text(NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, gpu.lib.driver_version())
    }

    export fn nvmlDeviceGetGspFirmwareMode(gpu: Gpu; enabled: Out<c_uint>, default: Out<c_uint>) {
        enabled.set(1)?;
        default.set(1)
    }

    export fn nvmlDeviceGetCapabilities(gpu: Gpu; caps: Out<nvmlDeviceCapabilities_t>) {
        caps.versioned(nvmlDeviceCapabilities_v1, |caps| {
            caps.capMask = 0;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_all_their_forms() {
        for text in ["00000000:00:06.0", "0000:00:06.0", "00:06.0", "00000000:00:06", "0:0:6"] {
            assert_eq!(pci_device(text), Some(6), "{text}");
        }
        assert_eq!(pci_device("0000:00:1f.0"), Some(31));
        assert_eq!(pci_device("0000:3b:06.0"), Some(u32::MAX));
        for text in ["00000000:00:06.1", "junk", "", "6", "0:0:0:6", "00000000:00:", "000000000:0:6"] {
            assert_eq!(pci_device(text), None, "{text}");
        }
    }
}
