//! What a slice may be asked for, and how: the names, forms and meaning of the settings.
//!
//! [`Settings::read`] turns variables and the quota file into what was asked for, before any GPU is known. It takes the
//! environment as a function and the file as text, so it does no I/O, and the same code serves the library, the command
//! line and the injector. [`table`] is the one list of settings: what it says is what an error calls accepted, and what
//! `docs/settings.md` is printed from.
//!
//! Two rules hold throughout. **A value that is not understood is an error and never means "no limit"**, and neither does
//! one that is understood but cannot be meant (`RATION_MEMORY=8`, eight bytes). And nothing here panics, whatever the text:
//! the library runs in other people's processes.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::unreachable,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::arithmetic_side_effects
    )
)]

mod error;
mod file;
mod gpu;
mod hami;
mod plain;
mod quantity;
mod settings;
pub mod table;
mod uuid;

pub use error::{Error, Given, Origin, Problem, Warning};
pub use file::{POD, with_pod};
pub use gpu::{Key, PerGpu};
pub use plain::Priority;
pub use quantity::{Amount, Percent, Share, UNITS, limit, request};
pub use settings::Settings;
pub use uuid::{UuidPrefix, parse_uuid, print_uuid};

/// Where the quota file is mounted, unless the reader knows better.
pub const QUOTA_FILE: &str = "/etc/ration/quota";

/// The longest name of a container, in bytes.
pub const NAME_MAX: usize = 253;

/// The smallest cap that can be meant: less is a number whose unit was forgotten.
pub const MEMORY_MIN: u64 = 1 << 20;
