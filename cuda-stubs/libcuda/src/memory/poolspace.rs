//! The inside of a pool: a range of addresses, of which chunks of 32 MiB have memory, handed out first fit.
//!
//! A free range may still wait for work: it can be used again by whoever is ordered behind that work, and its memory can go
//! back only when the work is done. `A` is what is waited for.

use std::collections::BTreeMap;

/// What a pool takes of a GPU at a time.
pub(crate) const CHUNK: u64 = 32 << 20;

#[derive(Debug)]
pub(crate) struct PoolSpace<A> {
    /// Free ranges by their start.
    holes: BTreeMap<u64, Hole<A>>,
    /// Which chunks have memory.
    backed: Vec<bool>,
    /// How many ranges wait for work.
    waiting: usize,
}

#[derive(Debug)]
struct Hole<A> {
    len: u64,
    after: Option<A>,
}

impl<A> PoolSpace<A> {
    /// So many addresses, a multiple of [`CHUNK`].
    pub(crate) fn new(len: u64) -> PoolSpace<A> {
        let holes = BTreeMap::from([(0, Hole { len, after: None })]);
        PoolSpace { holes, backed: vec![false; (len / CHUNK) as usize], waiting: 0 }
    }

    /// Bytes of memory that it has.
    pub(crate) fn reserved(&self) -> u64 {
        self.backed.iter().filter(|backed| **backed).count() as u64 * CHUNK
    }

    /// Whether ranges wait for work.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting != 0
    }

    /// The first place for so many bytes among the ranges that `usable` lets through; `backed`: only where there is memory.
    pub(crate) fn find(&self, bytes: u64, backed: bool, usable: impl Fn(&A) -> bool) -> Option<u64> {
        let mut run = 0..0;
        for (&start, hole) in &self.holes {
            if !hole.after.as_ref().is_none_or(&usable) {
                continue;
            }
            if start != run.end {
                run.start = start;
            }
            run.end = start + hole.len;
            if let Some(found) = self.first_in(run.clone(), bytes, backed) {
                return Some(found);
            }
        }
        None
    }

    fn first_in(&self, run: std::ops::Range<u64>, bytes: u64, backed: bool) -> Option<u64> {
        let mut at = run.start;
        while at + bytes <= run.end {
            let gap = if backed { self.chunks(at, bytes).find(|chunk| !self.backed[*chunk]) } else { None };
            match gap {
                None => return Some(at),
                Some(chunk) => at = (chunk as u64 + 1) * CHUNK,
            }
        }
        None
    }

    fn chunks(&self, start: u64, bytes: u64) -> std::ops::Range<usize> {
        (start / CHUNK) as usize..(start + bytes).div_ceil(CHUNK) as usize
    }

    /// The memory that a place still lacks.
    pub(crate) fn lacking(&self, start: u64, bytes: u64) -> u64 {
        self.chunks(start, bytes).filter(|chunk| !self.backed[*chunk]).count() as u64 * CHUNK
    }

    /// Takes a place that [`PoolSpace::find`] found; its memory is there from now on. Returns what must be waited for.
    pub(crate) fn take(&mut self, start: u64, bytes: u64) -> Vec<A>
    where
        A: Clone,
    {
        for chunk in self.chunks(start, bytes) {
            self.backed[chunk] = true;
        }
        let end = start + bytes;
        let mut waits = Vec::new();
        let first = self.holes.range(..=start).next_back().map_or(start, |(at, _)| *at);
        let touched: Vec<u64> = self.holes.range(first..end).map(|(at, _)| *at).collect();
        for at in touched {
            let Some(hole) = self.holes.remove(&at) else { continue };
            let (hole_end, after) = (at + hole.len, hole.after);
            if hole_end <= start {
                self.holes.insert(at, Hole { len: hole_end - at, after });
                continue;
            }
            self.waiting -= usize::from(after.is_some());
            waits.extend(after.clone());
            for (from, to) in [(at, start), (end, hole_end)] {
                if from < to {
                    self.waiting += usize::from(after.is_some());
                    self.holes.insert(from, Hole { len: to - from, after: after.clone() });
                }
            }
        }
        waits
    }

    /// Gives a place back, free once `after` is done.
    pub(crate) fn put(&mut self, start: u64, bytes: u64, after: Option<A>) {
        self.waiting += usize::from(after.is_some());
        self.holes.insert(start, Hole { len: bytes, after });
        self.merge_at(start);
    }

    /// Forgets work that is done.
    pub(crate) fn settle(&mut self, done: impl Fn(&A) -> bool) {
        if self.waiting == 0 {
            return;
        }
        let over: Vec<u64> =
            self.holes.iter().filter(|(_, h)| h.after.as_ref().is_some_and(&done)).map(|(at, _)| *at).collect();
        for at in over {
            if let Some(hole) = self.holes.get_mut(&at) {
                hole.after = None;
                self.waiting -= 1;
            }
            self.merge_at(at);
        }
    }

    /// Joins a range with its neighbours if none of them waits for anything.
    fn merge_at(&mut self, start: u64) {
        let Some(hole) = self.holes.get(&start).filter(|h| h.after.is_none()) else { return };
        let (mut from, mut to) = (start, start + hole.len);
        if let Some((&at, before)) = self.holes.range(..start).next_back()
            && before.after.is_none()
            && at + before.len == start
        {
            from = at;
        }
        if let Some(behind) = self.holes.get(&to)
            && behind.after.is_none()
        {
            let len = behind.len;
            self.holes.remove(&to);
            to += len;
        }
        self.holes.remove(&start);
        self.holes.insert(from, Hole { len: to - from, after: None });
    }

    /// Gives up memory of chunks that are wholly free, the last first, while `more` (told what there is) wants it. Returns
    /// the chunks as ranges of bytes.
    pub(crate) fn release(&mut self, more: impl Fn(u64) -> bool) -> Vec<(u64, u64)> {
        let mut left = self.reserved();
        let mut gone = Vec::new();
        for chunk in (0..self.backed.len()).rev() {
            if !more(left) {
                break;
            }
            let start = chunk as u64 * CHUNK;
            let free = || {
                self.holes
                    .range(..=start)
                    .next_back()
                    .is_some_and(|(at, h)| h.after.is_none() && at + h.len >= start + CHUNK)
            };
            if self.backed[chunk] && free() {
                self.backed[chunk] = false;
                left -= CHUNK;
                gone.push((start, CHUNK));
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn grab(space: &mut PoolSpace<u32>, bytes: u64) -> u64 {
        let at = space.find(bytes, true, |_| false).or_else(|| space.find(bytes, false, |_| false)).expect("room");
        space.take(at, bytes);
        at
    }

    #[test]
    fn the_measured_sequence_comes_out() {
        let mut space = PoolSpace::<u32>::new(1 << 40);
        assert_eq!((grab(&mut space, 1024), space.reserved()), (0, 32 * MIB));
        assert_eq!((grab(&mut space, 100 * MIB), space.reserved()), (0x400, 128 * MIB));
        space.put(0x400, 100 * MIB, Some(7));
        assert!(space.release(|_| true).is_empty(), "the work is not done");
        space.settle(|_| true);
        assert_eq!(space.release(|left| left > 0).len(), 3);
        assert_eq!(space.reserved(), 32 * MIB, "the first chunk is still used");
        space.put(0, 1024, None);
        space.release(|left| left > 0);
        assert_eq!(space.reserved(), 0);
        for (bytes, chunks) in [(512, 1), (33 * MIB, 2), (64 * MIB, 2), (64 * MIB + 512, 3), (3 * MIB, 1)] {
            let at = grab(&mut space, bytes);
            assert_eq!(space.reserved(), chunks * CHUNK, "{bytes}");
            space.put(at, bytes, None);
            space.release(|_| true);
        }
    }

    #[test]
    fn waiting_ranges_go_to_those_who_may_have_them() {
        let mut space = PoolSpace::<u32>::new(8 * CHUNK);
        let at = grab(&mut space, CHUNK);
        space.put(at, CHUNK, Some(1));
        assert_eq!(space.find(CHUNK, true, |stream| *stream == 2), None);
        assert_eq!(space.find(CHUNK, true, |stream| *stream == 1), Some(0));
        assert_eq!(space.take(0, 4096), [1]);
        assert!(space.is_waiting(), "the rest of the range still waits");
        assert_eq!(space.find(2 * CHUNK, false, |stream| *stream == 1), Some(4096), "ranges side by side count as one");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn places_never_overlap_and_memory_covers_them(steps in prop::collection::vec((any::<u8>(), 1u64..400), 1..150)) {
            let mut space = PoolSpace::<u32>::new(64 * CHUNK);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (choice, size) in steps {
                let bytes = size * if choice & 1 == 0 { 512 } else { 200 * 1024 };
                match choice % 5 {
                    0 | 1 => {
                        let Some(at) = space.find(bytes, true, |_| true).or_else(|| space.find(bytes, false, |_| true)) else { continue };
                        let before = space.reserved();
                        let lacking = space.lacking(at, bytes);
                        space.take(at, bytes);
                        prop_assert_eq!(space.reserved(), before + lacking);
                        prop_assert!(live.iter().all(|(other, len)| at + bytes <= *other || other + len <= at));
                        live.push((at, bytes));
                    }
                    2 | 3 if !live.is_empty() => {
                        let (at, bytes) = live.swap_remove(usize::from(choice) % live.len());
                        space.put(at, bytes, (choice & 8 == 0).then_some(u32::from(choice)));
                    }
                    _ => {
                        space.settle(|token| *token & 16 == 0);
                        space.release(|left| left > u64::from(choice) * MIB);
                    }
                }
                for (at, bytes) in &live {
                    prop_assert_eq!(space.lacking(*at, *bytes), 0);
                }
                let free: u64 = space.holes.values().map(|h| h.len).sum();
                let used: u64 = live.iter().map(|(_, len)| len).sum();
                prop_assert_eq!(free + used, 64 * CHUNK);
                prop_assert_eq!(space.waiting, space.holes.values().filter(|h| h.after.is_some()).count());
            }
            for (at, bytes) in live {
                space.put(at, bytes, None);
            }
            space.settle(|_| true);
            space.release(|_| true);
            prop_assert_eq!((space.reserved(), space.holes.len()), (0, 1));
        }
    }
}
