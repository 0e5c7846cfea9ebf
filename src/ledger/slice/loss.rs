//! What becomes of a process whose region is lost: somebody has cut the file short, or written over it.
//!
//! The region's figures mean nothing then, so the process leaves it for one that nobody else has, with what it holds and with the
//! limits of its settings, and goes on, held to them by itself. It is noticed when memory is asked for or told of, and by the
//! pacer while work is launched; never by a launch itself.
//!
//! Once a second it is looked whether the directory has a whole region again. Then the process joins the others there, with what it
//! holds. Not one whose memory descriptors keep: their marks name the place that it had, and nobody would find them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use ration_contract::Settings;
use ration_region::{Compute, Gpu, Member, Region};

use super::join::join_again;
use super::{Asked, Slice, lent, marks};
use crate::{ledger, log};

/// Where this process is counted.
pub struct Seat {
    member: AtomicPtr<Member>,
    is_shared: AtomicBool,
    /// Where it was at first, if others can come there.
    directory: Option<PathBuf>,
}

impl Seat {
    pub fn new(member: Member, directory: Option<PathBuf>) -> Seat {
        let is_shared = AtomicBool::new(directory.is_some());
        Seat { member: AtomicPtr::new(Box::into_raw(Box::new(member))), is_shared, directory }
    }

    #[inline]
    pub fn member(&self) -> &Member {
        // SAFETY: from a box, by `new` or by `exchange`; and never freed before `drop`, which nobody has a reference beyond.
        unsafe { &*self.member.load(Ordering::Acquire) }
    }

    /// From now on it is counted there. The old place stays, for ever: others may be in the middle of something with it, and what
    /// they do there matters to nobody.
    fn exchange(&self, member: Member, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Release);
        self.member.store(Box::into_raw(Box::new(member)), Ordering::Release);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // SAFETY: from a box, and nobody else has it any more.
        drop(unsafe { Box::from_raw(*self.member.get_mut()) });
    }
}

impl Slice {
    /// Says in a region what the settings say about GPU time, where nobody has yet.
    pub(super) fn begin_time(&self, compute: &Compute<'_>) {
        let asked = self.time.with(|asked| *asked);
        if let Some(limit) = asked.limit {
            compute.begin_with_limit(limit);
        }
        compute.begin_with_request(asked.request, asked.urgency);
    }

    /// The settings say something else from now on.
    pub(in crate::ledger) fn set_time(&self, before: &Asked, after: &Asked) {
        self.time.with(|asked| {
            // What the environment says stays.
            asked.limit = if before.limit == after.limit { asked.limit } else { after.limit };
            asked.request = if before.request == after.request { asked.request } else { after.request };
            asked.urgency = if before.urgency == after.urgency { asked.urgency } else { after.urgency };
        });
    }

    /// Where this process is counted.
    #[inline]
    pub(super) fn member(&self) -> &Member {
        self.seat.member()
    }

    /// Whether the container's other processes are held to the limit together with this one.
    pub fn is_shared(&self) -> bool {
        self.seat.is_shared.load(Ordering::Acquire)
    }

    /// Sees to it that this process is counted where the figures mean something. `false`: there is no such place, or it must not
    /// go on by itself.
    #[inline]
    pub fn has_a_place(&self) -> bool {
        !self.member().is_lost() || self.is_moving() || self.moves_out()
    }

    /// Whether it was about to be counted elsewhere, and now is.
    #[cold]
    fn is_moving(&self) -> bool {
        self.member().is_renounced() && {
            self.settling.with(|()| ());
            !self.member().is_lost()
        }
    }

    /// What the region says. `None`: there is none that could be believed.
    pub(super) fn ask<T>(&self, what: impl Fn(&Member) -> T) -> Option<T> {
        for _ in 0..2 {
            let member = self.member();
            let answer = what(member);
            if !member.is_lost() {
                return Some(answer);
            }
            if !self.has_a_place() {
                break;
            }
        }
        None
    }

    /// Takes bytes where this process is counted, if there are so many. What a region answers that is lost means nothing; then the
    /// next is asked.
    pub(super) fn take(&self, bytes: u64, ask: impl Fn(&Member) -> Result<(), ration_region::Full>) -> Option<&Member> {
        for _ in 0..2 {
            let member = self.member();
            let fits = bytes == 0 || ask(member).is_ok();
            if bytes == 0 || !member.is_lost() {
                return fits.then_some(member);
            }
            if !self.has_a_place() {
                break;
            }
        }
        None
    }

    #[cold]
    fn moves_out(&self) -> bool {
        if ledger::is_strict() {
            ledger::refuse_from_now_on();
            return false;
        }
        let gpu = Gpu { uuid: self.uuid, total: self.total };
        // There it is alone, so any name will do.
        let Ok(member) = Region::private(&gpu).join("alone", Some(self.asked.load(Ordering::Acquire))) else {
            return false;
        };
        let unused = self.settling.with(|()| {
            if !self.member().is_lost() {
                // Another thread was faster.
                return Some(member);
            }
            self.moves(member, false);
            ledger::LOSSES.fetch_add(1, Ordering::Relaxed);
            log::warn!(
                "GPU {}: the region was damaged or cut short. This process is held to the whole limit by itself",
                self.device
            );
            None
        });
        drop(unused);
        true
    }

    /// From now on it is counted there, with what it holds. To be called while nobody else is settling.
    fn moves(&self, member: Member, is_shared: bool) {
        self.tells_its_cap(&member, self.asked.load(Ordering::Acquire));
        self.begin_time(&member.compute());
        let beside = self.beside.load(Ordering::Acquire);
        let counted = self.counted.load(Ordering::Acquire) as i64;
        let in_figure = counted.saturating_add(self.uncounted.load(Ordering::Acquire));
        member.charge(u64::try_from(in_figure).unwrap_or(0));
        member.charge(self.unlearned.load(Ordering::Acquire));
        member.charge(beside);
        member.holds_beside(beside);
        member.set_lent(lent::of(self));
        let number = self.driver_pid.load(Ordering::Acquire);
        if number != 0 {
            member.set_driver_pid(number);
        }
        self.seat.exchange(member, is_shared);
    }

    /// Where it was once, and is no more; or is, and whoever comes now is elsewhere.
    fn away_from(&self) -> Option<&Path> {
        let is_away = !self.is_shared() || self.member().is_lost() || self.member().is_astray();
        self.seat.directory.as_deref().filter(|_| is_away)
    }

    /// Goes back to the container's others, if it had to leave them and there is a whole region again. Says whether it is with them, or
    /// never was.
    pub(in crate::ledger) fn comes_back(&self, settings: &Settings) -> bool {
        // That it is lost is said first, and what follows from that happens.
        let was_refused = ledger::is_refusing();
        if self.is_shared() && !self.has_a_place() && !was_refused {
            return false;
        }
        let Some(directory) = self.away_from() else { return true };
        // A region in another directory of that name is another one to those who look for marks.
        if marks::home(Some(directory)) != self.home {
            return false;
        }
        let gpu = Gpu { uuid: self.uuid, total: self.total };
        let cap = self.asked.load(Ordering::Acquire);
        let Some(member) = join_again(&gpu, settings, cap, directory) else { return false };
        let unused = self.settling.with(|()| {
            if self.away_from().is_none() || member.is_lost() {
                return Some(member);
            }
            let slot = member.slot();
            let is_free = self.slot.with(|(known, is_marked)| {
                if !*is_marked {
                    *known = slot;
                }
                !*is_marked
            });
            if !is_free {
                return Some(member);
            }
            // Who takes memory meanwhile waits for where it is counted then.
            self.member().renounce();
            member.disowns_copies();
            self.moves(member, true);
            log::warn!(
                "GPU {}: the region is whole again. The container's processes are held to the limit together",
                self.device
            );
            None
        });
        drop(unused);
        self.away_from().is_none()
    }
}
