//! `ration-sim`: the side door to a simulated GPU. Shows the record, the timeline and the settings of a world.

use std::process::ExitCode;

use sim_world::Role;
use sim_world::{World, WorldSettings};

const USAGE: &str = "\
usage: ration-sim record | intervals | check | settings | clean

  record      everything the simulated driver knows of GPUs and processes, as JSON
  intervals   who was on which compute engine from when to when, one line each
  check       what is wrong with the accounts; exit 1 if anything is
  settings    the settings of the world, as JSON
  clean       removes the world's directory, if nobody lives in it

The world is the one in RATION_SIM_DIR (default: a directory of this user's in shared memory).";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let dir = World::default_dir();
    if command == "--help" || command == "-h" {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if !dir.join("world").exists() {
        eprintln!("ration-sim: there is no world in {}; run a client first, or set RATION_SIM_DIR", dir.display());
        return ExitCode::FAILURE;
    }
    let settings = match WorldSettings::from_env(|name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("ration-sim: {error}");
            return ExitCode::from(2);
        }
    };
    let world = match World::join(&dir, &settings, Role::Observer) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("ration-sim: {error}");
            return ExitCode::FAILURE;
        }
    };
    match command.as_str() {
        "record" => println!("{}", serde_json::to_string_pretty(&world.record()).unwrap_or_default()),
        "intervals" => {
            for i in world.intervals(0) {
                println!("gpu {} process {} from {} to {} ns", i.gpu, i.slot, i.start_ns, i.end_ns);
            }
        }
        "check" => {
            let wrong = world.inconsistencies();
            wrong.iter().for_each(|line| println!("{line}"));
            if !wrong.is_empty() {
                return ExitCode::FAILURE;
            }
            println!("consistent");
        }
        "settings" => {
            let s = world.settings();
            let gpus: Vec<_> = s.gpu[..s.gpus as usize]
                .iter()
                .map(|g| serde_json::json!({"name": g.name_text(), "uuid": g.uuid_text(), "memory": g.memory, "sms": g.sms}))
                .collect();
            let all = serde_json::json!({
                "gpus": gpus, "driver": s.driver, "slice_ns": s.slice, "save_ns": s.save, "restore_ns": s.restore,
                "leave_ns": s.leave, "on_call_ns": s.on_call, "off_call_ns": s.off_call,
                "copy_bytes_per_s": s.copy_rate, "device_bytes_per_s": s.device_rate, "context_bytes": s.context,
                "speed": s.speed as f64 / 1000.0,
            });
            println!("{}", serde_json::to_string_pretty(&all).unwrap_or_default());
        }
        "clean" => {
            let living = world.record().processes.iter().filter(|p| p.alive && !p.observer).count();
            if living != 0 {
                eprintln!("ration-sim: {living} processes use the world in {}; it stays", dir.display());
                return ExitCode::FAILURE;
            }
            if let Err(error) = std::fs::remove_dir_all(&dir) {
                eprintln!("ration-sim: {}: {error}", dir.display());
                return ExitCode::FAILURE;
            }
        }
        other => {
            eprintln!("ration-sim: no command {other:?}\n{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
