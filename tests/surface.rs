//! The simulated driver's surface: it exports what the real one exports, and `cuGetProcAddress` hands out the right ABI for
//! every name, version and stream mode that the real resolver knows.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use sim_world::surface::{DRIVER_EXPORTS, NVML_EXPORTS, RESOLVE, Resolution, resolve};

mod support;
use support::{Machine, compile, sim_dir};

fn exports(library: &str, prefix: &str) -> BTreeSet<String> {
    let output =
        Command::new("nm").args(["-D", "--defined-only"]).arg(sim_dir().join(library)).output().expect("binutils");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .filter_map(|l| l.split_whitespace().nth(2))
        .filter(|n| n.starts_with(prefix))
        .map(str::to_owned)
        .collect()
}

#[test]
fn exports_are_those_of_the_real_libraries() {
    for (library, prefix, table) in
        [("libcuda.so.1", "cu", &DRIVER_EXPORTS[..]), ("libnvidia-ml.so.1", "nvml", &NVML_EXPORTS[..])]
    {
        let wanted: BTreeSet<String> = table.iter().map(|s| (*s).to_owned()).collect();
        let got = exports(library, prefix);
        let (missing, extra): (Vec<_>, Vec<_>) = (wanted.difference(&got).collect(), got.difference(&wanted).collect());
        assert!(missing.is_empty() && extra.is_empty(), "{library}: missing {missing:?}, not in the table {extra:?}");
    }
}

#[test]
fn the_resolver_answers_for_every_version_and_stream_mode() {
    let program = compile("resolve");
    for (setting, driver) in [("13.0", 13000), ("12.4", 12040), ("11.4", 11040)] {
        let mut questions = Vec::new();
        for row in &RESOLVE {
            for version in [row.since, row.since - 1, driver].into_iter().filter(|v| *v <= driver) {
                for flags in [0, 1, 2] {
                    questions.push((row.name, version, flags));
                }
            }
        }
        let machine = Machine::with(&[("RATION_SIM_DRIVER", setting)]);
        let mut child =
            machine.command(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let text: String =
            questions.iter().map(|(name, version, flags)| format!("{name} {version} {flags}\n")).collect();
        let mut stdin = child.stdin.take().expect("a pipe");
        let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).expect("it reads"));
        let output = child.wait_with_output().expect("it ends");
        writer.join().expect("all was written");
        let answers = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(answers.lines().count(), questions.len());
        let mut found = 0;
        for ((name, version, flags), answer) in questions.iter().zip(answers.lines()) {
            let wanted = match resolve(name, *version, *flags == 2) {
                Resolution::Export(index) => {
                    found += 1;
                    format!("0 0 {}", DRIVER_EXPORTS[index])
                }
                Resolution::VersionTooOld => "0 2 -".to_owned(),
                Resolution::Unknown => "0 1 -".to_owned(),
            };
            assert_eq!(answer, wanted, "{name} at {version} with flags {flags}, driver {setting}");
        }
        assert!(found > 1000, "driver {setting}: only {found} answers");
    }
}
