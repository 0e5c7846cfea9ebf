//! Programs that the library does not get into, or that start others where it does not: to be said before they run.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::places;

/// Why a program will not be held to its limits, if it will not be, with what to do instead.
pub fn warnings(program: &OsStr, path: &Path, arguments: &[OsString]) -> Vec<String> {
    let shown = program.to_string_lossy();
    let mut warnings = Vec::new();
    let mut warn = |why: &str, instead: &str| {
        warnings.push(format!("warning: {shown} will not be held to these limits: {why}. {instead}"));
    };
    if let Some((why, instead)) = by_name(path, arguments) {
        warn(why, instead);
        // Of one that starts others, its own rights are no second piece of news.
        return warnings;
    }
    if has_more_rights(path) {
        warn(
            "it runs with more rights than its user (setuid, setgid or file capabilities), and then the system preloads nothing",
            "Run a copy without them, or put the library into /etc/ld.so.preload",
        );
    }
    let mut begin = Vec::new();
    let is_read = File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut begin)).is_ok();
    match is_read.then(|| Kind::of(&begin)) {
        Some(Kind::Static) => {
            warn(
                "it is linked statically, so nothing can be preloaded into it",
                "Link it dynamically (Go: with cgo), or give it a GPU of its own",
            );
        }
        Some(Kind::Musl) => {
            warn("it is linked to musl, and the library to glibc", "Use a build of it for glibc");
        }
        Some(Kind::Foreign) => {
            warn("it is not made for 64-bit x86, as the library is", "Use a build of it for this machine");
        }
        Some(Kind::Usual) | None => {}
    }
    warnings
}

/// So much of a file is looked at: its headers are at its beginning, as good as always.
const MOST: u64 = 64 << 10;

type Advice = (&'static str, &'static str);

const OTHER_USER: Advice = (
    "it starts programs as another user, with an environment without the library",
    "Put it before: sudo ration run ... -- PROGRAM",
);
const OTHER_PLACE: Advice = (
    "what it starts runs elsewhere, where neither the library nor these limits are",
    "Put it before, so that ration runs there: ssh HOST ration run ... -- PROGRAM",
);
const JOB: Advice = (
    "the batch system starts programs itself, mostly on other machines",
    "Put it before: srun ration run ... -- PROGRAM",
);
const CONTAINER: Advice = (
    "a daemon starts the container, and these limits do not get into it",
    "Give the container the slice: --device ration.dev/slice=on -e RATION_MEMORY=... -e RATION_COMPUTE=... (docs/containers.md)",
);
const POD: Advice = (
    "what runs in a cluster is started there",
    "Ask for a slice in the pod's annotations: ration.dev/memory, ration.dev/compute",
);
const DAEMON: Advice = (
    "a service that runs already starts the program, without this environment",
    "Put it before: systemd-run ... ration run ... -- PROGRAM",
);
const EMPTY: Advice = (
    "it starts programs with an environment without the library",
    "Put it before: env -i ... ration run ... -- PROGRAM",
);

/// Programs that start others, the word after which they do (nothing: always), and what to know about them.
const STARTERS: [(&[&str], &[&str], Advice); 8] = [
    (&["sudo", "su", "doas", "pkexec", "runuser", "sudoedit"], &[], OTHER_USER),
    (&["ssh", "mosh", "pdsh", "rsh"], &[], OTHER_PLACE),
    (&["srun", "sbatch", "salloc", "qsub", "bsub", "condor_submit"], &[], JOB),
    (&["docker", "podman", "nerdctl"], &["run", "exec", "create", "start", "compose"], CONTAINER),
    (&["ctr", "crictl", "docker-compose"], &[], CONTAINER),
    (&["kubectl", "oc", "helm", "k3s", "minikube"], &[], POD),
    (&["systemd-run", "at", "batch", "machinectl"], &[], DAEMON),
    (&["env"], &["-i", "-", "--ignore-environment"], EMPTY),
];

fn by_name(path: &Path, arguments: &[OsString]) -> Option<Advice> {
    let name = path.file_name()?.to_str()?;
    let starts = |words: &[&str]| words.is_empty() || arguments.iter().any(|it| words.iter().any(|word| it == word));
    let found = STARTERS.iter().find(|(names, words, _)| names.contains(&name) && starts(words));
    found.map(|(_, _, advice)| *advice)
}

/// Whether the system starts it with more rights than this user has.
fn has_more_rights(path: &Path) -> bool {
    const SETUID: u32 = 0o4000;
    /// With the right to run it for its group; else it means something else.
    const SETGID: u32 = 0o2010;
    let Ok(about) = path.metadata() else { return false };
    let is_other_user = about.mode() & SETUID != 0 && about.uid() != places::user();
    let is_other_group = about.mode() & SETGID == SETGID && about.gid() != rustix::process::getegid().as_raw();
    let mut value = [0u8; 64];
    let mut capabilities = || rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok();
    is_other_user || is_other_group || places::user() != 0 && capabilities()
}

/// What a file is to who preloads something into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It has a dynamic linker, or another program for it, as a script has.
    Usual,
    /// It has none.
    Static,
    /// It has musl's.
    Musl,
    /// It is made for other processors.
    Foreign,
}

impl Kind {
    /// By the file's beginning. What is cut or makes no sense is as usual: this is advice, and nobody relies on it.
    fn of(begin: &[u8]) -> Kind {
        const CLASS_64: u8 = 2;
        const X86_64: u64 = 62;
        const PROGRAM: [u64; 2] = [2, 3];
        const INTERPRETER: u64 = 3;
        let number = |at: usize, size: usize| {
            let bytes = begin.get(at..at.checked_add(size)?)?;
            Some(bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte)))
        };
        if !begin.starts_with(b"\x7fELF") {
            return Kind::Usual;
        }
        if begin.get(4) != Some(&CLASS_64) || number(18, 2) != Some(X86_64) {
            return Kind::Foreign;
        }
        let (Some(table), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
            return Kind::Usual;
        };
        if !number(16, 2).is_some_and(|kind| PROGRAM.contains(&kind)) {
            return Kind::Usual;
        }
        for at in 0..count {
            let header =
                at.checked_mul(size).and_then(|at| at.checked_add(table)).and_then(|at| usize::try_from(at).ok());
            let Some(header) = header else { return Kind::Usual };
            let Some(kind) = number(header, 4) else { return Kind::Usual };
            if kind != INTERPRETER {
                continue;
            }
            let place = |at: usize| number(header.checked_add(at)?, 8).and_then(|it| usize::try_from(it).ok());
            let (Some(from), Some(length)) = (place(8), place(32)) else { return Kind::Usual };
            let path = from.checked_add(length).and_then(|to| begin.get(from..to)).unwrap_or_default();
            let is_musl = path.windows(7).any(|it| it == b"ld-musl");
            return if is_musl { Kind::Musl } else { Kind::Usual };
        }
        Kind::Static
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn about(path: &str, arguments: &[&str]) -> Option<Advice> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        by_name(Path::new(path), &arguments)
    }

    #[test]
    fn programs_that_start_others_elsewhere_are_known() {
        assert_eq!(about("/usr/bin/sudo", &["-u", "you", "x"]), Some(OTHER_USER));
        assert_eq!(about("/usr/bin/ssh", &["host"]), Some(OTHER_PLACE));
        assert_eq!(about("/usr/bin/docker", &["run", "image"]), Some(CONTAINER));
        assert_eq!(about("/usr/bin/docker", &["ps"]), None);
        assert_eq!(about("/usr/bin/env", &["-i", "x"]), Some(EMPTY));
        assert_eq!(about("/usr/bin/env", &["A=b", "x"]), None);
        assert_eq!(about("/usr/bin/python3", &["sudo"]), None);
    }

    /// An ELF file for programs with one header, of the kind and about the text given.
    fn elf(kind: u32, text: &str) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..5].copy_from_slice(b"\x7fELF\x02");
        (file[16], file[18], file[32], file[54], file[56]) = (3, 62, 64, 56, 1);
        file[64..68].copy_from_slice(&kind.to_le_bytes());
        (file[64 + 8], file[64 + 32]) = (120, u8::try_from(text.len()).expect("short"));
        file.extend_from_slice(text.as_bytes());
        file
    }

    #[test]
    fn a_file_is_known_by_its_dynamic_linker() {
        assert_eq!(Kind::of(&elf(3, "/lib64/ld-linux-x86-64.so.2")), Kind::Usual);
        assert_eq!(Kind::of(&elf(3, "/lib/ld-musl-x86_64.so.1")), Kind::Musl);
        assert_eq!(Kind::of(&elf(1, "")), Kind::Static);
        let mut small = elf(3, "");
        small[4] = 1;
        assert_eq!(Kind::of(&small), Kind::Foreign);
        assert_eq!(Kind::of(b"#!/bin/sh\n"), Kind::Usual);
        assert_eq!(Kind::of(&std::fs::read(std::env::current_exe().expect("a path")).expect("ours")), Kind::Usual);
    }

    proptest! {
        #[test]
        fn no_file_is_too_strange(mut file: Vec<u8>, at in 0..120usize, byte: u8) {
            let _ = Kind::of(&file);
            file.splice(..0, elf(3, "x"));
            file[at] = byte;
            let _ = Kind::of(&file);
        }
    }
}
