//! The order of events: who is on the GPU when, and for how long.

use std::time::Duration;

use super::scenario::{Program, Scenario};

/// What the title of a phase that is tried again ends with.
pub const AGAIN: &str = " (again)";

/// A stretch of the demo in which the same programs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// A few words: "trainer alone".
    pub title: String,
    /// The programs, by their place in the scenario.
    pub who: Vec<usize>,
    /// Before it counts.
    pub warm_up: Duration,
    /// Counted.
    pub measured: Duration,
    /// Whether ration is there.
    pub with_ration: bool,
    /// How often it is tried on a machine that is busy with other things.
    pub tries: u32,
}

impl Phase {
    fn new(title: String, who: Vec<usize>, measured: Duration, tries: u32) -> Phase {
        let warm_up = (measured / 5).min(Duration::from_millis(300));
        Phase { title, who, warm_up, measured, with_ration: false, tries }
    }

    /// Both parts.
    pub fn length(&self) -> Duration {
        self.warm_up + self.measured
    }
}

/// First each program alone, then all of them together for `together`; alone a third of that each.
pub fn sharing(scenario: &Scenario, together: Duration) -> Vec<Phase> {
    let everybody = (0..scenario.programs.len()).collect();
    alone(scenario, together).chain([Phase::new("all together".into(), everybody, together, tries(together))]).collect()
}

/// The same, and then once more with ration.
pub fn compute(scenario: &Scenario, together: Duration) -> Vec<Phase> {
    let everybody: Vec<usize> = (0..scenario.programs.len()).collect();
    let tries = tries(together);
    let without = Phase::new("without ration".into(), everybody.clone(), together, tries);
    let with = Phase { with_ration: true, ..Phase::new("with ration".into(), everybody, together, tries) };
    alone(scenario, together).chain([without, with]).collect()
}

fn alone(scenario: &Scenario, together: Duration) -> impl Iterator<Item = Phase> {
    let programs = scenario.programs.iter().enumerate();
    let phase = move |(i, program): (usize, &Program)| {
        Phase::new(format!("{} alone", program.name), vec![i], together / 3, tries(together))
    };
    programs.map(phase)
}

/// Who asks for a short demo gets rough figures.
fn tries(together: Duration) -> u32 {
    if together < Duration::from_secs(3) { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_alone_once_and_then_all_are_together() {
        let phases = sharing(&Scenario::built_in(), Duration::from_secs(6));
        let who: Vec<&[usize]> = phases.iter().map(|phase| &phase.who[..]).collect();
        assert_eq!(who, [&[0][..], &[1], &[2], &[0, 1, 2]]);
        assert_eq!(phases[0].title, "trainer alone");
        assert_eq!(phases[0].measured, Duration::from_secs(2));
        assert_eq!(phases[3].measured, Duration::from_secs(6));
    }

    #[test]
    fn only_the_last_time_is_ration_there() {
        let phases = compute(&Scenario::containers(), Duration::from_secs(6));
        let with: Vec<(&str, bool)> = phases[3..].iter().map(|phase| (&*phase.title, phase.with_ration)).collect();
        assert_eq!(with, [("without ration", false), ("with ration", true)]);
        assert!(phases[..3].iter().all(|phase| !phase.with_ration));
        assert_eq!((&phases[3].who, phases[3].length()), (&phases[4].who, phases[4].length()));
    }
}
