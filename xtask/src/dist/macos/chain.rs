//! Finds the libraries of a release as the macOS loader, dyld, does.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::mach_o::Library;

/// The folders of system libraries.
const SYSTEM: [&str; 2] = ["/usr/lib/", "/System/Library/"];

/// The programs and libraries of a release by path.
pub(super) type Images = BTreeMap<PathBuf, Library>;

/// The location of a loaded library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Release(PathBuf),
    System,
}

/// The libraries that each loaded image finds, by install name.
pub(super) type Loaded = BTreeMap<PathBuf, BTreeMap<String, Found>>;

/// Loads `program` and everything it needs. Fails if a library is not found, or if an image is never loaded.
pub(super) fn load(program: &Path, images: &Images) -> Result<Loaded> {
    let mut loader = Loader { program, images, loaded: Loaded::new() };
    loader.load(program, &[])?;
    for path in images.keys() {
        ensure!(loader.loaded.contains_key(path), "nothing loads {}", path.display());
    }
    Ok(loader.loaded)
}

struct Loader<'a> {
    program: &'a Path,
    images: &'a Images,
    loaded: Loaded,
}

impl Loader<'_> {
    /// Finds the libraries of an image, then those of each library. `inherited` are the search folders of the images that led to this one;
    /// an image's own folders come first. A library keeps the search folders of its first loading.
    fn load(&mut self, path: &Path, inherited: &[PathBuf]) -> Result<()> {
        if self.loaded.contains_key(path) {
            return Ok(());
        }
        let images = self.images;
        let image = images.get(path).with_context(|| format!("there is no {}", path.display()))?;
        let context = || format!("{} is not relocatable", path.display());
        let own = image.search.iter().map(|folder| self.expand(folder, path));
        let mut folders = own.collect::<Result<Vec<_>>>().with_context(context)?;
        folders.extend_from_slice(inherited);
        let needed = image.needed.iter().filter(|needed| **needed != image.name);
        let found = needed
            .map(|needed| Ok((needed.clone(), self.find(needed, path, &folders)?)))
            .collect::<Result<Vec<_>>>()
            .with_context(context)?;
        self.loaded.insert(path.to_owned(), found.iter().cloned().collect());
        for (_, library) in found {
            if let Found::Release(library) = library {
                self.load(&library, &folders)?;
            }
        }
        Ok(())
    }

    fn find(&self, needed: &str, loader: &Path, folders: &[PathBuf]) -> Result<Found> {
        if SYSTEM.iter().any(|folder| needed.starts_with(folder)) {
            return Ok(Found::System);
        }
        let candidates = match needed.strip_prefix("@rpath/") {
            Some(name) => folders.iter().map(|folder| join(folder, name)).collect(),
            None => vec![self.expand(needed, loader)?],
        };
        let mut candidates = candidates.into_iter().filter(|path| self.images.contains_key(path));
        Ok(Found::Release(candidates.next().with_context(|| format!("it finds no {needed}"))?))
    }

    /// Replaces the placeholders for the folders of the image and of the program.
    fn expand(&self, path: &str, image: &Path) -> Result<PathBuf> {
        for (placeholder, file) in [("@loader_path", image), ("@executable_path", self.program)] {
            let folder = file.parent().context("a file lies in a folder")?;
            match path.strip_prefix(placeholder) {
                Some("") => return Ok(folder.to_owned()),
                Some(rest) if rest.starts_with('/') => return Ok(join(folder, &rest[1..])),
                _ => {}
            }
        }
        anyhow::bail!("it refers to {path}")
    }
}

/// Joins two paths without `.` and `..`. A release has no symbolic links.
fn join(folder: &Path, path: &str) -> PathBuf {
    let mut joined = folder.to_owned();
    for component in Path::new(path).components() {
        match component {
            Component::ParentDir => drop(joined.pop()),
            Component::Normal(name) => joined.push(name),
            _ => {}
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, needed: &[&str], search: &[&str]) -> Library {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Library { name: name.to_owned(), needed: owned(needed), search: owned(search), ..Library::default() }
    }

    /// A release for macOS 26. Its libmlx has no search path and finds libjaccl by that of libmlxc.
    fn release() -> Images {
        let system = "/usr/lib/libSystem.B.dylib";
        [
            ("bin/mlx", image("", &["@rpath/libmlxc.dylib", system], &["@executable_path/../lib"])),
            (
                "lib/libmlxc.dylib",
                image("@rpath/libmlxc.dylib", &["@rpath/libmlx.dylib"], &["@loader_path/mlx/lib"]),
            ),
            ("lib/mlx/lib/libmlx.dylib", image("@rpath/libmlx.dylib", &["@rpath/libjaccl.dylib"], &[])),
            ("lib/mlx/lib/libjaccl.dylib", image("@rpath/libjaccl.dylib", &["@rpath/libjaccl.dylib"], &[])),
        ]
        .into_iter()
        .map(|(path, image)| (Path::new("/mlx").join(path), image))
        .collect()
    }

    fn loaded(images: &Images) -> Result<Loaded> {
        load(Path::new("/mlx/bin/mlx"), images)
    }

    /// Returns the error of a release with one change.
    fn broken(change: impl FnOnce(&mut Images)) -> String {
        let mut images = release();
        change(&mut images);
        format!("{:#}", loaded(&images).expect_err("the release is broken"))
    }

    fn at<'a>(images: &'a mut Images, path: &str) -> &'a mut Library {
        images.get_mut(&Path::new("/mlx").join(path)).expect("it is in the release")
    }

    #[test]
    fn a_library_is_found_by_the_search_paths_of_its_loaders() {
        let loaded = loaded(&release()).expect("all libraries are found");
        assert_eq!(loaded.len(), 4);
        let of_mlx = &loaded[Path::new("/mlx/lib/mlx/lib/libmlx.dylib")];
        let jaccl = PathBuf::from("/mlx/lib/mlx/lib/libjaccl.dylib");
        assert_eq!(of_mlx["@rpath/libjaccl.dylib"], Found::Release(jaccl));
        let of_program = &loaded[Path::new("/mlx/bin/mlx")];
        assert_eq!(of_program["/usr/lib/libSystem.B.dylib"], Found::System);
    }

    #[test]
    fn own_search_paths_come_before_inherited_ones() {
        let mut images = release();
        at(&mut images, "lib/libmlxc.dylib").search.insert(0, "@loader_path/other".to_owned());
        let copy = image("@rpath/libmlx.dylib", &["@loader_path/../mlx/lib/libjaccl.dylib"], &[]);
        images.insert("/mlx/lib/other/libmlx.dylib".into(), copy);
        images.remove(Path::new("/mlx/lib/mlx/lib/libmlx.dylib"));
        assert_eq!(loaded(&images).expect("all libraries are found").len(), 4);
    }

    #[test]
    fn search_paths_of_a_library_do_not_help_its_loader() {
        let error = broken(|images| {
            at(images, "bin/mlx").needed.push("@rpath/libmlx.dylib".to_owned());
        });
        assert_eq!(error, "/mlx/bin/mlx is not relocatable: it finds no @rpath/libmlx.dylib");
    }

    #[test]
    fn missing_and_superfluous_files_and_absolute_paths_are_errors() {
        let jaccl = Path::new("/mlx/lib/mlx/lib/libjaccl.dylib");
        let error = broken(|images| drop(images.remove(jaccl)));
        assert!(error.ends_with("it finds no @rpath/libjaccl.dylib"), "{error}");
        let error = broken(|images| at(images, "lib/mlx/lib/libmlx.dylib").needed.clear());
        assert_eq!(error, "nothing loads /mlx/lib/mlx/lib/libjaccl.dylib");
        let error = broken(|images| at(images, "bin/mlx").search.push("/opt/lib".to_owned()));
        assert!(error.ends_with("it refers to /opt/lib"), "{error}");
        let error = broken(|images| at(images, "bin/mlx").needed.push("/opt/lib/a.dylib".to_owned()));
        assert!(error.ends_with("it refers to /opt/lib/a.dylib"), "{error}");
    }
}
