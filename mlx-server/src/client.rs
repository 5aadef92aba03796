//! Client identities: a client is its API key, or its address if it has no key. Running sequences are shared evenly among clients, and a client
//! sees only its own stored responses. Invariant: a client is the HMAC of its key or address under a secret of this server, so nothing on disk
//! reveals a key.

use std::net::IpAddr;
use std::path::Path;

use axum::extract::Request;
use axum::http::Extensions;
use mlx_core::distributed::Key;
use mlx_core::engine::Client;
use mlx_files::{create_private_folder, create_privately};

/// The name of the file with the secret. It is in the folders of the journal, the prompt cache and the files.
const SECRET: &str = "client-secret";

/// Derives clients from API keys and addresses.
pub(crate) struct Identities(Key);

impl Identities {
    /// Reads the secret of the first folder that has one, or creates one. The other folders get it, too, so that clients stay the same if a
    /// later start names fewer folders. Without a folder, the secret and all clients last until the server ends.
    pub(crate) fn open(folders: &[&Path]) -> mlx_core::Result<Self> {
        let paths: Vec<_> = folders.iter().map(|folder| folder.join(SECRET)).collect();
        let key = match paths.iter().find(|path| path.exists()) {
            Some(path) => Key::read(path)?,
            None => Key::random()?,
        };
        let mut line = Vec::new();
        // Writing to memory does not fail.
        key.write(&mut line).ok();
        for (folder, path) in folders.iter().zip(&paths).filter(|(_, path)| !path.exists()) {
            create_private_folder(folder)?;
            create_privately(path, &line)?;
        }
        Ok(Self(key))
    }

    /// Returns the client of an address. A /64 network of IPv6 is one client, since a machine may have many addresses in it.
    pub(crate) fn of_address(&self, address: IpAddr) -> Client {
        match address.to_canonical() {
            IpAddr::V4(address) => self.of("address", &address.octets()),
            IpAddr::V6(address) => self.of("network", &address.octets()[..8]),
        }
    }

    /// Returns the client of an API key.
    pub(crate) fn of_key(&self, key: &[u8]) -> Client {
        self.of("key", key)
    }

    fn of(&self, kind: &str, name: &[u8]) -> Client {
        let hmac = self.0.hmac(&[kind.as_bytes(), b" ", name].concat());
        let (start, _) = hmac.split_first_chunk().expect("an HMAC has 32 bytes");
        Client(u64::from_be_bytes(*start))
    }
}

/// Returns the client of a request.
pub(crate) fn from_request(request: &Request) -> Client {
    of(request.extensions())
}

/// Returns the client in the extensions of a request.
pub(crate) fn of(extensions: &Extensions) -> Client {
    extensions.get().copied().unwrap_or_default()
}

/// Serializes a client as 16 hexadecimal digits. Earlier versions wrote another hash, as a number; it is read as `None`.
pub(crate) mod stored {
    use mlx_core::engine::Client;
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_json::Value;

    #[expect(clippy::ref_option, reason = "serde calls it with that")]
    pub(crate) fn serialize<S: Serializer>(client: &Option<Client>, to: S) -> Result<S::Ok, S::Error> {
        match client {
            Some(Client(number)) => to.collect_str(&format_args!("{number:016x}")),
            None => to.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Client>, D::Error> {
        let value = Value::deserialize(from)?;
        let digits = value.as_str().filter(|digits| digits.len() == 16);
        Ok(digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).map(Client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_client_and_so_is_an_ipv6_network() {
        let identities = Identities::open(&[]).expect("random numbers");
        let client = |address: &str| identities.of_address(address.parse().expect("an address"));
        assert_ne!(client("127.0.0.1"), client("127.0.0.2"));
        assert_eq!(client("127.0.0.1"), client("::ffff:127.0.0.1"));
        assert_eq!(client("2001:db8::1"), client("2001:db8::2:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_ne!(identities.of_key(b"one"), identities.of_key(b"two"));
        assert_ne!(identities.of_key(&[127, 0, 0, 1]), client("127.0.0.1"));
    }

    #[test]
    fn a_folder_decides_which_client_a_key_is() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let client = |folders: &[&Path]| Identities::open(folders).expect("a secret").of_key(b"some key");
        let paths = folders.each_ref().map(tempfile::TempDir::path);
        let [one, other] = paths.map(|folder| client(&[folder]));
        assert_ne!(one, other);
        assert_eq!(client(&[paths[0]]), one, "after a restart");
        let new = folders[0].path().join("new");
        assert_eq!(client(&[&new, paths[0]]), one, "with another folder");
        assert_eq!(client(&[&new]), one, "which has the secret, too");
        assert_ne!(client(&[]), client(&[]));
        std::fs::write(folders[0].path().join(SECRET), "short").expect("it is ours");
        let error = Identities::open(&[paths[0]]).err().expect("no secret").to_string();
        assert!(error.contains(SECRET), "{error}");
    }
}
