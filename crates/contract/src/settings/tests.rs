use super::*;
use crate::Origin;
use crate::gpu::tests::{amounts, lists, shares};
use proptest::prelude::*;

fn read(variables: &[(&str, &str)], file: Option<&str>) -> Result<Settings, Vec<Error>> {
    let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
    Settings::read(&get, file)
}

fn good(variables: &[(&str, &str)], file: Option<&str>) -> Settings {
    read(variables, file).unwrap_or_else(|errors| panic!("{variables:?}, {file:?}: {errors:?}"))
}

fn warnings(settings: &Settings) -> Vec<String> {
    settings.warnings.iter().map(Warning::to_string).collect()
}

/// Memory, request, limit, as text.
fn asked(settings: &Settings) -> [String; 3] {
    [settings.memory.to_string(), settings.compute_request.to_string(), settings.compute_limit.to_string()]
}

#[test]
fn nothing_set_asks_for_nothing() {
    assert_eq!(good(&[], None), Settings::default());
}

#[test]
fn everything_can_be_set_in_either_place() {
    let values = [
        ("memory", "0=8GiB,1=25%"),
        ("compute", "30%"),
        ("compute_request", "20%"),
        ("compute_limit", "50%"),
        ("priority", "latency"),
        ("name", "team/pod/main"),
        ("dir", "/run/slices"),
        ("strict", "1"),
    ];
    let names: Vec<_> = values.iter().map(|(key, value)| (format!("RATION_{}", key.to_uppercase()), *value)).collect();
    let variables: Vec<_> = names.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let file: String = values.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
    for settings in [good(&variables, None), good(&[], Some(&file))] {
        assert_eq!(asked(&settings), ["0=8GiB,1=25%", "20%", "50%"]);
        assert_eq!(settings.priority, Priority::Latency);
        assert_eq!(settings.name.as_deref(), Some("team/pod/main"));
        assert_eq!(settings.dir.as_deref(), Some("/run/slices"));
        assert!(settings.strict && settings.warnings.is_empty());
    }
}

#[test]
fn compute_is_request_and_limit_unless_either_is_set() {
    for (variables, request, limit) in [
        (&[("RATION_COMPUTE", "30%")][..], "30%", "30%"),
        (&[("RATION_COMPUTE", "30%"), ("RATION_COMPUTE_LIMIT", "50%")], "30%", "50%"),
        (&[("RATION_COMPUTE", "30%"), ("RATION_COMPUTE_REQUEST", "0%")], "0%", "30%"),
        (&[("RATION_COMPUTE_REQUEST", "25%")], "25%", ""),
        (&[("RATION_COMPUTE_LIMIT", "25%")], "25%", "25%"),
        (&[("RATION_COMPUTE_LIMIT", "100%")], "0%", "100%"),
        (&[("RATION_COMPUTE_LIMIT", "30%,1=100%")], "30%,1=0%", "30%,1=100%"),
        (&[("CUDA_DEVICE_SM_LIMIT", "50")], "50%", "50%"),
        (&[("CUDA_DEVICE_SM_LIMIT", "100")], "0%", "100%"),
        (&[("CUDA_DEVICE_SM_LIMIT", "0")], "", ""),
        (&[("CUDA_DEVICE_SM_LIMIT", "50"), ("CUDA_DEVICE_SM_LIMIT_1", "0")], "50%", "50%"),
        (&[("CUDA_DEVICE_SM_LIMIT", "50"), ("CUDA_DEVICE_SM_LIMIT_1", "20")], "50%,1=20%", "50%,1=20%"),
        (&[("CUDA_DEVICE_SM_LIMIT", "50"), ("RATION_COMPUTE_REQUEST", "20%")], "20%", "50%"),
    ] {
        let settings = good(variables, None);
        assert_eq!(asked(&settings)[1..], [request, limit], "{variables:?}");
        assert_eq!(warnings(&settings), [""; 0], "{variables:?}");
    }
}

#[test]
fn a_request_above_the_limit_is_refused() {
    for variables in [
        [("RATION_COMPUTE_REQUEST", "60%"), ("RATION_COMPUTE_LIMIT", "30%")],
        [("RATION_COMPUTE", "60%"), ("RATION_COMPUTE_LIMIT", "30%")],
        [("RATION_COMPUTE_REQUEST", "20%,1=60%"), ("RATION_COMPUTE_LIMIT", "50%")],
        [("RATION_COMPUTE_REQUEST", "60%"), ("RATION_COMPUTE_LIMIT", "1=50%")],
        [("RATION_COMPUTE_REQUEST", "60%"), ("CUDA_DEVICE_SM_LIMIT", "30")],
        [("RATION_COMPUTE_REQUEST", "GPU-12345678=60%"), ("RATION_COMPUTE_LIMIT", "GPU-12=50%")],
    ] {
        let errors = read(&variables, None).expect_err("above");
        assert!(errors.len() == 1 && errors[0].what.contains("is above the limit"), "{variables:?}: {errors:?}");
    }
}

#[test]
fn the_file_counts_before_the_environment() {
    let settings =
        good(&[("RATION_MEMORY", "16GiB"), ("RATION_NAME", "me"), ("RATION_DIR", "/x")], Some("memory = 8GiB"));
    assert_eq!(asked(&settings)[0], "8GiB");
    assert_eq!(settings.name.as_deref(), Some("me"), "what the file does not say may be said elsewhere");
    assert_eq!(
        warnings(&settings),
        ["RATION_MEMORY=\"16GiB\" is ignored, because of quota file, line 1: memory = \"8GiB\"; \
          remove it, or let both say the same"]
    );
    assert_eq!(settings.given(&MEMORY), Some(&Given::line(1, "memory", "8GiB")));
    assert_eq!(settings.given(&NAME), Some(&Given::variable("RATION_NAME", "me")));
    assert_eq!(settings.given(&STRICT), None);
}

#[test]
fn a_bad_value_that_does_not_count_is_no_error() {
    let settings = good(&[("RATION_MEMORY", "lots"), ("CUDA_DEVICE_MEMORY_LIMIT", "lots")], Some("memory = 8GiB"));
    assert_eq!((asked(&settings)[0].as_str(), settings.warnings.len()), ("8GiB", 2));
}

#[test]
fn the_file_is_the_only_one_to_be_asked_about_compute() {
    let lifted =
        [("RATION_COMPUTE_LIMIT", "100%"), ("RATION_COMPUTE_REQUEST", "100%"), ("CUDA_DEVICE_SM_LIMIT", "100")];
    for file in ["compute = 30%", "compute_limit = 30%", "compute_limit = 30%\ncompute_request = 30%"] {
        let settings = good(&lifted, Some(file));
        assert_eq!(asked(&settings)[1..], ["30%", "30%"], "{file}");
        assert_eq!(settings.warnings.len(), 3, "{:?}", warnings(&settings));
    }
    let settings = good(&lifted, Some("compute_request = 30%"));
    assert_eq!(asked(&settings)[1..], ["30%", ""], "a limit that nobody set");
    let bad = good(&[("RATION_COMPUTE", "lots")], Some("compute_limit = 30%"));
    assert_eq!((asked(&bad)[2].as_str(), bad.warnings.len()), ("30%", 1));
    let agreeing = good(&[("RATION_COMPUTE", "30.0%")], Some("compute = 30%"));
    assert_eq!(warnings(&agreeing), [""; 0]);
}

#[test]
fn our_names_count_before_aliases() {
    let both = |own, alias| good(&[("RATION_MEMORY", own), ("CUDA_DEVICE_MEMORY_LIMIT", alias)], None);
    assert_eq!(warnings(&both("8GiB", "8g")), [""; 0], "the same in other words");
    let settings = both("8GiB", "4g");
    assert_eq!(asked(&settings)[0], "8GiB");
    assert_eq!(
        warnings(&settings),
        ["CUDA_DEVICE_MEMORY_LIMIT=\"4g\" is ignored, because of RATION_MEMORY=\"8GiB\"; \
          remove it, or let both say the same"]
    );
    let settings = good(&[("RATION_COMPUTE", "30%"), ("CUDA_DEVICE_SM_LIMIT", "50")], None);
    assert_eq!((asked(&settings)[2].as_str(), settings.warnings.len()), ("30%", 1));
    let alone = good(&[("CUDA_DEVICE_MEMORY_LIMIT_0", "4096m")], None);
    assert_eq!(asked(&alone)[0], "0=4GiB");
    assert_eq!(
        alone.given(&MEMORY).map(|given| &given.origin),
        Some(&Origin::Variable("CUDA_DEVICE_MEMORY_LIMIT_0".into()))
    );
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let errors = read(
        &[("RATION_MEMORY", "8"), ("RATION_COMPUTE", "30"), ("RATION_PRIORITY", "high"), ("RATION_STRICT", "maybe")],
        None,
    );
    assert_eq!(errors.expect_err("all bad").len(), 4);
}

#[test]
fn gpus_tell_what_could_not_be_told_before() {
    let (one, two) = ([0x11; 16], [0x12; 16]);
    let settings = good(&[("RATION_MEMORY", "GPU-1=8GiB"), ("RATION_COMPUTE", "GPU-1=30%")], None);
    assert_eq!(settings.check(&[one]), Ok(()));
    let errors: Vec<String> = settings.check(&[one, two]).expect_err("two fit").iter().map(Error::to_string).collect();
    assert!(
        errors[0].starts_with("RATION_MEMORY=\"GPU-1=8GiB\": more than one GPU has a UUID that begins with GPU-1;")
    );
    assert_eq!(errors.len(), 2, "RATION_COMPUTE once: {errors:?}");
    assert!(errors[1].starts_with("RATION_COMPUTE=\"GPU-1=30%\": more than one GPU"), "{errors:?}");

    let settings = good(&[("RATION_COMPUTE_REQUEST", "0=60%"), ("RATION_COMPUTE_LIMIT", "GPU-12=50%")], None);
    assert_eq!(settings.check(&[one, two]), Ok(()));
    assert_eq!(settings.check(&[two, one]).expect_err("above").len(), 1);
    assert_eq!(settings.check(&[]), Ok(()));
}

prop_compose! {
    /// Whatever can be asked for.
    fn settings()(
        memory in prop::option::of(lists(amounts)),
        limit in prop::option::of(lists(shares)),
        part in 0..=100_u32,
        priority in prop_oneof![Just(Priority::Latency), Just(Priority::Normal), Just(Priority::Batch)],
        name in prop::option::of("[!\"$-~][!-~]{0,252}"),
        dir in prop::option::of("/[!-~]{0,100}"),
        strict: bool,
    ) -> Settings {
        let lower = |share: &Share| Percent::from_ppm(share.ppm() / 100 * part).unwrap();
        let limit = limit.unwrap_or_default();
        Settings {
            memory: memory.unwrap_or_default(),
            compute_request: limit.map(lower),
            compute_limit: limit,
            priority, name, dir, strict,
            ..Settings::default()
        }
    }
}

#[test]
fn the_longest_messages_fit() {
    let strange = "\u{10ffff}".repeat(300);
    let wide = "4".repeat(300);
    let values: Vec<String> = ["", "GPU-", "GPU-0=", "0=", "1GiB", "8", "%"]
        .iter()
        .flat_map(|start| {
            [format!("{start}{strange}"), format!("{start}{wide}"), format!("{start}{wide}%{strange}={wide}")]
        })
        .collect();
    let check = |result: Result<Settings, Vec<Error>>| {
        for line in result.err().iter().flatten().map(Error::to_string) {
            assert!(line.len() <= Error::LONGEST, "{} bytes: {line}", line.len());
        }
    };
    let far_down = "\n".repeat(100_000);
    for value in &values {
        for name in ALL_NAMES {
            check(read(&[(name, value)], None));
        }
        for setting in crate::table::SETTINGS {
            check(read(&[], Some(&format!("{far_down}{} = {value}", setting.key))));
            check(read(&[], Some(&format!("{0} = {value}\n{far_down}{0} = {value}", setting.key))));
        }
        for line in [format!("{value} = {value}"), value.clone()] {
            check(read(&[], Some(&format!("{far_down}{line}"))));
        }
        let warned = good(&[("RATION_NAME", value)], Some(&format!("{far_down}name = {}", "n".repeat(253))));
        assert!(warned.warnings.iter().all(|warning| warning.to_string().len() <= Error::LONGEST));
        assert_eq!(warned.warnings.len(), 1);
    }
}

proptest! {
    #[test]
    fn settings_survive_the_quota_file(settings in settings()) {
        let file = settings.quota_file();
        if settings == Settings::default() {
            prop_assert_eq!(file, "");
        } else {
            let read = read(&[], Some(&file)).unwrap();
            prop_assert_eq!(Settings { given: Vec::new(), ..read }, settings);
        }
    }

    #[test]
    fn nothing_is_too_strange_and_every_message_fits(
        values in prop::collection::vec(prop_oneof![any::<String>(), "[ -~]{0,200}", "[0-9.,=%GiBPU-]{0,60}"], 10),
        file in prop::option::of("((memory|compute|name|dir|x)? ?= ?(\\PC{0,100}|[0-9%GiB,=]{0,20})\n?){0,6}"),
    ) {
        let get = |name: &str| ALL_NAMES.iter().position(|n| *n == name).and_then(|at| values.get(at).cloned());
        match Settings::read(&get, file.as_deref()) {
            Ok(settings) => {
                for warning in &settings.warnings {
                    prop_assert!(warning.to_string().len() <= Error::LONGEST, "{}", warning);
                }
                let _ = settings.check(&[[0; 16], [1; 16]]);
            }
            Err(errors) => {
                prop_assert!(!errors.is_empty());
                for error in errors {
                    let line = error.to_string();
                    prop_assert!(line.len() <= Error::LONGEST && !line.contains('\n'), "{} bytes: {line}", line.len());
                }
            }
        }
    }
}

const ALL_NAMES: [&str; 11] = [
    "RATION_MEMORY",
    "RATION_COMPUTE",
    "RATION_COMPUTE_REQUEST",
    "RATION_COMPUTE_LIMIT",
    "RATION_PRIORITY",
    "RATION_NAME",
    "RATION_DIR",
    "RATION_OWN_DIR",
    "RATION_STRICT",
    "CUDA_DEVICE_MEMORY_LIMIT_3",
    "CUDA_DEVICE_SM_LIMIT",
];
