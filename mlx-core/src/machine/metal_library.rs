//! `mlx.metallib`, MLX's compiled kernels: the oldest macOS that runs them, and whether they use the matrix units of M5.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::macos;

/// The bytes of the header that are read: the magic, the version of the system at 12, and the place of the function list at 24.
const HEADER: usize = 40;

/// The longest function list that is read; those of MLX 0.32 have 3 MB.
const LONGEST_LIST: u64 = 64 << 20;

/// The properties of MLX's compiled kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetalLibrary {
    /// The oldest macOS that runs the kernels: major and minor version.
    pub macos: (u16, u16),
    /// True if there are kernels for the matrix units of M5 (`nax` in MLX).
    pub has_m5_kernels: bool,
}

impl MetalLibrary {
    /// Reads the file next to the loaded `libmlx.dylib`, where MLX looks first.
    pub(super) fn find() -> Option<Self> {
        Self::read(&macos::library_path("libmlx.dylib")?.with_file_name("mlx.metallib"))
    }

    /// Reads a file. Returns `None` if it is no Metal library.
    fn read(path: &Path) -> Option<Self> {
        let mut file = File::open(path).ok()?;
        let mut header = [0; HEADER];
        file.read_exact(&mut header).ok()?;
        let short = |at: usize| Some(u16::from_le_bytes(header.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
        if header[..4] != *b"MTLB" {
            return None;
        }
        let (start, length) = (long(24)?, long(32)?.min(LONGEST_LIST));
        file.seek(SeekFrom::Start(start)).ok()?;
        let mut names = Vec::new();
        file.take(length).read_to_end(&mut names).ok()?;
        // The list also has hashes, so three letters are not enough.
        let has_m5_kernels = names.windows(5).any(|part| part == b"_nax_");
        Some(Self { macos: (short(12)?, short(14)?), has_m5_kernels })
    }
}

#[cfg(test)]
mod tests {
    use super::MetalLibrary;

    /// Returns a Metal library for a macOS with one function.
    fn library(macos: (u16, u16), function: &str) -> Vec<u8> {
        let mut bytes = b"MTLB\x01\x80\x02\0\x09\0\0\x81".to_vec();
        bytes.extend([macos.0.to_le_bytes(), macos.1.to_le_bytes()].concat());
        bytes.resize(24, 0);
        bytes.extend([88_u64.to_le_bytes(), (function.len() as u64).to_le_bytes()].concat());
        bytes.resize(88, 0);
        bytes.extend(function.as_bytes());
        bytes
    }

    #[test]
    fn a_metal_library_names_its_macos_and_its_kernels() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("mlx.metallib");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).expect("it can be written");
            MetalLibrary::read(&file)
        };
        let with = library((26, 2), "NAME steel_gemm_fused_nax_nn_float16");
        assert_eq!(read(&with), Some(MetalLibrary { macos: (26, 2), has_m5_kernels: true }));
        let without = library((14, 0), "NAME steel_gemm_fused_nn_float16 nax");
        assert_eq!(read(&without), Some(MetalLibrary { macos: (14, 0), has_m5_kernels: false }));
        // Damaged files are no reason to fail.
        assert_eq!(read(&with[..30]), None);
        assert_eq!(read(b"no library, but long enough for a header ..."), None);
        assert_eq!(read(&with[..90]).map(|it| it.has_m5_kernels), Some(false));
    }
}
