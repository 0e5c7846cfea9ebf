//! The `RATION_SIM_*` settings that make a world. They are read by whoever creates it and hold for all who join.
//! `docs/simulated-gpu.md` is their manual.

use sim_scheduler::Costs;

use crate::layout::GPUS;

/// 1 MiB.
pub const MIB: u64 = 1 << 20;

/// A GPU of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct GpuSettings {
    /// Bytes, as NVML's total.
    pub memory: u64,
    /// Of those, kept by the driver.
    pub reserved: u64,
    /// Multiprocessors.
    pub sms: u64,
    /// Zero-terminated.
    pub name: [u8; 64],
    /// Its identity.
    pub uuid: [u8; 16],
}

/// Everything fixed at creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct WorldSettings {
    /// How many of `gpu` there are.
    pub gpus: u64,
    /// CUDA version of the driver: major * 1000 + minor * 10.
    pub driver: u64,
    /// Time slice of a context that was given no other, ns.
    pub slice: u64,
    /// Saving a context that is left with work, ns.
    pub save: u64,
    /// Restoring it when it comes back, ns.
    pub restore: u64,
    /// Leaving a context that ran dry, ns.
    pub leave: u64,
    /// How long a call takes that puts channels on, or sets a slice, ns.
    pub on_call: u64,
    /// How long a call takes that takes channels off, ns.
    pub off_call: u64,
    /// Host to device and back, bytes per second.
    pub copy_rate: u64,
    /// Device to device, bytes per second; sets, which only write, take half the time.
    pub device_rate: u64,
    /// What a context takes, in the process's figure.
    pub context: u64,
    /// What it takes besides, in the device's figure only.
    pub context_overhead: u64,
    /// Simulated time over real time, in thousandths.
    pub speed: u64,
    /// The GPUs.
    pub gpu: [GpuSettings; GPUS],
}

/// A setting that could not be understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSetting {
    /// The variable.
    pub name: &'static str,
    /// What it held.
    pub value: String,
    /// What it may hold.
    pub accepted: &'static str,
}

impl std::fmt::Display for BadSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={:?} is not understood; accepted: {}", self.name, self.value, self.accepted)
    }
}

impl std::error::Error for BadSetting {}

const SIZE_FORMS: &str = "a size such as 143771MiB, 80GiB or 80G, or one per GPU separated by commas";
const MICROS_FORMS: &str = "microseconds, such as 2048 or 0.5";

impl WorldSettings {
    /// The H200 that `docs/simulated-gpu.md` has the measurements of, once.
    pub fn h200() -> WorldSettings {
        let nowhere = GpuSettings { memory: 0, reserved: 0, sms: 0, name: [0; 64], uuid: [0; 16] };
        let mut all = WorldSettings {
            gpus: 1,
            driver: 13000,
            slice: sim_scheduler::SLICE,
            save: Costs::H200.save,
            restore: Costs::H200.restore,
            leave: Costs::H200.leave,
            on_call: sim_scheduler::ON_CALL,
            off_call: sim_scheduler::OFF_CALL,
            copy_rate: 54_000_000_000,
            device_rate: 2_110_000_000_000,
            context: 518 * MIB,
            context_overhead: 5 * MIB + 576 * 1024,
            speed: 1000,
            gpu: [nowhere; GPUS],
        };
        all.fill(1, &[143_771 * MIB], &["NVIDIA H200".into()], &[132], &[]);
        all
    }

    fn fill(&mut self, gpus: usize, memory: &[u64], names: &[String], sms: &[u64], uuids: &[[u8; 16]]) {
        fn pick<T: Clone>(list: &[T], i: usize) -> T {
            list[i.min(list.len() - 1)].clone()
        }
        self.gpus = gpus as u64;
        for (i, gpu) in self.gpu.iter_mut().enumerate().take(gpus) {
            gpu.memory = pick(memory, i);
            // The H200 keeps 615.0625 of 143771 MiB; others the same part, in sixteenths of a MiB.
            gpu.reserved = (u128::from(gpu.memory) * 9841 / (143_771 * 16) / u128::from(MIB / 16)) as u64 * (MIB / 16);
            if gpu.memory == 143_771 * MIB {
                gpu.reserved = 9841 * (MIB / 16);
            }
            gpu.sms = pick(sms, i);
            let name = pick(names, i);
            gpu.name = [0; 64];
            let len = name.len().min(63);
            gpu.name[..len].copy_from_slice(&name.as_bytes()[..len]);
            gpu.uuid = uuids.get(i).copied().unwrap_or_else(|| {
                let mut uuid = *b"ration-sim\0\0\0\0\0\0";
                uuid[15] = i as u8;
                uuid
            });
        }
    }

    /// From the environment, through `get` so that tests need not change theirs.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<WorldSettings, BadSetting> {
        let mut all = WorldSettings::h200();
        let get = |name: &'static str| get(name).filter(|v| !v.trim().is_empty()).map(|v| (name, v.trim().to_owned()));
        let gpus = match get("RATION_SIM_GPUS") {
            Some((name, v)) => parse(name, &v, "a number of GPUs from 1 to 16", |v| {
                v.parse::<usize>().ok().filter(|n| (1..=GPUS).contains(n))
            })?,
            None => 1,
        };
        let memory = list(get("RATION_SIM_MEMORY"), SIZE_FORMS, size)?.unwrap_or_else(|| vec![143_771 * MIB]);
        let names = list(get("RATION_SIM_NAME"), "a name, or one per GPU separated by commas", |v| Some(v.to_owned()))?
            .unwrap_or_else(|| vec!["NVIDIA H200".into()]);
        let sms =
            list(get("RATION_SIM_SMS"), "a number of multiprocessors, or one per GPU separated by commas", |v| {
                v.parse().ok().filter(|n| (1..=1024).contains(n))
            })?
            .unwrap_or_else(|| vec![132]);
        let uuids = list(get("RATION_SIM_UUID"), "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, one per GPU", uuid)?
            .unwrap_or_default();
        all.fill(gpus, &memory, &names, &sms, &uuids);
        if let Some((name, v)) = get("RATION_SIM_DRIVER") {
            all.driver = parse(name, &v, "a CUDA version from 11.0 to 13.0, such as 12.4", version)?;
        }
        for (name, word) in [
            ("RATION_SIM_SLICE_US", &mut all.slice),
            ("RATION_SIM_SAVE_US", &mut all.save),
            ("RATION_SIM_RESTORE_US", &mut all.restore),
            ("RATION_SIM_LEAVE_US", &mut all.leave),
            ("RATION_SIM_ON_US", &mut all.on_call),
            ("RATION_SIM_OFF_US", &mut all.off_call),
        ] {
            if let Some((name, v)) = get(name) {
                *word = parse(name, &v, MICROS_FORMS, |v| decimal(v, 1000))?;
            }
        }
        all.slice = all.slice.max(1000);
        for (name, word) in
            [("RATION_SIM_COPY_GBPS", &mut all.copy_rate), ("RATION_SIM_DEVICE_GBPS", &mut all.device_rate)]
        {
            if let Some((name, v)) = get(name) {
                *word = parse(name, &v, "gigabytes per second above 0, such as 50 or 0.5", |v| {
                    decimal(v, 1_000_000_000).filter(|rate| *rate > 0)
                })?;
            }
        }
        if let Some((name, v)) = get("RATION_SIM_CONTEXT_MIB") {
            all.context = parse(name, &v, "whole MiB, such as 518", |v| v.parse::<u64>().ok().map(|m| m * MIB))?;
        }
        if let Some((name, v)) = get("RATION_SIM_SPEED") {
            all.speed = parse(name, &v, "simulated seconds per second, from 0.001 to 1000", |v| {
                decimal(v, 1000).filter(|s| (1..=1_000_000).contains(s))
            })?;
        }
        Ok(all)
    }
}

impl WorldSettings {
    /// What going from one context to another costs.
    pub fn costs(&self) -> Costs {
        Costs { save: self.save, restore: self.restore, leave: self.leave }
    }
}

/// How the simulated kernel module behaves: `RATION_SIM_KERNEL`, which each process reads for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelMode {
    /// As measured.
    #[default]
    Plain,
    /// It refuses to take channels off and to put them on.
    Refuse,
    /// Each such call takes so long, ns.
    Slow(u64),
    /// The channels lie in a group that another process made, as under MPS.
    Mps,
}

impl KernelMode {
    /// From the environment, through `get`.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<KernelMode, BadSetting> {
        let name = "RATION_SIM_KERNEL";
        let Some(value) = get(name).filter(|v| !v.trim().is_empty()) else { return Ok(KernelMode::Plain) };
        parse(name, value.trim(), "refuse, mps, or slow:MS, such as slow:60", |v| match v {
            "refuse" => Some(KernelMode::Refuse),
            "mps" => Some(KernelMode::Mps),
            v => decimal(v.strip_prefix("slow:")?, 1_000_000).map(KernelMode::Slow),
        })
    }
}

fn parse<T>(
    name: &'static str,
    value: &str,
    accepted: &'static str,
    f: impl Fn(&str) -> Option<T>,
) -> Result<T, BadSetting> {
    f(value).ok_or_else(|| BadSetting { name, value: value.to_owned(), accepted })
}

fn list<T>(
    value: Option<(&'static str, String)>,
    accepted: &'static str,
    f: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, BadSetting> {
    let Some((name, value)) = value else { return Ok(None) };
    let items: Option<Vec<T>> = value.split(',').map(|item| f(item.trim())).collect();
    items.map(Some).ok_or(BadSetting { name, value, accepted })
}

fn size(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match text[split..].trim() {
        "" | "B" => 1,
        "K" | "KiB" | "k" => 1 << 10,
        "M" | "MiB" => MIB,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    };
    decimal(&text[..split], unit).filter(|bytes| *bytes >= MIB && *bytes <= 1 << 46)
}

/// A decimal number times `unit`, without going through floating point.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || part.len() > 9 || !whole.bytes().chain(part.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let scale = 10u128.pow(part.len() as u32);
    let value: u128 =
        whole.parse::<u128>().ok()? * scale + if part.is_empty() { 0 } else { part.parse::<u128>().ok()? };
    u64::try_from(value.checked_mul(u128::from(unit))? / scale).ok()
}

fn version(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once('.')?;
    let version = major.parse::<u64>().ok()? * 1000 + minor.parse::<u64>().ok().filter(|m| *m < 100)? * 10;
    (11_000..=13_000).contains(&version).then_some(version)
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let hex: String = text.strip_prefix("GPU-").unwrap_or(text).chars().filter(|c| *c != '-').collect();
    if hex.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl GpuSettings {
    /// `GPU-…`, as NVML writes it.
    pub fn uuid_text(&self) -> String {
        let hex: String = self.uuid.iter().map(|b| format!("{b:02x}")).collect();
        format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// The name as text.
    pub fn name_text(&self) -> String {
        let len = self.name.iter().position(|b| *b == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }

    /// What CUDA calls the total: without what the driver keeps.
    pub fn cuda_total(&self) -> u64 {
        self.memory - self.reserved
    }

    /// Taken on an idle GPU, by NVML's count.
    pub const BASELINE: u64 = 3 * MIB + MIB / 4;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<WorldSettings, BadSetting> {
        WorldSettings::from_env(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn the_default_is_the_measured_h200() {
        let all = with(&[]).expect("no settings are good settings");
        assert_eq!(all, WorldSettings::h200());
        assert_eq!(all.gpu[0].cuda_total(), 150_109_880_320);
    }

    #[test]
    fn lists_give_each_gpu_its_own() {
        let all = with(&[("RATION_SIM_GPUS", "3"), ("RATION_SIM_MEMORY", "80GiB,24G"), ("RATION_SIM_NAME", "A,B,C")])
            .expect("good");
        assert_eq!((all.gpu[0].memory, all.gpu[1].memory, all.gpu[2].memory), (80 << 30, 24 << 30, 24 << 30));
        assert_eq!(all.gpu[2].name_text(), "C");
        assert_ne!(all.gpu[0].uuid, all.gpu[1].uuid);
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_accepted() {
        for (name, value) in [
            ("RATION_SIM_GPUS", "0"),
            ("RATION_SIM_MEMORY", "8 parsecs"),
            ("RATION_SIM_DRIVER", "14.7"),
            ("RATION_SIM_SLICE_US", "-3"),
            ("RATION_SIM_OFF_US", "soon"),
            ("RATION_SIM_COPY_GBPS", "0"),
            ("RATION_SIM_UUID", "GPU-12"),
        ] {
            let error = with(&[(name, value)]).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains(value) && error.contains("accepted"), "{error}");
        }
    }

    #[test]
    fn modes_of_the_kernel_module_are_read() {
        let mode = |value: &str| KernelMode::from_env(|_| Some(value.to_owned()));
        assert_eq!(mode(""), Ok(KernelMode::Plain));
        assert_eq!(mode("refuse"), Ok(KernelMode::Refuse));
        assert_eq!(mode("slow:2.5"), Ok(KernelMode::Slow(2_500_000)));
        assert_eq!(mode("mps"), Ok(KernelMode::Mps));
        assert!(mode("slow").expect_err("no time").to_string().contains("slow:60"));
    }

    #[test]
    fn uuids_round_trip() {
        let text = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        let all = with(&[("RATION_SIM_UUID", text)]).expect("good");
        assert_eq!(all.gpu[0].uuid_text(), text);
    }
}
