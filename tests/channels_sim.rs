//! The simulated kernel module: programs that drive their own channels through it, judged by the record.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use sim_world::record::{GroupRecord, Use};

mod support;
use support::{Machine, compile_with, sim_dir};

static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| compile_with("channels", &["-rdynamic", "-lcuda", "-ldl"]));

/// A program that fills the GPU and does with its channels what it is told.
struct Driven {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What came of it.
#[derive(Debug)]
struct Answer {
    status: u32,
    took_ms: f64,
    /// Compute groups, channels in them, copy groups, channels in groups that were not seen.
    seen: [u32; 4],
}

/// What libcuda makes for a context.
const ONE_CONTEXT: [u32; 4] = [1, 8, 3, 0];

impl Driven {
    fn start(machine: &Machine, settings: &[(&str, &str)]) -> Driven {
        let mut command = machine.command(&*PROGRAM);
        command.arg("500").env("LD_PRELOAD", sim_dir().join("libsim-kernel.so")).envs(settings.iter().copied());
        Driven::spawn(command)
    }

    fn spawn(mut command: std::process::Command) -> Driven {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program runs");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut driven = Driven { child, input, output };
        driven.ask("seen");
        driven
    }

    fn ask(&mut self, what: &str) -> Answer {
        writeln!(self.input, "{what}").expect("it listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [status, took, seen @ ..] = words.as_slice() else { panic!("{what}: {line:?}") };
        let number = |text: &&str| text.parse().expect("a number");
        Answer {
            status: u32::from_str_radix(status, 16).expect("hexadecimal"),
            took_ms: took.parse().expect("milliseconds"),
            seen: seen.iter().map(number).collect::<Vec<_>>().try_into().expect("four figures"),
        }
    }

    fn usage(&self, machine: &Machine) -> (u64, Use) {
        let record = machine.record();
        let pid = u64::from(self.child.id());
        let own = record.processes.into_iter().find(|p| p.pid == pid && p.alive && !p.observer);
        (record.clock_ns, own.expect("it lives").gpus.remove(&0).expect("it uses the GPU"))
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The share of the GPU's time in which each one's kernels ran, over a second or so.
fn shares<const N: usize>(machine: &Machine, all: [&Driven; N]) -> [f64; N] {
    let before = all.map(|driven| driven.usage(machine));
    std::thread::sleep(Duration::from_millis(1200));
    let after = all.map(|driven| driven.usage(machine));
    std::array::from_fn(|at| {
        let ((start, then), (end, now)) = (&before[at], &after[at]);
        100.0 * (now.work_ns - then.work_ns) as f64 / (end - start) as f64
    })
}

fn is_near(shares: &[f64], expected: &[f64]) -> bool {
    shares.iter().zip(expected).all(|(here, there)| (here - there).abs() < 3.0)
}

const MS: u64 = 1_000_000;

#[test]
fn slices_share_the_gpu_as_on_the_h200() {
    let machine = Machine::new();
    let (mut a, mut b) = (Driven::start(&machine, &[]), Driven::start(&machine, &[]));
    assert!(is_near(&shares(&machine, [&a, &b]), &[45.6, 45.6]));
    for ([first, second], expected) in [([1000, 3000], [22.4, 68.5]), ([6000, 18_000], [25.3, 74.0])] {
        assert_eq!(a.ask(&format!("slice {first}")).status, 0);
        assert_eq!(b.ask(&format!("slice {second}")).status, 0);
        let here = shares(&machine, [&a, &b]);
        assert!(is_near(&here, &expected), "slices of {first} and {second} us: {here:?}, measured {expected:?}");
    }
    let (_, usage) = b.usage(&machine);
    assert_eq!(usage.groups, [GroupRecord { slice_ns: 18 * MS, on: true }]);
}

#[test]
fn channels_go_off_and_on() {
    let machine = Machine::new();
    let (mut a, b) = (Driven::start(&machine, &[]), Driven::start(&machine, &[]));
    let off = a.ask("off");
    assert_eq!((off.status, off.seen), (0, ONE_CONTEXT));
    assert!((0.55..20.0).contains(&off.took_ms), "{off:?}");
    let here = shares(&machine, [&a, &b]);
    assert!(here[0] == 0.0 && here[1] > 99.0, "{here:?}");
    let (_, usage) = a.usage(&machine);
    assert_eq!((usage.switches, usage.groups[0].on), (1, false));
    let on = a.ask("on");
    assert!(on.status == 0 && (0.35..20.0).contains(&on.took_ms), "{on:?}");
    let here = shares(&machine, [&a, &b]);
    assert!(is_near(&here, &[45.6, 45.6]), "{here:?}");
    // One channel of eight does not stop a group.
    assert_eq!(a.ask("some").status, 0);
    let (_, usage) = a.usage(&machine);
    assert_eq!((usage.switches, usage.groups[0].on), (2, true));
    drop(b);
    assert!(shares(&machine, [&a])[0] > 99.0);
}

#[test]
fn client_answers_only_on_its_own_descriptor() {
    let machine = Machine::new();
    let mut program = Driven::start(&machine, &[]);
    assert_ne!(program.ask("elsewhere").status, 0);
    assert!(program.usage(&machine).1.groups[0].on);
}

#[test]
fn channels_go_with_their_context_and_their_process() {
    let machine = Machine::new();
    let mut program = Driven::start(&machine, &[]);
    assert_eq!(program.ask("slice 5000").status, 0);
    assert_eq!(program.ask("again").seen, ONE_CONTEXT);
    let (_, usage) = program.usage(&machine);
    assert_eq!(usage.groups, [GroupRecord { slice_ns: 2_048_000, on: true }]);
    assert_eq!(program.ask("off").status, 0);
    drop(program);
    assert_eq!(machine.world().inconsistencies(), Vec::<String>::new());
    let next = Driven::start(&machine, &[]);
    assert!(shares(&machine, [&next])[0] > 99.0, "what was off went with the process that was killed");
}

#[test]
fn module_refuses_is_slow_or_is_not_there() {
    let machine = Machine::new();
    let mut refused = Driven::start(&machine, &[("RATION_SIM_KERNEL", "refuse")]);
    assert_eq!(refused.ask("off").status, 0x1b);
    assert!(refused.usage(&machine).1.groups[0].on);
    let mut slow = Driven::start(&machine, &[("RATION_SIM_KERNEL", "slow:60")]);
    let off = slow.ask("off");
    assert!(off.status == 0 && off.took_ms >= 60.0, "{off:?}");
    drop((refused, slow));

    let mut command = machine.command(&*PROGRAM);
    command.arg("500");
    let mut bare = Driven::spawn(command);
    assert_eq!(bare.ask("seen").seen, [0; 4], "no module: no channels");
    assert!(shares(&machine, [&bare])[0] > 99.0, "and all else goes on");
}

#[test]
fn calls_of_two_processes_wait_for_each_other() {
    let machine = Machine::new();
    let slow = [("RATION_SIM_KERNEL", "slow:200")];
    let (mut a, mut b) = (Driven::start(&machine, &slow), Driven::start(&machine, &slow));
    writeln!(a.input, "off").expect("it listens");
    std::thread::sleep(Duration::from_millis(50));
    let second = b.ask("off");
    assert!(second.status == 0 && second.took_ms > 280.0, "{second:?}");
}

#[test]
fn under_mps_one_clients_channels_are_everybodys() {
    let machine = Machine::new();
    let mps = [("RATION_SIM_KERNEL", "mps")];
    let (mut a, b) = (Driven::start(&machine, &mps), Driven::start(&machine, &mps));
    assert_eq!(a.ask("seen").seen, [0, 0, 3, 8]);
    assert_eq!(a.ask("off").status, 0);
    assert_eq!(shares(&machine, [&a, &b]), [0.0, 0.0]);
    assert_eq!(a.ask("on").status, 0);
    assert!(shares(&machine, [&b])[0] > 40.0);
}
