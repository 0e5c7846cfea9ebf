//! Leaves the node as it was.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::disk::{self, cannot};
use super::old::{self, Kept, some_of};
use super::reap::{Removal, remove_obstacle, remove_public, remove_unused};
use super::regions::{self, Kind, Place, RegionReport};
use super::store::{CURRENT, Store};
use super::uses::{Processes, Use, lease, open_plain};

/// Who is in the way.
pub fn users(store: &Store, region_dir: &Path, processes: &Processes) -> Result<Vec<String>, String> {
    let mut users = Vec::new();
    for region in regions::survey(region_dir)?.regions {
        users.extend(users_of(region_dir, &region, processes));
    }
    for name in store.versions()? {
        match old::user(store, &name, processes) {
            Some(Kept::Served) => users.push(format!(
                "{name}: a node process runs here that would put it back; remove the DaemonSet (or stop the process) first"
            )),
            Some(kept) => users.push(format!("{name}: {kept}")),
            None => {}
        }
    }
    Ok(users)
}

fn users_of(dir: &Path, region: &RegionReport, processes: &Processes) -> Vec<String> {
    let _alone = regions::alone();
    let Ok((place, file)) = Place::of_file(dir, &region.file) else { return Vec::new() };
    let path = place.path.join(file);
    let used = open_plain(&path).map(lease);
    if let Ok(Use::Nobody(_)) | Err(_) = used {
        // Whoever is alive in it has it mapped; whatever else is written there is not true.
        return Vec::new();
    }
    let living = region.containers.iter().filter(|it| it.alive() > 0).map(|container| {
        let living = container.processes.iter().filter(|it| it.alive);
        let pids: Vec<String> = living.map(|it| it.host_pid.unwrap_or(it.pid).to_string()).collect();
        format!("GPU {}: container {} (processes {})", region.gpu, container.name, some_of(&pids))
    });
    let mut users: Vec<String> = living.collect();
    if users.is_empty() && matches!(used, Ok(Use::Somebody)) {
        let by: Vec<String> = processes.mapping(&path).0.iter().map(ToString::to_string).collect();
        let by = if by.is_empty() { "a process that cannot be seen from here".to_owned() } else { some_of(&by) };
        users.push(format!("GPU {}: {} is used by {by}", region.gpu, region.file));
    }
    users
}

/// Removes all that is ours. With `force`, also from under those who use it: they keep what they have, and whoever comes later
/// has nothing. Says what was removed, and what was left and why.
pub fn uninstall(store: &Store, region_dir: &Path, processes: &Processes, force: bool) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    let lib = store.lib();
    let locked = if is_there(&lib) { Some(store.lock()?) } else { None };
    if !force {
        let users = users(store, region_dir, processes)?;
        if !users.is_empty() {
            return Err(format!(
                "this node's regions and libraries are in use:\n  {}\nEnd those pods first, or use --force: then they keep what \
                 they have mapped, but their new processes are not held to any limit",
                users.join("\n  ")
            ));
        }
    }
    if locked.is_some() {
        // First, so that no pod is started with what is about to go.
        if store.current()?.is_some() {
            disk::remove(&lib.join(CURRENT))?;
            done.push(format!("removed {}", lib.join(CURRENT).display()));
        }
        for name in store.versions()? {
            store.remove(&name)?;
            done.push(format!("removed {}", lib.join(name).display()));
        }
        store.clear(&mut Vec::new())?;
        remove_directory(&lib, &mut done)?;
    }
    if is_there(&store.root) {
        remove_directory(&store.root, &mut done)?;
    }
    if is_there(region_dir) {
        // Nothing of ours is made where something else is.
        disk::open_directory(region_dir).map_err(|error| cannot("open", region_dir, &error))?;
        remove_regions(region_dir, force, &mut done)?;
        remove_directory(region_dir, &mut done)?;
    }
    Ok(done)
}

fn remove_regions(dir: &Path, force: bool, done: &mut Vec<String>) -> Result<(), String> {
    let _alone = regions::alone();
    let (names, _) = disk::names_in(dir, usize::MAX)?;
    for name in names {
        match Place::within(dir, &name) {
            Ok(place) if regions::kind_of(&name) == Kind::Other => {
                let (inside, _) = disk::names_in(&place.path, 65_536).unwrap_or_default();
                remove_files(&place, &inside, force, done);
                // One with something else in it is left, and said to be: see below.
                let _ = fs::remove_dir(dir.join(name));
            }
            _ => remove_files(&Place::of_all(dir), &[name], force, done),
        }
    }
    Ok(())
}

fn remove_files(place: &Place, names: &[String], force: bool, done: &mut Vec<String>) {
    for name in names {
        let path = place.path.join(name);
        let why = match regions::kind_of(name) {
            Kind::Other => continue,
            Kind::Public => {
                // With its region, if it is beside one.
                let region = place.path.join(regions::beside(name));
                if is_there(&region) || remove_public(&region) {
                    continue;
                }
                Some("it cannot be removed".to_owned())
            }
            Kind::Region(_) | Kind::Draft => match remove_unused(&path) {
                Removal::Removed => None,
                Removal::Left if remove_obstacle(&path) => None,
                _ if force && fs::remove_file(&path).is_ok() => None,
                Removal::Left => Some("somebody has begun to use it, or it is no file".to_owned()),
                Removal::Unknown(why) => Some(why),
            },
        };
        if why.is_none() {
            remove_public(&path);
        }
        let called = place.called(name);
        done.push(match why {
            None => format!("removed {}", called.display()),
            Some(why) => format!("left {}: {why}", called.display()),
        });
    }
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn remove_directory(path: &Path, done: &mut Vec<String>) -> Result<(), String> {
    let place = path.display();
    match fs::remove_dir(path) {
        Ok(()) => done.push(format!("removed {place}")),
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            done.push(format!("left {place}: there is something in it that is not ours"));
        }
        // A volume of the pod that this runs in cannot be removed from inside, and less so under a root file system that is
        // read-only. It is at least closed.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EROFS)) => {
            fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(|error| cannot("close", path, &error))?;
            done.push(format!("left {place}, empty: it is a mount point here; `rmdir` it on the host"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(cannot("remove", path, &error)),
    }
    Ok(())
}
