//! Libraries that are not current any more: who still uses them, and when they go.
//!
//! A container that has the directory mounted must find the library in it for as long as it runs, or its next process starts
//! without a limit. So one that is old goes only when all of this is so: no running node process wants it; nobody on the host
//! has it open or mapped; no container has it mounted, as far as can be seen; and it has been old for some time, which is
//! short where the host's processes can be seen, and long where they cannot.

use std::time::Duration;

use super::store::{Deed, Store};
use super::uses::{Processes, Use, lease, open_plain};

/// How long a library that is old, or a pod's directory, is kept even if nobody is seen to use it.
#[derive(Debug, Clone, Copy)]
pub struct Grace {
    /// Where all processes of the host can be seen.
    pub seeing: Duration,
    /// Where they cannot.
    pub blind: Duration,
}

/// What keeps a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// A running node process wants it.
    Served,
    /// Processes have it mapped, or open; who, if that can be seen.
    Mapped(Vec<String>),
    /// Containers have its directory mounted.
    Mounted(Vec<String>),
    /// It has not been old for long enough.
    Young,
    /// It cannot be told, for this reason.
    Unknown(String),
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kept::Served => f.write_str("a running node process wants it"),
            Kept::Mapped(by) if by.is_empty() => f.write_str("mapped by processes that cannot be seen from here"),
            Kept::Mapped(by) => write!(f, "mapped by {}", some_of(by)),
            Kept::Mounted(by) => write!(f, "mounted where there is {}", some_of(by)),
            Kept::Young => f.write_str("kept for a while"),
            Kept::Unknown(why) => f.write_str(why),
        }
    }
}

/// The first of many, for a message.
pub fn some_of(all: &[String]) -> String {
    const MOST: usize = 8;
    let shown = all.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > MOST { format!("{shown} and {} more", all.len() - MOST) } else { shown }
}

/// Who uses a library now; `None`: nobody, as far as can be seen.
pub fn user(store: &Store, name: &str, processes: &Processes) -> Option<Kept> {
    if store.is_served(name) {
        return Some(Kept::Served);
    }
    let file = store.file(name);
    let named = || processes.mapping(&file).0.iter().map(ToString::to_string).collect::<Vec<_>>();
    // The kernel knows for sure. Where it does not say, `/proc` has to do.
    let leased = open_plain(&file).map(lease);
    match &leased {
        Ok(Use::Somebody) => return Some(Kept::Mapped(named())),
        Ok(Use::Unknown(why)) => match processes.mapping(&file) {
            (found, _) if !found.is_empty() => return Some(Kept::Mapped(named())),
            (_, 0) if processes.all => {}
            _ => return Some(Kept::Unknown(why.clone())),
        },
        // A file that is not there is not used; the lease is held until the mounts have been looked at.
        Ok(Use::Nobody(_)) | Err(_) => {}
    }
    let mounted = processes.mounting(name).0;
    (!mounted.is_empty()).then(|| Kept::Mounted(mounted.iter().map(ToString::to_string).collect()))
}

/// Removes what is old and unused. `own`: the library of this process, which is never old.
pub fn sweep(
    store: &Store,
    own: &str,
    processes: &Processes,
    grace: Grace,
    deeds: &mut Vec<Deed>,
) -> Result<(), String> {
    let _locked = store.lock()?;
    let current = store.current()?;
    let needed = if processes.all { grace.seeing } else { grace.blind };
    for name in store.versions()? {
        let is_wanted = name == own || current.as_ref() == Some(&name);
        if !is_wanted && store.age(&name) >= needed && user(store, &name, processes).is_none() {
            store.remove(&name)?;
            deeds.push(Deed::Removed(name));
        }
    }
    Ok(())
}
