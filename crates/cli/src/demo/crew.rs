//! The workers of a phase, seen from the demo: started, ordered about, listened to, and never left behind.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Trouble;
use super::library::Environment;
use super::wire::{Order, Tidings};
use super::worker;

/// How much of a worker's last words is kept.
const WORDS: u64 = 8 << 10;

/// A worker to be started.
pub struct Job {
    /// What it is called.
    pub name: String,
    /// The arguments of this program that make it the worker.
    pub arguments: Vec<String>,
    /// What is different in its environment.
    pub environment: Environment,
}

/// The workers, and the news that they have. Dropping them ends them.
pub struct Crew<N> {
    members: Vec<Member>,
    news: Receiver<(usize, Heard<N>)>,
}

struct Member {
    name: String,
    pid: u32,
    child: Child,
    orders: Option<ChildStdin>,
    words: Option<JoinHandle<String>>,
    /// It has said its last, and may go.
    finished: bool,
}

/// What comes out of a worker.
enum Heard<N> {
    News(N),
    /// Something that is no news.
    Noise(String),
    /// Nothing more.
    Silence,
}

impl<N: Tidings> Crew<N> {
    /// Starts workers on the simulated GPU in `world`. They are numbered as in `jobs`.
    pub fn start(jobs: &[Job], world: &Path) -> Result<Crew<N>, Trouble> {
        let (tell, news) = mpsc::channel();
        let mut crew = Crew { members: Vec::new(), news };
        for (number, job) in jobs.iter().enumerate() {
            let member = Member::start(job, world, number, &tell);
            crew.members.push(member.map_err(|error| Trouble::Start { name: job.name.clone(), error })?);
        }
        Ok(crew)
    }

    /// The process of a worker.
    pub fn pid(&self, number: usize) -> u32 {
        self.members[number].pid
    }

    /// Tells all of them. One that does not listen any more is heard of by [`Crew::next`].
    pub fn order(&mut self, order: Order) {
        self.members.iter_mut().for_each(|member| member.order(order));
    }

    /// Tells one of them.
    pub fn order_one(&mut self, number: usize, order: Order) {
        self.members[number].order(order);
    }

    /// The next news, if any come before `until`.
    pub fn next(&mut self, until: Instant) -> Result<Option<(usize, N)>, Trouble> {
        loop {
            match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((number, Heard::News(news))) => {
                    self.members[number].finished |= news.is_last();
                    return Ok(Some((number, news)));
                }
                Ok((number, Heard::Noise(line))) => return Err(self.noise(number, line)),
                Ok((number, Heard::Silence)) if self.members[number].finished => {}
                Ok((number, Heard::Silence)) => return Err(self.post_mortem(number)),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                // All are silent, and each silence was heard of.
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                    return Ok(None);
                }
            }
        }
    }

    /// Waits for workers that said their last to end by themselves, so that the GPU is theirs no more.
    pub fn dismiss(mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        for member in &mut self.members {
            member.orders = None;
            while Instant::now() < deadline && matches!(member.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Ends a worker: what it has complained about.
    pub fn end(&mut self, number: usize) -> String {
        let member = &mut self.members[number];
        let _ = member.child.kill(); // it may be gone already
        member.last_words()
    }

    fn noise(&self, number: usize, line: String) -> Trouble {
        Trouble::Nonsense { name: self.members[number].name.clone(), line }
    }

    /// Why a worker is silent.
    fn post_mortem(&mut self, number: usize) -> Trouble {
        let member = &mut self.members[number];
        member.end();
        let how = member.child.wait();
        let words = member.last_words();
        match how {
            Ok(status) if status.code() == Some(i32::from(worker::NO_GPU)) => Trouble::NoGpu { words },
            Ok(status) => Trouble::Died { name: member.name.clone(), how: describe(status), words },
            Err(error) => Trouble::Died { name: member.name.clone(), how: error.to_string(), words },
        }
    }
}

impl<N> Drop for Crew<N> {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill(); // it may be gone already
        }
        for member in &mut self.members {
            let _ = member.child.wait();
        }
    }
}

impl Member {
    fn start<N: Tidings>(
        job: &Job,
        world: &Path,
        number: usize,
        tell: &Sender<(usize, Heard<N>)>,
    ) -> io::Result<Member> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&job.arguments);
        for (variable, value) in &job.environment {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        let mut child = command
            .env("RATION_SIM_DIR", world)
            // The demo is about the first GPU of its own world.
            .env_remove("CUDA_VISIBLE_DEVICES")
            // A Ctrl-C is for the demo, which ends its workers in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (output, complaints) = (child.stdout.take(), child.stderr.take());
        let tell = tell.clone();
        std::thread::spawn(move || {
            for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok) {
                let heard = serde_json::from_str(&line).map_or(Heard::Noise(line), Heard::News);
                if tell.send((number, heard)).is_err() {
                    return;
                }
            }
            let _ = tell.send((number, Heard::Silence));
        });
        let words = std::thread::spawn(move || {
            let mut words = Vec::new();
            if let Some(mut complaints) = complaints {
                let _ = complaints.by_ref().take(WORDS).read_to_end(&mut words);
                let _ = io::copy(&mut complaints, &mut io::sink()); // a full pipe would stop it
            }
            String::from_utf8_lossy(&words).into_owned()
        });
        let orders = child.stdin.take();
        Ok(Member { name: job.name.clone(), pid: child.id(), child, orders, words: Some(words), finished: false })
    }

    fn order(&mut self, order: Order) {
        if let Some(input) = &mut self.orders
            && writeln!(input, "{order}").and_then(|()| input.flush()).is_err()
        {
            self.orders = None;
        }
    }

    /// What it said on standard error, once it has ended.
    fn last_words(&mut self) -> String {
        self.words.take().and_then(|thread| thread.join().ok()).unwrap_or_default().trim().to_owned()
    }

    /// Gives a worker that said nothing more a moment to end by itself, so that its own end is what is reported.
    fn end(&mut self) {
        self.orders = None;
        for _ in 0..50 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
