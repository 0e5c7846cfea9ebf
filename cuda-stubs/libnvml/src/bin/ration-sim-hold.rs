//! A stand-in for a CUDA program, for tests: holds memory of a simulated GPU and keeps it busy for a part of the time.
//!
//! `ration-sim-hold GPU BYTES [PER-MILLE]` joins the world that `RATION_SIM_DIR` names, takes a context and so many
//! bytes, prints `ready` and its PID, and goes when its standard input is closed.

use std::io::Read as _;
use std::process::ExitCode;

use sim_world::channel::{Kind, NewOp, WHOLE};
use sim_world::{Path, Role, World, WorldSettings};

/// Work comes in stretches of this many nanoseconds.
const BEAT: u64 = 10_000_000;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ration-sim-hold: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<(), String> {
    let number = |at: usize, what: &str| {
        let text = args.get(at).ok_or(format!("usage: ration-sim-hold GPU BYTES [PER-MILLE]; {what} is missing"))?;
        text.parse::<u64>().map_err(|e| format!("{what} {text:?}: {e}"))
    };
    let (gpu, bytes) = (number(0, "GPU")? as usize, number(1, "BYTES")?);
    let load = if args.len() > 2 { number(2, "PER-MILLE")?.min(1000) } else { 0 };
    let settings = WorldSettings::from_env(|name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    let world = World::join(&World::default_dir(), &settings, Role::Client).map_err(|e| e.to_string())?;
    let settings = world.settings();
    if gpu >= settings.gpus as usize {
        return Err(format!("there is no GPU {gpu}"));
    }
    let amounts =
        [(Path::Context, settings.context), (Path::Overhead, settings.context_overhead), (Path::Linear, bytes)];
    world.charge_all(gpu, &amounts).map_err(|_| format!("GPU {gpu} has no room for {bytes} bytes"))?;
    let chan = world.claim_channel(gpu).ok_or("all channels are taken")?;
    println!("ready {}", std::process::id());

    let gone = std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    });
    let work = NewOp {
        kind: Kind::Kernel,
        duration: BEAT * load / 1000,
        width: WHOLE,
        priority: 0,
        kernels: 1,
        after: [None; 2],
    };
    let mut beat = world.now();
    while !gone.is_finished() {
        if load != 0
            && let Some(seq) = world.push(chan, 0, &work)
        {
            world.wait(seq);
        }
        // Others on the GPU may make this one late; the next beat comes when it is due.
        beat = (beat + BEAT).max(world.now().saturating_sub(10 * BEAT));
        std::thread::sleep(world.real(beat.saturating_sub(world.now())));
    }
    Ok(())
}
