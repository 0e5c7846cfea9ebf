//! A fat binary: the same code in several forms, for several GPUs, of which the driver takes one.
//!
//! A header of 16 bytes (magic, version, its own size, the size of what follows) and then the members one after the other,
//! each with a header of its own:
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 2 | kind: 1 is PTX, 2 a cubin; others (8 is code for a link-time optimiser) the driver does not load |
//! | 4 | 4 | size of this header: at least 64 |
//! | 8 | 8 | size of the contents that follow it |
//! | 16 | 4 | how much of them is the compressed member; 0 if it is not compressed |
//! | 28 | 4 | the GPU: ten times major plus minor |
//! | 40 | 8 | flags: see below |
//! | 56 | 8 | size when unpacked; 0 if it is not compressed |

use super::bytes::Bytes;
use super::packed::{self, Packing};
use super::{LARGEST, Needs, cubin, ptx};

/// How one begins.
pub const MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
/// The header before the first member.
pub const HEADER: u64 = 16;

const MEMBER_HEADER: u64 = 64;

const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// For this GPU alone (`sm_90a`).
const ONE_GPU: u64 = 0x10_0000;
/// For GPUs of the same family (`sm_100f`).
const ONE_FAMILY: u64 = 0x20_0000;

/// Whether these bytes are one.
pub fn is_one(image: &[u8]) -> bool {
    image.starts_with(&MAGIC)
}

/// How many bytes it has, from its first [`HEADER`] bytes.
pub fn length(header: &[u8]) -> Option<u64> {
    let header = Bytes(header);
    let length = u64::from(header.u16(6)?).saturating_add(header.u64(8)?);
    (length <= LARGEST).then_some(length.max(HEADER))
}

/// Whether the driver finds something in it to load on this GPU.
pub fn has_code_for(image: Bytes<'_>, sm: u32) -> bool {
    choice(image, sm).is_some()
}

/// What it needs on a GPU; where that is not known (0), as much as any member.
pub fn needs(image: Bytes<'_>, sm: u32) -> Option<Needs> {
    image.u16(6)?;
    let needs = if sm == 0 {
        // So much is unpacked in all: there may be many, and most of them need the same.
        let mut left = packed::LARGEST;
        members(image).map(|member| member.needs_within(&mut left)).reduce(Needs::either)
    } else {
        choice(image, sm).map(|member| member.needs())
    };
    // Where there is nothing for this GPU, the driver has nothing to load either; unless it knows better.
    Some(needs.unwrap_or(Needs { complete: false, ..Needs::NOTHING }))
}

/// The member that the driver loads: the best, and of several that are as good the first.
fn choice(image: Bytes<'_>, sm: u32) -> Option<Member<'_>> {
    let mut best: Option<(Fit, Member<'_>)> = None;
    for member in members(image) {
        if let Some(fit) = member.fits(sm)
            && best.as_ref().is_none_or(|(other, _)| fit > *other)
        {
            best = Some((fit, member));
        }
    }
    best.map(|(_, member)| member)
}

/// How well a member fits a GPU: machine code before text, the newer before the older, what is made for this GPU before what
/// is made for several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    kind: Kind,
    arch: u32,
    special: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Ptx,
    Cubin,
}

struct Member<'a> {
    kind: Kind,
    arch: u32,
    flags: u64,
    stored: &'a [u8],
    /// What it says that it has when unpacked.
    size: u64,
}

/// The members that the driver can load, as far as they are whole.
fn members(image: Bytes<'_>) -> impl Iterator<Item = Member<'_>> {
    let all = image.u16(6).map_or(0, u64::from).saturating_add(image.u64(8).unwrap_or(0));
    let image = Bytes(&image.0[..usize::try_from(all).map_or(image.0.len(), |all| all.min(image.0.len()))]);
    let mut at = image.u16(6).map_or(u64::MAX, u64::from);
    std::iter::from_fn(move || {
        loop {
            let header = image.part(at, MEMBER_HEADER)?;
            let size = u64::from(header.u32(4)?).max(MEMBER_HEADER);
            let contents = image.part(at.checked_add(size)?, header.u64(8)?)?;
            // By 64 bytes or more, so that this ends.
            at = at.checked_add(size)?.checked_add(contents.len())?;
            if let Some(member) = Member::read(header, contents) {
                return Some(member);
            }
        }
    })
}

impl<'a> Member<'a> {
    /// `None`: not of a kind that the driver loads.
    fn read(header: Bytes<'a>, contents: Bytes<'a>) -> Option<Member<'a>> {
        let kind = match header.u16(0)? {
            1 => Kind::Ptx,
            2 => Kind::Cubin,
            _ => return None,
        };
        let packed = header.u32(16)?.into();
        // A size of the packed member that is not one is left to the unpacking, to find out.
        let stored = if packed == 0 { contents } else { contents.part(0, packed).unwrap_or(contents) };
        Some(Member { kind, arch: header.u32(28)?, flags: header.u64(40)?, stored: stored.0, size: header.u64(56)? })
    }

    /// `None`: of no use on this GPU. Machine code runs on its own generation from its own minor version on; text can be
    /// compiled for whatever is newer.
    fn fits(&self, sm: u32) -> Option<Fit> {
        let same_generation = self.arch / 10 == sm / 10;
        let fits = match self.kind {
            _ if self.flags & ONE_GPU != 0 => self.arch == sm,
            Kind::Ptx if self.flags & ONE_FAMILY == 0 => self.arch <= sm,
            _ => same_generation && self.arch <= sm,
        };
        let special = match self.flags & (ONE_GPU | ONE_FAMILY) {
            0 => 0,
            ONE_FAMILY => 1,
            _ => 2,
        };
        fits.then_some(Fit { kind: self.kind, arch: self.arch, special })
    }

    fn packing(&self) -> Packing {
        match self.flags & (LZ4 | ZSTD) {
            0 => Packing::Plain,
            LZ4 => Packing::Lz4,
            _ => Packing::Zstd,
        }
    }

    fn needs(&self) -> Needs {
        let told = match self.packing() {
            Packing::Plain => self.read_plain(self.stored),
            packing => packed::unpack(packing, self.stored, self.size).and_then(|unpacked| self.read_plain(&unpacked)),
        };
        told.unwrap_or_else(|| self.guess())
    }

    /// What it needs, if no more than so much is to be unpacked for it; what is unpacked is taken away from that.
    fn needs_within(&self, left: &mut u64) -> Needs {
        if self.packing() == Packing::Plain {
            return self.needs();
        }
        let Some(rest) = left.checked_sub(self.size) else { return self.guess() };
        *left = rest;
        self.needs()
    }

    /// What can be told of one that cannot be read.
    fn guess(&self) -> Needs {
        let size = if self.packing() == Packing::Plain { self.stored.len() as u64 } else { self.size.min(LARGEST) };
        let code = if self.kind == Kind::Ptx { ptx::code_of(size) } else { size };
        Needs { code, complete: false, ..Needs::NOTHING }
    }

    fn read_plain(&self, bytes: &[u8]) -> Option<Needs> {
        match self.kind {
            Kind::Ptx => ptx::needs(ptx::up_to_nul(bytes)),
            Kind::Cubin => cubin::needs(Bytes(bytes)),
        }
    }
}
