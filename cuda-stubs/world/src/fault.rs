//! Calls that fail because somebody wants them to: `RATION_SIM_FAIL`, which each process reads for itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings::BadSetting;
use crate::surface;

/// The setting.
const NAME: &str = "RATION_SIM_FAIL";
const FORMS: &str =
    "SYMBOL:CODE for each call, SYMBOL:CODE@N for the Nth, SYMBOL:CODE@N+ from the Nth on; the symbol may be * for all";

/// Which calls fail, and with which code. They do nothing then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// `None`: of all functions, counted together.
    symbol: Option<String>,
    code: u32,
    /// From which call on, counted from 1.
    first: u64,
    /// And to which.
    last: u64,
}

impl Fault {
    /// From the environment, through `get`; `None`: nothing fails.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Option<Fault>, BadSetting> {
        let Some(value) = get(NAME).filter(|v| !v.trim().is_empty()) else { return Ok(None) };
        let fault = Fault::parse(value.trim());
        fault.map(Some).ok_or_else(|| BadSetting { name: NAME, value: value.clone(), accepted: FORMS })
    }

    fn parse(text: &str) -> Option<Fault> {
        let (symbol, rest) = text.split_once(':')?;
        let (code, which) = rest.split_once('@').unwrap_or((rest, "1+"));
        let (first, last) = match which.strip_suffix('+') {
            Some(first) => (first.parse().ok()?, u64::MAX),
            None => (which.parse().ok()?, which.parse().ok()?),
        };
        let symbol = match symbol {
            "*" => None,
            name => Some((0..surface::COUNTERS).map(surface::counted_symbol).find(|it| *it == name)?.to_owned()),
        };
        (first > 0).then_some(Fault { symbol, code: code.parse().ok().filter(|code| *code > 0)?, first, last })
    }
}

static FAULT: OnceLock<Option<Fault>> = OnceLock::new();

/// Reads the setting, when the library is loaded: a child that is forked while another thread reads it would wait for that thread for
/// ever. One that is not understood is told of by whoever starts.
pub extern "C" fn read() {
    let _ = FAULT.set(Fault::from_env(|name| std::env::var(name).ok()).ok().flatten());
}

/// The code with which a call fails, of which there were so many of this function before.
#[inline]
pub fn of_call(index: usize, before: u64) -> Option<u32> {
    FAULT.get().and_then(Option::as_ref).and_then(|fault| fails(fault, index, before))
}

#[cold]
fn fails(fault: &Fault, index: usize, before: u64) -> Option<u32> {
    static ALL: AtomicU64 = AtomicU64::new(0);
    let number = match &fault.symbol {
        None => ALL.fetch_add(1, Ordering::Relaxed) + 1,
        Some(symbol) if symbol == surface::counted_symbol(index) => before + 1,
        Some(_) => return None,
    };
    (fault.first..=fault.last).contains(&number).then_some(fault.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let fault = |text: &str| Fault::from_env(|_| Some(text.to_owned()));
        let of = |symbol: Option<&str>, code, first, last| {
            Ok(Some(Fault { symbol: symbol.map(str::to_owned), code, first, last }))
        };
        assert_eq!(fault("cuMemAlloc_v2:2"), of(Some("cuMemAlloc_v2"), 2, 1, u64::MAX));
        assert_eq!(fault("nvmlInit_v2:999@3"), of(Some("nvmlInit_v2"), 999, 3, 3));
        assert_eq!(fault("*:700@50+"), of(None, 700, 50, u64::MAX));
        assert_eq!(fault(" "), Ok(None));
        for bad in
            ["cuMemAlloc_v2", "cuNoSuchThing:2", "cuMemAlloc_v2:0", "cuMemAlloc_v2:x", "cuMemAlloc_v2:2@0", "*:1@+"]
        {
            let said = fault(bad).expect_err(bad).to_string();
            assert!(said.contains(bad) && said.contains("SYMBOL:CODE"), "{said}");
        }
    }

    #[test]
    fn those_that_were_named_fail() {
        let alloc = surface::driver_index("cuMemAlloc_v2");
        let fault = Fault::parse("cuMemAlloc_v2:2@3").expect("good");
        assert_eq!([1, 2, 3].map(|before| fails(&fault, alloc, before)), [None, Some(2), None]);
        assert_eq!(fails(&fault, surface::driver_index("cuMemFree_v2"), 2), None);
    }
}
