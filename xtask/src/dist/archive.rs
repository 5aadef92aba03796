//! Packs a folder into a reproducible archive with a checksum: equal files give equal bytes on every system.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::files::files_of;

/// Packs the folder `name` in `dist`, with `time` in seconds for all files, and writes the checksum next to the archive.
pub(super) fn pack(dist: &Path, name: &str, time: u64) -> Result<PathBuf> {
    let path = dist.join(format!("{name}.tar.gz"));
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let packed = GzBuilder::new().mtime(0).write(file, Compression::best());
    let mut archive = Builder::new(packed);
    for file in files_of(&dist.join(name))? {
        let content = fs::read(&file)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mtime(time);
        header.set_mode(if is_program(&file) { 0o755 } else { 0o644 });
        archive.append_data(&mut header, file.strip_prefix(dist)?, content.as_slice())?;
    }
    archive.into_inner()?.finish()?.flush()?;
    let text = format!("{}  {name}.tar.gz\n", checksum(&path)?);
    fs::write(dist.join(format!("{name}.tar.gz.sha256")), text)?;
    Ok(path)
}

/// Returns the SHA-256 of a file in hexadecimal.
pub(super) fn checksum(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut block = vec![0; 1 << 16];
    loop {
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(read) => digest.update(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(format!("{:x}", digest.finalize()))
}

/// Returns true for files in `bin` and for `.sh` scripts.
fn is_program(file: &Path) -> bool {
    file.parent().is_some_and(|folder| folder.ends_with("bin"))
        || file.extension().is_some_and(|end| end == "sh")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_owner_and_time_of_files_leave_no_trace() {
        let packed = |names: [&str; 2]| {
            let dist = tempfile::tempdir().expect("there is room");
            for name in names {
                let file = dist.path().join("mlx").join(name);
                fs::create_dir_all(file.parent().expect("it lies in a folder")).expect("it can be made");
                fs::write(file, name).expect("it can be written");
            }
            let archive = pack(dist.path(), "mlx", 7).expect("it is packed");
            let sum = fs::read_to_string(dist.path().join("mlx.tar.gz.sha256")).expect("it is there");
            assert_eq!(sum, format!("{}  mlx.tar.gz\n", checksum(&archive).expect("it can be read")));
            fs::read(archive).expect("it can be read")
        };
        assert_eq!(packed(["bin/mlx", "README.md"]), packed(["README.md", "bin/mlx"]));
    }
}
