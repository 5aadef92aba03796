//! The output folder of a conversion. Invariant: no file gets its final name before everything is written, and only files of the
//! conversion are ever removed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use mlx_gguf::GgufFolder;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use crate::error::{Error, Result};

/// Extensions of weight files, which are not copied.
const WEIGHTS: [&str; 9] = ["safetensors", "bin", "pth", "pt", "gguf", "npz", "h5", "msgpack", "onnx"];

/// A temporary folder next to the target.
pub(super) struct Output {
    target: PathBuf,
    temporary: PathBuf,
}

impl Output {
    /// Checks that `target` may be written and creates the temporary folder. Only `force` allows a target that is not empty.
    pub(super) fn new(source: &Path, target: &Path, force: bool) -> Result<Self> {
        let (found, given) = (fs::canonicalize(target).ok(), fs::canonicalize(source).ok());
        if found.is_some() && found == given {
            return Err(Error::file(target, "is the source model; choose another output folder"));
        }
        if target.exists() && !target.is_dir() {
            return Err(Error::file(target, "is a file; the output must be a folder"));
        }
        let full = fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_some());
        if full && !force {
            return Err(Error::NotEmpty { folder: target.to_path_buf() });
        }
        let name = target.file_name().ok_or_else(|| Error::file(target, "is not a folder name"))?;
        let temporary = format!(".{}.{}.partial", name.to_string_lossy(), std::process::id());
        let temporary = target.with_file_name(temporary);
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            fs::create_dir_all(parent).map_err(|error| Error::io(parent, error))?;
        }
        fs::create_dir(&temporary).map_err(|error| Error::io(&temporary, error))?;
        Ok(Self { target: target.to_path_buf(), temporary })
    }

    /// The temporary folder to write into.
    pub(super) fn folder(&self) -> &Path {
        &self.temporary
    }

    /// Rejects a target with weight files other than `names`, because mlx-lm would load them together.
    pub(super) fn expect_no_other_weights(&self, names: &[&str]) -> Result<()> {
        let is_other = |name: &str| {
            let weights = Path::new(name).extension().is_some_and(|end| end == "safetensors");
            name.starts_with("model") && weights && !names.contains(&name)
        };
        match files(&self.target).into_iter().flatten().find(|path| is_other(&text(path))) {
            Some(path) => Err(Error::file(
                path,
                "would be loaded together with the new weights; remove it, or choose another folder",
            )),
            None => Ok(()),
        }
    }

    /// Copies the other files of `source`, such as the tokenizer, templates, generation defaults and licenses. Also copies files in subfolders
    /// that change an answer, such as the modules of sentence-transformers with their weights.
    pub(super) fn copy_other_files(&self, source: &Path) -> Result<()> {
        if source.is_file() {
            return self.write_files_of_gguf(source);
        }
        for path in files(source).map_err(|error| Error::io(source, error))? {
            let name = text(&path);
            let weights = path.extension().and_then(OsStr::to_str).is_some_and(|end| WEIGHTS.contains(&end));
            // Loading dequantized the weights that ModelOpt's file describes.
            let own = name == "config.json"
                || name == "hf_quant_config.json"
                || name.ends_with(".index.json")
                || name.starts_with('.');
            if !weights && !own {
                self.copy(&path, &name)?;
            }
        }
        for folder in folders(source).map_err(|error| Error::io(source, error))? {
            self.copy_folder(&folder)?;
        }
        Ok(())
    }

    /// Writes the small files that a GGUF file replaces.
    fn write_files_of_gguf(&self, source: &Path) -> Result<()> {
        let folder = GgufFolder::open(source)?;
        for name in GgufFolder::SMALL_FILES.into_iter().filter(|name| *name != "config.json") {
            if let Some(bytes) = folder.small_file(name)? {
                self.write(name, &bytes)?;
            }
        }
        Ok(())
    }

    /// Copies the files of a folder that change an answer.
    fn copy_folder(&self, source: &Path) -> Result<()> {
        let name = text(source);
        let paths = files(source).map_err(|error| Error::io(source, error))?;
        let paths: Vec<PathBuf> = paths
            .into_iter()
            .filter(|path| mlx_hub::affects_output(&format!("{name}/{}", text(path))))
            .collect();
        if paths.is_empty() {
            return Ok(());
        }
        let folder = self.temporary.join(&name);
        fs::create_dir(&folder).map_err(|error| Error::io(&folder, error))?;
        paths.iter().try_for_each(|path| self.copy(path, &format!("{name}/{}", text(path))))
    }

    /// Writes a JSON file in the format of Python's `json` with an indent of 4.
    pub(super) fn write_json(&self, name: &str, value: &Value) -> Result<()> {
        let mut bytes = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b"    "));
        value
            .serialize(&mut serializer)
            .map_err(|error| Error::file(self.temporary.join(name), error.to_string()))?;
        self.write(name, &bytes)
    }

    /// Copies the contents only: `fs::copy` would also copy the read-only mode of cached files.
    fn copy(&self, from: &Path, name: &str) -> Result<()> {
        let mut source = File::open(from).map_err(|error| Error::io(from, error))?;
        let path = self.temporary.join(name);
        let copied = File::create(&path).and_then(|mut target| io::copy(&mut source, &mut target));
        copied.map(drop).map_err(|error| Error::io(&path, error))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.temporary.join(name);
        fs::write(&path, bytes).map_err(|error| Error::io(&path, error))
    }

    /// Moves everything to its final name: the folder at once, or file by file if the target exists.
    pub(super) fn finish(self) -> Result<()> {
        if !self.target.exists() {
            return fs::rename(&self.temporary, &self.target).map_err(|error| Error::io(&self.target, error));
        }
        move_files(&self.temporary, &self.target)?;
        let folders = folders(&self.temporary).map_err(|error| Error::io(&self.temporary, error))?;
        folders.iter().try_for_each(|folder| move_files(folder, &self.target.join(text(folder))))
    }
}

/// Moves the files of one folder into another and replaces files of the same names.
fn move_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).map_err(|error| Error::io(to, error))?;
    for path in files(from).map_err(|error| Error::io(from, error))? {
        let target = to.join(text(&path));
        fs::rename(&path, &target).map_err(|error| Error::io(&target, error))?;
    }
    Ok(())
}

impl Drop for Output {
    fn drop(&mut self) {
        // After `finish`, the folder is empty or gone.
        fs::remove_dir_all(&self.temporary).ok();
    }
}

/// The files directly in `folder`, sorted by name.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    entries(folder, Path::is_file)
}

/// The folders directly in `folder`, sorted by name.
fn folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    entries(folder, Path::is_dir)
}

fn entries(folder: &Path, is_wanted: fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let paths: io::Result<Vec<PathBuf>> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    let mut paths: Vec<PathBuf> = paths?.into_iter().filter(|path| is_wanted(path)).collect();
    paths.sort();
    Ok(paths)
}

fn text(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
