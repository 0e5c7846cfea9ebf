//! Variables of the environment, a line each, and behind an empty line a quota file: whatever they say, there is an answer; and what is
//! understood is written as a quota file that says the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ration_contract::Settings;

fuzz_target!(|text: &str| {
    let (variables, file) = match text.split_once("\n\n") {
        Some((variables, file)) => (variables, Some(file)),
        None => (text, None),
    };
    let get = |name: &str| {
        let lines = variables.lines().filter_map(|line| line.split_once('='));
        lines.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    match Settings::read(&get, file) {
        Ok(settings) => {
            let _ = settings.check(&[[0x11; 16], [0x12; 16]]);
            for (index, uuid) in [(0, [0x11; 16]), (1, [0x12; 16])] {
                let _ = settings.memory.for_gpu(index, &uuid).map(|amount| amount.bytes(80 << 30));
                let _ = settings.compute_limit.for_gpu(index, &uuid);
            }
            let written = settings.quota_file();
            if !written.is_empty() {
                let again = Settings::read(&|_| None, Some(&written)).expect("what is written can be read");
                assert_eq!(again.quota_file(), written, "and says the same");
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                let text = error.to_string();
                assert!(text.len() < 2000 && !text.contains(|it: char| it.is_control()), "{text:?}");
            }
        }
    }
});
