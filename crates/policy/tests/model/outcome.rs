//! What really happened.

use crate::gpu::{MS, SECOND, START};

/// Written by the hardware and by the programs, for the judge.
pub struct Record {
    /// Per container, how long the GPU worked for it in each millisecond.
    worked: Vec<Vec<u64>>,
    /// Per container, how long each request took.
    answers: Vec<Vec<u64>>,
    /// Per container, how long it waited for each turn.
    waits: Vec<Vec<u64>>,
}

impl Record {
    pub fn new(containers: usize) -> Record {
        let empty = || vec![Vec::new(); containers];
        Record { worked: empty(), answers: empty(), waits: empty() }
    }

    pub fn worked(&mut self, index: usize, begins: u64, ends: u64) {
        let (mut from, to) = (begins - START, ends - START);
        let worked = &mut self.worked[index];
        worked.resize(worked.len().max((to / MS + 1) as usize), 0);
        while from < to {
            let until = ((from / MS + 1) * MS).min(to);
            worked[(from / MS) as usize] += until - from;
            from = until;
        }
    }

    pub fn answered(&mut self, index: usize, asked: u64, answered: u64) {
        self.answers[index].push(answered - asked);
    }

    pub fn granted(&mut self, index: usize, waited: u64) {
        self.waits[index].push(waited);
    }

    pub fn outcome(mut self, length: u64) -> Outcome {
        for worked in &mut self.worked {
            worked.resize((length / MS) as usize, 0);
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
    /// How much of the time in between the GPU worked for a container, in per cent; in time from the start of the run.
    pub fn between(&self, index: usize, from: u64, to: u64) -> f64 {
        let worked: u64 = self.record.worked[index][(from / MS) as usize..(to / MS) as usize].iter().sum();
        100.0 * worked as f64 / (to - from) as f64
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

    /// How far from a share, in points, it was in the worst second between.
    pub fn worst_second(&self, index: usize, share: f64, from: u64, to: u64) -> f64 {
        let starts = (from..=to - SECOND).step_by((100 * MS) as usize);
        starts.map(|start| (self.between(index, start, start + SECOND) - share).abs()).fold(0.0, f64::max)
    }

    /// How long requests took, in milliseconds: of so many in a hundred no longer than this.
    pub fn percentile(&self, index: usize, percent: usize) -> f64 {
        let answers = &self.record.answers[index];
        assert!(answers.len() >= 100, "too few requests to speak of");
        answers[(answers.len() * percent / 100).min(answers.len() - 1)] as f64 / MS as f64
    }

    /// The longest time in between in which the GPU did nothing for a container, in milliseconds.
    pub fn longest_pause(&self, index: usize, from: u64, to: u64) -> usize {
        let worked = &self.record.worked[index][(from / MS) as usize..(to / MS) as usize];
        worked.split(|worked| *worked > 0).map(<[u64]>::len).max().unwrap_or(0)
    }

    /// The longest wait for a turn, in milliseconds.
    pub fn longest_wait(&self, index: usize) -> f64 {
        self.record.waits[index].iter().max().copied().unwrap_or(0) as f64 / MS as f64
    }
}
