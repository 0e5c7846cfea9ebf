//! What a member says and learns about memory that crosses processes. Whose such memory is, the driver says; what keeps it, the
//! caller knows: see src/ledger/lent.rs of the shim.

use super::{Member, ask};
use crate::keeper::Request;
use crate::layout::{PROCESSES, Process};
use crate::ledger::in_figure;
use crate::sync::SeqCst;
use crate::view::ProcessView;

impl Member {
    fn own(&self) -> &Process {
        &self.mapping.table().processes[self.place.process]
    }

    /// All processes of the container, this one and the dead included.
    pub fn all(&self) -> impl Iterator<Item = ProcessView> {
        self.mapping.table().members_of(self.place.container).map(|(index, process)| ProcessView::of(index, process))
    }

    /// This process's slot, and how often that was freed: no other process of the region has the same.
    pub fn slot(&self) -> (usize, u64) {
        (self.place.process, self.place.generation)
    }

    /// The PID namespace that this process lives in, by the number of its inode; 0: not known.
    pub fn namespace(&self) -> u64 {
        self.own().pid_namespace.load(SeqCst)
    }

    /// Of what is held, so many bytes more are not in the driver's figure for this process.
    pub fn holds_beside(&self, bytes: u64) {
        if self.is_mine() {
            self.account().holds_beside(bytes);
        }
    }

    /// So many less.
    pub fn held_beside(&self, bytes: u64) {
        if self.is_mine() {
            self.account().held_beside(bytes);
        }
    }

    /// From now on there may be descriptors of this file that keep memory of this process's when it is gone itself. Whoever frees
    /// its slot finds them by it.
    pub fn exports_as(&self, node: (u64, u64)) {
        if self.is_mine() {
            self.own().node[0].store(node.0, SeqCst);
            self.own().node[1].store(node.1, SeqCst);
        }
    }

    /// This process lets go of bytes that it held, and descriptors keep them; `lent` is all that they keep then.
    pub fn lend(&self, bytes: u64, lent: u64) {
        if self.is_mine() {
            self.account().lend(bytes, lent);
        }
    }

    /// Descriptors keep so much of what this process let go of.
    pub fn set_lent(&self, lent: u64) {
        if self.is_mine() {
            self.account().set_lent(lent);
        }
    }

    /// Another process has no more than so much in descriptors. One that is dead has nothing else, either; that it is, and that
    /// the driver has let go of its memory, is for the caller to know. Nothing happens if the process has done something
    /// about it since it was looked at.
    pub fn lends_at_most(&self, process: &ProcessView, bytes: u64) {
        let is_so = process.lent == bytes && (process.alive || process.held == 0 && process.found == 0);
        if !self.is_mine() || is_so {
            return;
        }
        let table = self.mapping.table();
        if process.alive {
            table.lower_lent(process.slot, process.lent, bytes);
        } else {
            ask(&self.mapping, self.keeper, self.kept, Request::outlive(table, process.slot, bytes));
        }
    }

    /// What others found this process to hold besides what it says.
    pub fn found(&self) -> u64 {
        self.own().found.load(SeqCst)
    }

    /// This process has looked itself, and says now what it holds. `found`: what others had found before it looked.
    pub fn has_seen(&self, found: u64) {
        if self.is_mine() && found > 0 {
            self.account().has_seen(found);
        }
    }

    /// Finds out what the others hold that they do not say: shared memory that became theirs. To be called before this process
    /// gives back what it shares, so that it is counted all the while. `figures` asks the driver, once; the answer is asked
    /// for each process's figure, and may not know it.
    pub fn find<F: FnMut(&ProcessView) -> Option<u64>>(&self, figures: impl FnOnce() -> Option<F>) {
        if !self.is_mine() {
            return;
        }
        let slots = &self.mapping.table().processes;
        let mut said = [u64::MAX; PROCESSES];
        let mut alone = true;
        for ProcessView { slot: (index, _), .. } in self.others() {
            said[index] = in_figure(&slots[index]);
            alone = false;
        }
        if alone {
            return;
        }
        let Some(mut figure) = figures() else { return };
        for other in self.others() {
            // One that came only now has nothing of anybody's: nothing is more than `u64::MAX`.
            let (slot, seen) = (&slots[other.slot.0], said[other.slot.0]);
            let Some(figure) = figure(&other) else { continue };
            // Most have nothing that they do not know of.
            let is_known = figure <= in_figure(slot).max(seen) && slot.found.load(SeqCst) == 0;
            if !is_known && slot.generation.load(SeqCst) == other.slot.1 {
                self.account().find(slot, figure, seen);
            }
        }
    }
}
