//! The world of the simulated GPU: what all its client processes share.
//!
//! One file, mapped by every process that loads the simulated `libcuda.so.1` or `libnvidia-ml.so.1`, holds the GPUs, the
//! processes, their contexts' queues of work and the record that tests read. There is no server: whoever wants to know
//! something takes the world's lock, brings the [`timeline`] up to the present, and looks. The lock survives its holder's
//! death ([`lock`]), and so does everything else: a process's life is known from the kernel ([`life`]), and what a dead one
//! held is taken back by the next who looks ([`procs`]).

#![deny(missing_docs)]

pub mod accounts;
pub mod channel;
pub mod fault;
pub mod layout;
pub mod life;
pub mod lock;
pub mod procs;
pub mod record;
pub mod rm;
pub mod settings;
pub mod shared;
pub mod shield;
pub mod surface;
pub mod timeline;

mod open;

pub use layout::{Path, Word, WorldFile};
pub use lock::Tx;
pub use open::{Role, World, monotonic};
pub use settings::{GpuSettings, WorldSettings};
