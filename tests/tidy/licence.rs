//! Licences: what a dependency's says, and which of them `deny.toml` accepts.

use super::read;

/// An SPDX expression, as far as crates use them: `A OR (B AND C)`, and the old `A/B`.
#[derive(Debug, PartialEq)]
pub(crate) enum Licence {
    One(String),
    Any(Vec<Licence>),
    All(Vec<Licence>),
}

impl Licence {
    pub(crate) fn parse(expression: &str) -> Licence {
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ").replace(" WITH ", "+");
        let mut words = spaced.split_whitespace().peekable();
        Licence::alternatives(&mut words)
    }

    fn alternatives<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> Licence {
        let mut any = Vec::new();
        loop {
            let mut all = Vec::new();
            loop {
                all.push(match words.next() {
                    Some("(") => {
                        let inner = Licence::alternatives(words);
                        assert_eq!(words.next(), Some(")"), "unbalanced licence expression");
                        inner
                    }
                    word => Licence::One(word.unwrap_or("").replace('+', " WITH ")),
                });
                if words.next_if_eq(&"AND").is_none() {
                    break;
                }
            }
            any.push(Licence::All(all));
            if words.next_if_eq(&"OR").is_none() {
                return Licence::Any(any);
            }
        }
    }

    pub(crate) fn is_satisfied_by(&self, accepted: &[String]) -> bool {
        match self {
            Licence::One(name) => accepted.contains(name),
            Licence::Any(any) => any.iter().any(|licence| licence.is_satisfied_by(accepted)),
            Licence::All(all) => all.iter().all(|licence| licence.is_satisfied_by(accepted)),
        }
    }
}

/// deny.toml is the one list of accepted licences; cargo-deny reads the same.
pub(crate) fn accepted() -> Vec<String> {
    let text = read("deny.toml");
    let section = text.split("[licenses]").nth(1).expect("deny.toml has a section [licenses]");
    let list = section.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).expect("with a list `allow`");
    let licences: Vec<String> = list.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(!licences.is_empty(), "deny.toml accepts no licence at all");
    licences
}

#[test]
fn licence_expressions_are_understood() {
    let accepted = ["MIT".to_owned(), "Unicode-3.0".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
    for (expression, fine) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("none", false),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 OR Apache-2.0", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND BSD-3-Clause", false),
        ("MIT AND GPL-3.0 OR Apache-2.0 WITH LLVM-exception", true),
    ] {
        assert_eq!(Licence::parse(expression).is_satisfied_by(&accepted), fine, "{expression}");
    }
}
