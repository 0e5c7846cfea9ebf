//! Why a pod is refused, and what is said about one that is not.

use std::fmt;

/// Why a pod is refused. A fixed set: metrics count by it, and the documentation has a line for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// An annotation of ours says what is not understood, or names what is not there.
    Annotation,
    /// The label `ration.dev/inject` is neither `enabled` nor `disabled`.
    Label,
    /// A request in another project's name is not understood.
    ForeignRequest,
    /// More is asked for than the maximum.
    OverMaximum,
    /// A GPU, and nothing asked for, where that is not allowed.
    WithoutQuota,
    /// The container could reach round the library.
    Privileged,
    /// The pod has something of its own in a place that the injector needs.
    Conflict,
    /// `LD_PRELOAD` comes from where it cannot be read.
    PreloadHidden,
    /// The delivery needs a hostPath volume, and the namespace's Pod Security level forbids those.
    PodSecurity,
    /// The API server is too old for the delivery.
    Delivery,
    /// The pod opts out where that is not allowed.
    OptOut,
    /// It is not clear in whose slice an ephemeral container is.
    EphemeralTarget,
    /// What came is no pod that can be read.
    UnreadablePod,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 13] = [
        Reason::Annotation,
        Reason::Label,
        Reason::ForeignRequest,
        Reason::OverMaximum,
        Reason::WithoutQuota,
        Reason::Privileged,
        Reason::Conflict,
        Reason::PreloadHidden,
        Reason::PodSecurity,
        Reason::Delivery,
        Reason::OptOut,
        Reason::EphemeralTarget,
        Reason::UnreadablePod,
    ];

    /// Its name in metrics, logs and the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Annotation => "annotation",
            Reason::Label => "label",
            Reason::ForeignRequest => "foreign-request",
            Reason::OverMaximum => "over-maximum",
            Reason::WithoutQuota => "without-quota",
            Reason::Privileged => "privileged",
            Reason::Conflict => "conflict",
            Reason::PreloadHidden => "preload-hidden",
            Reason::PodSecurity => "pod-security",
            Reason::Delivery => "delivery",
            Reason::OptOut => "opt-out",
            Reason::EphemeralTarget => "ephemeral-target",
            Reason::UnreadablePod => "unreadable-pod",
        }
    }

    /// The HTTP status for whoever sent the pod: 400 for what is written wrongly, 403 for what is not allowed.
    pub fn code(self) -> u16 {
        match self {
            Reason::Annotation
            | Reason::Label
            | Reason::ForeignRequest
            | Reason::EphemeralTarget
            | Reason::UnreadablePod => 400,
            _ => 403,
        }
    }
}

/// One reason to refuse a pod, in words: what was given, what is wrong with it, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// Which of the fixed set.
    pub reason: Reason,
    /// For whoever sent the pod.
    pub text: String,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What was found in a pod: all that speaks against it, so that nobody has to correct one thing at a time, and what its
/// owner should know though it is let through.
#[derive(Debug, Default)]
pub struct Findings {
    /// Any of these refuses the pod.
    pub denials: Vec<Denial>,
    /// These do not.
    pub warnings: Vec<String>,
}

impl Findings {
    /// More texts than this help nobody.
    const MOST: usize = 10;

    /// Something that refuses the pod.
    pub fn deny(&mut self, reason: Reason, text: impl Into<String>) {
        if self.denials.len() < Findings::MOST {
            self.denials.push(Denial { reason, text: one_line(&text.into()) });
        }
    }

    /// Something to know. Said once, and cut to what the API server passes on.
    pub fn warn(&mut self, text: impl AsRef<str>) {
        let text = cut(&one_line(text.as_ref()), 250);
        if self.warnings.len() < Findings::MOST && !self.warnings.contains(&text) {
            self.warnings.push(text);
        }
    }
}

/// A text that moves no cursor: names of containers come before anybody has looked at them.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A stranger's text in quotes, safe to print, cut to a length that leaves room for what is said about it.
pub fn quoted(text: &str) -> String {
    format!("\"{}\"", cut(&text.escape_debug().to_string(), 60))
}

/// At most about so many bytes of a text.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most.saturating_sub(3);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    format!("{}...", text.get(..end).unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_codes_refuse() {
        let mut names: Vec<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Reason::ALL.len());
        assert!(Reason::ALL.iter().all(|reason| (400..500).contains(&reason.code())));
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "...");
        assert_eq!(cut("ééééé", 6), "é...");
        assert_eq!(quoted("a\n"), r#""a\n""#);
    }
}
