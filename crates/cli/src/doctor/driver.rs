//! The driver and the GPUs: what CUDA and NVML said, and what keeps them from saying anything.

use super::check::Check;
use super::child::{Answer, How};
use super::container::Kind;
use super::said::{Card, Said};
use crate::text;

/// What is known of the driver.
#[derive(Debug, Default)]
pub struct Driver {
    /// GPUs as CUDA shows them: index, name, UUID, bytes.
    pub devices: Vec<(i32, String, String, u64)>,
    /// GPUs as NVML shows them.
    pub cards: Vec<Card>,
    release: Option<String>,
    /// CUDA's version, if the driver begins.
    version: Option<i32>,
    /// Why it does not, or what NVML lacks: found and remedy.
    trouble: Option<(String, String)>,
    nvml_trouble: Option<(String, String)>,
}

/// Where the kernel module says which release it is of.
const MODULE: &str = "/proc/driver/nvidia/version";

impl Driver {
    pub fn of(cuda: &Answer, nvml: &Answer, kind: Kind) -> Driver {
        let mut driver = Driver { release: module_release(), ..Driver::default() };
        for said in nvml.said.iter().chain(&cuda.said) {
            match said {
                Said::Cuda(version) => driver.version = Some(*version),
                Said::Device { index, name, uuid, bytes } => {
                    driver.devices.push((*index, name.clone(), uuid.clone(), *bytes));
                }
                Said::Release(release) => driver.release = Some(release.clone()),
                Said::Card(card) => driver.cards.push(card.clone()),
                _ => {}
            }
        }
        driver.trouble = trouble(cuda, kind);
        driver.nvml_trouble = trouble(nvml, kind);
        driver
    }

    /// Whether there is one that can be worked with.
    pub fn is_there(&self) -> bool {
        self.trouble.is_none() && self.version.is_some()
    }

    /// How much NVML says that others have of a GPU's memory, in bytes: total and used.
    fn memory(&self, uuid: &str) -> Option<(u64, u64)> {
        self.cards.iter().find(|card| card.uuid == uuid)?.memory
    }

    /// Whether there is a driver, and which.
    pub fn check(&self) -> Check {
        let release =
            self.release.as_deref().map_or_else(String::new, |it| format!(", release {}", text::safe(it, 40)));
        match (&self.trouble, self.version) {
            (Some((found, remedy)), _) => Check::problem("driver", format!("{found}{release}"), remedy.clone()),
            (None, None) => Check::problem("driver", format!("it said nothing{release}"), GENERAL),
            (None, Some(version)) => {
                let found = format!("CUDA {}.{}{release}", version / 1000, version % 1000 / 10);
                match &self.nvml_trouble {
                    None => Check::ok("driver", found),
                    Some((trouble, remedy)) => Check::warning(
                        "driver",
                        format!("{found}; but {trouble}, so what contexts take is estimated, and high"),
                        remedy.clone(),
                    ),
                }
            }
        }
    }

    /// Which GPUs there are.
    pub fn gpus(&self, wanted: i32) -> Check {
        if self.devices.is_empty() {
            return Check::problem("gpus", "the driver shows no GPU", NO_GPU);
        }
        let all: Vec<String> = self.devices.iter().map(|device| self.described(device)).collect();
        let found = all.join("; ");
        if !self.devices.iter().any(|(index, ..)| *index == wanted) {
            let last = self.devices.len() - 1;
            return Check::problem(
                "gpus",
                format!("there is no GPU {wanted}: {found}"),
                format!(
                    "Name one from 0 to {last} with --gpu, as programs started from here count them (CUDA_VISIBLE_DEVICES)"
                ),
            );
        }
        Check::ok("gpus", found)
    }

    fn described(&self, (index, name, uuid, bytes): &(i32, String, String, u64)) -> String {
        let used = self.memory(uuid).map_or_else(String::new, |(_, used)| format!(", {} taken", text::memory(used)));
        format!("{index}: {}, {uuid}, {}{used}", text::safe(name, 60), text::memory(*bytes))
    }

    /// The GPUs as NVML shows them that programs started from here see.
    fn seen(&self) -> impl Iterator<Item = &Card> {
        self.cards.iter().filter(|card| self.devices.iter().any(|(_, _, uuid, _)| *uuid == card.uuid))
    }

    /// Whether GPUs are cut into MIG devices.
    pub fn mig(&self) -> Option<Check> {
        // With MIG on, CUDA's GPUs are the devices, and have other UUIDs.
        let on: Vec<String> =
            self.cards.iter().filter(|card| card.mig == Some(true)).map(|it| it.index.to_string()).collect();
        if on.is_empty() {
            return (!self.cards.is_empty()).then(|| Check::ok("mig", "off"));
        }
        Some(Check::warning(
            "mig",
            format!("on, on GPU {}", on.join(", ")),
            "Each MIG device is sliced by itself, and what is not of that device is out of reach. In settings, name it by its UUID \
             (MIG-...), as nvidia-smi -L shows it",
        ))
    }

    /// Whether several processes may use a GPU.
    pub fn compute_mode(&self) -> Option<Check> {
        let findings = self.seen().filter_map(|card| {
            let index = card.index;
            let remedy = format!("Whoever runs the machine can let several: nvidia-smi -i {index} -c DEFAULT");
            Some(match card.compute_mode? {
                0 => Check::ok("compute-mode", "several processes may use a GPU"),
                2 => Check::problem("compute-mode", format!("no process may compute on GPU {index}"), remedy),
                _ => Check::problem(
                    "compute-mode",
                    format!("only one process at a time may use GPU {index}, so nobody can share it"),
                    remedy,
                ),
            })
        });
        let mut findings: Vec<Check> = findings.collect();
        findings.dedup();
        Check::of_all(findings)
    }

    /// Whether the driver holds cgroups to limits of its own.
    pub fn own_cap(&self) -> Option<Check> {
        if self.cards.is_empty() {
            return None;
        }
        let set: Vec<String> = self
            .cards
            .iter()
            .filter_map(|card| Some(format!("{} on GPU {}", text::memory(card.limit?), card.index)))
            .collect();
        let is_offered = self.cards.iter().any(|card| card.has_limits);
        Some(Check::ok(
            "driver-cap",
            match (set.is_empty(), is_offered) {
                (false, _) => {
                    format!("the driver itself holds this cgroup to {}; the smaller limit counts", set.join(", "))
                }
                (true, true) => "the driver could hold cgroups to limits of its own; none is set for this one".into(),
                (true, false) => {
                    "none: this driver has no limits of its own for this cgroup (R615 and later have)".into()
                }
            },
        ))
    }
}

/// As the kernel module itself says it: `NVRM version: NVIDIA UNIX ... Kernel Module  580.159.04  ...`.
fn module_release() -> Option<String> {
    release_in(&std::fs::read_to_string(MODULE).ok()?)
}

fn release_in(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version"))?;
    let is_release = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(is_release).map(str::to_owned)
}

const GENERAL: &str = "Run nvidia-smi, and see what the kernel says: dmesg | grep -i nvrm";
const NO_GPU: &str = "Look at CUDA_VISIBLE_DEVICES, which may hide them all; give the container one (docker run --gpus all, or \
                      nvidia.com/gpu: 1 in a pod)";

/// What is wrong, if it is, with what to do about it.
fn trouble(answer: &Answer, kind: Kind) -> Option<(String, String)> {
    let refused = answer.said.iter().find_map(|said| match said {
        Said::Missing(why) => Some((why.clone(), missing(why, kind))),
        Said::Refused { call, code, name } => {
            Some((format!("{call} answered {code}, {name}"), remedy_of(*code).to_owned()))
        }
        _ => None,
    });
    match answer.how {
        How::Ended(0) => None,
        How::Ended(_) if refused.is_some() => refused,
        how => Some((format!("the driver, at {}: the process {how}", answer.at), when_lost(how).to_owned())),
    }
}

fn when_lost(how: How) -> &'static str {
    match how {
        How::TimedOut(_) | How::Stuck(_) => {
            "Run nvidia-smi: if that hangs too, the driver or the GPU does. Look at dmesg | grep -i nvrm; a reset (nvidia-smi -r) or a \
             restart of the machine helps. Where drivers begin slowly, give more time: --timeout 60"
        }
        How::Ended(_) | How::Signalled(_) => {
            "Programs would crash in the same way. See which libcuda.so.1 is found first (LD_LIBRARY_PATH, ldconfig -p), and that it is of \
             the release of the kernel module"
        }
    }
}

/// What to do where a library is missing.
fn missing(why: &str, kind: Kind) -> String {
    if why.contains("answered 18") {
        return "The driver was updated and not started again: restart the machine, or load its modules anew".into();
    }
    match kind {
        Kind::None => "Install NVIDIA's driver; or, if it is there, let the loader find it: ldconfig, or LD_LIBRARY_PATH".into(),
        Kind::Pod => "Ask for a GPU in the pod (nvidia.com/gpu: 1): NVIDIA's container runtime then puts the driver's libraries in".into(),
        Kind::Container => "Start the container with a GPU (docker run --gpus all): NVIDIA's container runtime then puts the driver's libraries in".into(),
    }
}

/// What helps where the driver refuses with this code.
fn remedy_of(code: i32) -> &'static str {
    match code {
        34 => {
            "The libcuda.so.1 that is found is the toolkit's stub: take its directory (.../stubs) out of LD_LIBRARY_PATH"
        }
        100 => NO_GPU,
        800 => {
            "ration refuses where its settings are not understood (see `settings`), and the kernel where a cgroup forbids the devices"
        }
        802 => "On machines with NVSwitch, start nvidia-fabricmanager; else wait until the driver has begun",
        803 | 804 => {
            "libcuda.so.1 and the kernel module are of two releases. Restart the machine after an update; in a container, take the image's \
             own libcuda (cuda-compat) out of LD_LIBRARY_PATH"
        }
        999 => "Often /dev/nvidia-uvm is missing: run nvidia-modprobe -u as root; else dmesg | grep -i nvrm",
        _ => GENERAL,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::check::Status;
    use super::*;

    fn answer(said: &[Said], how: How) -> Answer {
        Answer { said: said.to_vec(), how, at: "cuInit".into(), errors: String::new() }
    }

    fn device(index: i32, uuid: &str) -> Said {
        Said::Device { index, name: "NVIDIA H200".into(), uuid: uuid.into(), bytes: 140 << 30 }
    }

    fn card(index: u32, uuid: &str) -> Card {
        Card { index, uuid: uuid.into(), memory: Some((140 << 30, 2 << 30)), compute_mode: Some(0), ..Card::default() }
    }

    fn driver(cards: &[Card]) -> Driver {
        let cuda = answer(&[Said::Cuda(13_020), device(0, "GPU-a"), device(1, "GPU-b")], How::Ended(0));
        let mut nvml: Vec<Said> = cards.iter().cloned().map(Said::Card).collect();
        nvml.push(Said::Release("580.159.04".into()));
        Driver::of(&cuda, &answer(&nvml, How::Ended(0)), Kind::None)
    }

    #[test]
    fn a_driver_says_what_it_is() {
        let driver = driver(&[card(0, "GPU-b"), card(1, "GPU-a")]);
        assert_eq!(driver.check(), Check::ok("driver", "CUDA 13.2, release 580.159.04"));
        let gpus = driver.gpus(1);
        assert_eq!(gpus.status, Status::Ok);
        assert!(gpus.found.starts_with("0: NVIDIA H200, GPU-a, 140.0 GiB, 2.0 GiB taken; 1: "), "{}", gpus.found);
        let gpus = driver.gpus(2);
        assert!(gpus.status == Status::Problem && gpus.remedy.is_some_and(|it| it.contains("from 0 to 1")));
    }

    #[test]
    fn who_does_not_come_back_is_named() {
        let nvml = answer(&[], How::Ended(0));
        for (how, words) in [
            (How::TimedOut(Duration::from_secs(3)), "did not answer within 3 s"),
            (How::Signalled(11), "crashed with signal 11"),
            (How::Ended(0), "it said nothing"),
        ] {
            let driver = Driver::of(&answer(&[], how), &nvml, Kind::None);
            let check = driver.check();
            assert!(check.status == Status::Problem && check.found.contains(words), "{check:?}");
            assert!(!driver.is_there());
            assert!(matches!(how, How::Ended(_)) || check.found.contains("cuInit"), "{check:?}");
        }
    }

    #[test]
    fn what_helps_depends_on_where_one_is() {
        let missing = [Said::Missing("libcuda.so.1 cannot be loaded: no such file".into())];
        for (kind, words) in [(Kind::None, "Install"), (Kind::Container, "--gpus"), (Kind::Pod, "nvidia.com/gpu")] {
            let driver = Driver::of(&answer(&missing, How::Ended(1)), &answer(&[], How::Ended(0)), kind);
            assert!(driver.check().remedy.is_some_and(|it| it.contains(words)), "{kind:?}");
        }
        let refused = [Said::Refused { call: "cuInit".into(), code: 803, name: "X".into() }];
        let driver = Driver::of(&answer(&refused, How::Ended(1)), &answer(&[], How::Ended(0)), Kind::None);
        assert!(driver.check().remedy.is_some_and(|it| it.contains("two releases")));
    }

    #[test]
    fn nvml_that_does_not_answer_is_a_warning() {
        let cuda = answer(&[Said::Cuda(12_080), device(0, "GPU-a")], How::Ended(0));
        let driver = Driver::of(&cuda, &answer(&[], How::Signalled(11)), Kind::None);
        assert!(driver.is_there() && driver.check().status == Status::Warning);
        assert!(driver.mig().is_none() && driver.compute_mode().is_none() && driver.own_cap().is_none());
    }

    #[test]
    fn modes_that_keep_slices_out_are_found_where_programs_see_the_gpu() {
        let exclusive = |index, uuid| Card { compute_mode: Some(3), ..card(index, uuid) };
        let check = driver(&[card(0, "GPU-a"), exclusive(1, "GPU-b")]).compute_mode().expect("known");
        assert!(check.status == Status::Problem && check.found.contains("GPU 1"), "{check:?}");
        let check = driver(&[card(0, "GPU-a"), exclusive(1, "GPU-other")]).compute_mode().expect("known");
        assert_eq!(check, Check::ok("compute-mode", "several processes may use a GPU"));
        let mig = Card { mig: Some(true), ..card(0, "GPU-x") };
        assert_eq!(driver(&[mig]).mig().map(|it| it.status), Some(Status::Warning));
        assert_eq!(driver(&[card(0, "GPU-a")]).mig(), Some(Check::ok("mig", "off")));
    }

    #[test]
    fn a_limit_of_the_drivers_own_is_said() {
        let said = |has_limits, limit| driver(&[Card { has_limits, limit, ..card(0, "GPU-a") }]).own_cap();
        let found = |has_limits, limit| said(has_limits, limit).map(|it| it.found).unwrap_or_default();
        assert!(found(false, None).starts_with("none"));
        assert!(found(true, None).contains("none is set"));
        assert!(found(true, Some(8 << 30)).contains("8.0 GiB on GPU 0"));
    }

    #[test]
    fn the_module_says_its_release() {
        let text =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 12.2.0\n";
        assert_eq!(release_in(text).as_deref(), Some("580.159.04"));
        assert_eq!(release_in("nothing"), None);
    }
}
