//! What a namespace gives who does not ask, and what nobody gets more of.

use ration_contract::{Amount, PerGpu, Percent, Priority, Settings, Share};

use crate::ask::{Findings, Reason};

/// For containers that do not ask, in the words of the settings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Defaults {
    /// `RATION_MEMORY`.
    pub memory: Option<String>,
    /// `RATION_COMPUTE`.
    pub compute: Option<String>,
    /// `RATION_COMPUTE_REQUEST`.
    pub compute_request: Option<String>,
    /// `RATION_COMPUTE_LIMIT`.
    pub compute_limit: Option<String>,
    /// `RATION_PRIORITY`.
    pub priority: Option<String>,
}

impl Defaults {
    /// By the name of the setting's variable.
    pub fn variable(&self, name: &str) -> Option<String> {
        match name {
            "RATION_MEMORY" => self.memory.clone(),
            "RATION_COMPUTE" => self.compute.clone(),
            "RATION_COMPUTE_REQUEST" => self.compute_request.clone(),
            "RATION_COMPUTE_LIMIT" => self.compute_limit.clone(),
            "RATION_PRIORITY" => self.priority.clone(),
            _ => None,
        }
    }
}

/// What nobody gets more of.
///
/// An amount in bytes and one in per cent cannot be compared before the GPU is known, so there are two maxima of memory. A
/// container that asks in a form for which there is none is told to use the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Maxima {
    /// Of memory that is asked for in bytes.
    pub memory: Option<u64>,
    /// Of memory that is asked for in per cent.
    pub memory_share: Option<Percent>,
    /// Of the guaranteed share.
    pub compute_request: Option<Share>,
    /// Of the ceiling.
    pub compute_limit: Option<Share>,
    /// How little anybody waits.
    pub priority: Option<Priority>,
}

/// How long each waits: more is longer.
fn patience(priority: Priority) -> u8 {
    match priority {
        Priority::Latency => 0,
        Priority::Normal => 1,
        Priority::Batch => 2,
    }
}

impl Maxima {
    /// Holds settings to the maxima: what is above is denied, and what is not said becomes the maximum, for without a word
    /// it would be everything. `whose` begins the texts.
    pub fn hold(&self, settings: &mut Settings, whose: &str, findings: &mut Findings) {
        self.hold_memory(settings, whose, findings);
        self.hold_compute(settings, whose, findings);
        if let Some(most) = self.priority
            && patience(settings.priority) < patience(most)
        {
            let asked = settings.given(&ration_contract::table::PRIORITY).is_some();
            if asked {
                let text = format!(
                    "{whose}: priority {} is above the maximum here, {most}; ask for {most}",
                    settings.priority
                );
                findings.deny(Reason::OverMaximum, text);
            } else {
                settings.priority = most;
            }
        }
    }

    fn hold_memory(&self, settings: &mut Settings, whose: &str, findings: &mut Findings) {
        let most = match (self.memory, self.memory_share) {
            (None, None) => return,
            (Some(bytes), _) => Amount::Bytes(bytes),
            (None, Some(share)) => Amount::Percent(share),
        };
        let asked = &settings.memory;
        for amount in asked.all.iter().chain(asked.each.iter().map(|(_, amount)| amount)) {
            let above = match (amount, self.memory, self.memory_share) {
                (Amount::Bytes(bytes), Some(most), _) => (*bytes > most).then_some(Amount::Bytes(most)),
                (Amount::Percent(share), _, Some(most)) => (*share > most).then_some(Amount::Percent(most)),
                (Amount::Bytes(_), None, _) => {
                    let text = format!(
                        "{whose}: memory {amount} cannot be compared with the maximum here, {most} of the GPU; ask in per \
                         cent, such as {most}"
                    );
                    findings.deny(Reason::OverMaximum, text);
                    return;
                }
                (Amount::Percent(_), _, None) => {
                    let text = format!(
                        "{whose}: memory {amount} cannot be compared with the maximum here, {most}; ask for an amount, such \
                         as {most}"
                    );
                    findings.deny(Reason::OverMaximum, text);
                    return;
                }
            };
            if let Some(most) = above {
                let text =
                    format!("{whose}: memory {amount} is above the maximum here, {most}; ask for {most} or less");
                findings.deny(Reason::OverMaximum, text);
                return;
            }
        }
        if settings.memory.all.is_none() {
            findings.warn(format!("{whose}: memory is not asked for, so it is the maximum here, {most}"));
            settings.memory.all = Some(most);
        }
    }

    fn hold_compute(&self, settings: &mut Settings, whose: &str, findings: &mut Findings) {
        let largest =
            |list: &PerGpu<Share>| list.all.iter().chain(list.each.iter().map(|(_, share)| share)).max().copied();
        // What is guaranteed can be no more than what is ever given.
        let most = [self.compute_request, self.compute_limit].into_iter().flatten().min();
        if let (Some(asked), Some(most)) = (largest(&settings.compute_request), most)
            && asked > most
        {
            let text = format!(
                "{whose}: a guaranteed share of compute of {asked} is above the maximum here, {most}; ask for \
                 compute-request: {most} or less"
            );
            findings.deny(Reason::OverMaximum, text);
            return;
        }
        let Some(most) = self.compute_limit else { return };
        if let Some(asked) = largest(&settings.compute_limit)
            && asked > most
        {
            let text = format!(
                "{whose}: a compute limit of {asked} is above the maximum here, {most}; ask for compute-limit: {most} or less"
            );
            findings.deny(Reason::OverMaximum, text);
        } else if settings.compute_limit.all.is_none() && most < Percent::WHOLE {
            findings.warn(format!("{whose}: a compute limit is not asked for, so it is the maximum here, {most}"));
            settings.compute_limit.all = Some(most);
        }
    }
}
