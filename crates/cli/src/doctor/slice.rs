//! A slice, tried: programs like any other, held to a cap and to a share by the library, in a place of their own.

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ration_contract::Settings;
use ration_contract::table::ALIASES;
use ration_region::{ComputeView, look_among, look_at};

use super::child::{Child, Event, Interrupt, Interrupted};
use super::said::Said;
use crate::library::{Library, can_be_named};

/// The cap that is tried: a context and a little more.
pub const CAP: u64 = 1 << 30;
/// What fits below it.
pub const SOME: u64 = 16 << 20;
/// The limit that is tried, in per cent.
pub const LIMIT: f64 = 30.0;
/// How long a program works until it is steered well, and how long it is then looked at.
const WARM: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_millis(1200);
/// The same without a limit, which nobody has to find out.
const BARE_WARM: Duration = Duration::from_millis(100);
const BARE_WINDOW: Duration = Duration::from_millis(300);

/// A directory of one's own, in memory if possible, that is removed at the end.
pub struct Place(PathBuf);

impl Place {
    pub fn make() -> io::Result<Place> {
        let mut failure = io::Error::other("no directory for temporary files");
        for base in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
            for attempt in 0..100 {
                let dir = base.join(format!("ration-doctor-{}-{attempt}", std::process::id()));
                match DirBuilder::new().mode(0o700).create(&dir) {
                    Ok(()) => return Ok(Place(dir)),
                    // Left behind by one that was killed, or somebody's trap.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => {
                        failure = io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
                        break;
                    }
                }
            }
        }
        Err(failure)
    }

    fn regions(&self) -> PathBuf {
        self.0.join("regions")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One of our processes, without any limit that is set around us, and without what is preloaded there.
pub fn bare(question: &str) -> io::Result<Command> {
    let mut command = plain(question)?;
    command.env_remove("LD_PRELOAD");
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_limit(name)) {
        command.env_remove(name);
    }
    Ok(command)
}

/// One of our processes, as any program is started from here.
pub fn plain(question: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("doctor-probe").arg(question);
    Ok(command)
}

/// Whether a variable says what programs may have, or where they meet.
fn is_limit(name: &OsStr) -> bool {
    const NO_LIMITS: [&str; 3] = ["RATION_LOG", "RATION_TRACE", "RATION_SWITCH"];
    let name = name.to_string_lossy();
    let is_ours = name.starts_with("RATION_") && !name.starts_with("RATION_SIM_") && !NO_LIMITS.contains(&&*name);
    is_ours || ALIASES.iter().any(|alias| name.starts_with(alias.name))
}

/// How a program gets the library: in front of what is preloaded already, so that what stands behind `ioctl` there is behind the library, too.
pub fn preload(library: &Library, place: &Place, before: Option<&OsStr>) -> Result<OsString, String> {
    let path = match library.can_be_named() {
        true => library.path().to_owned(),
        false => library.link_into(&place.0).map_err(|error| format!("{}: {error}", place.0.display()))?,
    };
    if !can_be_named(&path) {
        return Err(format!(
            "LD_PRELOAD cannot name {}, which has a space, a colon or a dollar sign in it",
            path.display()
        ));
    }
    let mut all = path.into_os_string();
    if let Some(before) = before.filter(|it| !it.is_empty()) {
        all.push(":");
        all.push(before);
    }
    Ok(all)
}

/// What a program does under a limit, and what its container's account says of it.
#[derive(Debug, Default)]
pub struct Seen {
    /// The part of the window for which the GPU worked for it, in per cent, as the library counts.
    pub share: f64,
    /// Kernels a second.
    pub speed: f64,
    /// Whether it is taken off the GPU by its channels.
    pub by_channels: Option<bool>,
    /// How often it went off the GPU or on, and how long that took each time.
    pub switches: u64,
    pub each: Duration,
    /// What the library said.
    pub errors: String,
}

/// Why there is none.
pub enum Unseen {
    /// Somebody wants us to end.
    Interrupted,
    /// It cannot be tried.
    Failed(String),
    /// The driver refused: which call, and its code.
    Refused(String, i32, String),
}

impl From<Interrupted> for Unseen {
    fn from(_: Interrupted) -> Unseen {
        Unseen::Interrupted
    }
}

impl From<io::Error> for Unseen {
    fn from(error: io::Error) -> Unseen {
        Unseen::Failed(error.to_string())
    }
}

/// What is tried, on which GPU.
pub struct Trial<'a> {
    pub place: &'a Place,
    /// For `LD_PRELOAD`.
    pub preload: OsString,
    /// What is asked for around us; a quota file counts here, too.
    pub settings: &'a Settings,
    pub gpu: i32,
    pub patience: Duration,
    pub interrupt: &'a Interrupt,
}

impl Trial<'_> {
    /// A program of ours in a slice.
    fn inside(&self, question: &str, limit: (&str, String)) -> io::Result<Command> {
        let mut command = bare(question)?;
        command.env("LD_PRELOAD", &self.preload).env(limit.0, limit.1);
        command.env("RATION_DIR", self.place.regions()).env("RATION_NAME", "ration-doctor").env("RATION_STRICT", "1");
        // It says why where channels cannot be driven.
        command.env("RATION_LOG", "warn").arg("--gpu").arg(self.gpu.to_string());
        Ok(command)
    }

    /// What a program is told of its memory and refused of it: total, and the driver's answers to asking for all of that, and for a little.
    pub fn memory(&self) -> Result<(u64, i32, i32, String), Unseen> {
        let mut command = self.inside("memory", ("RATION_MEMORY", CAP.to_string()))?;
        command.arg("--under").arg(SOME.to_string());
        let answer = Child::start(&mut command, self.patience, self.interrupt)?.finish()?;
        for said in answer.said {
            match said {
                Said::Memory { total, over, under } => return Ok((total, over, under, answer.errors)),
                Said::Refused { call, code, .. } => return Err(Unseen::Refused(call, code, answer.errors)),
                Said::Missing(why) => return Err(Unseen::Failed(why)),
                _ => {}
            }
        }
        Err(Unseen::Failed(format!("at {}, the program {}{}", answer.at, answer.how, first_words(&answer.errors))))
    }

    /// What a program does without any limit: kernels a second.
    pub fn bare_speed(&self) -> Result<f64, Unseen> {
        let mut command = bare("work")?;
        command.arg("--gpu").arg(self.gpu.to_string());
        Ok(self.work(&mut command, [BARE_WARM, BARE_WINDOW])?.speed)
    }

    /// What it does under one.
    pub fn limited(&self) -> Result<Seen, Unseen> {
        let mut command = self.inside("work", ("RATION_COMPUTE_LIMIT", format!("{LIMIT}%")))?;
        self.work(&mut command, [WARM, WINDOW])
    }

    fn work(&self, command: &mut Command, times: [Duration; 2]) -> Result<Seen, Unseen> {
        let [warm, window] = times.map(|time| time.as_millis().to_string());
        command.args(["--warm-ms", &warm, "--work-ms", &window]);
        let mut child = Child::start(command, self.patience, self.interrupt)?;
        let mut looks: Vec<(Instant, u64, Option<ComputeView>)> = Vec::new();
        let how = loop {
            match child.next()? {
                Event::Said(Said::Done(done)) => looks.push((Instant::now(), done, self.account(child.id()))),
                Event::Said(Said::Refused { call, code, .. }) => {
                    while !matches!(child.next()?, Event::Over(_)) {}
                    return Err(Unseen::Refused(call, code, child.errors()));
                }
                Event::Said(Said::Missing(why)) => return Err(Unseen::Failed(why)),
                Event::Said(_) => {}
                Event::Over(how) => break how,
            }
        };
        let errors = child.errors();
        let [(began, before, first), (ended, after, last)] = looks[..] else {
            return Err(Unseen::Failed(format!("at {}, the program {how}{}", child.at, first_words(&errors))));
        };
        let seconds = (ended - began).as_secs_f64().max(1e-3);
        let mut seen = Seen { speed: (after - before) as f64 / seconds, errors, ..Seen::default() };
        if let (Some(first), Some(last)) = (first, last) {
            let nanoseconds = last.gpu_time.saturating_sub(first.gpu_time);
            seen.share = nanoseconds as f64 / 1e7 / seconds;
            seen.by_channels = last.by_channels;
            seen.switches = last.switches.saturating_sub(first.switches);
            let switching = last.switching.saturating_sub(first.switching);
            seen.each = Duration::from_nanos(switching.checked_div(seen.switches).unwrap_or(0));
        }
        Ok(seen)
    }

    /// The account of the container in which a process of ours is.
    fn account(&self, pid: u32) -> Option<ComputeView> {
        let mut found = None;
        let mut see = |seen: ration_region::Seen| {
            let Some(Ok(copy)) = seen.region else { return };
            let mut containers = copy.containers();
            let container = containers.find(|it| it.members().any(|member| member.pid == pid && member.alive));
            found = found.or(container.map(|it| it.compute()));
        };
        let (own, dir) = (self.settings.own_dir.as_deref(), self.settings.dir.as_deref());
        own.map(|own| look_at(Path::new(own), &mut Vec::new())).unwrap_or_default().into_iter().for_each(&mut see);
        for dir in [Some(self.place.regions()), dir.map(PathBuf::from)].into_iter().flatten() {
            look_among(&dir, &mut Vec::new(), &mut see);
        }
        found
    }
}

/// What a program said on standard error, as far as that helps.
pub fn first_words(errors: &str) -> String {
    let line = errors.lines().find(|line| line.contains("ration:")).or_else(|| errors.lines().next());
    line.map_or_else(String::new, |line| format!(" ({})", crate::text::safe(line, 300)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_from_around_us_are_not_those_that_are_tried() {
        for name in ["RATION_MEMORY", "RATION_NAME", "RATION_OWN_DIR", "CUDA_DEVICE_SM_LIMIT_1"] {
            assert!(is_limit(OsStr::new(name)), "{name}");
        }
        for name in ["RATION_SIM_GPUS", "RATION_SWITCH", "PATH", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"] {
            assert!(!is_limit(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn the_library_is_in_front_of_what_is_preloaded() {
        let place = Place::make().expect("a place");
        let dir = place.0.clone();
        let odd = dir.join("a dir");
        std::fs::create_dir(&odd).expect("ours");
        for (at, named) in [(&dir, dir.join("libration.so")), (&odd, dir.join("libration.so"))] {
            std::fs::write(at.join(crate::library::NAME), "").expect("ours");
            let library = Library::find(Some(&at.join(crate::library::NAME))).expect("it is there");
            let all = preload(&library, &place, Some(OsStr::new("/one.so"))).expect("it can be named");
            assert_eq!(all.to_string_lossy(), format!("{}:/one.so", named.display()));
            std::fs::remove_file(dir.join("libration.so")).expect("ours");
        }
        drop(place);
        assert!(!dir.exists(), "it is left behind");
    }

    #[test]
    fn of_what_was_said_the_librarys_words_count() {
        assert_eq!(first_words(""), "");
        assert_eq!(first_words("one\nration: two\n"), " (ration: two)");
    }
}
