//! The client of a request: its API key, or else its address. Clients share the running sequences of a model evenly.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use axum::extract::Request;
use mlx_core::engine::Client;

/// The client at an address. Neighbours in an IPv6 network are one client, since each may have as many addresses as it likes.
pub(crate) fn of_address(address: IpAddr) -> Client {
    match address.to_canonical() {
        IpAddr::V4(address) => of(&address),
        IpAddr::V6(address) => of(&address.segments()[..4]),
    }
}

/// The client with an API key.
pub(crate) fn of_key(key: &[u8]) -> Client {
    of(&key)
}

/// The client of a request.
pub(crate) fn of_request(request: &Request) -> Client {
    request.extensions().get().copied().unwrap_or_default()
}

fn of(what: &(impl Hash + ?Sized)) -> Client {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    Client(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_client_and_so_is_an_ipv6_network() {
        let client = |address: &str| of_address(address.parse().expect("an address"));
        assert_ne!(client("127.0.0.1"), client("127.0.0.2"));
        assert_eq!(client("127.0.0.1"), client("::ffff:127.0.0.1"));
        assert_eq!(client("2001:db8::1"), client("2001:db8::2:1"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_ne!(of_key(b"one"), of_key(b"two"));
    }
}
