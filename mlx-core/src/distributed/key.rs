//! A secret key for HMAC-SHA256 (RFC 2104). A machine proves that it has the key with the HMAC of nonces of both sides.

use std::fmt;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::connection::Outcome;
use crate::error::{Error, Result};

/// The block size of SHA-256 in bytes.
const BLOCK: usize = 64;

/// The minimum length of a key in a file, in bytes.
const SHORTEST: usize = 16;

/// A secret key. `Debug` does not print it. It is only serialized for a child process of the same program.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key(Vec<u8>);

impl Key {
    /// Reads a key from a file, without surrounding white space.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, error))?;
        Self::of(path, &text)
    }

    /// Like [`read`](Self::read), for text that was already read from `path`.
    pub fn of(path: &Path, text: &str) -> Result<Self> {
        let key = text.trim().as_bytes().to_vec();
        if key.len() < SHORTEST {
            let message =
                format!("a key needs at least {SHORTEST} bytes; `openssl rand -hex 32` creates one");
            return Err(Error::file(path, message));
        }
        Ok(Self(key))
    }

    /// Returns a new key of 32 random bytes, in hex.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| Error::io("the system's random numbers", std::io::Error::other(error)))?;
        Ok(Self(hex(&bytes).into_bytes()))
    }

    /// Writes the key as one line, for a program that shares it.
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        to.write_all(&[&self.0[..], b"\n"].concat())
    }

    /// True if there is no key, as between programs on one machine.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the proof that this side has the key: the HMAC of its role and both nonces.
    pub(super) fn proof(&self, role: &str, nonces: [&str; 2]) -> String {
        let text = format!("{role} {} {}", nonces[0], nonces[1]);
        hex(&self.hmac(text.as_bytes()))
    }

    /// Returns the HMAC-SHA256 of a text.
    pub fn hmac(&self, text: &[u8]) -> [u8; 32] {
        let mut block = [0; BLOCK];
        if self.0.len() > BLOCK {
            block[..32].copy_from_slice(&Sha256::digest(&self.0));
        } else {
            block[..self.0.len()].copy_from_slice(&self.0);
        }
        let padded = |pad: u8| block.map(|byte| byte ^ pad);
        let inner = Sha256::new().chain_update(padded(0x36)).chain_update(text).finalize();
        Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize().into()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_empty() { "Key(none)" } else { "Key(…)" })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Compares two proofs in constant time.
pub(super) fn are_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Returns a random number from the system, in hex.
pub(super) fn nonce() -> Outcome<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| format!("cannot get random numbers from the system: {error}"))?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_of_rfc_4231() {
        let of = |key: &[u8], text: &[u8]| hex(&Key(key.to_vec()).hmac(text));
        assert_eq!(
            of(b"Jefe", b"what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            of(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn proofs_differ_by_key_role_and_number() {
        let (key, other) = (Key(b"one".to_vec()), Key(b"two".to_vec()));
        let proof = key.proof("worker", ["1", "2"]);
        assert!(are_equal(&proof, &key.proof("worker", ["1", "2"])));
        for wrong in [
            other.proof("worker", ["1", "2"]),
            key.proof("rank 0", ["1", "2"]),
            key.proof("worker", ["1", "3"]),
            String::new(),
        ] {
            assert!(!are_equal(&proof, &wrong));
        }
        assert_ne!(nonce(), nonce());
        assert_eq!(nonce().expect("the system gives one").len(), 32);
        assert_eq!(format!("{key:?}"), "Key(…)");
    }
}
