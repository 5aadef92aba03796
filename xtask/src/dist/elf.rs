//! Reads the library names in an ELF file of this machine's kind, and makes them relocatable.

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const STRINGS_SIZE: u64 = 10;
const SONAME: u64 = 14;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// The library names and search paths of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) soname: Option<String>,
    pub(super) needed: Vec<String>,
    /// The search paths, in order.
    pub(super) paths: Vec<String>,
}

/// Reads the library names and search paths.
pub(super) fn names(file: &[u8]) -> Result<Names> {
    let mut names = Names::default();
    for (tag, place) in texts(file)? {
        let text = String::from_utf8(file[place].to_vec()).context("a name is not UTF-8")?;
        match tag {
            NEEDED => names.needed.push(text),
            SONAME => names.soname = Some(text),
            _ => names.paths.extend(text.split(':').map(str::to_owned)),
        }
    }
    Ok(names)
}

/// Replaces absolute paths of libraries, and an absolute soname, by their file names, which the loader searches in the file's paths. The
/// names become shorter, so no other data moves.
pub(super) fn strip_library_paths(file: &mut [u8]) -> Result<()> {
    for (tag, place) in texts(file)? {
        let text = &file[place.clone()];
        if !matches!(tag, NEEDED | SONAME) || !text.starts_with(b"/") {
            continue;
        }
        let name = text.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let name = text[name..].to_vec();
        file[place.clone()].fill(0);
        file[place.start..place.start + name.len()].copy_from_slice(&name);
    }
    Ok(())
}

/// Returns the N of the newest glibc 2.N whose symbols the file needs, or 0.
pub(super) fn needed_glibc(file: &[u8]) -> Result<u64> {
    let Dynamic { entries, table } = dynamic(file)?;
    let size = entries.iter().find(|it| it.0 == STRINGS_SIZE).context("the table of texts has no size")?.1;
    let texts = file.get(table..table + size as usize).context("the file is truncated")?;
    Ok(texts.split(|byte| *byte == 0).filter_map(minor_glibc).max().unwrap_or(0))
}

/// Returns the N of a symbol version such as `GLIBC_2.N` or `GLIBC_2.N.5`.
fn minor_glibc(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok()
}

/// Returns the string entries of the dynamic section: their tag and the range of the string.
fn texts(file: &[u8]) -> Result<Vec<(u64, Range<usize>)>> {
    let Dynamic { entries, table } = dynamic(file)?;
    let is_text = |entry: &&(u64, u64)| matches!(entry.0, NEEDED | SONAME | RPATH | RUNPATH);
    let text = |(tag, at): &(u64, u64)| {
        let start = table + *at as usize;
        let length = file.get(start..).and_then(|rest| rest.iter().position(|byte| *byte == 0));
        Ok((*tag, start..start + length.context("a name has no end")?))
    };
    entries.iter().filter(is_text).map(text).collect()
}

/// The dynamic section of a file.
struct Dynamic {
    /// Tags and values.
    entries: Vec<(u64, u64)>,
    /// The position of the table of texts in the file.
    table: usize,
}

fn dynamic(file: &[u8]) -> Result<Dynamic> {
    ensure!(file.starts_with(b"\x7fELF\x02\x01"), "no 64-bit little-endian ELF file");
    let segments = segments(file)?;
    let dynamic = segments.iter().find(|it| it.kind == 2).context("a static program")?;
    let entries: Vec<(u64, u64)> = (0..dynamic.size / 16)
        .map(|at| {
            let entry = dynamic.offset as usize + 16 * at as usize;
            Ok((number(file, entry, 8)?, number(file, entry + 8, 8)?))
        })
        .collect::<Result<_>>()?;
    let strings = entries.iter().find(|it| it.0 == STRINGS).context("no table of texts")?.1;
    let load =
        segments.iter().find(|it| it.kind == 1 && (it.address..it.address + it.size).contains(&strings));
    let load = load.context("the table of texts is not in the file")?;
    let table = (strings - load.address + load.offset) as usize;
    Ok(Dynamic { entries, table })
}

struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

fn segments(file: &[u8]) -> Result<Vec<Segment>> {
    let (table, size, count) = (number(file, 32, 8)?, number(file, 54, 2)?, number(file, 56, 2)?);
    let segment = |index: u64| {
        let at = (table + index * size) as usize;
        Ok(Segment {
            kind: number(file, at, 4)?,
            offset: number(file, at + 8, 8)?,
            address: number(file, at + 16, 8)?,
            size: number(file, at + 32, 8)?,
        })
    };
    (0..count).map(segment).collect()
}

fn number(file: &[u8], at: usize, bytes: usize) -> Result<u64> {
    let Some(bytes) = file.get(at..at + bytes) else { bail!("the file is truncated") };
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

// The tests read their own program, which is an ELF file only on Linux.
#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of the test program itself. It was linked with libmlxc by a path, or not at all.
    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().expect("a program")).expect("a file")
    }

    #[test]
    fn a_programs_libraries_are_read() {
        let names = names(&own()).expect("it is an ELF file");
        assert!(names.needed.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert_eq!(names.soname, None);
    }

    #[test]
    fn the_needed_glibc_is_read_from_symbol_versions() {
        assert_eq!(minor_glibc(b"GLIBC_2.2.5"), Some(2));
        assert_eq!(minor_glibc(b"GLIBC_2.35"), Some(35));
        assert_eq!([minor_glibc(b"GLIBC_PRIVATE"), minor_glibc(b"GLIBCXX_3.4")], [None, None]);
        // Each program for Linux needs 2.2.5, 2.17 or a newer version.
        assert!(needed_glibc(&own()).expect("it is an ELF file") >= 2);
    }

    #[test]
    fn folders_are_forgotten_and_nothing_else() {
        let mut file = own();
        let (_, place) = texts(&file)
            .expect("it is an ELF file")
            .into_iter()
            .find(|(tag, place)| *tag == NEEDED && file[place.clone()].starts_with(b"libgcc_s"))
            .expect("it unwinds");
        let before = names(&file).expect("it is an ELF file");
        file[place.start..place.start + 4].copy_from_slice(b"/a/b");
        strip_library_paths(&mut file).expect("it is an ELF file");
        let renamed = |name: &String| {
            if name.starts_with("libgcc_s") { name.replacen("libg", "b", 1) } else { name.clone() }
        };
        let expected: Vec<String> = before.needed.iter().map(renamed).collect();
        assert_eq!(names(&file).expect("it is an ELF file").needed, expected);
        assert!(names(&file[..200]).is_err() && names(b"#!/bin/sh").is_err());
    }
}
