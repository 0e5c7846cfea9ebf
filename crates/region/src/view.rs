//! What others can see in a region. Nothing here is allocated, and nothing that is read is believed to make sense.

use std::fmt;

use crate::compute::ComputeView;
use crate::layout::{LIVE, NAME_BYTES, NO_CAP, Process, Table};
use crate::ledger;
use crate::life::{is_held, is_over};
use crate::sync::SeqCst;

/// A container's name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; NAME_BYTES],
    length: usize,
}

impl Name {
    /// Of so many of the bytes.
    pub(crate) fn new(bytes: [u8; NAME_BYTES], length: usize) -> Name {
        Name { bytes, length }
    }

    /// Its bytes, which should be UTF-8.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length.min(NAME_BYTES)]
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.as_bytes().utf8_chunks() {
            f.write_str(part.valid())?;
            if !part.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A process in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessView {
    /// Its number, as it sees itself.
    pub pid: u32,
    /// Its number as the driver sees it, if it said ([`crate::Member::set_driver_pid`]).
    pub driver_pid: Option<u32>,
    /// Its PID namespace, by inode; 0: not known.
    pub namespace: u64,
    /// The bytes that it holds.
    pub held: u64,
    /// The bytes that it gave back beyond what it held.
    pub drift: u64,
    /// Its slot, and how often that was freed.
    pub slot: (usize, u64),
    /// The bytes that others found it to hold besides.
    pub found: u64,
    /// The bytes that it let go of and descriptors keep.
    pub lent: u64,
    /// The file that those are descriptors of: its device and inode.
    pub node: (u64, u64),
    /// Whether it is there. If not, what it held counts until somebody frees its slot ([`crate::Member::reap`]).
    pub alive: bool,
}

/// A process that has died, as [`crate::Member::reap`] asks about it.
pub type Dead = ProcessView;

impl ProcessView {
    pub(crate) fn of(index: usize, process: &Process) -> ProcessView {
        let driver_pid = process.driver_pid.load(SeqCst);
        ProcessView {
            pid: process.pid.load(SeqCst),
            driver_pid: (driver_pid != 0).then_some(driver_pid),
            namespace: process.pid_namespace.load(SeqCst),
            held: process.held.load(SeqCst),
            drift: process.drift.load(SeqCst),
            slot: (index, process.generation.load(SeqCst)),
            found: process.found.load(SeqCst),
            lent: process.lent.load(SeqCst),
            node: (process.node[0].load(SeqCst), process.node[1].load(SeqCst)),
            alive: is_held(&process.life),
        }
    }
}

/// A container in a region.
#[derive(Clone, Copy)]
pub struct ContainerView<'a> {
    table: &'a Table,
    index: usize,
    /// Its name.
    pub name: Name,
    /// Its cap in bytes, if it has one.
    pub cap: Option<u64>,
    /// Reservations that did not fit.
    pub refused: u64,
    /// Bytes that were given back beyond what was held, by processes that have left.
    pub drift: u64,
    /// The most bytes that its processes held together.
    pub peak: u64,
}

impl<'a> ContainerView<'a> {
    pub(crate) fn of(table: &'a Table, index: usize) -> Option<ContainerView<'a>> {
        let container = table.containers.get(index).filter(|it| it.state.load(SeqCst) == LIVE)?;
        let mut name = Name { bytes: [0; NAME_BYTES], length: 0 };
        name.length = container.copy_name(&mut name.bytes).len();
        let cap = container.cap.load(SeqCst);
        Some(ContainerView {
            table,
            index,
            name,
            cap: (cap != NO_CAP).then_some(cap),
            refused: container.refused.load(SeqCst),
            drift: container.drift.load(SeqCst),
            peak: container.peak.load(SeqCst),
        })
    }

    /// Its index, and how often its slot had been given to a container: those of its page, too ([`crate::PageView`]).
    pub fn slot(&self) -> (usize, u64) {
        (self.index, self.table.containers[self.index].generation.load(SeqCst).into())
    }

    /// What it has had of the GPU's time.
    pub fn compute(&self) -> ComputeView {
        ComputeView::of(self.table, self.index)
    }

    /// The processes in it, the dead that nobody has buried included.
    pub fn members(&self) -> impl Iterator<Item = ProcessView> + use<'a> {
        let (table, index) = (self.table, self.index);
        let there = table.members_of(index).filter(|(_, it)| is_held(&it.life) || is_over(&it.life));
        there.map(|(index, process)| ProcessView::of(index, process))
    }

    /// The bytes that they hold.
    pub fn used(&self) -> u64 {
        let membership = self.table.containers[self.index].membership(self.index);
        ledger::used(self.table, self.index, membership, None)
    }
}

impl fmt::Debug for ContainerView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut about = f.debug_struct("ContainerView");
        about.field("name", &self.name).field("cap", &self.cap).field("used", &self.used());
        about.field("refused", &self.refused).field("drift", &self.drift).finish()
    }
}
