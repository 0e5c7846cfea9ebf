//! Puts the library into Kubernetes pods, and onto the nodes that they run on.
//!
//! | module | what it does |
//! |---|---|
//! | [`review`] | answers an admission review: bytes in, bytes out |
//! | [`ask`] | what a pod asks for, in our words and in others' |
//! | [`mutate`] | what a pod gets |
//! | [`config`] | what the webhook is set to do |
//! | [`server`] | the webhook over HTTP and TLS |
//! | [`certs`] | the certificate that it serves |
//! | [`reload`] | values and files that change while the program runs |
//! | [`metrics`], [`logs`] | what can be seen from outside |
//! | [`node`] | the part that runs on each node |
//! | [`copy`] | puts the library into a pod's volume |

pub mod ask;
pub mod certs;
pub mod config;
pub mod copy;
pub mod logs;
pub mod metrics;
pub mod mutate;
pub mod node;
pub mod reload;
pub mod review;
pub mod server;
