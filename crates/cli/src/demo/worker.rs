//! A worker: one program of the scenario, in a process of its own. It is a plain client of the CUDA driver that knows
//! nothing of the simulation, and it times itself.

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::driver::{DriverError, Gpu};
use super::figures::Done;
use super::scenario::{Program, Style};
use super::wire::{News, Order};

/// The exit code of a worker that found no simulated GPU to work on.
pub const NO_GPU: u8 = 69;

/// How often a worker says how far it is.
pub const NEWS_EVERY: Duration = Duration::from_millis(100);

/// Runs one program of the demo. The demo starts it.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The program, in the text form of scenarios.
    program: String,
}

/// Why a worker ends before its time.
pub enum End {
    /// The demo is gone, or has enough.
    NotWanted,
    /// The driver did not do what was asked.
    Driver(DriverError),
}

impl From<DriverError> for End {
    fn from(error: DriverError) -> End {
        End::Driver(error)
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::NotWanted // nobody reads what we say
    }
}

/// The worker's `main`.
pub fn run(arguments: &Arguments) -> ExitCode {
    let program: Program = match arguments.program.parse() {
        Ok(program) => program,
        Err(why) => {
            eprintln!("ration demo-worker: {why}");
            return ExitCode::from(2);
        }
    };
    let loops = Loop::new(&program);
    exit_code(work(&program, loops))
}

/// How a worker ends, with its last words said.
pub fn exit_code(end: Result<(), End>) -> ExitCode {
    match end {
        Ok(()) | Err(End::NotWanted) => ExitCode::SUCCESS,
        Err(End::Driver(error)) => {
            eprintln!("{error}");
            if error.is_absence() { ExitCode::from(NO_GPU) } else { ExitCode::FAILURE }
        }
    }
}

fn work(program: &Program, mut loops: Loop) -> Result<(), End> {
    let gpu = Gpu::open(program.kernel, loops.events())?;
    gpu.take(program.memory)?;
    let orders = listen();
    say(&News::Ready)?;
    await_start(&orders)?;
    let mut log = Log::new(Instant::now());
    loops.begin(Instant::now());
    loop {
        match next_order(&orders, loops.pause(Instant::now()))? {
            Some(Order::Measure) => log.restart(),
            Some(Order::Finish) => return Ok(say(&News::Finished(log.everything()))?),
            Some(Order::Start) => {}
            None => {
                let step = loops.step(&gpu)?;
                log.add(&step, Instant::now());
            }
        }
        if let Some(news) = log.news(Instant::now()) {
            say(&news)?;
        }
    }
}

/// Waits for the order to start.
pub fn await_start(orders: &Receiver<Order>) -> Result<(), End> {
    match orders.recv() {
        Ok(Order::Start) => Ok(()),
        Ok(_) | Err(_) => Err(End::NotWanted),
    }
}

/// The next order, or none within this time.
pub fn next_order(orders: &Receiver<Order>, pause: Option<Duration>) -> Result<Option<Order>, End> {
    match pause {
        Some(pause) => match orders.recv_timeout(pause) {
            Ok(order) => Ok(Some(order)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(End::NotWanted),
        },
        None => match orders.try_recv() {
            Ok(order) => Ok(Some(order)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(End::NotWanted),
        },
    }
}

/// Tells the demo, in a line.
pub fn say(news: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(news)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

/// Orders as they come in. The channel closes when the input ends.
pub fn listen() -> Receiver<Order> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for order in io::stdin().lock().lines().map_while(|line| line.ok()?.parse().ok()) {
            if tell.send(order).is_err() {
                return;
            }
        }
    });
    told
}

/// What a worker has done and not yet said. Time counts from one unit's end to another's, so that no unit is cut in
/// two.
struct Log {
    since: Instant,
    last: Instant,
    said: Instant,
    measuring: bool,
    done: Done,
    said_latencies_ns: Vec<u64>,
}

impl Log {
    fn new(now: Instant) -> Log {
        Log { since: now, last: now, said: now, measuring: false, done: Done::default(), said_latencies_ns: Vec::new() }
    }

    /// It counts from now on.
    fn restart(&mut self) {
        *self = Log { measuring: true, ..Log::new(self.last) };
    }

    fn add(&mut self, step: &Step, now: Instant) {
        if step.units != 0 {
            self.last = now;
            self.done.units += u64::from(step.units);
            self.done.latencies_ns.extend(step.latency.map(|time| time.as_nanos() as u64));
        }
    }

    fn take(&mut self) -> Done {
        self.done.elapsed_ns = (self.last - self.since).as_nanos() as u64;
        self.said_latencies_ns.extend(&self.done.latencies_ns);
        let rest = Done { latencies_ns: Vec::new(), ..self.done };
        std::mem::replace(&mut self.done, rest)
    }

    fn everything(mut self) -> Done {
        let done = self.take();
        Done { latencies_ns: self.said_latencies_ns, ..done }
    }

    fn news(&mut self, now: Instant) -> Option<News> {
        if now - self.said < NEWS_EVERY {
            return None;
        }
        self.said = now;
        let done = self.take();
        Some(if self.measuring { News::Measuring(done) } else { News::Warming(done) })
    }
}

/// What one turn of the loop finished.
#[derive(Default)]
struct Step {
    units: u32,
    latency: Option<Duration>,
}

/// A program's loop over the GPU.
enum Loop {
    /// Batches of kernels with an event behind each; the oldest batch is waited for once all events are in use.
    Queue { batch: u32, events: usize, next: usize, filled: bool },
    /// See [`Style::Wait`].
    Wait,
    /// See [`Style::Requests`]. `awaited`: we were there when the request came.
    Requests { kernels: u32, every: Duration, due: Instant, awaited: bool },
}

impl Loop {
    fn new(program: &Program) -> Loop {
        match program.style {
            Style::Queue { depth } => {
                let batch = depth.div_ceil(8);
                Loop::Queue { batch, events: depth.div_ceil(batch) as usize, next: 0, filled: false }
            }
            Style::Wait => Loop::Wait,
            Style::Requests { kernels, every } => {
                Loop::Requests { kernels, every, due: Instant::now(), awaited: false }
            }
        }
    }

    fn events(&self) -> usize {
        if let Loop::Queue { events, .. } = self { *events } else { 0 }
    }

    /// The first request comes now.
    fn begin(&mut self, now: Instant) {
        if let Loop::Requests { due, .. } = self {
            *due = now;
        }
    }

    /// How long there is nothing to do.
    fn pause(&mut self, now: Instant) -> Option<Duration> {
        let Loop::Requests { due, awaited, .. } = self else { return None };
        let pause = due.checked_duration_since(now).filter(|pause| !pause.is_zero());
        *awaited |= pause.is_some();
        pause
    }

    fn step(&mut self, gpu: &Gpu) -> Result<Step, DriverError> {
        match self {
            Loop::Queue { batch, events, next, filled } => {
                let mut step = Step::default();
                if *filled {
                    gpu.wait_for(*next)?;
                    step.units = *batch;
                }
                for _ in 0..*batch {
                    gpu.launch()?;
                }
                gpu.record(*next)?;
                *next += 1;
                if *next == *events {
                    (*next, *filled) = (0, true);
                }
                Ok(step)
            }
            Loop::Wait => {
                gpu.launch()?;
                gpu.wait()?;
                Ok(Step { units: 1, latency: None })
            }
            Loop::Requests { kernels, every, due, awaited } => {
                // A request that came while the one before was being served has waited since it came. One that was
                // awaited came when we woke up: how exactly this machine sleeps is no property of the GPU.
                let came = if std::mem::take(awaited) { Instant::now() } else { *due };
                *due += *every;
                for _ in 0..*kernels {
                    gpu.launch()?;
                }
                gpu.wait()?;
                Ok(Step { units: 1, latency: Some(came.elapsed()) })
            }
        }
    }
}
