//! A quota file of any bytes, and a pod's name: an answer always, never no limit where one was meant, and messages that can be shown.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ration_contract::{Settings, with_pod};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let (pod, file) = text.split_once('\0').unwrap_or(("web-1", &text));
    let filled = with_pod(file, pod);
    match Settings::read(&|_| None, Some(&filled)) {
        Ok(settings) => {
            // What names a limit has one.
            let says = |key: &str| {
                filled.lines().any(|line| line.trim_start().split('=').next().is_some_and(|it| it.trim() == key))
            };
            assert!(!says("memory") || !settings.memory.is_empty(), "{filled:?}");
            for warning in &settings.warnings {
                assert!(!warning.to_string().contains(|it: char| it.is_control()));
            }
        }
        Err(errors) => {
            for error in errors {
                let text = error.to_string();
                assert!(text.len() < 2000 && !text.contains(|it: char| it.is_control()), "{text:?}");
            }
        }
    }
});
