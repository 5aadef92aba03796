//! The checksums that identify files on the Hub: SHA-256 for large files, git's SHA-1 for small ones.

use std::io::{ErrorKind, Read};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// An incremental checksum; `None` if the kind of the expected one is unknown.
pub(crate) struct Checksum(Option<Context>);

impl Checksum {
    /// Returns a checksum for a file of `size` bytes with this `etag`. Mirrors may use other etags; then only the size
    /// is compared.
    pub(crate) fn new(etag: &str, size: u64) -> Self {
        let digits = etag.chars().all(|symbol| symbol.is_ascii_hexdigit());
        Self(match etag.len() {
            64 if digits => Some(Context::new(&SHA256)),
            40 if digits => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Some(context)
            }
            _ => None,
        })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        if let Some(context) = &mut self.0 {
            context.update(bytes);
        }
    }

    /// Adds the remaining bytes of `file`. Calls `progress` with the bytes read so far, and returns the total.
    pub(crate) fn read(
        &mut self,
        mut file: impl Read,
        progress: &mut dyn FnMut(u64),
    ) -> std::io::Result<u64> {
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(count) => {
                    self.update(&buffer[..count]);
                    total += count as u64;
                    progress(total);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if the checksum equals `etag`, or if its kind is unknown.
    pub(crate) fn matches(self, etag: &str) -> bool {
        let Some(context) = self.0 else { return true };
        let sum = context.finish();
        let halves = sum.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digits: String = halves.filter_map(|half| char::from_digit(half.into(), 16)).collect();
        digits.eq_ignore_ascii_case(etag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(bytes: &[u8], etag: &str) -> bool {
        let mut checksum = Checksum::new(etag, bytes.len() as u64);
        assert_eq!(checksum.read(bytes, &mut |_| {}).expect("reads"), bytes.len() as u64);
        checksum.matches(etag)
    }

    #[test]
    fn both_kinds_of_checksums_are_verified() {
        // `printf hello | git hash-object --stdin` and `printf hello | sha256sum`.
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        for etag in [git, sha256] {
            assert!(matches(b"hello", etag) && !matches(b"hallo", etag), "{etag}");
        }
        assert!(matches(b"anything", "an-etag-of-a-mirror"));
    }
}
