//! Processes that come, are killed, and leave nothing: whatever they held, including the world's lock.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path as FsPath, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sim_world::{Path, Role, World, WorldSettings};

/// The test program itself is also the client, when this says where.
const CLIENT: &str = "RATION_LIVES_CLIENT";

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ration-lives-{name}-{}", std::process::id()))
}

fn join(dir: &FsPath) -> World {
    World::join(dir, &WorldSettings::h200(), Role::Client).expect("a world")
}

/// Not a test: what a client does when this program is started as one.
#[test]
fn client() {
    let Some(dir) = std::env::var_os(CLIENT) else { return };
    let world = join(dir.as_ref());
    let mut lines = std::io::stdin().lines();
    let mut said = std::io::stdout();
    while let Some(Ok(line)) = lines.next() {
        match line.as_str() {
            "charge" => world.charge(0, Path::Linear, 1 << 30).expect("there is room"),
            "lock and change" => {
                let tx = world.lock();
                tx.set(&world.file().gpus[0].used, 12345);
                std::mem::forget(tx);
            }
            "lock for a moment" => {
                let tx = world.lock();
                writeln!(said, "done").and_then(|()| said.flush()).expect("somebody listens");
                std::thread::sleep(Duration::from_millis(50));
                drop(tx);
                continue;
            }
            other => panic!("no such order: {other}"),
        }
        writeln!(said, "done").and_then(|()| said.flush()).expect("somebody listens");
    }
}

struct Client(Child);

impl Client {
    fn new(dir: &FsPath) -> Client {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["client", "--exact", "--nocapture", "--test-threads=1"])
            .env(CLIENT, dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Client(child.expect("this program starts"))
    }

    fn order(&mut self, what: &str) {
        writeln!(self.0.stdin.as_mut().expect("a pipe"), "{what}").expect("it listens");
        let mut answers = BufReader::new(self.0.stdout.as_mut().expect("a pipe"));
        let mut line = String::new();
        while !line.ends_with("done\n") {
            line.clear();
            assert_ne!(answers.read_line(&mut line).expect("it answers"), 0, "the client ended");
        }
    }

    fn kill(mut self) {
        self.0.kill().expect("a child can be killed");
        self.0.wait().expect("a child can be waited for");
    }
}

#[test]
fn what_a_killed_process_held_is_free_at_once() {
    let dir = temporary("held");
    let world = join(&dir);
    let before = world.free_bytes(0);
    let mut client = Client::new(&dir);
    client.order("charge");
    assert_eq!(world.free_bytes(0), before - (1 << 30));
    client.kill();
    assert_eq!(world.free_bytes(0), before);
    let record = world.record();
    let gone = record.processes.iter().find(|p| !p.alive).expect("the record remembers it");
    assert_eq!(gone.gpus[&0].peak_bytes, 1 << 30);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_half_made_change_of_a_killed_holder_is_undone() {
    let dir = temporary("lock");
    let world = join(&dir);
    let mut client = Client::new(&dir);
    client.order("lock and change");
    assert_eq!(world.file().gpus[0].used.get(), 12345, "the change is there, and not committed");
    client.kill();
    let start = Instant::now();
    drop(world.lock());
    assert!(start.elapsed() < Duration::from_secs(1), "the lock came after {:?}", start.elapsed());
    assert_eq!(world.file().gpus[0].used.get(), 0);
    assert_eq!(world.file().takeovers.get(), 1);
    assert!(world.inconsistencies().is_empty());
    let _ = std::fs::remove_dir_all(dir);
}

/// Nobody is stopped in the middle of a call of the kernel module's.
#[test]
fn who_is_stopped_with_the_lock_lets_go_of_it_first() {
    let dir = temporary("stopped");
    let world = join(&dir);
    let mut client = Client::new(&dir);
    client.order("lock for a moment");
    let pid = client.0.id().cast_signed();
    // SAFETY: plain numbers; a child that nobody has waited for.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    assert_ne!(world.file().lock.load(Ordering::Relaxed), 0, "it has the lock");
    let start = Instant::now();
    drop(world.lock());
    assert!(start.elapsed() < Duration::from_secs(2), "the lock came after {:?}", start.elapsed());
    assert_eq!(world.file().takeovers.get(), 0);
    let is_stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    while !is_stopped() {
        assert!(start.elapsed() < Duration::from_secs(2), "it goes on");
        std::thread::yield_now();
    }
    client.kill();
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn one_that_was_killed_while_it_joined_keeps_nobody_from_joining() {
    let dir = temporary("joining");
    let first = join(&dir);
    // As if another had come, and been killed when it had the lock and its slot was not yet its own.
    first.file().procs[1].life.store(0x4000_0000, Ordering::Release);
    first.file().lock.store(2, Ordering::Release);
    let mut client = Client::new(&dir);
    client.order("charge");
    assert_eq!(first.file().takeovers.get(), 1);
    client.kill();
    // And the slot is of use again.
    let mut next = Client::new(&dir);
    next.order("charge");
    assert_ne!(first.file().procs[1].state.get(), sim_world::layout::PROC_FREE);
    next.kill();
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn slots_are_used_again_when_all_were_taken() {
    let dir = temporary("slots");
    let first = join(&dir);
    for proc in &first.file().procs[1..] {
        // As if so many had come and been killed without anybody looking.
        proc.life.store(0x4000_0000, Ordering::Release);
        let tx = first.lock();
        tx.set(&proc.state, sim_world::layout::PROC_LIVE);
    }
    let mut client = Client::new(&dir);
    client.order("charge");
    assert!(first.inconsistencies().is_empty());
    client.kill();
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_file_of_another_version_is_refused_and_left_alone() {
    let dir = temporary("version");
    std::fs::create_dir_all(&dir).expect("a temporary directory");
    std::fs::write(dir.join("world"), b"something else").expect("writable");
    let error = World::join(&dir, &WorldSettings::h200(), Role::Client).err().expect("refused").to_string();
    assert!(error.contains("another version") && error.contains("RATION_SIM_DIR"), "{error}");
    assert_eq!(std::fs::read(dir.join("world")).expect("still there"), b"something else");
    let _ = std::fs::remove_dir_all(dir);
}
