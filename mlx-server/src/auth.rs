//! Who may ask: the Host and Origin of a request are checked against web pages that want to reach this machine through
//! a browser, and its key against everybody else.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq};

use crate::config::NetworkConfig;
use crate::error::ApiError;
use crate::state::AppState;

/// What those who watch over the server may ask without a key.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// Refuses requests that were sent to a name of somebody else's, or by a web page that is not on the list.
pub(crate) async fn check_sender(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let network = &state.config.network;
    match check_host(network, request.headers(), request.uri())
        .and_then(|host| check_origin(network, request.headers(), &host))
    {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Refuses requests without a key, if one is needed.
pub(crate) async fn check_key(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let keys = &state.config.network.api_key;
    let open = OPEN.contains(&request.uri().path());
    if keys.is_empty() || open || has_key(request.headers(), keys) {
        return next.run(request).await;
    }
    let message = "an API key is needed; send it as Authorization: Bearer KEY";
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response()
}

fn has_key(headers: &HeaderMap, keys: &[String]) -> bool {
    let given = headers.get(AUTHORIZATION).map(axum::http::HeaderValue::as_bytes).unwrap_or_default();
    let Some((scheme, given)) = given.split_at_checked(7) else { return false };
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return false;
    }
    // Every key is compared to its end, so that the time says nothing about which one was close.
    let matches = |key: &String| key.as_bytes().ct_eq(given);
    keys.iter().map(matches).fold(Choice::from(0), |any, one| any | one).into()
}

/// The host that a request was sent to, if it is one of ours.
fn check_host(network: &NetworkConfig, headers: &HeaderMap, uri: &Uri) -> Result<String, ApiError> {
    let header = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = header.or_else(|| uri.authority().map(axum::http::uri::Authority::as_str)).unwrap_or_default();
    let name = host_name(host);
    // Only a name can be made to point here by somebody else; an address is where the browser really went.
    let is_address = name.parse::<IpAddr>().is_ok();
    let mut allowed = network.allowed_host.iter().map(String::as_str).chain(["localhost"]);
    if is_address || allowed.any(|allowed| allowed.eq_ignore_ascii_case(name)) {
        return Ok(host.to_owned());
    }
    let message = format!("the host {name:?} is not one of this server's; start it with --allowed-host");
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

/// A name without its port, and an IPv6 address without its brackets.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Browsers name the page that asks. Programs do not, and a page of this server itself may ask.
fn check_origin(network: &NetworkConfig, headers: &HeaderMap, host: &str) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) == Some(host);
    if own || network.cors_origin.iter().any(|allowed| allowed == origin) {
        return Ok(());
    }
    let message = format!("pages of {origin:?} may not ask this server; start it with --cors-origin");
    Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn keys_match_whole_and_only_whole() {
        let keys = ["one".to_owned(), "two".to_owned()];
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            has_key(&headers, &keys)
        };
        assert!(with("Bearer one") && with("bearer two"));
        for wrong in ["Bearer on", "Bearer onee", "Bearer ", "Basic one", "one", ""] {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(!has_key(&HeaderMap::new(), &keys));
    }

    #[test]
    fn hosts_have_names() {
        for (host, name) in [
            ("localhost:1", "localhost"),
            ("[::1]:80", "::1"),
            ("a.b", "a.b"),
            ("", ""),
            ("127.0.0.1", "127.0.0.1"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }
}
