//! `ration`
fn main() {}
