//! Which piece of work a launch is.

/// A number that is the same for launches that should take about the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work(u64);

impl Work {
    /// A kernel over so many blocks of so many threads.
    pub fn kernel(function: usize, grid: [u32; 3], block: [u32; 3]) -> Work {
        let size = |dimensions: [u32; 3]| dimensions.iter().fold(1u64, |all, one| all.wrapping_mul(u64::from(*one)));
        Work::mixed(function as u64, size(grid).wrapping_mul(0x9e37_79b9).wrapping_add(size(block)))
    }

    /// A graph.
    pub fn graph(exec: usize) -> Work {
        Work::mixed(exec as u64, 1)
    }

    /// The number; never 0.
    pub fn number(self) -> u64 {
        self.0
    }

    fn mixed(a: u64, b: u64) -> Work {
        let mixed = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Work((mixed ^ mixed >> 29).max(1))
    }
}
