//! What was asked for, from all the places where it can be.
//!
//! The quota file counts before the environment, and our own names before [HAMi's](crate::hami). What does not count is
//! named in a [`Warning`] if it says something else. The three settings of compute stand together: a file that sets one
//! of them is the only one to be asked about compute, or a tenant could lift its limit through another.

use std::fmt::Write as _;

use crate::error::{Error, Given, Problem, Warning};
use crate::gpu::PerGpu;
use crate::hami::Aliased;
use crate::plain::{self, Priority};
use crate::quantity::{Amount, Percent, Share, limit, request};
use crate::table::{COMPUTE, COMPUTE_LIMIT, COMPUTE_REQUEST, DIR, MEMORY, NAME, OWN_DIR, PRIORITY, STRICT, Setting};
use crate::{file, hami};

/// What was asked for, before a GPU is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Caps of device memory. A GPU about which nothing is said has none.
    pub memory: PerGpu<Amount>,
    /// Guaranteed shares. Nothing said, or 0%: nothing is guaranteed. Never above the limit.
    pub compute_request: PerGpu<Share>,
    /// Ceilings. Nothing said: 100%.
    pub compute_limit: PerGpu<Share>,
    /// Who waits for whom.
    pub priority: Priority,
    /// Whose slice this is; `None`: to be derived.
    pub name: Option<String>,
    /// Where the region lies; `None`: the usual places.
    pub dir: Option<String>,
    /// Where the container's own part of it lies; `None`: in a place that is made for it there.
    pub own_dir: Option<String>,
    /// Refuse GPU work rather than enforce only in part.
    pub strict: bool,
    /// Where each of these came from: the name of the setting, what was given. One setting may give two (`RATION_COMPUTE`).
    pub given: Vec<(&'static str, Given)>,
    /// What was asked for and does not count.
    pub warnings: Vec<Warning>,
}

impl Settings {
    /// Reads them all. `get` looks a variable up; one that is not UTF-8 should be handed over with replacement characters,
    /// not left out. `file` is the text of the quota file, if one is mounted.
    ///
    /// On error nothing may run unlimited: whoever reads settings refuses GPU work with these messages.
    pub fn read(get: &dyn Fn(&str) -> Option<String>, file: Option<&str>) -> Result<Settings, Vec<Error>> {
        let file = match file.map(file::read) {
            Some(Err(errors)) => return Err(errors),
            Some(Ok(found)) => found,
            None => Vec::new(),
        };
        let mut reader = Reader { get, file, settings: Settings::default(), errors: Vec::new() };
        reader.memory();
        reader.compute();
        reader.words();
        if reader.errors.is_empty() { Ok(reader.settings) } else { Err(reader.errors) }
    }

    /// Whether they say nothing about what the program may have of a GPU.
    pub fn asks_for_nothing(&self) -> bool {
        let lists_are_empty =
            self.memory.is_empty() && self.compute_limit.is_empty() && self.compute_request.is_empty();
        lists_are_empty && self.priority == Priority::default()
    }

    /// What can only be told apart once the GPUs are known, given in the order in which the process counts them: the
    /// beginning of a UUID that fits two of them, a request above the limit because one of the two goes by number and the
    /// other by UUID.
    pub fn check(&self, gpus: &[[u8; 16]]) -> Result<(), Vec<Error>> {
        let mut errors = Vec::new();
        let lists = [
            (&MEMORY, self.memory.ambiguous(gpus)),
            (&COMPUTE_REQUEST, self.compute_request.ambiguous(gpus)),
            (&COMPUTE_LIMIT, self.compute_limit.ambiguous(gpus)),
        ];
        for (setting, ambiguous) in lists {
            let Some(prefix) = ambiguous else { continue };
            let what = format!("more than one GPU has a UUID that begins with {prefix}");
            let given = self.source(setting);
            // RATION_COMPUTE gives two of these lists, and is wrong only once.
            if !errors.iter().any(|error: &Error| error.given == given) {
                errors.push(Error::new(given, Problem::new(what, "write more of it"), setting.form));
            }
        }
        let over = (0..).zip(gpus).find_map(|(index, uuid)| {
            above(self.compute_request.for_gpu(index, uuid), self.compute_limit.for_gpu(index, uuid))
        });
        if let Some(problem) = over {
            errors.push(Error::new(self.source(&COMPUTE_REQUEST), problem, COMPUTE_REQUEST.form));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// What was given for a setting, and where; `None`: its default holds.
    pub fn given(&self, setting: &Setting) -> Option<&Given> {
        self.given.iter().find(|(name, _)| *name == setting.name).map(|(_, given)| given)
    }

    /// A quota file that asks for the same. Empty if nothing is asked for: then no file is the right one.
    pub fn quota_file(&self) -> String {
        let mut text = String::new();
        let mut line = |setting: &Setting, value: &dyn std::fmt::Display| {
            let _ = writeln!(text, "{} = {value}", setting.key);
        };
        if !self.memory.is_empty() {
            line(&MEMORY, &self.memory);
        }
        if !self.compute_request.is_empty() {
            line(&COMPUTE_REQUEST, &self.compute_request);
        }
        if !self.compute_limit.is_empty() {
            line(&COMPUTE_LIMIT, &self.compute_limit);
        }
        if self.priority != Priority::default() {
            line(&PRIORITY, &self.priority);
        }
        if let Some(name) = &self.name {
            line(&NAME, name);
        }
        if let Some(dir) = &self.dir {
            line(&DIR, dir);
        }
        if let Some(dir) = &self.own_dir {
            line(&OWN_DIR, dir);
        }
        if self.strict {
            line(&STRICT, &1);
        }
        text
    }

    fn source(&self, setting: &Setting) -> Given {
        self.given(setting).cloned().unwrap_or_else(|| Given::variable(setting.name, ""))
    }
}

/// A share that is guaranteed and could never be had.
fn above(request: Option<&Share>, limit: Option<&Share>) -> Option<Problem> {
    let (request, limit) = (request?, limit?);
    (request > limit).then(|| {
        Problem::new(
            format!("the request, {request}, is above the limit, {limit}"),
            "lower the request, or raise the limit",
        )
    })
}

/// The list in one setting.
fn list<T>(value: fn(&str) -> Result<T, Problem>) -> impl Fn(&str) -> Result<PerGpu<T>, Problem> {
    move |text| PerGpu::parse(text, value)
}

struct Reader<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    file: Vec<(&'static Setting, Given)>,
    settings: Settings,
    errors: Vec<Error>,
}

impl Reader<'_> {
    fn in_file(&self, setting: &Setting) -> Option<Given> {
        self.file.iter().find(|(other, _)| *other == setting).map(|(_, given)| given.clone())
    }

    fn in_environment(&self, setting: &Setting) -> Option<Given> {
        (self.get)(setting.name).map(|value| Given::variable(setting.name, value))
    }

    /// Reads a value, and keeps what is wrong with it.
    fn value<T>(&mut self, setting: &Setting, given: &Given, parse: impl Fn(&str) -> Result<T, Problem>) -> Option<T> {
        match parse(&given.value) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.errors.push(Error::new(given.clone(), problem, setting.form));
                None
            }
        }
    }

    fn warn(&mut self, ignored: Given, holds: &Given) {
        self.settings.warnings.push(Warning { ignored, holds: holds.clone() });
    }

    fn came_from(&mut self, setting: &'static Setting, given: Given) {
        self.settings.given.push((setting.name, given));
    }

    /// What counts for a setting by its own names, and what it says if it can be understood. `filed` is a line of the quota
    /// file because of which the environment is not asked.
    fn choose<T: PartialEq>(
        &mut self,
        setting: &Setting,
        filed: Option<&Given>,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<(Given, Option<T>)> {
        let environment = self.in_environment(setting);
        let Some(filed) = filed else {
            let given = environment?;
            let value = self.value(setting, &given, &parse);
            return Some((given, value));
        };
        let chosen = self.in_file(setting).map(|given| {
            let value = self.value(setting, &given, &parse);
            (given, value)
        });
        if let Some(ignored) = environment {
            let (given, value) = chosen.as_ref().map_or((filed, None), |(given, value)| (given, value.as_ref()));
            if value.is_none() || parse(&ignored.value).ok().as_ref() != value {
                self.warn(ignored, given);
            }
        }
        chosen
    }

    /// A setting that stands alone.
    fn alone<T: PartialEq>(
        &mut self,
        setting: &'static Setting,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<(Given, Option<T>)> {
        let filed = self.in_file(setting);
        let chosen = self.choose(setting, filed.as_ref(), parse)?;
        self.came_from(setting, chosen.0.clone());
        Some(chosen)
    }

    fn memory(&mut self) {
        let own = self.alone(&MEMORY, list(str::parse));
        let alias = hami::memory(self.get);
        self.settings.memory = match (own, alias) {
            (Some((given, value)), alias) => {
                self.alias_ignored(alias, &given, value.as_ref());
                value.unwrap_or_default()
            }
            (None, Some(alias)) => {
                self.came_from(&MEMORY, alias.given);
                self.good(alias.value)
            }
            (None, None) => PerGpu::default(),
        };
    }

    fn good<T>(&mut self, value: Result<PerGpu<T>, Vec<Error>>) -> PerGpu<T> {
        value.unwrap_or_else(|errors| {
            self.errors.extend(errors);
            PerGpu::default()
        })
    }

    fn alias_ignored<T: PartialEq>(&mut self, alias: Option<Aliased<T>>, holds: &Given, value: Option<&PerGpu<T>>) {
        if let Some(alias) = alias.filter(|alias| alias.value.as_ref().ok() != value) {
            self.warn(alias.given, holds);
        }
    }

    fn compute(&mut self) {
        let filed = [&COMPUTE, &COMPUTE_REQUEST, &COMPUTE_LIMIT].into_iter().find_map(|setting| self.in_file(setting));
        let mut part = |setting, parse| {
            let (given, value) = self.choose(setting, filed.as_ref(), list(parse))?;
            Some((given, value.unwrap_or_default()))
        };
        let (both, asked) = (part(&COMPUTE, limit), part(&COMPUTE_REQUEST, request));
        let own_ceiling = part(&COMPUTE_LIMIT, limit).or_else(|| both.clone());

        let alias = hami::compute(self.get);
        let ceiling = match (own_ceiling, &filed, alias) {
            (Some((given, value)), _, alias) => {
                self.alias_ignored(alias, &given, Some(&value));
                Some((given, value))
            }
            (None, Some(filed), alias) => {
                self.alias_ignored(alias, filed, None);
                None
            }
            (None, None, alias) => alias.map(|alias| (alias.given, self.good(alias.value))),
        };

        // A limit alone is a request too, as Kubernetes has it; a limit of everything is none.
        let requested = |(given, list): &(Given, PerGpu<Share>)| {
            (given.clone(), list.map(|share| if *share == Percent::WHOLE { Percent::NONE } else { *share }))
        };
        let asked = asked.or(both).or_else(|| ceiling.as_ref().map(requested));
        if let Some((given, list)) = asked {
            self.settings.compute_request = list;
            self.came_from(&COMPUTE_REQUEST, given);
        }
        if let Some((given, list)) = ceiling {
            self.settings.compute_limit = list;
            self.came_from(&COMPUTE_LIMIT, given);
        }
        self.requests_within_limits();
    }

    /// For all GPUs, and for each name that either list has; the rest is for [`Settings::check`].
    fn requests_within_limits(&mut self) {
        let (asked, ceiling) = (&self.settings.compute_request, &self.settings.compute_limit);
        let keys = asked.each.iter().chain(&ceiling.each).map(|(key, _)| key);
        let over = keys
            .map(|key| (asked.at(key), ceiling.at(key)))
            .chain([(asked.all.as_ref(), ceiling.all.as_ref())])
            .find_map(|(asked, ceiling)| above(asked, ceiling));
        if let Some(problem) = over {
            let given = self.settings.source(&COMPUTE_REQUEST);
            self.errors.push(Error::new(given, problem, COMPUTE_REQUEST.form));
        }
    }

    fn words(&mut self) {
        if let Some((_, Some(priority))) = self.alone(&PRIORITY, str::parse) {
            self.settings.priority = priority;
        }
        self.settings.name = self.alone(&NAME, plain::name).and_then(|(_, name)| name);
        self.settings.dir = self.alone(&DIR, plain::dir).and_then(|(_, dir)| dir);
        self.settings.own_dir = self.alone(&OWN_DIR, plain::dir).and_then(|(_, dir)| dir);
        self.settings.strict = matches!(self.alone(&STRICT, plain::switch), Some((_, Some(true))));
    }
}

#[cfg(test)]
mod tests;
