//! Atomic file writes: a file is replaced completely or not at all, even after a crash or with a full disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// The extension of a temporary file.
pub(crate) const TEMPORARY: &str = "tmp";

/// Writes a file atomically and creates its folder if needed. An existing file stays until the new one is complete. The temporary
/// file in the same folder is named `STEM.RANDOM.tmp`.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, bytes).map_err(|error| Error::io(path, error))
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Replace the target of a link, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let before = fs::metadata(&target).ok();
    if before.as_ref().is_some_and(|it| !it.is_file()) {
        // A device or a pipe cannot be replaced by a rename.
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

/// The permissions of the replaced file; for a new file, 0666 less the umask.
fn permissions(before: Option<&fs::Metadata>) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    before.map_or_else(|| fs::Permissions::from_mode(0o666), fs::Metadata::permissions)
}

/// Syncs the directory entries of a folder to disk. Some systems cannot sync a folder; there, a crash may lose a new name but no
/// contents.
pub fn keep_names(folder: &Path) {
    File::open(folder).and_then(|folder| folder.sync_all()).ok();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_replaced_file_keeps_its_permissions_and_links() {
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
    fn a_failed_write_names_the_file_and_leaves_the_old_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("chat.json");
        write_atomically(&path, b"one").expect("it can be written");
        let error = write_atomically(&path.join("below"), b"two").expect_err("a file has nothing below it");
        assert!(error.to_string().contains("chat.json"), "{error}");
        assert_eq!(fs::read(&path).expect("it is there"), b"one");
    }
}
