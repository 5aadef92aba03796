//! Files that are there as a whole or not at all, also if the machine stops or the disk is full.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// How the name of a file ends that is not whole yet.
pub(crate) const TEMPORARY: &str = "tmp";

/// Writes a file, and its folder if there is none; what was there before stays until all of it is written. The temporary file beside
/// it is called `STEM.RANDOM.tmp`.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, bytes).map_err(|error| Error::io(path, error))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A link goes on leading to its file.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let before = fs::metadata(&target).ok();
    if before.as_ref().is_some_and(|it| !it.is_file()) {
        // A device or a pipe is no file that another could take the place of.
        return fs::write(&target, bytes);
    }
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let stem = target.file_stem().unwrap_or_default().to_string_lossy();
    let mut file = tempfile::Builder::new()
        .prefix(&format!("{stem}."))
        .suffix(&format!(".{TEMPORARY}"))
        .permissions(permissions(before.as_ref()))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(&target)?;
    keep_names(folder);
    Ok(())
}

/// Those of the file whose place is taken; for a new one, what everybody's settings say of new files.
fn permissions(before: Option<&fs::Metadata>) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    before.map_or_else(|| fs::Permissions::from_mode(0o666), fs::Metadata::permissions)
}

/// Sees that the names in a folder are on the disk. Not every system can do that with a folder; then a name may be lost in a crash,
/// and only the name.
pub fn keep_names(folder: &Path) {
    File::open(folder).and_then(|folder| folder.sync_all()).ok();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_file_keeps_its_place_its_rights_and_its_links() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (path, link) = (folder.path().join("new/chat.json"), folder.path().join("link.json"));
        write_atomically(&path, b"one").expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
        symlink(&path, &link).expect("a link can be made");
        write_atomically(&link, b"two").expect("it can be written");
        assert_eq!(fs::read(&path).expect("it is there"), b"two");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        let names = fs::read_dir(folder.path().join("new")).expect("it is there").count();
        assert_eq!(names, 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_what_was_there_stays() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("chat.json");
        write_atomically(&path, b"one").expect("it can be written");
        let error = write_atomically(&path.join("below"), b"two").expect_err("a file has nothing below it");
        assert!(error.to_string().contains("chat.json"), "{error}");
        assert_eq!(fs::read(&path).expect("it is there"), b"one");
    }
}
