//! How often launches are looked at that nobody holds up.

/// Looks at a program whose launches nobody need watch: it is not bound by the GPU though others use it, or alone, and they are
/// short. Each look holds up every launch a little, for a millisecond or two in company, so a program that was found to be the
/// same again and again is looked at more rarely.
pub struct Glances {
    /// Nobody looks at present.
    away: bool,
    /// How often in a row it was found to be such a program.
    same: u32,
    skipped: u32,
}

impl Glances {
    /// So often in a row makes sure of it.
    const SURE: u32 = 3;
    /// And then so many are left out, one after another.
    const SKIPPED: u32 = 4;

    /// Nobody has looked.
    pub const fn new() -> Glances {
        Glances { away: false, same: 0, skipped: 0 }
    }

    /// From now on nobody looks. `is_such`: it was found to be a program that need not be looked at often.
    pub fn end(&mut self, is_such: bool) {
        let same = self.same.saturating_add(1);
        *self = if is_such { Glances { away: true, same, ..*self } } else { Glances::new() };
    }

    /// A launch is looked at. Whether that is the first after a while.
    pub fn begin(&mut self) -> bool {
        std::mem::take(&mut self.away)
    }

    /// It is bound by the GPU.
    pub fn forget(&mut self) {
        *self = Glances::new();
    }

    /// It is time for another. Whether that may be left out: not where anything is otherwise than when the last was.
    pub fn may_skip(&mut self, is_as_before: bool) -> bool {
        if !is_as_before {
            self.same = 0;
        }
        let skips = self.away && self.same >= Glances::SURE && self.skipped < Glances::SKIPPED;
        self.skipped = if skips { self.skipped + 1 } else { 0 };
        skips
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_found_the_same_is_looked_at_more_rarely() {
        let mut glances = Glances::new();
        for _ in 0..3 {
            assert!(!glances.may_skip(true));
            glances.begin();
            glances.end(true);
        }
        for _ in 0..3 {
            let skipped: Vec<bool> = (0..5).map(|_| glances.may_skip(true)).collect();
            assert_eq!(skipped, [true, true, true, true, false]);
            assert!(glances.begin() && !glances.begin());
            assert!(!glances.may_skip(true), "it is being looked at");
            glances.end(true);
        }
        assert!(
            !glances.may_skip(false) && !glances.may_skip(true),
            "it is found out again, with others there or without"
        );
        glances.forget();
        glances.end(true);
        assert!(!glances.may_skip(true), "and from the beginning");
    }
}
