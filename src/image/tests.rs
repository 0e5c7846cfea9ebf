//! Judged by what an H200's driver took (`tests/facts/images`), by text and machine code of the same source, and by bytes that
//! are anything.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::ptr::{null, null_mut};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

const MIB: u64 = 1 << 20;

const BIG: [&[u8]; 4] = [
    include_bytes!("../../tests/facts/images/big-none.fatbin"),
    include_bytes!("../../tests/facts/images/big-speed.fatbin"),
    include_bytes!("../../tests/facts/images/big-balance.fatbin"),
    include_bytes!("../../tests/facts/images/big-size.fatbin"),
];
const MIXED: &[u8] = include_bytes!("../../tests/facts/images/mixed-sm90.cubin");
const MIXED_100: &[u8] = include_bytes!("../../tests/facts/images/mixed-sm100.cubin");
const MIXED_PTX: &[u8] = include_bytes!("../../tests/facts/images/mixed.ptx");
const H200: &str = include_str!("../../tests/facts/images/h200.txt");

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn ptx_of(body: &str) -> Needs {
    let text = format!("{HEADER}{body}\n.visible .entry touch() {{ ret; }}\n");
    of_bytes(text.as_bytes(), 90).unwrap_or_else(|| panic!("not taken for PTX: {text}"))
}

// ------------------------------------------------------------------------------------------- what a GPU took

#[test]
fn an_h200_took_as_much_as_is_told() {
    let mut lines = 0;
    for line in H200.lines().filter(|line| !line.starts_with('#')) {
        let (image, loads) = line.split_once(": ").expect("an image and what its loads took");
        let [kind, count, size] = image.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let loads: Vec<u64> = loads.split(' ').map(|mib| mib.parse().expect("MiB")).collect();
        let (count, size): (u64, u64) = (count.parse().expect("a count"), size.parse().expect("bytes"));
        let each = match kind {
            "kernels" => room_for_function(size) * count,
            _ => {
                let space = if kind == "constant" { ".const" } else { ".global" };
                let declarations = (0..count).fold(String::new(), |mut text, at| {
                    let _ = writeln!(text, ".visible {space} .b8 v{at}[{size}];");
                    text
                });
                ptx_of(&declarations).data
            }
        };
        let told = (each * loads.len() as u64).next_multiple_of(BLOCK);
        assert_eq!(told, loads.iter().sum::<u64>() * MIB, "{line}: {each} bytes for each");
        lines += 1;
    }
    assert!(lines > 20, "the facts were not read");
}

#[test]
fn a_fat_binary_tells_the_same_however_it_is_compressed() {
    for (sm, code) in [(90, 4 * 256), (86, 4 * 256), (80, 4 * 256)] {
        for image in BIG {
            let code = code + 3 * BESIDE_CODE;
            let expected = Needs { data: 64 * MIB, code, managed: 0, heap: false, complete: true };
            assert_eq!(of_bytes(image, sm), Some(expected), "sm_{sm}");
        }
    }
    // Nothing but its PTX, for 9.0, runs on a later generation; and nothing at all on an earlier one.
    for image in BIG {
        let needs = of_bytes(image, 120).expect("a fat binary");
        assert_eq!((needs.data, needs.managed, needs.heap, needs.complete), (64 * MIB, 0, false, true));
        assert_eq!(of_bytes(image, 75), Some(Needs { complete: false, ..Needs::NOTHING }));
    }
}

#[test]
fn machine_code_and_text_of_one_source_tell_the_same() {
    for image in [MIXED, MIXED_100, MIXED_PTX] {
        let needs = of_bytes(image, 90).expect("one of the forms");
        assert_eq!(needs.managed, 6 * MIB + 4);
        // `plain`, `table` of 400 bytes, `weights` of 1000.
        assert_eq!(needs.data, 4 * MIB + 512 + 1024);
        assert!(needs.heap && needs.complete);
    }
}

// ------------------------------------------------------------------------------------------------ fat binaries

const PTX: u16 = 1;
const CUBIN: u16 = 2;
const LINK_TIME: u16 = 8;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
const A: u64 = 0x10_0000;
const F: u64 = 0x20_0000;

/// A fat binary of PTX or machine code; each member has a variable of its own size. PTX is told by a variable of so many
/// MiB, machine code is `mixed` with `plain` made so large.
fn fatbin(members: &[(u16, u32, u64, u64)]) -> Vec<u8> {
    let mut image = Vec::new();
    for &(kind, arch, flags, mib) in members {
        let contents = match kind {
            CUBIN => with_plain_of(mib * MIB),
            _ => format!("{HEADER}.global .b8 x[{}];\0", mib * MIB).into_bytes(),
        };
        image.extend(member(kind, arch, flags, &contents, 0));
    }
    enclosed(&image)
}

fn enclosed(members: &[u8]) -> Vec<u8> {
    let mut image = fatbin::MAGIC.to_vec();
    image.extend(1u16.to_le_bytes());
    image.extend(16u16.to_le_bytes());
    image.extend((members.len() as u64).to_le_bytes());
    image.extend(members);
    image
}

fn member(kind: u16, arch: u32, flags: u64, contents: &[u8], unpacked: u64) -> Vec<u8> {
    let mut member = vec![0; 64];
    member[0..2].copy_from_slice(&kind.to_le_bytes());
    member[4..8].copy_from_slice(&64u32.to_le_bytes());
    member[8..16].copy_from_slice(&(contents.len() as u64).to_le_bytes());
    if unpacked != 0 {
        member[16..20].copy_from_slice(&(contents.len() as u32).to_le_bytes());
    }
    member[28..32].copy_from_slice(&arch.to_le_bytes());
    member[40..48].copy_from_slice(&flags.to_le_bytes());
    member[56..64].copy_from_slice(&unpacked.to_le_bytes());
    member.extend(contents);
    member
}

/// `mixed` with another size for `plain`, which is the one variable of 4 MiB.
fn with_plain_of(size: u64) -> Vec<u8> {
    let (mut image, was) = (MIXED.to_vec(), (4 * MIB).to_le_bytes());
    // In a symbol, the size stands at offset 16 of 24; before it the place in the section, which is 0 for `plain`.
    let at = image.windows(16).position(|part| part[..8] == [0; 8] && part[8..] == was).expect("the symbol of `plain`");
    image[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
    image
}

#[test]
fn the_member_is_chosen_as_the_driver_chooses() {
    let chosen =
        |sm: u32, members: &[(u16, u32, u64, u64)]| of_bytes(&fatbin(members), sm).expect("a fat binary").data / MIB;
    // As seen on an H200.
    assert_eq!(
        chosen(90, &[(CUBIN, 80, 0, 32), (CUBIN, 90, 0, 8), (CUBIN, 90, A, 16), (PTX, 90, 0, 64), (PTX, 80, 0, 72)]),
        16
    );
    assert_eq!(chosen(90, &[(CUBIN, 90, A, 16), (CUBIN, 90, 0, 8), (PTX, 80, 0, 72)]), 16);
    assert_eq!(chosen(90, &[(CUBIN, 90, 0, 8), (CUBIN, 90, 0, 24)]), 8);
    assert_eq!(chosen(90, &[(CUBIN, 90, 0, 24), (CUBIN, 90, 0, 8)]), 24);
    assert_eq!(
        chosen(90, &[(CUBIN, 80, 0, 32), (PTX, 80, 0, 72), (PTX, 90, 0, 64), (PTX, 90, A, 80), (PTX, 75, 0, 88)]),
        80
    );
    assert_eq!(chosen(90, &[(CUBIN, 80, 0, 32), (PTX, 75, 0, 88), (PTX, 80, 0, 72)]), 72);
    // As the toolkit's manual has it: machine code runs within its generation, `a` on one GPU, `f` within the family.
    assert_eq!(chosen(89, &[(CUBIN, 80, 0, 8), (CUBIN, 86, 0, 16), (CUBIN, 90, 0, 24)]), 16);
    assert_eq!(chosen(103, &[(CUBIN, 100, A, 8), (CUBIN, 100, F, 16), (CUBIN, 100, 0, 24), (CUBIN, 120, 0, 32)]), 16);
    assert_eq!(chosen(100, &[(CUBIN, 100, F, 16), (CUBIN, 100, A, 8)]), 8);
    assert_eq!(chosen(120, &[(PTX, 100, F, 8), (PTX, 90, A, 16), (PTX, 80, 0, 24)]), 24);
    assert_eq!(chosen(90, &[(LINK_TIME, 90, 0, 8), (PTX, 90, 0, 16)]), 16);
}

#[test]
fn on_a_gpu_that_is_not_known_any_member_may_be_taken() {
    let needs =
        of_bytes(&fatbin(&[(CUBIN, 80, 0, 8), (CUBIN, 90, A, 24), (PTX, 100, F, 16)]), 0).expect("a fat binary");
    assert_eq!((needs.data / MIB, needs.managed, needs.heap, needs.complete), (24, 6 * MIB + 4, true, true));
    for image in BIG {
        assert_eq!(of_bytes(image, 0).map(|needs| (needs.data, needs.complete)), Some((64 * MIB, true)));
    }
    // No number of members takes long: what is unpacked for them has a limit.
    let one = member(CUBIN, 90, ZSTD, b"not packed", packed::LARGEST);
    let packed = &BIG[2][16..];
    let guess = Needs { code: packed::LARGEST, complete: false, ..Needs::NOTHING };
    assert_eq!(of_bytes(&enclosed(&[&one, packed].concat()), 0), Some(guess));
    assert_eq!(of_bytes(&enclosed(&[packed, &one].concat()), 0).map(|needs| needs.data), Some(64 * MIB));
    assert_eq!(of_bytes(&enclosed(&[]), 0), Some(Needs { complete: false, ..Needs::NOTHING }));
}

#[test]
fn nothing_for_the_gpu_is_not_taken_for_nothing_needed() {
    let needs = of_bytes(&fatbin(&[(CUBIN, 80, 0, 8), (PTX, 100, 0, 8)]), 90);
    assert_eq!(needs, Some(Needs { complete: false, ..Needs::NOTHING }));
}

#[test]
fn what_cannot_be_unpacked_is_guessed_by_its_size_and_costs_little() {
    let claims = |flags, size| {
        let image = enclosed(&member(CUBIN, 90, flags, b"nothing that could be unpacked", size));
        of_bytes(&image, 90).expect("a fat binary")
    };
    for flags in [LZ4, ZSTD] {
        for (size, code) in [(1, 1), (1000, 1000), (1 << 26, 1 << 26), (1 << 27, 1 << 27), (u64::MAX, LARGEST)] {
            assert_eq!(claims(flags, size), Needs { code, complete: false, ..Needs::NOTHING });
        }
    }
    // Hundreds of megabytes from a few hundred kilobytes, where a thousand bytes were announced.
    let mut bomb = vec![0x1f, b'a', 1, 0];
    bomb.extend(vec![0xff; 1 << 20]);
    bomb.extend([0, 0]);
    let image = enclosed(&member(CUBIN, 90, LZ4, &bomb, 1000));
    assert_eq!(of_bytes(&image, 90), Some(Needs { code: 1000, complete: false, ..Needs::NOTHING }));
    let image = enclosed(&member(CUBIN, 90, ZSTD, &blanks(32 << 20, WINDOW_OF_8_MIB, b""), 1000));
    assert_eq!(of_bytes(&image, 90), Some(Needs { code: 1000, complete: false, ..Needs::NOTHING }));
}

/// A window of Zstandard's, as a frame's header has it; one more is twice as much.
const WINDOW_OF_8_MIB: u8 = 13;

/// A frame of Zstandard with blanks, 128 KiB in a block, and what follows them.
fn blanks(count: usize, window: u8, end: &[u8]) -> Vec<u8> {
    let block = |kind: u32, size: usize, last: bool| ((size as u32) << 3 | kind << 1 | u32::from(last)).to_le_bytes();
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window << 3];
    for _ in 0..count >> 17 {
        frame.extend(&block(1, 1 << 17, false)[..3]);
        frame.push(b' ');
    }
    frame.extend(&block(0, end.len(), true)[..3]);
    frame.extend(end);
    frame
}

#[test]
fn what_is_too_large_is_not_unpacked() {
    let text = b".version 8.0\n.global .b8 x[4096];";
    let data = |length: usize, window: u8| {
        let packed = blanks(length, window, text);
        let image = enclosed(&member(PTX, 90, ZSTD, &packed, (length + text.len()) as u64));
        of_bytes(&image, 90).map(|needs| (needs.data, needs.complete))
    };
    assert_eq!(data(63 << 20, WINDOW_OF_8_MIB), Some((4096, true)));
    assert_eq!(data(64 << 20, WINDOW_OF_8_MIB), Some((0, false)));
    // A window that is larger than what is to be unpacked is memory for nothing.
    assert_eq!(data(1 << 20, WINDOW_OF_8_MIB), Some((4096, true)));
    assert_eq!(data(1 << 20, WINDOW_OF_8_MIB + 1), Some((0, false)));
    assert_eq!(data(16 << 20, WINDOW_OF_8_MIB + 1), Some((4096, true)));
}

// ------------------------------------------------------------------------------------------------------- cubins

#[test]
fn symbols_count_and_not_sections() {
    // The toolkit leaves the section of an array of 5 GB at 705 MB.
    assert_eq!(of_bytes(&with_plain_of(5_000_000_000), 90).expect("a cubin").data / MIB, 4770);
    assert_eq!(of_bytes(&with_plain_of(u64::MAX), 90).expect("a cubin").data, u64::MAX);
}

#[test]
fn more_sections_than_16_bits_can_count_are_read() {
    let mut image = MIXED.to_vec();
    let table = u64::from_le_bytes(image[40..48].try_into().expect("eight bytes")) as usize;
    let (sections, names) = (image[60..62].to_vec(), image[62..64].to_vec());
    image[60..64].copy_from_slice(&[0, 0, 0xff, 0xff]);
    image[table + 32..table + 34].copy_from_slice(&sections);
    image[table + 40..table + 42].copy_from_slice(&names);
    assert_eq!(of_bytes(&image, 90), of_bytes(MIXED, 90));
    assert_eq!(guarded(&image, |image| of_pointer_of(image, 90)), of_bytes(MIXED, 90));
}

#[test]
fn other_machines_code_is_not_known() {
    let mut image = MIXED.to_vec();
    image[18] = 62;
    assert_eq!(of_bytes(&image, 90), None);
    image[18..20].copy_from_slice(&190u16.to_be_bytes());
    assert_eq!(of_bytes(&image, 90), None);
}

// ---------------------------------------------------------------------------------------------------------- PTX

/// Sizes as they are, because those of managed variables are not rounded. NVIDIA's assembler was asked about each of these.
#[test]
fn declarations_are_read_as_the_assembler_reads_them() {
    let cases: &[(&str, u64)] = &[
        ("x", 4),
        ("x[7]", 28),
        ("x[4][8]", 128),
        ("x[0x10]", 64),
        ("x[010]", 32),
        ("x[0b11]", 12),
        ("x[12U]", 48),
        ("x[WARP_SZ]", 128),
        ("x [ 12 /* a ; { */ ] // } ;\n [ 3 ] ", 144),
        ("a, b[4], c = 3", 24),
        ("x[][2] = { {-1, 0}, {0, -1}, {1, 0}, {0, 1} }", 32),
        ("x[2][3] = {{1}}", 24),
        ("x[] = {0xff(foo), 0xff00(foo), 0xff0000(foo)}", 12),
        ("x[] = {generic(foo), foo+4}, y", 12),
        ("x = generic(foo), y", 8),
        ("r<4>", 16),
        ("$x_1, %y", 8),
        ("x[18446744073709551615][3]", u64::MAX),
        ("x[99999999999999999999999]", u64::MAX),
    ];
    for (declared, bytes) in cases {
        let at_the_top = format!(".global .attribute(.managed) .align 4 .u32 {declared};");
        assert_eq!(ptx_of(&at_the_top).managed, *bytes, "{declared}");
        let inside = format!(".func f() {{ .reg .b32 a; bar: {at_the_top} {{ mov.b32 a, 1; }} }}");
        assert_eq!(ptx_of(&inside).managed, *bytes, "{declared}, in a function");
    }
}

#[test]
fn types_have_their_sizes() {
    let types: &[(&str, u64)] = &[
        (".b8", 1),
        (".u16", 2),
        (".f16", 2),
        (".f16x2", 4),
        (".s32", 4),
        (".f64", 8),
        (".b128", 16),
        (".v4 .f32", 16),
        (".v2 .u8", 2),
        (".texref", 0),
        (".samplerref", 0),
    ];
    for (kind, bytes) in types {
        assert_eq!(ptx_of(&format!(".global .attribute(.managed) {kind} x;")).managed, *bytes, "{kind}");
    }
}

#[test]
fn only_what_takes_memory_counts() {
    let nothing = [
        "",
        ".extern .global .b8 x[4096];",
        ".extern .global .b8 x[];",
        ".extern .func f(); .shared .b8 x[4096];",
        ".shared .b8 x[4096];",
        "// .global .b8 x[4096];",
        "/* .global .b8 x[4096]; */",
        ".pragma \".global .b8 x[4096];\";",
        ".file 1 \".global .b8 x[4096];\"",
        ".visible .entry k(.param .u64 .ptr .global .align 8 x, .param .b8 y[4096], .param .b8 z) { }",
        ".visible .entry k() { .shared .b8 x[4096]; .local .b8 y[4096]; ld.global.u32 a, [b]; ret; }",
        ".visible .entry k() { // .global .b8 x[4096];\n ret; }",
        ".visible .entry k() { .pragma \"} .global .b8 x[4096]; {\"; ret; }",
        ".section .debug_str { info: .b8 47,119 }",
        ".visible .entry k() { .globals .b8 x[4096]; }",
    ];
    for text in nothing {
        assert_eq!(ptx_of(text).data, 0, "{text}");
    }
    let something = [
        ".global .b8 x[4096];",
        ".visible.global.b8 x[4096];",
        ".weak .global .b8 x[4096];",
        ".common .global .b8 x[4096];",
        ".const .b8 x[4096];",
        ".extern .global .b8 x[4096]; .visible .global .b8 x[4096];",
        ".pragma \"a\\\"; .global .b8 x[4096]; //\"",
        "// a comment \\\n.global .b8 x[4096];",
        "/* a /* b */ .global .b8 x[4096]; // */",
        ".func f() { } .global .b8 x[4096];",
        ".func f() { {.global .b8 x[4096];} }",
        ".func f() { .pragma \"{\"; } .global .b8 x[4096];",
        ".section .debug_str { info: .b8 47,119 } .global .b8 x[4096];",
    ];
    for text in something {
        assert_eq!(ptx_of(text).data, 4096, "{text}");
    }
}

#[test]
fn the_heap_is_used_where_it_is_called() {
    let declared = ".extern .func (.param .b64 o) malloc (.param .b64 i);";
    assert!(!ptx_of(declared).heap);
    assert!(ptx_of(&format!("{declared} .func f() {{ call (o), malloc, (i); }}")).heap);
    assert!(ptx_of(".extern .func free (.param .b64 i); .func f() { call free, (i); }").heap);
    assert!(!ptx_of(&format!("{declared} .func f() {{ call (o), my_malloc, (i); }}")).heap);
    assert!(!ptx_of(".func malloc() { } .func f() { call malloc; }").heap);
}

#[test]
fn text_that_is_not_ptx_is_not_known() {
    for text in ["", " ", "\0", ".target sm_90", "int main() { }", "// .version 8.0", "!<arch>\n", "\x7fTileIR\0"] {
        assert_eq!(of_bytes(text.as_bytes(), 90), None, "{text:?}");
    }
    assert!(of_bytes(b"\n\t// about\n/* all */ .version 8.0\0.global", 90).is_some());
}

// ----------------------------------------------------------------------------------------------------- pointers

fn of_pointer_of(image: &[u8], sm: u32) -> Option<Needs> {
    // SAFETY: the images of these tests are whole, and texts end in NUL.
    unsafe { of_pointer(image.as_ptr().cast(), sm) }
}

/// Shows bytes that end right before memory that cannot be read.
fn guarded<T>(bytes: &[u8], show: impl FnOnce(&[u8]) -> T) -> T {
    const PAGE: usize = 4096;
    let length = bytes.len().next_multiple_of(PAGE);
    // SAFETY: a mapping of our own, filled within its bounds, and unmapped when nobody looks at it any more.
    unsafe {
        let all = length + PAGE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(null_mut(), all, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_ne!(map, libc::MAP_FAILED);
        let start = map.cast::<u8>();
        assert_eq!(libc::mprotect(start.add(length).cast(), PAGE, libc::PROT_NONE), 0);
        let image = start.add(length - bytes.len());
        image.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        let shown = show(slice::from_raw_parts(image, bytes.len()));
        libc::munmap(map, all);
        shown
    }
}

#[test]
fn a_pointer_tells_what_the_bytes_tell_and_nothing_beyond_is_read() {
    let text = [MIXED_PTX, b"\0"].concat();
    for image in [&BIG[..], &[MIXED, &text, b".version 8.0\0", b" \0", b"P\0", b"\0", b"\x7fE\0"]].concat() {
        for sm in [80, 90, 120] {
            assert_eq!(guarded(image, |image| of_pointer_of(image, sm)), of_bytes(image, sm));
        }
    }
    // What is behind the last table of a cubin is not looked at; mixed for sm_100 has its program headers there.
    assert_eq!(of_pointer_of(MIXED_100, 100), of_bytes(MIXED_100, 100));
    // SAFETY: nothing is read.
    assert_eq!(unsafe { of_pointer(null(), 90) }, None);
}

fn wrapped(version: u32, fatbin: *const c_void, more: *const *const c_void) -> Option<Needs> {
    let wrapper = Wrapper { magic: Wrapper::MAGIC, version, fatbin, more };
    // SAFETY: a record as the toolkit makes them, whose pointers lead to whole images or nowhere.
    unsafe { of_pointer((&raw const wrapper).cast(), 90) }
}

#[test]
fn a_wrapper_leads_to_its_fat_binary() {
    for image in BIG {
        assert_eq!(wrapped(1, image.as_ptr().cast(), null()), of_bytes(image, 90));
        // The name of a file, in this version.
        assert_eq!(wrapped(1, image.as_ptr().cast(), c"name".as_ptr().cast()), of_bytes(image, 90));
    }
    assert_eq!(wrapped(1, null(), null()), None);
    assert_eq!(wrapped(1, MIXED.as_ptr().cast(), null()), None);
}

#[test]
fn parts_that_the_driver_must_link_add_up() {
    let parts = [fatbin(&[(CUBIN, 90, 0, 8)]), fatbin(&[(PTX, 90, 0, 16)])];
    let list = [parts[0].as_ptr().cast(), parts[1].as_ptr().cast(), null::<c_void>()];
    let data = |linked: &[u8], more| wrapped(2, linked.as_ptr().cast(), more).expect("a wrapper").data / MIB;
    let (for_this_gpu, for_another) = (fatbin(&[(CUBIN, 90, 0, 24)]), fatbin(&[(CUBIN, 80, 0, 32)]));
    assert_eq!(data(&for_this_gpu, list.as_ptr()), 24);
    assert_eq!(data(&for_another, list.as_ptr()), 8 + 16);
    assert_eq!(data(&for_another, null()), 0);
    let not_one: [*const c_void; 2] = [MIXED.as_ptr().cast(), null()];
    assert_eq!(wrapped(2, for_another.as_ptr().cast(), not_one.as_ptr()), None);
}

// ----------------------------------------------------------------------------------------------- anything at all

fn image() -> impl Strategy<Value = Vec<u8>> {
    let text = [MIXED_PTX, b"\0"].concat();
    select(vec![
        BIG[0].to_vec(),
        BIG[1].to_vec(),
        BIG[2].to_vec(),
        BIG[3].to_vec(),
        MIXED.to_vec(),
        MIXED_100.to_vec(),
        text,
    ])
}

proptest! {
    #[test]
    fn damaged_images_do_no_harm(mut image in image(), damage in vec((any::<Index>(), any::<u8>()), 1..8), sm in 0u32..130) {
        for (at, byte) in damage {
            *at.get_mut(&mut image) = byte;
        }
        let _ = of_bytes(&image, sm);
    }

    #[test]
    fn numbers_of_any_size_do_no_harm(mut image in image(), at in any::<Index>(), number in any::<u64>(), small in any::<bool>()) {
        let at = at.index(image.len() - 8);
        let number = if small { number >> 40 } else { number };
        image[at..at + 8].copy_from_slice(&number.to_le_bytes());
        let _ = of_bytes(&image, 90);
    }

    #[test]
    fn images_cut_short_do_no_harm(image in image(), length in any::<Index>()) {
        let _ = of_bytes(&image[..length.index(image.len())], 90);
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..512), like in 0usize..4, sm in any::<u32>()) {
        let begun: [&[u8]; 4] = [b"", &fatbin::MAGIC, &cubin::MAGIC, b".version 8.0\n"];
        let _ = of_bytes(&[begun[like], &bytes].concat(), sm);
    }

    #[test]
    fn any_text_does_no_harm(
        words in vec(
            select(vec![
                ".global", ".const", ".extern", ".attribute", "(", ")", ".managed", ".align", ".b8", ".v4", "x", "malloc", "4",
                "0x", "[", "]", "<", ">", "=", "{", "}", ",", ";", ":", "\"", "/", "//", "/*", "*/", "\n", " ", ".", ".entry",
                ".func", "\\", "\u{80}",
            ]),
            0..64,
        ),
    ) {
        let _ = of_bytes(format!("{HEADER}{}", words.concat()).as_bytes(), 90);
        let _ = of_bytes(format!("{HEADER}{}", words.join(" ")).as_bytes(), 90);
    }

    /// What comes later never takes away from what was read before.
    #[test]
    fn more_text_needs_no_less(sizes in vec(1u64..(1 << 40), 0..8), cut in any::<Index>()) {
        let text = sizes.iter().enumerate().fold(HEADER.to_owned(), |mut text, (at, size)| {
            let _ = writeln!(text, ".global .b8 v{at}[{size}];");
            text
        });
        let all = of_bytes(text.as_bytes(), 90).expect("PTX").data;
        prop_assert_eq!(all, sizes.iter().map(|&size| room_for_variable(size)).sum::<u64>());
        let cut = HEADER.len() + cut.index(text.len() - HEADER.len() + 1);
        prop_assert!(of_bytes(&text.as_bytes()[..cut], 90).expect("PTX").data <= all);
    }

    #[test]
    fn a_variable_gets_room_for_all_of_it(size in any::<u64>()) {
        let room = room_for_variable(size);
        prop_assert!(room >= size || room == u64::MAX);
        prop_assert!(room < size.saturating_add(BLOCK) || room == u64::MAX);
    }
}
