//! Common code of the fuzz targets: folders in memory, fixtures, and the panic hook that ends a run.

pub mod json;

use std::fs;
use std::path::{Path, PathBuf};

use chat_template::GUARDED_THREAD;
use tempfile::TempDir;

/// Ends the run at a panic on any thread. Guarded threads are exempt, because the product turns their panics into errors.
pub fn watch_panics() {
    // libFuzzer's own hook ends the run at any panic.
    drop(std::panic::take_hook());
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(GUARDED_THREAD) {
            report(panic);
            std::process::abort();
        }
    }));
}

/// The path of `tests/golden`.
pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// The folder of a tiny checkpoint.
pub fn model(name: &str) -> PathBuf {
    golden().join("models").join(name)
}

/// The contents of all files of this name in `tests/golden`, in the order of their folders.
pub fn fixtures(file: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    collect(&golden(), file, &mut found);
    found
}

fn collect(folder: &Path, file: &str, found: &mut Vec<Vec<u8>>) {
    found.extend(fs::read(folder.join(file)));
    let entries = fs::read_dir(folder).expect("the fixtures are in the repository");
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().for_each(|folder| collect(folder, file, found));
}

/// The contents of a target's seeds in this repository.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let entries = fs::read_dir(folder).expect("the seeds are in the repository");
    entries.flatten().filter_map(|entry| fs::read(entry.path()).ok()).collect()
}

/// Creates an empty folder, in memory if the system supports it.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }
        .expect("a temporary folder")
}

/// Copies a folder of `tests/golden` with writable files.
pub fn copy(name: &str) -> TempDir {
    let copy = folder();
    for entry in fs::read_dir(golden().join(name)).expect("the fixture is in the repository").flatten() {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("the file can be copied");
    }
    copy
}

/// Writes a file of a folder.
pub fn write(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) {
    fs::write(folder.path().join(name), bytes).expect("the file can be written");
}

/// Splits the data at the first zero byte.
pub fn halves(data: &[u8]) -> (&[u8], &[u8]) {
    let middle = data.iter().position(|byte| *byte == 0);
    middle.map_or((data, &[]), |middle| (&data[..middle], &data[middle + 1..]))
}
