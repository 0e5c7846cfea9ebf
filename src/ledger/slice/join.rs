//! How a process finds the others of its container.

use std::path::{Path, PathBuf};

use ration_contract::Settings;
use ration_region::{Gpu, Member, Region};

use crate::ledger::{homes, rescue};
use crate::log;

/// What the container is called.
pub fn name(settings: &Settings) -> String {
    settings.name.clone().unwrap_or_else(derived_name)
}

/// A place in the container, and the directory in which others can have one, too.
pub fn join(gpu: &Gpu, settings: &Settings, cap: u64) -> Option<(Member, Option<PathBuf>)> {
    let name = name(settings);
    rescue::prepare();
    for (dir, home) in homes(settings) {
        match Region::mend_at(&home, gpu) {
            Ok(region) => match Box::leak(Box::new(region)).join(&name, Some(cap)) {
                Ok(member) => return Some((member, home.find())),
                Err(why) => log::warn!("{dir}: {why}. This process is held to the whole limit by itself"),
            },
            Err(why) => log::warn!("{dir}: {why}. This process is held to the whole limit by itself"),
        }
    }
    Box::leak(Box::new(Region::private(gpu))).join(&name, Some(cap)).ok().map(|member| (member, None))
}

/// A place in the container there, and nowhere else, for a process that had one before. It has been said why there is none.
pub fn join_again(gpu: &Gpu, settings: &Settings, cap: u64, dir: &Path) -> Option<Member> {
    let homes = homes(settings);
    let (_, home) = homes.iter().find(|(_, home)| home.may_be(dir))?;
    Region::mend_at(home, gpu).ok()?.join(&name(settings), Some(cap)).ok()
}

/// The same for all processes of a container: what they see of the file system is one and the same thing.
fn derived_name() -> String {
    let mut target = [0u8; 64];
    // SAFETY: a path that ends in NUL, and room for what it leads to.
    let length = unsafe { libc::readlink(c"/proc/self/ns/mnt".as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let target = &target[..usize::try_from(length).unwrap_or(0)];
    String::from_utf8_lossy(if target.is_empty() { b"unnamed" } else { target }).into_owned()
}
