//! Answers look-ups: what a program gets when it asks for a function by its name.

pub mod dl;
pub mod elf;

use crate::{driver, process};

/// The function to give out in place of one that the driver found: ours, if it is a row's original.
pub fn door_for(found: *const ()) -> Option<*const ()> {
    if process::stands_aside() { None } else { driver::row_of(found).map(driver::door) }
}
