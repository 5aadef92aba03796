//! Addresses on the Hub: its endpoint, paths on it, and the targets of redirects.

use iri_string::types::{UriReferenceStr, UriStr};
use mlx_hub::{Error, Result};
use ureq::http::Uri;

const ENDPOINT: &str = "https://huggingface.co";

/// Returns the Hub's URL without a trailing slash: `HF_ENDPOINT`, or the public Hub.
pub(crate) fn endpoint_from_env() -> Result<String> {
    let given = std::env::var("HF_ENDPOINT").ok().map(|value| value.trim().to_owned());
    endpoint(given.filter(|value| !value.is_empty()))
}

fn endpoint(given: Option<String>) -> Result<String> {
    let endpoint = given.unwrap_or_else(|| ENDPOINT.to_owned());
    let parsed: Option<Uri> = endpoint.parse().ok();
    let usable = |it: &Uri| matches!(it.scheme_str(), Some("http" | "https")) && it.query().is_none();
    if !parsed.is_some_and(|it| usable(&it)) {
        let message = format!("is {endpoint:?}, which is not a URL; use one such as {ENDPOINT}");
        return Err(Error::environment("HF_ENDPOINT", message));
    }
    Ok(endpoint.trim_end_matches('/').to_owned())
}

/// Percent-encodes a path.
pub(crate) fn encoded(path: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    path.bytes().map(byte).collect()
}

/// Returns the target of a redirect from `address`, or `None` if `location` is not an http or https address.
pub(crate) fn redirected(address: &str, location: &str) -> Option<String> {
    let base = UriStr::new(address).ok()?.to_absolute();
    let target = UriReferenceStr::new(location).ok()?.resolve_against(base).to_string();
    let uri: Uri = target.parse().ok()?;
    (matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()).then_some(target)
}

/// Returns the host of an address.
pub(crate) fn host(address: &str) -> Option<String> {
    Some(address.parse::<Uri>().ok()?.host()?.to_owned())
}

/// Returns true if the server of `address` is that of `endpoint`, so that it may receive the token. Scheme, host and
/// port must be equal; only the scheme may change from http to https.
pub(crate) fn may_see_token(endpoint: &str, address: &str) -> bool {
    let parse = |text: &str| text.parse::<Uri>().ok();
    let (Some(endpoint), Some(address)) = (parse(endpoint), parse(address)) else { return false };
    let port =
        |uri: &Uri| uri.port_u16().or(if uri.scheme_str() == Some("https") { Some(443) } else { Some(80) });
    let (Some(own), Some(other)) = (endpoint.host(), address.host()) else { return false };
    let becomes_secure = endpoint.scheme_str() == Some("http") && address.scheme_str() == Some("https");
    let same_server = endpoint.scheme() == address.scheme() && port(&endpoint) == port(&address);
    let upgraded = becomes_secure && endpoint.port().is_none() && port(&address) == Some(443);
    own.eq_ignore_ascii_case(other) && (same_server || upgraded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_percent_encoded() {
        assert_eq!(encoded("a/model 1.safetensors"), "a/model%201.safetensors");
        assert_eq!(encoded("what?#é%"), "what%3F%23%C3%A9%25");
    }

    #[test]
    fn an_invalid_endpoint_is_refused_by_name() {
        assert_eq!(endpoint(None).expect("the hub's own"), ENDPOINT);
        assert_eq!(
            endpoint(Some("http://127.0.0.1:80/hub/".into())).expect("an address"),
            "http://127.0.0.1:80/hub"
        );
        for wrong in ["hub", "ftp://hub", "http://", "https://a b"] {
            let message = endpoint(Some(wrong.into())).expect_err(wrong).to_string();
            assert!(message.starts_with("HF_ENDPOINT") && message.contains(wrong), "{message}");
        }
    }

    #[test]
    fn redirects_are_relative_to_the_address_that_sends_them() {
        let from = "https://hub/api/org/name?x=1";
        for (location, target) in [
            ("/cache/a%20b?etag=%22c%22", Some("https://hub/cache/a%20b?etag=%22c%22")),
            ("other", Some("https://hub/api/org/other")),
            ("../up", Some("https://hub/api/up")),
            ("?y=2", Some("https://hub/api/org/name?y=2")),
            ("//cdn/a", Some("https://cdn/a")),
            ("http://cdn:81/a", Some("http://cdn:81/a")),
            ("ftp://cdn/a", None),
            ("file:///etc/passwd", None),
            ("https://a b/", None),
        ] {
            assert_eq!(redirected(from, location).as_deref(), target, "{location}");
        }
    }

    #[test]
    fn only_the_server_of_the_endpoint_may_see_the_token() {
        for (endpoint, address, may) in [
            ("https://hub/base", "https://HUB/other", true),
            ("https://hub", "https://hub:443/a", true),
            ("http://hub", "https://hub/a", true),
            ("https://hub", "http://hub/a", false),
            ("https://hub", "https://hub:444/a", false),
            ("http://hub:8000", "https://hub/a", false),
            ("http://127.0.0.1:80", "http://localhost:80/a", false),
            ("https://hub", "https://hub.evil.org/a", false),
            ("https://hub", "https://hub@evil.org/a", false),
        ] {
            assert_eq!(may_see_token(endpoint, address), may, "{endpoint} {address}");
        }
    }
}
