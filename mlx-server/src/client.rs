//! Client identities: a client is its API key, or its address if it has no key. Running sequences are shared evenly among clients, and a client
//! sees only its own stored responses. Invariant: a client is the HMAC of its key or address under a secret of this server, so nothing on disk
//! reveals a key.

use std::net::IpAddr;
use std::path::Path;

use axum::extract::Request;
use mlx_core::distributed::Key;
use mlx_core::engine::Client;
use mlx_files::{create_private_folder, create_privately};

/// The name of the file with the secret. It is in the folder of the journal or of the prompt cache.
const SECRET: &str = "client-secret";

/// Derives clients from API keys and addresses.
pub(crate) struct Identities(Key);

impl Identities {
    /// Reads the secret of a folder, and creates it if necessary. Clients stay the same as long as the folder has the secret. Without a
    /// folder, the secret and all clients last until the server ends.
    pub(crate) fn open(folder: Option<&Path>) -> mlx_core::Result<Self> {
        let Some(folder) = folder else { return Key::random().map(Self) };
        create_private_folder(folder)?;
        let path = folder.join(SECRET);
        if !path.exists() {
            let mut line = Vec::new();
            // Writing to memory does not fail.
            Key::random()?.write(&mut line).ok();
            create_privately(&path, &line)?;
        }
        Key::read(&path).map(Self)
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
    request.extensions().get().copied().unwrap_or_default()
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
        let identities = Identities::open(None).expect("random numbers");
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
        let client = |folder: Option<&Path>| Identities::open(folder).expect("a secret").of_key(b"some key");
        let [one, other] = folders.each_ref().map(|folder| client(Some(folder.path())));
        assert_ne!(one, other);
        assert_eq!(client(Some(folders[0].path())), one, "after a restart");
        assert_ne!(client(None), client(None));
        std::fs::write(folders[0].path().join(SECRET), "short").expect("it is ours");
        let error = Identities::open(Some(folders[0].path())).err().expect("no secret").to_string();
        assert!(error.contains(SECRET), "{error}");
    }
}
