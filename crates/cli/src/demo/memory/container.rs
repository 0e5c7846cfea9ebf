//! The programs in the containers, each in a process of its own. They are plain clients of the CUDA driver that know
//! nothing of limits, of ration or of the simulation: what they are told is all that they go by.

use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use super::super::driver::{DriverError, Gpu};
use super::super::wire::Order;
use super::super::worker::{End, NEWS_EVERY, await_start, exit_code, listen, next_order, say};
use super::Role;
use super::figures::{Account, News, Part};

/// What steady takes at its start.
const MODEL: u64 = 4 << 30;
/// What steady takes for the time of each request.
const BUFFER: u64 = 256 << 20;
/// Kernels that a request takes.
const KERNELS: u32 = 4;
/// GPU time of a kernel.
const KERNEL: Duration = Duration::from_micros(500);
/// From one request to the next, and from one round of greedy's work to the next.
const EVERY: Duration = Duration::from_millis(20);

/// Greedy takes this part of what it believes the GPU to have at a time...
const PIECES: u64 = 64;
/// ...so often...
const PACE: Duration = Duration::from_millis(12);
/// ...and smaller pieces once it is refused, down to this: the driver's own unit.
const SMALLEST: u64 = 2 << 20;
/// About how long that takes, until nothing more is to be had.
pub const FILLING: Duration = Duration::from_millis(PACE.as_millis() as u64 * (PIECES + 10));
/// Greedy looks for more so often, in rounds of its work.
const AGAIN: u64 = 3;
/// What greedy takes, and gives back, in a round.
const SCRAP: u64 = 4 << 10;

/// Runs one container of the demo. The demo starts it.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// What its program does.
    role: Role,
}

/// The container's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    exit_code(match arguments.role {
        Role::Greedy => greedy(),
        Role::Steady => steady(),
    })
}

/// A program and its account.
struct Program {
    gpu: Gpu,
    orders: Receiver<Order>,
    account: Account,
    part: Part,
    /// When the last unit of the part before ended.
    since: Instant,
    /// When the last unit ended.
    last: Instant,
    said: Instant,
}

impl Program {
    fn open() -> Result<Program, End> {
        let (gpu, orders, now) = (Gpu::open(KERNEL, 0)?, listen(), Instant::now());
        let account = Account::default();
        Ok(Program { gpu, orders, account, part: Part::Before, since: now, last: now, said: now })
    }

    /// Says that all is ready, and waits for the order to start.
    fn begin(&mut self) -> Result<(), End> {
        self.look()?;
        say(&News::Ready(self.account.clone()))?;
        await_start(&self.orders)?;
        (self.since, self.last) = (Instant::now(), Instant::now());
        Ok(())
    }

    fn look(&mut self) -> Result<(), End> {
        let memory = self.gpu.memory()?;
        (self.account.total_bytes, self.account.free_bytes) = (memory.total, memory.free);
        Ok(())
    }

    /// Asks for memory: its address, unless it is refused.
    fn ask(&mut self, bytes: u64) -> Result<Option<u64>, End> {
        self.account.asked += 1;
        self.account.asked_bytes += bytes;
        match self.gpu.take(bytes) {
            Ok(address) => {
                self.account.held_bytes += bytes;
                Ok(Some(address))
            }
            Err(DriverError::Refused { name, .. }) => {
                self.account.refused += 1;
                self.account.refused_with = Some(name);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn give(&mut self, (address, bytes): (u64, u64)) -> Result<(), End> {
        self.gpu.give(address)?;
        self.account.held_bytes -= bytes;
        Ok(())
    }

    fn compute(&self, kernels: u32) -> Result<(), End> {
        for _ in 0..kernels {
            self.gpu.launch()?;
        }
        Ok(self.gpu.wait()?)
    }

    fn enter(&mut self, part: Part) {
        (self.part, self.since) = (part, self.last);
    }

    /// A unit of work has ended, done or not.
    fn count(&mut self, done: bool) {
        self.last = Instant::now();
        let elapsed_ns = (self.last - self.since).as_nanos() as u64;
        let work = self.account.work(self.part);
        work.elapsed_ns = elapsed_ns;
        work.tried += 1;
        work.done += u64::from(done);
    }

    /// Says how far it is, if it is time to.
    fn report(&mut self) -> Result<(), End> {
        if self.said.elapsed() >= NEWS_EVERY {
            self.report_now()?;
        }
        Ok(())
    }

    fn report_now(&mut self) -> Result<(), End> {
        self.said = Instant::now();
        self.look()?;
        Ok(say(&News::Running(self.account.clone()))?)
    }

    /// Says its last. Not what it believes now: the other may be gone already, with what it held.
    fn finish(self) -> Result<(), End> {
        Ok(say(&News::Finished(self.account))?)
    }
}

/// How long until then, if it is not past.
fn until(due: Instant) -> Option<Duration> {
    due.checked_duration_since(Instant::now()).filter(|pause| !pause.is_zero())
}

/// Requests come at fixed times, and each takes memory, computes, and gives the memory back. One that gets no memory is
/// not answered.
fn steady() -> Result<(), End> {
    let mut program = Program::open()?;
    program.gpu.take(MODEL)?;
    (program.account.asked, program.account.asked_bytes, program.account.held_bytes) = (1, MODEL, MODEL);
    program.begin()?;
    let mut due = Instant::now() + EVERY;
    loop {
        match next_order(&program.orders, until(due))? {
            Some(Order::Measure) => {
                program.enter(if program.part == Part::Before { Part::Taking } else { Part::Full });
            }
            Some(Order::Finish) => return program.finish(),
            Some(Order::Start) => {}
            None => {
                due += EVERY;
                let buffer = program.ask(BUFFER)?;
                if let Some(address) = buffer {
                    program.compute(KERNELS)?;
                    program.give((address, BUFFER))?;
                }
                program.count(buffer.is_some());
            }
        }
        program.report()?;
    }
}

/// Takes what it can get, then works, and now and then looks for more.
fn greedy() -> Result<(), End> {
    let mut program = Program::open()?;
    program.begin()?;
    program.enter(Part::Taking);
    let mut hoard = Hoard::new(&mut program)?;
    let (mut due, mut rounds) = (Instant::now(), 0);
    loop {
        match next_order(&program.orders, until(due))? {
            Some(Order::Finish) => return program.finish(),
            Some(Order::Start | Order::Measure) => {}
            None if !program.account.full => {
                due += PACE;
                if hoard.grow(&mut program)? {
                    program.account.full = true;
                    program.last = Instant::now();
                    program.enter(Part::Full);
                    due = program.last + EVERY;
                    program.report_now()?; // somebody waits for this
                }
            }
            None => {
                due += EVERY;
                rounds += 1;
                if rounds % AGAIN == 0 {
                    while !hoard.grow(&mut program)? {}
                }
                let scrap = program.ask(SCRAP)?;
                if let Some(address) = scrap {
                    program.compute(1)?;
                    program.give((address, SCRAP))?;
                }
                program.count(scrap.is_some());
            }
        }
        program.report()?;
    }
}

/// What greedy has.
struct Hoard {
    /// What it asks for first.
    whole: u64,
    /// What it asks for next.
    piece: u64,
    /// Address and size of each piece.
    pieces: Vec<(u64, u64)>,
}

impl Hoard {
    /// Begins with one small piece.
    fn new(program: &mut Program) -> Result<Hoard, End> {
        let whole = (program.account.total_bytes / PIECES).next_multiple_of(SMALLEST);
        let first = program.ask(SMALLEST)?.map(|address| (address, SMALLEST));
        Ok(Hoard { whole, piece: whole, pieces: first.into_iter().collect() })
    }

    /// Asks once; after a refusal, for less the next time. Whether it was refused the smallest piece: there is nothing
    /// more to be had. It then gives a piece of that size back, as programs do that want to go on after they ran out of
    /// memory, and asks for a whole one the next time.
    fn grow(&mut self, program: &mut Program) -> Result<bool, End> {
        if let Some(address) = program.ask(self.piece)? {
            self.pieces.push((address, self.piece));
            return Ok(false);
        }
        if self.piece > SMALLEST {
            self.piece = (self.piece / 2).next_multiple_of(SMALLEST);
            return Ok(false);
        }
        self.piece = self.whole;
        if let Some(smallest) = (0..self.pieces.len()).min_by_key(|index| self.pieces[*index].1) {
            program.give(self.pieces.swap_remove(smallest))?;
        }
        Ok(true)
    }
}
