//! Reading numbers out of bytes that may be anything: whatever lies outside is `None`.

/// Bytes of an image, with the numbers in them, which have the order of the GPU's tools: the smallest byte first.
#[derive(Clone, Copy)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// How many there are.
    pub fn len(self) -> u64 {
        self.0.len() as u64
    }

    /// Those from an offset on.
    pub fn from(self, at: u64) -> Option<Bytes<'a>> {
        self.0.get(usize::try_from(at).ok()?..).map(Bytes)
    }

    /// A number of them from an offset on.
    pub fn part(self, at: u64, length: u64) -> Option<Bytes<'a>> {
        let length = usize::try_from(length).ok()?;
        self.from(at)?.0.get(..length).map(Bytes)
    }

    fn array<const N: usize>(self, at: u64) -> Option<[u8; N]> {
        self.from(at)?.0.first_chunk().copied()
    }

    /// The byte at an offset.
    pub fn u8(self, at: u64) -> Option<u8> {
        self.array::<1>(at).map(|[byte]| byte)
    }

    /// The two bytes at an offset, as a number.
    pub fn u16(self, at: u64) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    /// The four bytes at an offset, as a number.
    pub fn u32(self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// The eight bytes at an offset, as a number.
    pub fn u64(self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Whether there is a name at an offset that begins like this.
    pub fn begins_with(self, at: u64, name: &[u8]) -> bool {
        self.from(at).is_some_and(|rest| rest.0.starts_with(name))
    }
}
