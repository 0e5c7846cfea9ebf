//! Who plays: the programs of a demo, as data, with a text form that people write and workers are started by.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The programs that the demo runs unless told otherwise, in the text form.
const BUILT_IN: &str = "\
# name     what it does on the GPU
trainer    kernel=500us     memory=24GiB  queue=128
notebook   kernel=500us     memory=6GiB   wait
inference  kernel=131500ns  memory=14GiB  requests=20 every=20ms
";

/// The containers that it runs unless told otherwise, with what each asks for.
const CONTAINERS: &str = "\
# name     what it does on the GPU                                  what it asks for
trainer    kernel=500us     memory=24GiB  queue=128                 request=50%
notebook   kernel=500us     memory=6GiB   wait                      request=30%
inference  kernel=131500ns  memory=14GiB  requests=20 every=20ms    request=20% priority=latency
";

/// Most programs at once; beyond, the view has no colours left to tell them apart.
pub const MOST: usize = 6;

/// The programs that share the GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// In the order in which they are shown.
    pub programs: Vec<Program>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What it is called in the view and the table.
    pub name: String,
    /// GPU time of each of its kernels.
    pub kernel: Duration,
    /// Device memory that it takes at its start, bytes.
    pub memory: u64,
    /// How it uses the GPU.
    pub style: Style,
    /// The share of the GPU's time that it asks for, per cent; time slicing does not ask.
    pub request: Option<u32>,
    /// Who it goes before, and who goes before it; likewise.
    pub priority: Priority,
}

impl Program {
    /// The share of the GPU's time that it asks for, as a part.
    pub fn requested(&self) -> Option<f64> {
        self.request.map(|percent| f64::from(percent) / 100.0)
    }
}

/// Who goes first when several want the GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// Waits least.
    Latency,
    /// Waits its turn.
    #[default]
    Normal,
    /// Waits most.
    Batch,
}

impl Priority {
    const ALL: [Priority; 3] = [Priority::Latency, Priority::Normal, Priority::Batch];

    /// As ration's setting has it.
    pub fn name(self) -> &'static str {
        match self {
            Priority::Latency => "latency",
            Priority::Normal => "normal",
            Priority::Batch => "batch",
        }
    }
}

/// How a program uses the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As much as it can get: always so many kernels in the queue.
    Queue {
        /// How many.
        depth: u32,
    },
    /// As much as it can get, but it waits for each kernel before it launches the next.
    Wait,
    /// Something comes in at fixed times and wants an answer.
    Requests {
        /// Kernels that an answer takes.
        kernels: u32,
        /// Time from one request to the next.
        every: Duration,
    },
}

impl Style {
    /// What the program counts.
    pub fn unit(self) -> &'static str {
        match self {
            Style::Queue { .. } | Style::Wait => "kernels",
            Style::Requests { .. } => "requests",
        }
    }
}

impl Scenario {
    /// A trainer that saturates the GPU, a program that waits for each result, and one that serves requests.
    pub fn built_in() -> Scenario {
        BUILT_IN.parse().expect("a test reads the built-in scenario")
    }

    /// The same kinds of program as containers that ask for shares, the one with requests also to be let through first.
    pub fn containers() -> Scenario {
        CONTAINERS.parse().expect("a test reads the built-in containers")
    }
}

/// A text that is no scenario.
#[derive(Debug, PartialEq, Eq)]
pub struct BadScenario {
    line: usize,
    why: String,
}

impl fmt::Display for BadScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl FromStr for Scenario {
    type Err = BadScenario;

    fn from_str(text: &str) -> Result<Scenario, BadScenario> {
        let mut programs: Vec<Program> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let bad = |why: String| BadScenario { line: number + 1, why };
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let program: Program = line.parse().map_err(bad)?;
            if programs.iter().any(|other| other.name == program.name) {
                return Err(bad(format!("there are two programs called {:?}", program.name)));
            }
            if programs.len() == MOST {
                return Err(bad(format!("at most {MOST} programs can be told apart")));
            }
            programs.push(program);
        }
        let requested: u32 = programs.iter().filter_map(|program| program.request).sum();
        let bad = |why: String| Err(BadScenario { line: text.lines().count(), why });
        match programs.len() {
            0 | 1 => bad("it takes two programs to share a GPU".into()),
            _ if requested > 100 => bad(format!("together they request {requested}% of a GPU that has 100%")),
            _ => Ok(Scenario { programs }),
        }
    }
}

const FORM: &str = "a program is `NAME kernel=TIME memory=SIZE`, then `queue=DEPTH`, `wait`, or `requests=KERNELS every=TIME`, and for \
     shares `request=PERCENT priority=NAME`";
const TIME: &str = "a whole number of ns, us, ms or s, from 1us to 10s";
const SIZE: &str = "a whole number of MiB or GiB, up to 128GiB";
const PERCENT: &str = "a whole number of per cent, from 1% to 100%";

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Program, String> {
        let mut words = text.split_whitespace();
        let name = words.next().ok_or(FORM)?;
        if name.contains('=') || name.len() > 12 {
            return Err(format!("{name:?} is no name of at most 12 letters; {FORM}"));
        }
        let (mut kernel, mut memory, mut queue, mut wait, mut requests, mut every) =
            (None, None, None, None, None, None);
        let (mut request, mut priority) = (None, None);
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let bad = |accepted: &str| format!("{word:?} is not understood; {key} takes {accepted}");
            let number = |most: u32| {
                let number = value.parse().ok().filter(|n| (1..=most).contains(n));
                number.ok_or_else(|| bad(&format!("a number from 1 to {most}")))
            };
            let twice = match key {
                "kernel" => kernel.replace(time(value).ok_or_else(|| bad(TIME))?).is_some(),
                "memory" => memory.replace(size(value).ok_or_else(|| bad(SIZE))?).is_some(),
                "queue" => queue.replace(number(512)?).is_some(),
                "wait" if word == "wait" => wait.replace(()).is_some(),
                "requests" => requests.replace(number(512)?).is_some(),
                "every" => every.replace(time(value).ok_or_else(|| bad(TIME))?).is_some(),
                "request" => request.replace(percent(value).ok_or_else(|| bad(PERCENT))?).is_some(),
                "priority" => {
                    let named = Priority::ALL.into_iter().find(|priority| priority.name() == value);
                    priority.replace(named.ok_or_else(|| bad("latency, normal or batch"))?).is_some()
                }
                _ => return Err(format!("{word:?} is not understood; {FORM}")),
            };
            if twice {
                return Err(format!("{key} is given twice; {FORM}"));
            }
        }
        let style = match (queue, wait, requests, every) {
            (Some(depth), None, None, None) => Style::Queue { depth },
            (None, Some(()), None, None) => Style::Wait,
            (None, None, Some(kernels), Some(every)) => Style::Requests { kernels, every },
            _ => return Err(format!("{name} should have one of the three styles; {FORM}")),
        };
        let (Some(kernel), Some(memory)) = (kernel, memory) else {
            return Err(format!("{name} lacks kernel=… or memory=…; {FORM}"));
        };
        Ok(Program { name: name.to_owned(), kernel, memory, style, request, priority: priority.unwrap_or_default() })
    }
}

/// The text form again.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kernel={}ns memory={}MiB ", self.name, self.kernel.as_nanos(), self.memory >> 20)?;
        match self.style {
            Style::Queue { depth } => write!(f, "queue={depth}"),
            Style::Wait => write!(f, "wait"),
            Style::Requests { kernels, every } => write!(f, "requests={kernels} every={}ns", every.as_nanos()),
        }?;
        if let Some(percent) = self.request {
            write!(f, " request={percent}%")?;
        }
        write!(f, " priority={}", self.priority.name())
    }
}

/// A whole number and its unit.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.find(|c: char| !c.is_ascii_digit())?)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn time(text: &str) -> Option<Duration> {
    let ns = quantity(text, &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)])?;
    (1_000..=10_000_000_000).contains(&ns).then(|| Duration::from_nanos(ns))
}

fn size(text: &str) -> Option<u64> {
    quantity(text, &[("MiB", 1 << 20), ("GiB", 1 << 30)]).filter(|bytes| (1 << 20..=128 << 30).contains(bytes))
}

fn percent(text: &str) -> Option<u32> {
    text.strip_suffix('%')?.parse().ok().filter(|percent| (1..=100).contains(percent))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_built_in_scenario_is_one() {
        let names: Vec<String> = Scenario::built_in().programs.into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["trainer", "notebook", "inference"]);
    }

    #[test]
    fn the_built_in_containers_ask_for_unequal_shares_of_one_gpu_and_one_is_in_a_hurry() {
        let programs = Scenario::containers().programs;
        let requests: Vec<u32> = programs.iter().filter_map(|program| program.request).collect();
        assert_eq!(requests, [50, 30, 20]);
        let hurried: Vec<&str> =
            programs.iter().filter(|p| p.priority == Priority::Latency).map(|p| &*p.name).collect();
        assert_eq!(hurried, ["inference"]);
    }

    #[test]
    fn comments_and_empty_lines_do_not_count() {
        let text = "\n# two\na kernel=1ms memory=1GiB wait # slow\n\nb kernel=2us memory=5MiB requests=3 every=1s";
        let scenario: Scenario = text.parse().expect("good");
        assert_eq!(scenario.programs.len(), 2);
        let b = &scenario.programs[1];
        assert_eq!(b.style, Style::Requests { kernels: 3, every: Duration::from_secs(1) });
        assert_eq!((b.kernel, b.memory), (Duration::from_micros(2), 5 << 20));
    }

    #[test]
    fn a_fault_names_its_line_the_word_and_what_is_accepted() {
        let good = "a kernel=1ms memory=1GiB wait\n";
        for (line, fragments) in [
            ("b kernel=1ms memory=1GiB", &["b should have one of the three"][..]),
            ("b kernel=1ms memory=1GiB wait queue=3", &["one of the three"]),
            ("b kernel=1ms memory=1GiB requests=3", &["one of the three"]),
            ("b kernel=1ms wait", &["lacks", "memory="]),
            ("b kernel=5parsecs memory=1GiB wait", &["kernel=5parsecs", "ns, us, ms"]),
            ("b kernel=0ns memory=1GiB wait", &["kernel=0ns", "1us"]),
            ("b kernel=99999999999999999999s memory=1GiB wait", &["kernel=9999"]),
            ("b kernel=1ms memory=1TiB wait", &["memory=1TiB", "GiB"]),
            ("b kernel=1ms memory=1GiB queue=0", &["queue=0", "from 1 to 512"]),
            ("b kernel=1ms memory=1GiB wait=3", &["wait=3", "`wait`"]),
            ("b kernel=1ms kernel=1ms memory=1GiB wait", &["kernel is given twice"]),
            ("b kernel=1ms memory=1GiB wait request=0%", &["request=0%", "from 1% to 100%"]),
            ("b kernel=1ms memory=1GiB wait request=half", &["request=half", "per cent"]),
            ("b kernel=1ms memory=1GiB wait priority=urgent", &["priority=urgent", "latency, normal or batch"]),
            ("b colour=red", &["colour=red"]),
            ("kernel=1ms memory=1GiB wait", &["no name"]),
            ("a kernel=1ms memory=1GiB wait", &["two programs called \"a\""]),
            ("# nobody else", &["two programs to share"]),
        ] {
            let error = format!("{good}{line}").parse::<Scenario>().expect_err(line).to_string();
            assert!(error.starts_with("line 2: "), "{error}");
            for fragment in fragments {
                assert!(error.contains(fragment), "{error:?} does not say {fragment:?}");
            }
        }
        let many: String = (0..=MOST).map(|i| format!("p{i} kernel=1ms memory=1GiB wait\n")).collect();
        assert!(many.parse::<Scenario>().expect_err("too many").to_string().contains("at most 6"));
        let greedy = "a kernel=1ms memory=1GiB wait request=60%\nb kernel=1ms memory=1GiB wait request=50%\n";
        assert!(greedy.parse::<Scenario>().expect_err("too much").to_string().contains("request 110% of a GPU"));
    }

    proptest! {
        /// A worker is started by the text form of its program, so nothing may get lost in it.
        #[test]
        fn the_text_form_is_faithful(
            name in "[a-z]{1,12}",
            kernel in 1_000u64..10_000_000_000,
            memory in 1u64..131_072,
            n in 1u32..=512,
            every in 1_000u64..10_000_000_000,
            style in 0..3,
            request in proptest::option::of(1u32..=100),
            priority in 0..3usize,
        ) {
            let style = match style {
                0 => Style::Queue { depth: n },
                1 => Style::Wait,
                _ => Style::Requests { kernels: n, every: Duration::from_nanos(every) },
            };
            let priority = Priority::ALL[priority];
            let kernel = Duration::from_nanos(kernel);
            let program = Program { name, kernel, memory: memory << 20, style, request, priority };
            prop_assert_eq!(program.to_string().parse::<Program>(), Ok(program));
        }
    }
}
