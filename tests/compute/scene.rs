//! A machine with containers that share its GPU, and what each of them has had of it: by the simulated GPU's own record, over its
//! own clock, and by its account in the region.

#![allow(dead_code)] // each test uses its part

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ration_region::{Gpu, Member, Region};
use sim_world::World;

use crate::container::{Regions, Session, inside, with_module};
use crate::support::Machine;
use crate::support::tries::until_good;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A machine with containers that share its GPU.
pub struct Scene {
    pub machine: Machine,
    pub regions: Regions,
    pub world: World,
    pub gpu: Gpu,
    pub program: PathBuf,
    /// What takes its containers off the GPU: `channels` or `launches`.
    pub switch: &'static str,
    /// Which container each process was in that was ever seen: the region forgets the dead.
    containers: RefCell<BTreeMap<u64, String>>,
}

/// What a container has had of the GPU's time: by the record, and by its account in the region.
#[derive(Debug, Clone, Copy, Default)]
pub struct Had {
    pub record: u64,
    /// The part of it in which kernels got on.
    pub work: u64,
    pub account: u64,
}

/// How much everybody has had by some time, by the container's name.
pub struct Moment {
    pub clock: u64,
    pub had: BTreeMap<String, Had>,
}

pub fn milliseconds(length: u64) {
    std::thread::sleep(Duration::from_millis(length));
}

impl Scene {
    pub fn new(program: &Path) -> Scene {
        Scene::by("channels", program)
    }

    pub fn by(switch: &'static str, program: &Path) -> Scene {
        let (machine, regions) = (Machine::new(), Regions::new());
        let world = machine.world();
        let gpu = world.settings().gpu[0];
        let gpu = Gpu { uuid: gpu.uuid, total: gpu.memory };
        let program = program.to_owned();
        Scene { machine, regions, world, gpu, program, switch, containers: RefCell::default() }
    }

    pub fn command(&self, container: &str, settings: &[(&str, &str)], args: &[&str]) -> Command {
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut command = inside(&self.machine, &self.regions, container, &settings, &self.program);
        command.args(args).env("RATION_SWITCH", self.switch);
        with_module(command)
    }

    /// A program that keeps the GPU busy until it is told otherwise, in a container that asks for so much.
    pub fn serve(&self, container: &str, request: &str, kernel_us: &str) -> Session {
        let settings = [("RATION_COMPUTE_REQUEST", request)];
        let mut session = Session::start(&mut self.command(container, &settings, &["serve", kernel_us]), PATIENCE);
        session.until("ready").expect("it starts");
        session
    }

    pub fn member(&self, container: &str) -> Member {
        self.region(container).join(container, None).expect("there is room in the region")
    }

    /// A container's region.
    pub fn region(&self, container: &str) -> Region {
        self.regions.of(container, &self.gpu)
    }

    /// What the containers have had.
    pub fn moment(&self) -> Moment {
        let record = self.world.record();
        let mut containers = self.containers.borrow_mut();
        let mut had: BTreeMap<String, Had> = BTreeMap::new();
        for region in self.regions.all(&self.gpu) {
            for container in region.containers() {
                let name = container.name.to_string();
                containers.extend(container.members().map(|process| (u64::from(process.pid), name.clone())));
                had.entry(name).or_default().account = container.compute().gpu_time;
            }
        }
        for process in &record.processes {
            let busy: u64 = process.gpus.values().map(|gpu| gpu.busy_ns).sum();
            if let Some(had) = containers.get(&process.pid).and_then(|name| had.get_mut(name)) {
                had.record += busy;
                had.work += process.gpus.values().map(|gpu| gpu.work_ns).sum::<u64>();
            }
        }
        Moment { clock: record.clock_ns, had }
    }

    /// What a container has had, at a time at which it has nothing under way and all that it had is accounted for.
    pub fn between_turns(&self, container: &str) -> Had {
        let mut had = Vec::new();
        for _ in 0..1000 {
            had.push(self.moment().had[container]);
            if let [.., first, second, last] = had[..]
                && first.record == last.record
                && second.account == last.account
            {
                return last;
            }
            milliseconds(2);
        }
        panic!("{container} has work under way all the time");
    }
}

impl Moment {
    /// What a container has had since another time, in per cent of the GPU's time.
    pub fn share_since(&self, before: &Moment, container: &str) -> f64 {
        let had = |moment: &Moment| moment.had.get(container).map_or(0, |had| had.record);
        100.0 * had(self).saturating_sub(had(before)) as f64 / (self.clock - before.clock) as f64
    }

    /// How much more of that is in the account than in the record, in per cent of the record.
    pub fn drift_since(&self, before: &Moment, container: &str) -> f64 {
        let had = |moment: &Moment| moment.had.get(container).copied().unwrap_or_default();
        let (now, then) = (had(self), had(before));
        let (record, account) = ((now.record - then.record) as f64, (now.account - then.account) as f64);
        100.0 * (account - record) / record
    }
}

/// Says what was seen, if it is as it should be. Whether it was so at once: if not, the machine may have stood still.
pub fn expect(text: &mut String, mut attempt: impl FnMut() -> (String, bool)) -> bool {
    let mut seen = Vec::new();
    let judged = until_good(
        || {
            let last = attempt();
            seen.push(last.0.clone());
            last
        },
        |(_, is_right)| *is_right,
    );
    let Some((line, is_right)) = judged else {
        let _ = writeln!(text, "not judged: {}", seen.join("\n"));
        return false;
    };
    assert!(is_right, "{text}{}", seen.join("\n"));
    let _ = writeln!(text, "{line}");
    seen.len() == 1
}
