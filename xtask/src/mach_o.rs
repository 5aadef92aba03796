//! Reads Mach-O files: names of the library, its dependencies and search paths, its symbols, and its signature.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use object::LittleEndian;
use object::macho::{LC_CODE_SIGNATURE, LC_RPATH, MachHeader64};
use object::read::macho::{LoadCommandVariant, MachHeader, MachOFile64};
use object::read::{Import, NameOrOrdinal, Object};

/// A dynamic library for Apple silicon, or a program.
pub(crate) struct Library {
    /// The install name; empty for a program.
    pub(crate) name: String,
    /// The install names of linked libraries.
    pub(crate) needed: Vec<String>,
    /// The search paths for `@rpath`.
    pub(crate) search: Vec<String>,
    /// The minimum version of macOS.
    pub(crate) oldest: Option<(u32, u32)>,
    /// True if it has a signature, which Apple silicon requires.
    pub(crate) is_signed: bool,
    /// The imported symbols, each with the library that provides it.
    imports: Vec<(String, String)>,
    exports: BTreeSet<String>,
}

impl Library {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let context = || format!("{} cannot be read", path.display());
        Self::parse(&fs::read(path).with_context(context)?).with_context(context)
    }

    fn parse(data: &[u8]) -> Result<Self> {
        let file = MachOFile64::<LittleEndian>::parse(data)?;
        let named = |name: NameOrOrdinal<&[u8]>| name.name().map(text).unwrap_or_default();
        let mut library = Self {
            name: String::new(),
            needed: Vec::new(),
            search: Vec::new(),
            oldest: None,
            is_signed: false,
            imports: Vec::new(),
            exports: file.exports()?.map(|it| Ok(named(it?.name()))).collect::<Result<_>>()?,
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
                LoadCommandVariant::LinkeditData(_) if command.cmd() == LC_CODE_SIGNATURE => {
                    library.is_signed = true;
                }
                _ => {}
            }
        }
        let import = |it: object::Result<Import>| it.map(|it| (named(it.name()), text(it.library())));
        library.imports = file.imports()?.map(import).collect::<object::Result<_>>()?;
        Ok(library)
    }

    /// Returns the symbols imported from the library with this name.
    pub(crate) fn imports_of<'a>(&'a self, library: &'a str) -> impl Iterator<Item = &'a str> {
        self.imports.iter().filter(move |it| it.1 == library).map(|it| it.0.as_str())
    }

    /// Returns the symbols imported from `other`, which has this name, that it does not export.
    pub(crate) fn missing<'a>(&'a self, library: &'a str, other: &Self) -> Vec<&'a str> {
        self.imports_of(library).filter(|name| !other.exports.contains(*name)).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
