//! A container: what somebody configures, its words, and its one process.

use ration_policy::turns::{Contender, Priority, charged, reweighed};
use ration_policy::{Bucket, Busy, Cost, Flight, Share};

use crate::gpu::{Gpu, MS, Piece, START};
use crate::load::{Load, Work};

/// What a program queues when nobody limits it.
const DEEP: u64 = 2 * MS;

/// A container, as somebody configures it. Times are from the start of the run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// In millionths.
    pub request: u32,
    /// In millionths.
    pub limit: u32,
    pub priority: Priority,
    pub load: Load,
    /// From when to when its process is stopped, whatever it was doing.
    pub stopped: Option<(u64, u64)>,
    /// When its process dies.
    pub dies: Option<u64>,
    /// The first piece from then on takes so long, whatever it usually takes.
    pub hangs: Option<(u64, u64)>,
    /// From when on it has another request and limit, in per cent, and priority.
    pub changes: Option<(u64, u32, u32, Priority)>,
}

/// Per cent as millionths.
pub const fn percent(percent: u32) -> u32 {
    percent * 10_000
}

impl Setup {
    /// A request in per cent and no limit.
    pub fn new(request: u32, load: Load) -> Setup {
        Setup {
            request: percent(request),
            limit: percent(100),
            priority: Priority::Normal,
            load,
            stopped: None,
            dies: None,
            hangs: None,
            changes: None,
        }
    }

    pub fn limit(self, limit: u32) -> Setup {
        Setup { limit: percent(limit), ..self }
    }

    pub fn priority(self, priority: Priority) -> Setup {
        Setup { priority, ..self }
    }
}

/// A container: its words, and its process.
pub struct Container {
    pub setup: Setup,
    // In the region.
    pub limit: Share,
    pub weight: Share,
    pub virtual_time: u64,
    pub used_until: u64,
    pub since: Option<u64>,
    pub served: u64,
    /// Since when it holds the GPU, if it does.
    pub holds_since: Option<u64>,
    // In its process.
    busy: Busy,
    costs: Vec<Cost>,
    /// What is expected of all that is in flight.
    counted: u64,
    in_flight: usize,
    pub may_launch: u64,
    pub quiet: Option<u64>,
    pub heard: u64,
    /// It lost its turn because it was stopped.
    pub is_unheard: bool,
    /// What the GPU's shared time was when it lost its turn, while what it had started then is not done.
    pub overran: Option<u64>,
    pub is_dead: bool,
    // In the program.
    pub work: Work,
}

impl Container {
    pub fn new(setup: Setup, seed: u64) -> Container {
        let limit = Share::from_ppm(setup.limit);
        Container {
            limit,
            weight: Share::weight(setup.request, limit),
            virtual_time: 0,
            used_until: 0,
            since: None,
            served: 0,
            holds_since: None,
            busy: Busy::new(),
            costs: vec![Cost::UNKNOWN; setup.load.pieces.len()],
            counted: 0,
            in_flight: 0,
            may_launch: 0,
            quiet: Some(START),
            heard: 0,
            is_unheard: false,
            overran: None,
            is_dead: false,
            work: Work::new(&setup.load, START, seed),
            setup,
        }
    }

    /// Its ceiling, as it counts now.
    pub fn bucket(&self, now: u64) -> Bucket {
        let until = self.holds_since.unwrap_or(now);
        Bucket::new(self.limit).kept_waiting(self.since.map_or(0, |since| until - since))
    }

    pub fn free_at(&self, now: u64) -> u64 {
        self.bucket(now).free_at(self.used_until, now)
    }

    /// Somebody gives it another request, limit and priority, and brings the words along.
    pub fn change(&mut self, request: u32, limit: u32, priority: Priority, now: u64) {
        let (bucket, weight) = (self.bucket(now), self.weight);
        self.limit = Share::from_ppm(percent(limit));
        self.weight = Share::weight(percent(request), self.limit);
        self.used_until = bucket.changed(self.bucket(now), self.used_until, now);
        if let Some(began) = self.holds_since {
            self.virtual_time = reweighed(self.virtual_time, now - began, weight, self.weight);
        } else if self.setup.priority != priority {
            self.since = self.since.and(Some(now));
        }
        self.setup.priority = priority;
    }

    pub fn is_stopped(&self, now: u64) -> bool {
        self.setup.stopped.is_some_and(|(from, to)| (START + from..START + to).contains(&now))
    }

    /// When it was last there.
    pub fn seen(&self, now: u64) -> u64 {
        self.setup.stopped.filter(|_| self.is_stopped(now)).map_or(now, |(from, _)| START + from)
    }

    /// Whether it has anything under way or to start. What goes on after its turn was lost is no reason to have another.
    pub fn wants(&self, now: u64) -> bool {
        !self.is_dead && self.overran.is_none() && (self.in_flight > 0 || self.work.available_at() <= now)
    }

    /// Since when all is done that it had started, where nothing but its ceiling keeps it from starting more.
    pub fn quiet_since(&self, now: u64) -> Option<u64> {
        self.quiet.filter(|_| self.work.available_at() > now || self.free_at(now) > now)
    }

    /// What others see of it.
    pub fn contender(&self, index: usize, now: u64, worth: u64) -> Contender {
        let (bucket, since) = (self.bucket(now), self.since.unwrap_or(now));
        let (free, mut ready) = match self.limit.is_whole() {
            true => (0, 0),
            false => (bucket.free_at(self.used_until, now), bucket.ready_at(self.used_until, now, worth)),
        };
        if self.setup.priority == Priority::Latency && free <= since {
            ready = free;
        }
        Contender {
            index,
            weight: self.weight,
            priority: self.setup.priority,
            virtual_time: self.virtual_time,
            since,
            served: self.served,
            free,
            ready,
        }
    }

    /// What is expected to be under way. Of what nothing is known, all is, until it is done.
    fn expected(&self, worked_on: Option<&Piece>, now: u64) -> u64 {
        let known = worked_on.filter(|piece| self.costs[piece.kind] != Cost::UNKNOWN);
        let worked = known.map_or(0, |piece| now.saturating_sub(piece.begins).min(piece.counted));
        self.counted - worked
    }

    /// When what is under way lets the next piece through; now or before, if it does.
    pub fn admitted_at(&self, worked_on: Option<&Piece>, now: u64, bound: Option<Flight>) -> u64 {
        let expected = self.expected(worked_on, now);
        let next = self.costs[self.work.next_kind()];
        // Held to a limit, it is bounded also when it is alone.
        let bound = bound.or((!self.limit.is_whole()).then_some(Flight::USUAL));
        let at_most = match bound {
            None => DEEP,
            Some(flight) if flight.admits(expected, next) => expected,
            Some(flight) => flight.most.saturating_sub(flight.counted(next)).max(flight.low),
        };
        now + expected.saturating_sub(at_most)
    }

    /// Takes the next piece of the program's work, which arrives then.
    pub fn launch(&mut self, now: u64, arrives: u64) -> Piece {
        let (kind, usual, batch_ends) = self.work.take(now);
        let hangs = self.setup.hangs.take_if(|(from, _)| START + *from <= now);
        let counted = Flight::USUAL.counted(self.costs[kind]);
        self.counted += counted;
        self.in_flight += 1;
        self.heard = now + self.counted;
        self.quiet = None;
        Piece {
            kind,
            counted,
            batch_ends,
            arrives,
            left: hangs.map_or(usual, |(_, length)| length),
            begins: u64::MAX,
            ends: u64::MAX,
            shared: (0, 0),
        }
    }

    /// Looks at a piece that is done, measures it, and has it charged. Returns what was measured.
    pub fn look(&mut self, piece: &Piece, now: u64) -> u64 {
        let (from, to) = piece.shared;
        let gpu = self.busy.add(from, to);
        self.used_until = self.bucket(now).charged_from(self.used_until, piece.begins, now, gpu);
        let cost = &mut self.costs[piece.kind];
        let (expected, unknown) = cost.expected().map_or((0, 1), |expected| (expected, 0));
        *cost = cost.learned(expected, unknown, gpu);
        self.counted -= piece.counted;
        self.in_flight -= 1;
        self.heard = now + self.counted;
        if let Some(lost) = self.overran {
            let after = to.saturating_sub(from.max(lost));
            self.virtual_time = charged(self.virtual_time, after, self.weight);
        }
        if self.in_flight == 0 {
            self.overran = None;
            self.quiet = self.quiet.or(Some(now));
        }
        gpu
    }

    /// It is gone, and all that it wanted.
    pub fn die(&mut self, gpu: &mut Gpu, index: usize) {
        gpu.destroy(index);
        (self.is_dead, self.counted, self.in_flight, self.overran) = (true, 0, 0, None);
    }
}
