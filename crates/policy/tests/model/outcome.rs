//! What really happened.

use crate::gpu::{MS, SECOND, START};

/// Written by the hardware and by the programs, for the judge; and next to it what the accounts say.
pub struct Record {
    /// Per container, how long the GPU worked for it in each grain of time.
    worked: Vec<Vec<u64>>,
    grain: u64,
    /// Per container, how long each request took.
    answers: Vec<Vec<u64>>,
    /// Per container, the longest wait for a turn.
    longest_wait: Vec<u64>,
    /// Per container, for how long it held the GPU, and for how long it was charged for that.
    held: Vec<(u64, u64)>,
    /// Per container, how much GPU time was measured.
    measured: Vec<u64>,
}

impl Record {
    pub fn new(containers: usize) -> Record {
        let empty = || vec![Vec::new(); containers];
        Record {
            worked: empty(),
            grain: MS,
            answers: empty(),
            longest_wait: vec![0; containers],
            held: vec![(0, 0); containers],
            measured: vec![0; containers],
        }
    }

    /// With one number for each second.
    pub fn coarse(self) -> Record {
        Record { grain: SECOND, ..self }
    }

    pub fn worked(&mut self, index: usize, begins: u64, ends: u64) {
        let (mut from, to) = (begins - START, ends - START);
        let (worked, grain) = (&mut self.worked[index], self.grain);
        let last = (to / grain) as usize;
        if worked.len() <= last {
            worked.resize(last + 1, 0);
        }
        while from < to {
            let until = ((from / grain + 1) * grain).min(to);
            worked[(from / grain) as usize] += until - from;
            from = until;
        }
    }

    pub fn measured(&mut self, index: usize, gpu: u64) {
        self.measured[index] += gpu;
    }

    pub fn answered(&mut self, index: usize, asked: u64, answered: u64) {
        self.answers[index].push(answered - asked);
    }

    pub fn granted(&mut self, index: usize, waited: u64) {
        self.longest_wait[index] = self.longest_wait[index].max(waited);
    }

    pub fn held(&mut self, index: usize, time: u64, charged: u64) {
        self.held[index].0 += time;
        self.held[index].1 += charged;
    }

    pub fn outcome(mut self, length: u64) -> Outcome {
        for worked in &mut self.worked {
            worked.resize((length / self.grain) as usize, 0);
        }
        self.answers.iter_mut().for_each(|answers| answers.sort_unstable());
        Outcome { length, record: self }
    }
}

/// What came of it.
pub struct Outcome {
    length: u64,
    record: Record,
}

impl Outcome {
    /// What the GPU worked for a container in each grain of the time in between.
    fn grains(&self, index: usize, from: u64, to: u64) -> &[u64] {
        &self.record.worked[index][(from / self.record.grain) as usize..(to / self.record.grain) as usize]
    }

    /// How long the GPU worked for a container in the time in between; in time from the start of the run.
    pub fn worked(&self, index: usize, from: u64, to: u64) -> u64 {
        self.grains(index, from, to).iter().sum()
    }

    /// How much of the time in between the GPU worked for a container, in per cent.
    pub fn between(&self, index: usize, from: u64, to: u64) -> f64 {
        100.0 * self.worked(index, from, to) as f64 / (to - from) as f64
    }

    /// How much of all the time.
    pub fn share(&self, index: usize) -> f64 {
        self.between(index, 0, self.length)
    }

    pub fn shares(&self) -> Vec<f64> {
        (0..self.record.worked.len()).map(|index| self.share(index)).collect()
    }

    pub fn sum(&self) -> f64 {
        self.shares().iter().sum()
    }

    /// How far from a share, in points, it was in the worst second between, wherever that begins.
    pub fn worst_second(&self, index: usize, share: f64, from: u64, to: u64) -> f64 {
        let (grains, second) = (self.grains(index, from, to), (SECOND / self.record.grain) as usize);
        let mut worked: u64 = grains[..second].iter().sum();
        let off = |worked: u64| (100.0 * worked as f64 / SECOND as f64 - share).abs();
        let mut worst = off(worked);
        for (leaves, comes) in grains.iter().zip(&grains[second..]) {
            worked = worked + comes - leaves;
            worst = worst.max(off(worked));
        }
        worst
    }

    /// In whatever window it is most: by how much GPU time a container has had more than its limit, in per cent, allows for
    /// the length of that window, in milliseconds.
    pub fn most_above(&self, index: usize, limit: f64) -> f64 {
        let due = limit / 100.0 * self.record.grain as f64;
        let (mut above, mut most) = (0.0_f64, 0.0_f64);
        for worked in &self.record.worked[index] {
            above = (above + *worked as f64 - due).max(0.0);
            most = most.max(above);
        }
        most / MS as f64
    }

    /// How long requests took, in milliseconds: of so many in a hundred no longer than this.
    pub fn percentile(&self, index: usize, percent: usize) -> f64 {
        let answers = &self.record.answers[index];
        assert!(answers.len() >= 100, "too few requests to speak of");
        answers[(answers.len() * percent / 100).min(answers.len() - 1)] as f64 / MS as f64
    }

    /// The longest time in between in which the GPU did nothing for a container, in milliseconds.
    pub fn longest_pause(&self, index: usize, from: u64, to: u64) -> u64 {
        let pauses = self.grains(index, from, to).split(|worked| *worked > 0);
        pauses.map(<[u64]>::len).max().unwrap_or(0) as u64 * self.record.grain / MS
    }

    /// The longest wait for a turn, in milliseconds.
    pub fn longest_wait(&self, index: usize) -> f64 {
        self.record.longest_wait[index] as f64 / MS as f64
    }

    /// For how long a container held the GPU, and for how long it was charged for that.
    pub fn held(&self, index: usize) -> (u64, u64) {
        self.record.held[index]
    }

    /// How much GPU time of a container was measured.
    pub fn measured(&self, index: usize) -> u64 {
        self.record.measured[index]
    }
}
