//! Checks that every symbol that a file of a release imports exists where the loader searches for it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::chain::{Found, Images, Loaded};
use crate::cross_macos::stub::Symbols;

/// Fails if a library of the system has no stub, or if an import of a loaded image exists neither in the release nor in the stubs.
pub(super) fn check(images: &Images, loaded: &Loaded, system: &Symbols) -> Result<()> {
    for (path, libraries) in loaded {
        let image = &images[path];
        for (name, _) in libraries.iter().filter(|(_, found)| **found == Found::System) {
            ensure!(system.contains_key(name), "{} needs {name}, which has no stub", path.display());
        }
        let mut missing = BTreeSet::new();
        for import in image.imports.iter().filter(|import| !import.is_optional) {
            let exists = if import.library.is_empty() {
                // C++ lets several libraries define one symbol. The loader takes the first in any of them.
                image.defined.contains(&import.name) || exists_somewhere(&import.name, images, system)
            } else {
                let found = libraries.get(&import.library);
                let found =
                    found.with_context(|| format!("{} does not load {}", path.display(), import.library))?;
                is_exported(&import.name, &import.library, found, images, system)
            };
            if !exists {
                missing.insert(format!("{} of {}", import.name, import.library));
            }
        }
        let list = missing.into_iter().collect::<Vec<_>>().join(", ");
        ensure!(list.is_empty(), "{} does not find {list}", path.display());
    }
    Ok(())
}

fn is_exported(name: &str, library: &str, found: &Found, images: &Images, system: &Symbols) -> bool {
    match found {
        Found::Release(path) => images[path].exports.contains(name),
        Found::System => system.get(library).is_some_and(|symbols| symbols.contains(name)),
    }
}

fn exists_somewhere(name: &str, images: &Images, system: &Symbols) -> bool {
    images.values().any(|image| image.exports.contains(name))
        || system.values().any(|symbols| symbols.contains(name))
}

/// Fails if our library has its own type information of the standard exceptions. Then it could not catch MLX's exceptions, and an error of
/// MLX would end the process.
pub(super) fn check_exceptions(library: &Path, images: &Images) -> Result<()> {
    /// The mangled prefix of type information of `std` types. The versioned namespace of other library types has another one.
    const OF_STD: &str = "__ZTISt";
    let image = images.get(library).with_context(|| format!("there is no {}", library.display()))?;
    let own = image.defined.iter().find(|name| name.starts_with(OF_STD));
    ensure!(
        own.is_none(),
        "{} defines {}; link the system's libc++",
        library.display(),
        own.map_or("", |name| name)
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::mach_o::{Imported, Library};

    const CPP: &str = "/usr/lib/libc++.1.dylib";
    const OURS: &str = "@rpath/ours.dylib";

    /// Checks a program that imports these symbols of libraries.
    fn checked(imports: &[(&str, &str, bool)]) -> Result<()> {
        let import = |&(name, library, is_optional): &(&str, &str, bool)| Imported {
            name: name.to_owned(),
            library: library.to_owned(),
            is_optional,
        };
        let program = Library { imports: imports.iter().map(import).collect(), ..Library::default() };
        let ours = Library { exports: ["_ours".to_owned()].into(), ..Library::default() };
        let images = Images::from([("program".into(), program), ("ours".into(), ours)]);
        let of_program = [(OURS.to_owned(), Found::Release("ours".into())), (CPP.to_owned(), Found::System)];
        let loaded = Loaded::from([("program".into(), of_program.into()), ("ours".into(), BTreeMap::new())]);
        check(&images, &loaded, &Symbols::from([(CPP.to_owned(), ["_new".to_owned()].into())]))
    }

    #[test]
    fn a_symbol_must_exist_in_the_library_that_the_import_names() {
        checked(&[("_ours", OURS, false), ("_new", CPP, false), ("_gone", CPP, true)]).expect("all exist");
        checked(&[("_ours", "", false), ("_new", "", false)]).expect("they exist in some library");
        for (name, library) in [("_new", OURS), ("_ours", CPP), ("_gone", "")] {
            let error = checked(&[(name, library, false)]).expect_err("it is elsewhere").to_string();
            assert_eq!(error, format!("program does not find {name} of {library}"));
        }
        let error = checked(&[("_a", "/usr/lib/b.dylib", false)]).expect_err("it is not loaded").to_string();
        assert_eq!(error, "program does not load /usr/lib/b.dylib");
    }

    #[test]
    fn a_library_of_the_system_needs_a_stub() {
        let images = Images::from([("program".into(), Library::default())]);
        let loaded = Loaded::from([("program".into(), [(CPP.to_owned(), Found::System)].into())]);
        check(&images, &loaded, &Symbols::from([(CPP.to_owned(), BTreeSet::new())])).expect("it has one");
        let error = check(&images, &loaded, &Symbols::new()).expect_err("it has none").to_string();
        assert_eq!(error, format!("program needs {CPP}, which has no stub"));
    }

    #[test]
    fn own_type_information_of_standard_exceptions_is_found() {
        let checked = |name: &str| {
            let library = Library { defined: [name.to_owned()].into(), ..Library::default() };
            check_exceptions(Path::new("ours"), &Images::from([("ours".into(), library)]))
        };
        checked("__ZTINSt3__110__function6__baseIFvvEEE").expect("no exception");
        let error = checked("__ZTISt9exception").expect_err("it is one").to_string();
        assert_eq!(error, "ours defines __ZTISt9exception; link the system's libc++");
    }
}
