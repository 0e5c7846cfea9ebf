//! What the command line asks for, in the words of the settings.

use clap::Args;
use ration_contract::table::{COMPUTE, COMPUTE_LIMIT, COMPUTE_REQUEST, MEMORY, NAME, PRIORITY, SETTINGS, Setting};
use ration_contract::{Error, Key, Origin, PerGpu, Settings};

/// What a container may have.
#[derive(Debug, Clone, Default, Args)]
pub struct Asked {
    /// The most GPU memory that its processes hold together: 8GiB, 4096Mi, 25%, or by GPU, GPU-<uuid>=8GiB,25%
    #[arg(long, value_name = "AMOUNT", allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// The share of GPU time: guaranteed, and never exceeded. Such as 30%
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub compute: Option<String>,
    /// The share that is guaranteed when others want the GPU, too; 0% for none
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub compute_request: Option<String>,
    /// The share that is never exceeded, not even when nobody else wants the GPU
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub compute_limit: Option<String>,
    /// Who waits for whom: latency, normal or batch
    #[arg(long, value_name = "WHICH", allow_hyphen_values = true)]
    pub priority: Option<String>,
}

/// The settings that stand together: with one of them from one place, none counts that is from another.
const OF_COMPUTE: [&Setting; 3] = [&COMPUTE, &COMPUTE_REQUEST, &COMPUTE_LIMIT];

impl Asked {
    /// What was given, with its setting.
    fn given(&self) -> Vec<(&'static Setting, &str)> {
        let all: [(&'static Setting, &Option<String>); 5] = [
            (&MEMORY, &self.memory),
            (&COMPUTE, &self.compute),
            (&COMPUTE_REQUEST, &self.compute_request),
            (&COMPUTE_LIMIT, &self.compute_limit),
            (&PRIORITY, &self.priority),
        ];
        all.into_iter().filter_map(|(setting, value)| Some((setting, value.as_deref()?))).collect()
    }

    /// Whether nothing was.
    pub fn is_nothing(&self) -> bool {
        self.given().is_empty()
    }

    /// Whether something was about compute.
    fn is_about_compute(&self) -> bool {
        self.given().iter().any(|(setting, _)| OF_COMPUTE.contains(setting))
    }

    /// With the environment, in which what the command line says does not count.
    pub fn with_environment(
        &self,
        name: Option<&str>,
        get: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Settings, Vec<String>> {
        let given = self.given();
        let look_up = |variable: &str| {
            if let Some((_, value)) = given.iter().find(|(setting, _)| setting.name == variable) {
                return Some((*value).to_owned());
            }
            if variable == NAME.name && name.is_some() {
                return name.map(str::to_owned);
            }
            let is_of_compute = OF_COMPUTE.iter().any(|it| it.name == variable);
            if is_of_compute && self.is_about_compute() { None } else { get(variable) }
        };
        Settings::read(&look_up, None).map_err(|errors| errors.iter().map(|error| self.said(error, name)).collect())
    }

    /// In place of what was asked for before, of which all holds on that nothing is said about.
    pub fn in_place_of(&self, before: &Settings) -> Result<Settings, Vec<String>> {
        let text = before.quota_file();
        let line = |setting: &Setting| {
            let found = text.lines().filter_map(|line| line.split_once(" = ")).find(|(key, _)| *key == setting.key);
            found.map(|(_, value)| value.to_owned())
        };
        let given = self.given();
        let look_up = |variable: &str| {
            if let Some((_, value)) = given.iter().find(|(setting, _)| setting.name == variable) {
                return Some((*value).to_owned());
            }
            let setting = SETTINGS.into_iter().find(|setting| setting.name == variable)?;
            // A share that is both is in place of both.
            let is_replaced = self.compute.is_some() && OF_COMPUTE.contains(&setting);
            if is_replaced { None } else { line(setting) }
        };
        Settings::read(&look_up, None).map_err(|errors| errors.iter().map(|error| self.said(error, None)).collect())
    }

    /// An error, with the option where that is what was given, and not a variable.
    fn said(&self, error: &Error, name: Option<&str>) -> String {
        let Origin::Variable(variable) = &error.given.origin else { return error.to_string() };
        let mut options: Vec<&Setting> = self.given().into_iter().map(|(setting, _)| setting).collect();
        options.extend(name.map(|_| &NAME));
        let Some(setting) = options.into_iter().find(|setting| setting.name == variable) else {
            return error.to_string();
        };
        let value: String = error.given.value.chars().take(60).flat_map(char::escape_debug).collect();
        let option = setting.key.replace('_', "-");
        format!("--{option} \"{value}\": {}; accepted: {}; {}", error.what, error.accepted, error.advice)
    }
}

/// Whether a GPU is named by its number, which is another one in each process.
pub fn goes_by_number<T>(list: &PerGpu<T>) -> bool {
    list.each.iter().any(|(key, _)| matches!(key, Key::Index(_)))
}

/// The variables that say all of this to the library, and those that must not say something else.
pub fn environment(settings: &Settings) -> Vec<(&'static str, Option<String>)> {
    let text = settings.quota_file();
    let value = |setting: &Setting| {
        let found = text.lines().filter_map(|line| line.split_once(" = ")).find(|(key, _)| *key == setting.key);
        found.map(|(_, value)| value.to_owned())
    };
    SETTINGS.into_iter().map(|setting| (setting.name, value(setting))).collect()
}

/// What holds, in a few words: `memory 8GiB, compute 20% to 30%, priority batch`.
pub fn described(settings: &Settings) -> String {
    let mut parts = Vec::new();
    if !settings.memory.is_empty() {
        parts.push(format!("memory {}", settings.memory));
    }
    match (settings.compute_request.to_string(), settings.compute_limit.to_string()) {
        (request, limit) if request == limit && !limit.is_empty() => parts.push(format!("compute {limit}")),
        (request, limit) => {
            parts.extend((!request.is_empty()).then(|| format!("compute request {request}")));
            parts.extend((!limit.is_empty()).then(|| format!("compute limit {limit}")));
        }
    }
    if settings.priority != ration_contract::Priority::Normal {
        parts.push(format!("priority {}", settings.priority));
    }
    if parts.is_empty() { "no limits".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(memory: Option<&str>, compute: [Option<&str>; 3]) -> Asked {
        let text = |it: Option<&str>| it.map(str::to_owned);
        let [both, request, limit] = compute.map(text);
        Asked { memory: text(memory), compute: both, compute_request: request, compute_limit: limit, priority: None }
    }

    fn read(asked: &Asked, environment: &[(&str, &str)]) -> Result<String, Vec<String>> {
        let get = |name: &str| environment.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned());
        asked.with_environment(Some("box"), &get).map(|settings| described(&settings))
    }

    #[test]
    fn what_is_asked_for_counts_before_the_environment() {
        let around = [("RATION_MEMORY", "1GiB"), ("RATION_COMPUTE", "10%"), ("RATION_PRIORITY", "batch")];
        let nothing = Asked::default();
        assert_eq!(read(&nothing, &around).as_deref(), Ok("memory 1GiB, compute 10%, priority batch"));
        let memory = asked(Some("2GiB"), [None; 3]);
        assert_eq!(read(&memory, &around).as_deref(), Ok("memory 2GiB, compute 10%, priority batch"));
        let limit = asked(None, [None, None, Some("50%")]);
        assert_eq!(read(&limit, &around).as_deref(), Ok("memory 1GiB, compute 50%, priority batch"));
        assert_eq!(read(&nothing, &[]).as_deref(), Ok("no limits"));
    }

    #[test]
    fn an_error_names_the_option_or_the_variable() {
        let errors = read(&asked(Some("8g"), [None; 3]), &[]).expect_err("a small letter");
        assert!(errors[0].starts_with("--memory \"8g\": \"g\" is no unit") && errors[0].contains("write 8GiB"));
        let errors = read(&asked(None, [None, Some("50%"), Some("20%")]), &[]).expect_err("more than the limit");
        assert!(errors[0].starts_with("--compute-request \"50%\"") && errors[0].contains("above the limit"));
        let errors = read(&Asked::default(), &[("RATION_MEMORY", "lots")]).expect_err("no amount");
        assert!(errors[0].starts_with("RATION_MEMORY=\"lots\""), "{}", errors[0]);
    }

    #[test]
    fn a_change_leaves_what_it_says_nothing_about() {
        let before = asked(Some("2GiB"), [None, Some("20%"), Some("50%")]).with_environment(Some("box"), &|_| None);
        let before = before.expect("good");
        let changed = |asked: Asked| asked.in_place_of(&before).map(|settings| described(&settings));
        let (request, limit) = ("compute request 20%", "compute limit 50%");
        assert_eq!(changed(asked(Some("1GiB"), [None; 3])), Ok(format!("memory 1GiB, {request}, {limit}")));
        assert_eq!(changed(asked(None, [Some("30%"), None, None])), Ok("memory 2GiB, compute 30%".into()));
        let more = changed(asked(None, [None, None, Some("60%")]));
        assert_eq!(more, Ok(format!("memory 2GiB, {request}, compute limit 60%")));
        assert!(changed(asked(None, [None, None, Some("10%")])).is_err(), "less than the request");
        assert_eq!(asked(None, [None; 3]).in_place_of(&before).map(|it| it.name), Ok(Some("box".into())));
    }

    #[test]
    fn the_library_is_told_all_of_it_and_nothing_else() {
        let settings = asked(Some("0=2GiB"), [Some("30%"), None, None]).with_environment(Some("box"), &|_| None);
        let settings = settings.expect("good");
        assert!(goes_by_number(&settings.memory) && !goes_by_number(&settings.compute_limit));
        let environment = environment(&settings);
        let value = |name: &str| environment.iter().find(|(it, _)| *it == name).and_then(|(_, value)| value.as_deref());
        assert_eq!((value("RATION_MEMORY"), value("RATION_COMPUTE")), (Some("0=2GiB"), None));
        assert_eq!((value("RATION_COMPUTE_REQUEST"), value("RATION_COMPUTE_LIMIT")), (Some("30%"), Some("30%")));
        assert_eq!((value("RATION_NAME"), value("RATION_STRICT")), (Some("box"), None));
        assert_eq!(environment.len(), SETTINGS.len());
    }
}
