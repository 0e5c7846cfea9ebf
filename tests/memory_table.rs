//! What memory takes, by the simulated driver's own record, next to what was measured on an H200 (driver 580.159.04).

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

mod support;
use sim_world::World;
use support::{Machine, compile, report};

const MIB: i64 = 1 << 20;

/// What a step was measured to add, in MiB: to the process's figure, and to the device's where that is not the same.
struct Step {
    name: &'static str,
    process: i64,
    device: Option<f64>,
}

const fn step(name: &'static str, process: i64) -> Step {
    Step { name, process, device: None }
}

const fn beside(name: &'static str, process: i64, device: f64) -> Step {
    Step { name, process, device: Some(device) }
}

/// The steps of tests/programs/memory_steps.c.
const MEASURED: &[Step] = &[
    step("cuInit", 0),
    beside("primary context", 518, 523.5625),
    beside("a second context", 518, 523.5625),
    beside("destroyed", -518, -523.5625),
    step("library with a 64 MiB variable loaded", 0),
    step("its first kernel launched", 64),
    step("unloaded", -64),
    step("module with a 64 MiB variable loaded", 64),
    step("16 x 4 KiB", 2),
    step("64 x 100,000 B", 6),
    step("10 x (1 MiB + 1)", 18),
    step("10 x (2 MiB + 1)", 40),
    step("those freed", -40),
    step("10 x (20 MiB + 1)", 220),
    step("all freed", -246),
    step("5000 rows of 1000 B, pitched", 6),
    step("rows freed", -6),
    step("cuMemAllocAsync 1000 B", 32),
    step("cuMemAllocAsync 100 MiB", 96),
    step("freed, not synchronised", 0),
    step("synchronised", -96),
    step("again, with the threshold at its maximum", 96),
    step("trimmed", -96),
    step("the first freed", -32),
    step("33 MiB", 64),
    step("given back", -64),
    step("64 MiB", 64),
    step("given back", -64),
    step("64 MiB + 1", 96),
    step("given back", -96),
    step("cuMemAllocAsync, then cuMemFree", 0),
    step("graph with 1 MiB made", 0),
    step("launched", 32),
    step("launched again", 0),
    step("graph memory trimmed", -32),
    step("graph with 100 MiB launched", 128),
    step("graph destroyed", 0),
    step("trimmed again", -128),
    step("10 arrays of 1000 x 1000 floats", 40),
    step("arrays destroyed", -40),
    step("array of 16 x 16", 2),
    step("array of 100", 0),
    step("array of 1500 x 700", 6),
    step("mipmap of 1024 x 1024 x 4 floats, 11 levels", 22),
    step("array of 128 x 128 x 128 x 4 floats", 32),
    step("the same without memory of its own", 0),
    step("all arrays destroyed", -62),
    step("64 MiB of addresses reserved", 0),
    step("64 MiB created", 64),
    step("mapped", 0),
    step("released while mapped", 0),
    step("unmapped", -64),
    beside("exported and released, descriptor open", 0, 64.0),
    beside("imported, descriptor closed", 64, 0.0),
    step("released", -64),
    step("64 MiB of pinned host memory", 0),
    step("managed 200 MiB, untouched by the GPU", 0),
    beside("touched by the GPU", 0, 256.0),
    step("prefetched back to the host", 0),
    step("another 20 MiB, set by the GPU", 0),
    beside("the 200 MiB freed", 0, -200.0),
    beside("the rest freed", 0, -20.0),
    step("stack limit 4096", 792),
    step("stack limit 1024", -792),
    step("heap limit 256 MiB set", 0),
    step("a kernel without heap launched", 0),
    step("a kernel with 16 KiB of local memory launched", 3960),
    step("one without launched after it", 0),
    // What is left of a batch of managed memory stays with the process.
    beside("primary context reset", -518 - 64 - 3960, -523.5625 - 64.0 - 3960.0),
];

/// A program that goes step by step, as it is told to.
struct Stepping {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Stepping {
    fn start(machine: &Machine, program: &std::path::Path, arguments: &[&str]) -> Stepping {
        let mut child = machine
            .command(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Stepping { child, input, output: BufReader::new(output) }
    }

    /// The step it stands at, or None when it has ended.
    fn at(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).expect("the program writes text");
        (read != 0).then(|| line.trim_end().to_owned())
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").expect("the program waits for a line");
    }

    /// The step it stands at must be this one; what `look` sees there is returned, and the program goes on.
    fn expect<T>(&mut self, name: &str, look: impl FnOnce() -> T) -> T {
        assert_eq!(self.at().as_deref(), Some(name));
        let seen = look();
        self.go_on();
        seen
    }

    fn finish(mut self) {
        assert_eq!(self.at(), None, "the program has no more steps");
        let status = self.child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Stepping {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// (the process's figure, the device's), in bytes. A process the record does not know holds nothing.
fn figures(world: &World, pid: u32) -> (i64, i64) {
    let record = world.record();
    let process = record.processes.iter().filter(|p| p.alive && !p.observer && p.pid == u64::from(pid));
    let figure: u64 = process.filter_map(|p| p.gpus.get(&0)).map(|held| held.figure_bytes).sum();
    (figure as i64, record.gpus[0].used_bytes as i64)
}

/// All living clients' figures, oldest first, and the device's, in MiB.
fn all_figures(world: &World) -> (Vec<u64>, u64) {
    let record = world.record();
    let mut living: Vec<_> = record.processes.iter().filter(|p| p.alive && !p.observer).collect();
    living.sort_by_key(|p| p.started_ns);
    let each = living.iter().map(|p| p.gpus.get(&0).map_or(0, |held| held.figure_bytes) >> 20).collect();
    // Without what the driver keeps per context besides.
    let beside: u64 = record.processes.iter().filter_map(|p| p.gpus.get(&0)?.bytes.get("overhead")).sum();
    (each, (record.gpus[0].used_bytes - beside) >> 20)
}

fn mib(bytes: f64) -> String {
    let amount = bytes / MIB as f64;
    if amount == 0.0 { "0".into() } else { format!("{amount:+}") }
}

#[test]
fn every_way_of_taking_memory_takes_what_was_measured() {
    let machine = Machine::new();
    let mut program = Stepping::start(&machine, &compile("memory_steps"), &[]);
    let (pid, mut before, mut world) = (program.child.id(), (0, 0), None);
    let mut table = format!("{:<48}{:>12}{:>12}{:>14}{:>14}\n", "MiB", "process", "H200", "device", "H200");
    let mut wrong = String::new();
    for step in MEASURED {
        assert_eq!(program.at().as_deref(), Some(step.name), "the program's steps are not those of the table");
        // The first client makes the world; one that looks earlier would make another.
        let now = figures(world.get_or_insert_with(|| machine.world()), pid);
        let (process, device) = ((now.0 - before.0) as f64, (now.1 - before.1) as f64);
        let expected = step.process as f64 * MIB as f64;
        let expected_device = step.device.map_or(expected, |amount| amount * MIB as f64);
        let same = process == expected && device == expected_device;
        let line = format!(
            "{:<48}{:>12}{:>12}{:>14}{:>14}",
            step.name,
            mib(process),
            mib(expected),
            mib(device),
            mib(expected_device)
        );
        let _ = writeln!(table, "{line}{}", if same { "" } else { "   <-" });
        if !same {
            let _ = writeln!(wrong, "{line}");
        }
        before = now;
        program.go_on();
    }
    program.finish();
    report("memory", &table);
    let world = world.expect("there were steps");
    assert_eq!(all_figures(&world), (vec![], 0), "nothing is left when the program is gone");
    assert_eq!(world.inconsistencies(), [] as [String; 0]);
    assert!(wrong.is_empty(), "not what was measured:\n{wrong}");
}

#[test]
fn a_killed_process_gives_everything_back() {
    let machine = Machine::new();
    let program = compile("memory_steps");
    // Killed with linear memory, pools, graph memory, arrays, physical memory, managed memory and local memory in hand.
    let at = ["10 x (20 MiB + 1)", "cuMemAllocAsync 100 MiB", "graph with 100 MiB launched", "array of 1500 x 700"];
    let further =
        ["mapped", "exported and released, descriptor open", "touched by the GPU", "one without launched after it"];
    for stop in at.iter().chain(&further) {
        let mut running = Stepping::start(&machine, &program, &[]);
        while running.at().expect("the step is there") != *stop {
            running.go_on();
        }
        let world = machine.world();
        assert!(all_figures(&world).1 > 518, "at {stop} something is held");
        drop(running); // kills
        assert_eq!(all_figures(&world), (vec![], 0), "killed at {stop}");
        assert_eq!(world.inconsistencies(), [] as [String; 0], "killed at {stop}");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_else_happens() {
    let machine = Machine::with(&[("RATION_SIM_MEMORY", "4GiB")]);
    let said = machine.run(&compile("memory_full"), &[]);
    let refused = "cuMemAlloc cuMemAllocPitch cuMemAllocAsync cuMemAllocFromPoolAsync cuMemCreate cuArray3DCreate \
                   cuMipmappedArrayCreate cuModuleLoadData cuLaunchKernel cuCtxSetLimit cuGraphLaunch";
    let mut expected: Vec<String> =
        refused.split_whitespace().map(|call| format!("{call} -> 2, nothing taken")).collect();
    expected.extend(
        [
            "contexts besides the first: 6",
            "cuCtxCreate -> 2, nothing taken",
            "all of it at once -> left 0",
            "one byte more -> 2",
            "3 GiB beside a pool's free memory -> 2, it keeps 1536 MiB",
            "synchronised -> 0, it keeps 0 MiB",
            "3 GiB beside unused graph memory -> 0",
            "prefetching 5 GiB -> 0",
            "and allocating 1 GiB beside it -> 0",
            "in the end -> 0, nothing taken",
        ]
        .map(str::to_owned),
    );
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn bytes_arrive_where_they_should() {
    let said = Machine::new().run(&compile("memory_data"), &[]);
    assert_eq!(said.lines().count(), 9, "{said}");
}

#[test]
fn memory_opened_by_an_ipc_handle_is_one_memory() {
    let machine = Machine::new();
    let mut program = Stepping::start(&machine, &compile("memory_share"), &["ipc"]);
    let world = std::cell::OnceCell::new();
    let look = || all_figures(world.get_or_init(|| machine.world()));
    // 2 MiB of small ones and 6 of the large one.
    assert_eq!(program.expect("made", look), (vec![526], 526));
    assert_eq!(program.expect("exported", look), (vec![526], 526));
    assert_eq!(program.expect("the second's context", look), (vec![526, 518], 1044));
    assert_eq!(program.expect("opened", look), (vec![526, 518], 1044), "what is opened is not the opener's");
    assert_eq!(program.expect("closed", look), (vec![526, 518], 1044));
    assert_eq!(program.expect("the second is gone", look), (vec![526], 526));
    assert_eq!(program.expect("freed", look), (vec![518], 518));
    program.finish();
    assert_eq!(look(), (vec![], 0));
}

#[test]
fn memory_imported_by_a_descriptor_is_one_memory() {
    let machine = Machine::new();
    let mut program = Stepping::start(&machine, &compile("memory_share"), &["fd"]);
    let world = std::cell::OnceCell::new();
    let look = || all_figures(world.get_or_init(|| machine.world()));
    assert_eq!(program.expect("exported", look), (vec![526], 526));
    assert_eq!(program.expect("the second's context", look), (vec![526, 518], 1044));
    assert_eq!(program.expect("imported", look), (vec![526, 518], 1044), "what is imported is not the importer's");
    assert_eq!(program.expect("the second is gone", look), (vec![526], 526));
    assert_eq!(program.expect("released", look), (vec![518], 518));
    program.finish();
    assert_eq!(look(), (vec![], 0));
}

#[test]
fn memory_of_an_exported_pool_is_one_memory() {
    let machine = Machine::new();
    let mut program = Stepping::start(&machine, &compile("memory_share"), &["pool"]);
    let world = std::cell::OnceCell::new();
    let look = || all_figures(world.get_or_init(|| machine.world()));
    assert_eq!(program.expect("exported", look), (vec![550], 550));
    assert_eq!(program.expect("imported", look), (vec![550, 518], 1068));
    assert_eq!(program.expect("freed", look), (vec![518], 518));
    program.finish();
    assert_eq!(look(), (vec![], 0));
}

/// The driver's way of handing out linear memory, as plainly as it can be said. Sizes are in units of 512 bytes.
#[derive(Default)]
struct Model {
    /// The pieces in each block that small ones share, in their order; blocks in the order in which they came.
    shared: Vec<Vec<(u64, u64, usize)>>,
    /// Units and number of each large piece.
    large: Vec<(u64, usize)>,
}

impl Model {
    const BLOCK: u64 = 4096;

    fn allocate(&mut self, piece: usize, bytes: u64) {
        let size = bytes.div_ceil(512);
        if size >= Model::BLOCK {
            self.large.push((size.next_multiple_of(Model::BLOCK), piece));
            return;
        }
        for block in &mut self.shared {
            let ends = std::iter::once(0).chain(block.iter().map(|(_, end, _)| *end));
            let starts = block.iter().map(|(start, _, _)| *start).chain([Model::BLOCK]);
            let gap = ends.zip(starts).find(|(from, to)| to - from >= size);
            if let Some((at, _)) = gap {
                block.push((at, at + size, piece));
                block.sort_unstable();
                return;
            }
        }
        self.shared.push(vec![(0, size, piece)]);
    }

    fn free(&mut self, piece: usize) {
        self.large.retain(|(_, other)| *other != piece);
        for block in &mut self.shared {
            block.retain(|(_, _, other)| *other != piece);
        }
        self.shared.retain(|block| !block.is_empty());
    }

    fn bytes(&self) -> u64 {
        (self.shared.len() as u64 * Model::BLOCK + self.large.iter().map(|(size, _)| size).sum::<u64>()) * 512
    }
}

#[test]
fn a_thousand_sequences_take_what_a_plain_model_says() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut script, mut expected) = (String::new(), Vec::new());
    for _ in 0..1000 {
        let (mut model, mut live) = (Model::default(), Vec::new());
        for piece in 0..number(30) as usize + 1 {
            if number(3) == 0 && !live.is_empty() {
                let index = number(live.len() as u64) as usize;
                model.free(live.swap_remove(index));
                let _ = writeln!(script, "f {index}");
            } else {
                let most = [2_000, 200_000, 2 << 20, 30 << 20][number(4) as usize];
                let bytes = number(most) + 1;
                model.allocate(piece, bytes);
                live.push(piece);
                let _ = writeln!(script, "a {bytes}");
            }
            expected.push(model.bytes());
        }
        script.push_str("x 0\n");
        expected.push(0);
    }
    let machine = Machine::new();
    let mut child = machine
        .command(compile("memory_ops"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("piped");
    let writer = std::thread::spawn(move || input.write_all(script.as_bytes()));
    let output = child.wait_with_output().expect("a child can be waited for");
    writer.join().expect("no panic").expect("the program reads all of it");
    assert!(output.status.success(), "{}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let taken: Vec<u64> = text.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(taken.len(), expected.len());
    for (index, (here, model)) in taken.iter().zip(&expected).enumerate() {
        assert_eq!(here, model, "after operation {index}");
    }
}
