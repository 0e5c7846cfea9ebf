//! Machine code for one kind of GPU: an ELF file. Its section headers tell how much code there is, its symbols which
//! variables.
//!
//! | section | becomes |
//! |---|---|
//! | `.text.KERNEL` | code, when the kernel is loaded |
//! | `.nv.global`, `.nv.global.init` | variables, each for itself; the symbols of `__managed__` ones have a bit set |
//! | `.nv.constant3` | the `__constant__` variables, together |
//! | other `.nv.constant*` | nothing of its own: parameters, literals and addresses |
//! | `.nv.shared.*`, `.nv.local.*` | nothing: how much each block or thread gets while it runs |
//!
//! For variables the symbols count and not the sections, whose sizes the toolkit cuts to 32 bits: an array of 5 GB has a
//! section of 705 MB, and the driver takes 5 GB.

use super::bytes::Bytes;
use super::{LARGEST, Needs, room_for_function, room_for_variable};

/// How one begins.
pub const MAGIC: [u8; 4] = *b"\x7fELF";
/// The header of an ELF file, with 64-bit offsets.
pub const HEADER: u64 = 64;

const MACHINE_CUDA: u16 = 190;
const SECTION: u64 = 64;
const SYMBOL: u64 = 24;

/// Numbers of sections from here on are no sections.
const RESERVED: u16 = 0xff00;
/// The number does not fit into 16 bits; where it is to be found instead is in the first section header.
const ELSEWHERE: u16 = 0xffff;
const UNDEFINED: u16 = 0;
/// A variable that has no section yet: every module that has it names its size, and whoever loads it finds it a place.
const COMMON: u16 = 0xfff2;

const SYMBOL_TABLE: u32 = 2;
const NO_CONTENTS: u32 = 8;
const ALLOCATED: u64 = 2;
const EXECUTABLE: u64 = 4;

/// `STT_OBJECT`, and NVIDIA's own for an object without a place.
const OBJECTS: [u8; 2] = [1, 13];
/// In the byte that C's ELF calls the visibility: the variable is `__managed__`.
const MANAGED: u8 = 4;

/// The functions of the heap on the device, which the driver brings along.
const HEAP: [&[u8]; 2] = [b"malloc\0", b"free\0"];

/// Whether these bytes are one.
pub fn is_one(image: &[u8]) -> bool {
    image.starts_with(&MAGIC)
}

/// How many bytes the file has up to the end of its section headers, from its first [`HEADER`] bytes.
pub fn length_of_headers(header: &[u8]) -> Option<u64> {
    let header = Header::read(Bytes(header))?;
    // Where there are more than 16 bits can count, the first header has the number: see `Cubin::read`.
    let count = header.sections.max(1);
    let end = header.table.saturating_add(SECTION.saturating_mul(count.into()));
    (end <= LARGEST).then_some(end.max(HEADER))
}

/// How many bytes of it are read: up to the end of whatever its headers place. `image` has it up to the end of them.
pub fn length(image: &[u8]) -> Option<u64> {
    let header = Header::read(Bytes(image))?;
    let mut end = image.len() as u64;
    if header.sections == 0 {
        let first = Section::read(Bytes(image).part(header.table, SECTION)?)?;
        end = end.max(header.table.saturating_add(SECTION.saturating_mul(first.size)));
        // The table itself is not at hand yet. It is the last part of such a file, and placed behind all contents.
        return (end <= LARGEST).then_some(end);
    }
    for at in 0..u64::from(header.sections) {
        let section = Section::read(Bytes(image).part(header.table + SECTION * at, SECTION)?)?;
        if section.kind != NO_CONTENTS {
            end = end.max(section.offset.saturating_add(section.size));
        }
    }
    (end <= LARGEST).then_some(end)
}

/// What it needs.
pub fn needs(image: Bytes<'_>) -> Option<Needs> {
    let cubin = Cubin::read(image)?;
    let mut needs = Needs::NOTHING;
    let mut symbols = None;
    for at in 1..cubin.sections {
        let section = cubin.section(at)?;
        if section.kind == SYMBOL_TABLE {
            symbols = Some(section);
        } else if section.flags & (ALLOCATED | EXECUTABLE) == ALLOCATED | EXECUTABLE {
            needs.code = needs.code.saturating_add(room_for_function(section.size));
        } else if cubin.is_called(&section, b".nv.constant3\0") {
            needs.data = needs.data.saturating_add(room_for_variable(section.size));
        }
    }
    let read = symbols.and_then(|table| cubin.read_symbols(&table, &mut needs));
    needs.complete = read.is_some();
    Some(needs)
}

/// What the header says about the section headers.
struct Header {
    /// Where they are.
    table: u64,
    /// How many; 0 if 16 bits cannot say it.
    sections: u16,
    /// Which of them holds the names.
    names: u16,
}

impl Header {
    fn read(image: Bytes<'_>) -> Option<Header> {
        let (class, order) = (image.u8(4)?, image.u8(5)?);
        let known = is_one(image.0) && class == 2 && order == 1 && image.u16(18)? == MACHINE_CUDA;
        let header = Header { table: image.u64(40)?, sections: image.u16(60)?, names: image.u16(62)? };
        (known && u64::from(image.u16(58)?) == SECTION && header.table >= HEADER).then_some(header)
    }
}

/// A section header.
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    offset: u64,
    size: u64,
    link: u32,
}

impl Section {
    fn read(bytes: Bytes<'_>) -> Option<Section> {
        Some(Section {
            name: bytes.u32(0)?,
            kind: bytes.u32(4)?,
            flags: bytes.u64(8)?,
            offset: bytes.u64(24)?,
            size: bytes.u64(32)?,
            link: bytes.u32(40)?,
        })
    }
}

struct Cubin<'a> {
    image: Bytes<'a>,
    table: Bytes<'a>,
    sections: u64,
    names: Bytes<'a>,
}

impl<'a> Cubin<'a> {
    fn read(image: Bytes<'a>) -> Option<Cubin<'a>> {
        let header = Header::read(image)?;
        let table = image.from(header.table)?;
        let first = Section::read(table)?;
        let sections = if header.sections == 0 { first.size } else { header.sections.into() };
        let table = table.part(0, sections.checked_mul(SECTION)?)?;
        let names = if header.names == ELSEWHERE { first.link.into() } else { header.names.into() };
        let mut cubin = Cubin { image, table, sections, names: Bytes(&[]) };
        cubin.names = cubin.contents(&cubin.section(names)?)?;
        Some(cubin)
    }

    fn section(&self, at: u64) -> Option<Section> {
        Section::read(self.table.part(at.checked_mul(SECTION)?, SECTION)?)
    }

    fn contents(&self, section: &Section) -> Option<Bytes<'a>> {
        self.image.part(section.offset, section.size)
    }

    fn is_called(&self, section: &Section, name: &[u8]) -> bool {
        self.names.begins_with(section.name.into(), name)
    }

    /// Adds up the variables, and looks for the heap's functions.
    fn read_symbols(&self, table: &Section, needs: &mut Needs) -> Option<()> {
        let names = self.contents(&self.section(table.link.into())?)?;
        for symbol in self.contents(table)?.0.chunks_exact(SYMBOL as usize).map(Bytes) {
            let (name, section, size) = (symbol.u32(0)?.into(), symbol.u16(6)?, symbol.u64(16)?);
            if section == UNDEFINED {
                needs.heap |= HEAP.iter().any(|function| names.begins_with(name, function));
            } else if OBJECTS.contains(&(symbol.u8(4)? & 0xf)) && self.is_variable(section) {
                if symbol.u8(5)? & MANAGED != 0 {
                    needs.managed = needs.managed.saturating_add(size);
                } else {
                    needs.data = needs.data.saturating_add(room_for_variable(size));
                }
            }
        }
        Some(())
    }

    /// Whether what has its place in this section is a variable in the GPU's memory.
    fn is_variable(&self, section: u16) -> bool {
        match section {
            // Not placed yet; or beyond what 16 bits can number, where variables come, behind the code.
            COMMON | ELSEWHERE => true,
            RESERVED.. => false,
            _ => self.section(section.into()).is_some_and(|section| self.is_called(&section, b".nv.global")),
        }
    }
}
