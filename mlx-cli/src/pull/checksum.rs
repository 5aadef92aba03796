//! The checksums by which the hub names contents: SHA-256 of large files, git's SHA-1 of small ones.

use std::io::{ErrorKind, Read};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// Adds up the bytes of a file.
pub(super) struct Checksum(Option<Context>);

impl Checksum {
    /// For a content of `size` bytes that is called `etag`. Mirrors may use other names; those can only be compared by size.
    pub(super) fn new(etag: &str, size: u64) -> Self {
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

    pub(super) fn update(&mut self, bytes: &[u8]) {
        if let Some(context) = &mut self.0 {
            context.update(bytes);
        }
    }

    /// Adds what is left in `file`; tells how many bytes were read so far, and gives the number of all.
    pub(super) fn read(&mut self, mut file: impl Read, tell: &mut dyn FnMut(u64)) -> std::io::Result<u64> {
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(count) => {
                    self.update(&buffer[..count]);
                    total += count as u64;
                    tell(total);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the bytes were those of `etag`.
    pub(super) fn is(self, etag: &str) -> bool {
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

    fn is(bytes: &[u8], etag: &str) -> bool {
        let mut checksum = Checksum::new(etag, bytes.len() as u64);
        assert_eq!(checksum.read(bytes, &mut |_| {}).expect("reads"), bytes.len() as u64);
        checksum.is(etag)
    }

    #[test]
    fn both_kinds_are_known() {
        // `printf hello | git hash-object --stdin` and `printf hello | sha256sum`.
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        for etag in [git, sha256] {
            assert!(is(b"hello", etag) && !is(b"hallo", etag), "{etag}");
        }
        assert!(is(b"anything", "a-mirror-s-own-name"));
    }
}
