//! include/ration.h against the layout, and a reader made with it against the crate.

mod support;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use ration_region::{MAJOR, MINOR, Region};
use support::{GPU, Scratch, compile, file_in};

/// The layout of this version, line by line; src/listing.rs keeps it true.
fn listing() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("layout/{MAJOR}.{MINOR}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// A program that prints the listing as the header has it.
fn program(lines: &[String]) -> String {
    let mut program =
        String::from("#include <inttypes.h>\n#include <stdio.h>\n#include \"ration.h\"\nint main(void) {\n");
    for name in lines.iter().map(|line| line.split(' ').next().expect("a name")) {
        let (slot, field) = name.split_once('.').expect("a slot and a field");
        let _ = if slot == "number" {
            let number = field.to_uppercase();
            writeln!(program, "printf(\"{name} %\" PRIu64 \"\\n\", (uint64_t)RATION_{number});")
        } else {
            let (offset, size) =
                (format!("offsetof(struct ration_{slot}, {field})"), format!("((struct ration_{slot} *)0)->{field}"));
            writeln!(program, "printf(\"{name} %zu %zu\\n\", {offset}, sizeof({size}));")
        };
    }
    program + "printf(\"%d.%d\\n\", RATION_MAJOR, RATION_MINOR);\nreturn 0;\n}\n"
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_field_is_where_the_header_says() {
    let scratch = Scratch::new("header");
    let (source, lines) = (scratch.join("offsets.c"), listing());
    std::fs::write(&source, program(&lines)).expect("room for a program");
    let printed = output(&mut Command::new(compile(&source, &scratch)));
    let mut expected = lines.join("\n");
    let _ = write!(expected, "\n{MAJOR}.{MINOR}\n");
    for (theirs, ours) in printed.lines().zip(expected.lines()) {
        assert_eq!(theirs, ours, "include/ration.h (left) is not the layout (right)");
    }
    assert_eq!(printed, expected);
}

#[test]
fn the_header_has_no_field_that_the_layout_has_not() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/ration.h");
    let text = std::fs::read_to_string(path).expect("the header");
    for slot in ["header", "container", "process", "public_header", "page"] {
        let body = text.split(&format!("struct ration_{slot} {{")).nth(1).expect("the struct");
        let body = body.split("};").next().expect("its end");
        let fields = body.lines().filter(|line| line.trim_start().starts_with("uint")).count();
        let listed = listing().iter().filter(|line| line.starts_with(&format!("{slot}."))).count();
        assert_eq!(fields, listed, "struct ration_{slot}");
    }
}

#[test]
fn the_header_is_good_cplusplus() {
    let scratch = Scratch::new("cplusplus");
    let source = scratch.join("empty.cc");
    std::fs::write(
        &source,
        "#include \"ration.h\"\nint main() { return sizeof(ration_region) == RATION_SIZE ? 0 : 1; }\n",
    )
    .expect("room for a program");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    // A C compiler is all that ci/setup makes sure of.
    let Some(compiler) =
        ["c++", "g++", "clang++"].into_iter().find(|it| Command::new(it).arg("--version").output().is_ok())
    else {
        println!("there is no C++ compiler here");
        return;
    };
    let mut command = Command::new(compiler);
    command.args(["-std=c++11", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"]).arg(include);
    output(command.arg(source));
}

#[test]
fn a_foreign_reader_sees_what_is_in_a_region() {
    let scratch = Scratch::new("reader");
    let reader = compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reader.c"), &scratch);
    let dir = scratch.regions();
    let region = Region::open(&dir, &GPU).expect("a new region");
    let first = region.join("team/pod/one", Some(1000)).expect("room");
    let second = region.join("team/pod/one", None).expect("room");
    let other = region.join("another", None).expect("room");
    first.reserve(600).expect("there is room");
    first.refund(200);
    second.reserve(601).expect_err("there is no room");
    second.charge(55);
    second.refund(60);
    second.set_driver_pid(4711);
    other.charge(7);
    let printed = output(Command::new(reader).arg(file_in(&dir)));

    let (pid, total) = (std::process::id(), GPU.total);
    let namespace = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/pid").expect("a namespace"));
    let process = |driver: u32, held: u64, drift: u64| {
        format!("process {pid} driver {driver} namespace {namespace} held {held} drift {drift} pending 0 alive\n")
    };
    let expected = format!("region {MAJOR}.{MINOR} uuid 0123456789abcdef20736f6d65677075 total {total}\n")
        + "container team/pod/one cap 1000 used 400 refused 1\n"
        + &process(0, 400, 0)
        + &process(4711, 0, 5)
        + &format!("container another cap {} used 7 refused 0\n", u64::MAX)
        + &process(0, 7, 0);
    assert_eq!(printed, expected);
}
