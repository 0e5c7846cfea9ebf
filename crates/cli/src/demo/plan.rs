//! The order of events: who is on the GPU when, and for how long.

use std::time::Duration;

use super::scenario::Scenario;

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
}

impl Phase {
    fn new(title: String, who: Vec<usize>, measured: Duration) -> Phase {
        let warm_up = (measured / 5).min(Duration::from_millis(300));
        Phase { title, who, warm_up, measured }
    }

    /// Both parts.
    pub fn length(&self) -> Duration {
        self.warm_up + self.measured
    }
}

/// First each program alone, then all of them together for `together`; alone a third of that each.
pub fn plan(scenario: &Scenario, together: Duration) -> Vec<Phase> {
    let alone = scenario.programs.iter().enumerate();
    let alone = alone.map(|(i, program)| Phase::new(format!("{} alone", program.name), vec![i], together / 3));
    let everybody = (0..scenario.programs.len()).collect();
    alone.chain([Phase::new("all together".into(), everybody, together)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_alone_once_and_then_all_are_together() {
        let phases = plan(&Scenario::built_in(), Duration::from_secs(6));
        let who: Vec<&[usize]> = phases.iter().map(|phase| &phase.who[..]).collect();
        assert_eq!(who, [&[0][..], &[1], &[2], &[0, 1, 2]]);
        assert_eq!(phases[0].title, "trainer alone");
        assert_eq!(phases[0].measured, Duration::from_secs(2));
        assert_eq!(phases[3].measured, Duration::from_secs(6));
    }
}
