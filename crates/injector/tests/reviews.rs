//! Pods go in as an API server sends them, and come out as it would store them.

#[path = "reviews/asking.rs"]
mod asking;
#[path = "reviews/configuring.rs"]
mod configuring;
#[path = "reviews/denying.rs"]
mod denying;
#[path = "reviews/examples.rs"]
mod examples;
#[path = "reviews/mutating.rs"]
mod mutating;
#[path = "reviews/support.rs"]
mod support;
#[path = "reviews/updating.rs"]
mod updating;
