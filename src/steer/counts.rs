//! How much a process launches, told by the calls that it makes anyway: no launch has to do anything for it.

use crate::table::ROWS;
use crate::thread;

/// What this process launches.
pub struct Counts {
    /// The rows that launch kernels, those that launch graphs, and those that copy or fill.
    rows: [Vec<usize>; 3],
    known: [u64; 3],
    /// Those that ask whether something is done, and how often they did.
    asking: Vec<usize>,
    asked: u64,
    /// Launches, as lanes count them.
    sent: u64,
    /// When they were last told.
    told: u64,
}

impl Counts {
    /// None yet.
    pub fn new() -> Counts {
        let of = |is: &dyn Fn(&[u8]) -> bool| {
            (0..ROWS.len()).filter(|id| is(ROWS[*id].symbol.to_bytes())).collect::<Vec<usize>>()
        };
        let kernels = of(&|name| name.starts_with(b"cuLaunch") && !name.starts_with(b"cuLaunchHostFunc"));
        let graphs = of(&|name| name.starts_with(b"cuGraphLaunch"));
        let copies = of(&|name| name.starts_with(b"cuMemcpy") || name.starts_with(b"cuMemset"));
        let asking = of(&|name| name.starts_with(b"cuEventQuery") || name.starts_with(b"cuStreamQuery"));
        Counts { rows: [kernels, graphs, copies], known: [0; 3], asking, asked: 0, sent: 0, told: 0 }
    }

    /// Whether it does little but ask for the end of something, since this was last asked: another way to wait. (Allocators ask
    /// too, but not more often than something is launched.) `sent` counts its launches.
    pub fn polls(&mut self, sent: u64) -> bool {
        let asked: u64 = self.asking.iter().map(|id| thread::total(*id)).sum();
        let (before, was_sent) = (std::mem::replace(&mut self.asked, asked), std::mem::replace(&mut self.sent, sent));
        asked.saturating_sub(before) > 2 * sent.saturating_sub(was_sent)
    }

    /// Whether they are to be told, for whoever reads the region.
    pub fn are_due(&mut self, now: u64) -> bool {
        const NOW_AND_THEN: u64 = 50_000_000;
        let are_due = now >= self.told + NOW_AND_THEN;
        if are_due {
            self.told = now;
        }
        are_due
    }

    /// How many more there are of each than when this was last asked.
    pub fn more(&mut self) -> [u64; 3] {
        let totals = [0, 1, 2].map(|kind: usize| self.rows[kind].iter().map(|id| thread::total(*id)).sum::<u64>());
        let before = std::mem::replace(&mut self.known, totals);
        [0, 1, 2].map(|kind| totals[kind].saturating_sub(before[kind]))
    }
}
