//! Makes a Python wheel with the program of a release. pip and uv install MLX's own packages next to it.

mod metadata;
mod zip;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::files::{files_of, name_of};
use metadata::{ENTRY_POINTS, MODULE};
use zip::Entry;

/// Files with the terms of the program itself, sorted.
const LICENSES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// The contents of a wheel.
pub(super) struct Wheel<'a> {
    /// The folder of a finished release. Its program and our library are used unchanged.
    pub(super) release: &'a Path,
    /// The file name of our library.
    pub(super) library: &'a str,
    /// The requirements for pip: the packages that our library is linked with.
    pub(super) requirements: Vec<String>,
    /// The platform tag, such as macosx_14_0_arm64.
    pub(super) platform: String,
}

impl Wheel<'_> {
    /// Writes the wheel into `dist` and returns its path.
    pub(super) fn make(&self, dist: &Path) -> Result<PathBuf> {
        let version = env!("CARGO_PKG_VERSION");
        ensure!(!version.contains('-'), "the version is {version}; that of a wheel has no `-`");
        let info = format!("{MODULE}-{version}.dist-info");
        let entries = self.entries(version, &info)?;
        let path = dist.join(format!("{MODULE}-{version}-{}.whl", metadata::tag(&self.platform)));
        fs::write(&path, zip::pack(&entries)?).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Returns all files. The format recommends that those in `info` come last.
    fn entries(&self, version: &str, info: &str) -> Result<Vec<Entry>> {
        let release = self.release;
        let mut entries = vec![text(format!("{MODULE}/__init__.py"), include_str!("start.py"))];
        let program = release.join("bin/mlx");
        let ours = [program.clone(), release.join("lib").join(self.library)];
        for file in ours.into_iter().chain(files_of(&release.join("licenses"))?) {
            let inner = file.strip_prefix(release)?.to_str().context("a file name is not UTF-8")?;
            entries.push(copy(format!("{MODULE}/{inner}"), &file)?);
        }
        let readme = fs::read_to_string(release.join("README.md")).context("there is no README.md")?;
        let fields = metadata::metadata(version, &self.platform, &self.requirements, &LICENSES, &readme);
        entries.push(text(format!("{info}/METADATA"), &fields));
        entries.push(text(format!("{info}/WHEEL"), &metadata::wheel(version, &self.platform)));
        entries.push(text(format!("{info}/entry_points.txt"), ENTRY_POINTS));
        for name in LICENSES {
            entries.push(copy(format!("{info}/licenses/{name}"), &release.join(name))?);
        }
        let bill = release.join("bill-of-materials.json");
        entries.push(copy(format!("{info}/sboms/mlx.cdx.json"), &bill)?);
        let record = format!("{info}/RECORD");
        let listed = metadata::record(&entries, &record);
        entries.push(text(record, &listed));
        Ok(entries)
    }
}

fn text(path: String, content: &str) -> Entry {
    Entry { path, content: content.as_bytes().to_vec(), is_program: false }
}

fn copy(path: String, file: &Path) -> Result<Entry> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Entry { path, content, is_program: name_of(file) == "mlx" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_contains_our_files_of_the_release_and_requires_the_rest() {
        let folder = tempfile::tempdir().expect("there is room");
        let release = folder.path().join("release");
        for name in [
            "bin/mlx",
            "lib/libmlxc.so",
            "lib/mlx/lib/libmlx.so",
            "licenses/tar-1/LICENSE",
            "README.md",
            "LICENSE-MIT",
            "LICENSE-APACHE",
            "bill-of-materials.json",
        ] {
            let file = release.join(name);
            fs::create_dir_all(file.parent().expect("it lies in a folder")).expect("it can be made");
            fs::write(file, name).expect("it can be written");
        }
        let wheel = Wheel {
            release: &release,
            library: "libmlxc.so",
            requirements: vec!["mlx-cpu==1.2".to_owned()],
            platform: "manylinux_2_35_x86_64".to_owned(),
        };
        let entries = wheel.entries("1.0", "info").expect("all files are there");
        let paths: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "mlx_local/__init__.py",
                "mlx_local/bin/mlx",
                "mlx_local/lib/libmlxc.so",
                "mlx_local/licenses/tar-1/LICENSE",
                "info/METADATA",
                "info/WHEEL",
                "info/entry_points.txt",
                "info/licenses/LICENSE-APACHE",
                "info/licenses/LICENSE-MIT",
                "info/sboms/mlx.cdx.json",
                "info/RECORD",
            ]
        );
        let programs = entries.iter().filter(|entry| entry.is_program).map(|entry| entry.path.as_str());
        assert_eq!(programs.collect::<Vec<_>>(), ["mlx_local/bin/mlx"]);
        let path = wheel.make(folder.path()).expect("it can be written");
        let first = fs::read(&path).expect("it is there");
        assert!(name_of(&path).ends_with("-py3-none-manylinux_2_35_x86_64.whl"), "{}", path.display());
        assert_eq!(first, fs::read(wheel.make(folder.path()).expect("again")).expect("it is there"));
    }
}
