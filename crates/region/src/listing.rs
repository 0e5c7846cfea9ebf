//! The layout, as it is listed in `layout/MAJOR.MINOR.txt` for each version that there ever was: a line for every number that
//! others must know, and one for every field, with its name, its offset in its slot, its size. A layout that is not the one
//! listed is another version.
//!
//! tests/header.rs holds include/ration.h against the same listing.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use crate::layout::{CONTAINERS, Container, FREE, Header, LIVE, LONGEST_NAME, MAGIC, MAJOR, MINOR, NO_CAP};
use crate::layout::{
    PENDING_BITS, PROCESSES, PUBLIC_MAGIC, PUBLIC_SIZE, Page, Process, Public, PublicHeader, SIZE, Table,
};
use crate::life::DIED;

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// The lines of a struct's fields. That none is missing is checked: together they leave no byte out.
macro_rules! fields {
    ($name:literal, $type:ident: $($field:ident)*) => {{
        let fields = [$((stringify!($field), offset_of!($type, $field), size_of_field(|it: &$type| &it.$field))),*];
        let end = fields.iter().fold(0, |end, (field, offset, size)| {
            assert_eq!(*offset, end, "a field of {} before {field} is not listed in src/listing.rs", $name);
            offset + size
        });
        assert_eq!(end, size_of::<$type>(), "the last field of {} is not listed in src/listing.rs", $name);
        fields.map(|(field, offset, size)| format!("{}.{field} {offset} {size}", $name))
    }};
}

fn listing() -> Vec<String> {
    let numbers: [(&str, u64); 15] = [
        ("magic", MAGIC),
        ("size", SIZE as u64),
        ("containers", CONTAINERS as u64),
        ("containers_at", offset_of!(Table, containers) as u64),
        ("processes", PROCESSES as u64),
        ("processes_at", offset_of!(Table, processes) as u64),
        ("longest_name", LONGEST_NAME as u64),
        ("no_cap", NO_CAP),
        ("pending_bits", PENDING_BITS.into()),
        ("container_free", FREE.into()),
        ("container_live", LIVE.into()),
        ("died", DIED.into()),
        ("public_magic", PUBLIC_MAGIC),
        ("public_size", PUBLIC_SIZE as u64),
        ("pages_at", offset_of!(Public, pages) as u64),
    ];
    let mut lines: Vec<String> = numbers.iter().map(|(name, number)| format!("number.{name} {number}")).collect();
    lines.extend(
        fields!("header", Header: magic version header_size size containers container_size processes process_size
        uuid total boot reserved lock claim_from rest),
    );
    lines.extend(
        fields!("container", Container: state name_length generation reserved name reserved_too members cap tie refused
        drift passed peak reserved_three compute),
    );
    lines.extend(
        fields!("process", Process: life minor generation pid driver_pid pid_namespace beside reserved member held
        pending drift found lent node compute reserved_three),
    );
    lines.extend(
        fields!("public_header", PublicHeader: magic version header_size size pages page_size uuid boot reserved said
        lease rest),
    );
    lines.extend(
        fields!("page", Page: generation name_length name weight request limit priority flags usage demand burst worked
        virtual_time processes reserved),
    );
    lines
}

fn place(version: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("layout/{version}.txt"))
}

/// The lines of a listing that are not comments.
fn read(version: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(place(version)).ok()?;
    Some(text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

#[test]
fn the_layout_is_the_one_that_is_listed_for_this_version() {
    let (version, lines) = (format!("{MAJOR}.{MINOR}"), listing());
    if read(&version).is_none() && std::env::var_os("RATION_WRITE_DOCS").is_some() {
        let head = format!("# The layout of version {version}. Written once, and never changed again.\n");
        std::fs::write(place(&version), head + &lines.join("\n") + "\n").expect("a place for the listing");
    }
    let listed = read(&version).unwrap_or_else(|| {
        panic!(
            "there is no listing of version {version}. To write it:\n\
             RATION_WRITE_DOCS=1 cargo test -p ration-region --lib listing"
        )
    });
    for (now, then) in lines.iter().zip(&listed) {
        assert_eq!(
            now, then,
            "the layout (left) is not the one of version {version} (right). Processes of both would share a region and \
             misread each other. If bytes that were reserved have got a meaning, raise MINOR in src/layout.rs; if anything \
             else has changed, raise MAJOR. Then write the new version's listing, and bring include/ration.h and \
             docs/region.md up to date"
        );
    }
    assert_eq!(lines.len(), listed.len(), "fields came or went without a new version: see src/layout.rs");
}

/// What was reserved may get a meaning in a minor version; what has one keeps it.
#[test]
fn a_minor_version_changes_nothing_that_had_a_meaning() {
    let now: BTreeMap<String, String> = listing().iter().map(|line| split(line)).collect();
    let earlier = (0..MINOR).map(|minor| format!("{MAJOR}.{minor}"));
    for version in earlier {
        let lines = read(&version).unwrap_or_else(|| panic!("the listing of version {version} is gone"));
        for (field, place) in lines.iter().map(|line| split(line)).filter(|(field, _)| !is_reserved(field)) {
            assert_eq!(now.get(&field), Some(&place), "{field} is not where version {version} has it: raise MAJOR");
        }
    }
}

fn split(line: &str) -> (String, String) {
    let (field, place) = line.split_once(' ').expect("a name and what is known of it");
    (field.to_owned(), place.to_owned())
}

fn is_reserved(field: &str) -> bool {
    field.contains(".reserved") || field.ends_with(".rest") || field.ends_with(".compute")
}
