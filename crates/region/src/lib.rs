//! The shared region: who holds how much of a GPU, and who is still there.
//!
//! Every process that uses a GPU under ration maps the same small file, one for each GPU. In it, [containers](Region::join)
//! have a name and a cap, and processes say how many bytes they hold. `ledger` argues why nobody ever gets beyond the cap,
//! `life` and `keeper` how a dead process is known to be dead, `table` how processes come and go; docs/region.md draws
//! the layout and says what others may do with it.
//!
//! The crate is made for other people's processes: it keeps no descriptor, allocates only when a region is opened or joined,
//! takes no lock that a fork could leave locked, waits for nobody for long, and does not panic, whatever the bytes are.
//! It does not keep `errno`.

mod around;
mod compute;
mod error;
mod file;
mod keeper;
mod layout;
mod ledger;
mod life;
#[cfg(all(test, not(loom)))]
mod listing;
mod memory;
#[cfg(all(loom, test))]
mod models;
mod neighbours;
mod outside;
mod region;
mod robust;
mod steering;
mod sync;
mod sys;
mod table;
#[cfg(all(test, not(loom)))]
mod tests;
mod view;

pub use around::Home;
pub use compute::{Compute, ComputeView, Entitled};
pub use error::{JoinError, OpenError};
pub use keeper::forget_in_child;
pub use layout::{LONGEST_NAME, MAJOR, MINOR};
pub use ledger::Full;
pub use memory::rescue;
pub use outside::{PageView, PublicCopy, RegionCopy, Seen, Strange, look_among, look_at};
pub use region::{Change, Member, Region};
pub use steering::{Facts, Heard, Lease, Neighbourhood, Present};
pub use sys::{futex_wait, futex_wake, start_thread, with_no_handler};
pub use view::{ContainerView, Dead, Name, ProcessView};

/// A GPU, as a region needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its memory, in bytes.
    pub total: u64,
}
