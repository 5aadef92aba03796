//! Reads Mach-O files: names of the library, its dependencies and search paths, its symbols, and its signature.

mod signature;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use object::LittleEndian;
use object::macho::{LC_RPATH, MachHeader64};
use object::read::macho::{LoadCommandVariant, MachHeader, MachOFile64};
use object::read::{Import, NameOrOrdinal, Object, ObjectSymbol};

/// A dynamic library for Apple silicon, or a program.
#[derive(Debug, Default)]
pub(crate) struct Library {
    /// The install name; empty for a program.
    pub(crate) name: String,
    /// The install names of linked libraries.
    pub(crate) needed: Vec<String>,
    /// The search paths for `@rpath`.
    pub(crate) search: Vec<String>,
    /// The minimum version of macOS.
    pub(crate) oldest: Option<(u32, u32)>,
    pub(crate) imports: Vec<Imported>,
    pub(crate) exports: BTreeSet<String>,
    /// All names that the file defines, exported or not.
    pub(crate) defined: BTreeSet<String>,
}

/// A symbol that a file takes from another one.
#[derive(Debug)]
pub(crate) struct Imported {
    pub(crate) name: String,
    /// The install name of the library; empty if the loader searches in all libraries.
    pub(crate) library: String,
    /// True if the file also runs without the symbol.
    pub(crate) is_optional: bool,
}

impl Library {
    /// Reads a file and checks its signature.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let context = || format!("{} cannot be read", path.display());
        Self::parse(&fs::read(path).with_context(context)?).with_context(context)
    }

    fn parse(data: &[u8]) -> Result<Self> {
        let file = MachOFile64::<LittleEndian>::parse(data)?;
        let named = |name: NameOrOrdinal<&[u8]>| name.name().map(text).unwrap_or_default();
        let mut library = Self {
            exports: file.exports()?.map(|it| Ok(named(it?.name()))).collect::<Result<_>>()?,
            ..Self::default()
        };
        let header = MachHeader64::<LittleEndian>::parse(data, 0)?;
        let endian = header.endian()?;
        let mut commands = header.load_commands(endian, data, 0)?;
        while let Some(command) = commands.next()? {
            match command.variant()? {
                LoadCommandVariant::IdDylib(id) => {
                    library.name = text(command.string(endian, id.dylib.name)?);
                }
                LoadCommandVariant::Dylib(it) => {
                    library.needed.push(text(command.string(endian, it.dylib.name)?));
                }
                LoadCommandVariant::Rpath(it) if command.cmd() == LC_RPATH => {
                    library.search.push(text(command.string(endian, it.path)?));
                }
                LoadCommandVariant::BuildVersion(it, _) => {
                    let version = it.minos.get(endian).0;
                    library.oldest = Some((version >> 16, version >> 8 & 0xff));
                }
                _ => {}
            }
        }
        let import = |it: object::Result<Import>| {
            it.map(|it| Imported {
                name: named(it.name()),
                library: text(it.library()),
                is_optional: it.is_weak(),
            })
        };
        library.imports = file.imports()?.map(import).collect::<object::Result<_>>()?;
        let defined = file.symbols().filter(ObjectSymbol::is_definition);
        library.defined = defined.map(|it| Ok(text(it.name_bytes()?))).collect::<Result<_>>()?;
        signature::check(data)?;
        Ok(library)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
