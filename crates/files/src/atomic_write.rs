//! Atomic file writes: a file is replaced completely or not at all, even after a crash or on a full disk.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use mlx_gguf::{Error, Result};

/// The extension of a temporary file.
pub const TEMPORARY: &str = "tmp";

/// Writes a file atomically and creates its folder if needed. An existing file stays in place until the new one is
/// complete. The temporary file is in the same folder and is named `STEM.RANDOM.tmp`.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let kept = |before: Option<Permissions>| before.unwrap_or_else(|| Permissions::from_mode(0o666));
    write(path, bytes, kept).map_err(|error| Error::io(path, error))
}

/// Atomically writes a file that only this user may read. If an existing file is readable by others, it loses these
/// permissions. A missing folder is created for this user only.
pub fn write_privately(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let created = folder.filter(|folder| !folder.exists()).map_or(Ok(()), private_folder);
    created
        .and_then(|()| write(path, bytes, |_| Permissions::from_mode(0o600)))
        .map_err(|error| Error::io(path, error))
}

/// Writes a file that only this user may read, unless it exists. Returns true if it was written.
pub fn create_privately(path: &Path, bytes: &[u8]) -> Result<bool> {
    let create = || -> io::Result<bool> {
        let mut file = temporary(path, Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(path) {
            Ok(_) => Ok(true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.error),
        }
    };
    create().map_err(|error| Error::io(path, error))
}

/// Creates a folder that only this user may read. An existing one stays unchanged.
pub fn create_private_folder(folder: &Path) -> Result<()> {
    private_folder(folder).map_err(|error| Error::io(folder, error))
}

/// Warns if other users may read a folder. It is not an error, since its owner may have opened it on purpose.
pub fn warn_of_readers(folder: &Path) {
    let mode = fs::metadata(folder).map_or(0o700, |metadata| metadata.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        tracing::warn!(
            folder = %folder.display(),
            mode = format_args!("{mode:o}"),
            "other users of this machine may read the folder; run chmod 700 on it to prevent this"
        );
    }
}

fn private_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Writes a file. `permissions` maps the permissions of the replaced file to those of the new one, before the umask.
fn write(
    path: &Path,
    bytes: &[u8],
    permissions: impl FnOnce(Option<Permissions>) -> Permissions,
) -> io::Result<()> {
    // Replace the target of a symbolic link, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let before = fs::metadata(&target).ok();
    if before.as_ref().is_some_and(|it| !it.is_file()) {
        // A device or a pipe cannot be replaced by a rename.
        return fs::write(&target, bytes);
    }
    let mut file = temporary(&target, permissions(before.map(|before| before.permissions())))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(&target)?;
    sync_folder(folder_of(&target));
    Ok(())
}

/// Creates a temporary file in the folder of `target`, and the folder if needed.
fn temporary(target: &Path, permissions: Permissions) -> io::Result<tempfile::NamedTempFile> {
    let folder = folder_of(target);
    fs::create_dir_all(folder)?;
    let stem = target.file_stem().unwrap_or_default().to_string_lossy();
    tempfile::Builder::new()
        .prefix(&format!("{stem}."))
        .suffix(&format!(".{TEMPORARY}"))
        .permissions(permissions)
        .tempfile_in(folder)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the directory entries of a folder to disk. Some systems cannot sync a folder; there, a crash may lose a new name but no
/// contents.
pub fn sync_folder(folder: &Path) {
    File::open(folder).and_then(|folder| folder.sync_all()).ok();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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
    fn private_files_and_their_folders_are_closed_to_others() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        let (own, path) = (folder.path().join("a/b"), folder.path().join("a/b/c.json"));
        write_privately(&path, b"one").expect("it can be written");
        assert_eq!([mode(&own.join("..")), mode(&own), mode(&path)], [0o700, 0o700, 0o600]);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("it is ours");
        write_privately(&path, b"two").expect("it can be written");
        assert_eq!(mode(&path), 0o600, "an earlier version left it open");
        let secret = own.join("secret");
        assert!(create_privately(&secret, b"one").expect("it can be written"));
        assert!(!create_privately(&secret, b"two").expect("it is there"));
        assert_eq!((fs::read(&secret).expect("a file"), mode(&secret)), (b"one".to_vec(), 0o600));
        // The owner may have opened the folder on purpose.
        fs::set_permissions(&own, Permissions::from_mode(0o750)).expect("it is ours");
        create_private_folder(&own).expect("it is there");
        assert_eq!(mode(&own), 0o750);
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
