//! Access control. The checks of Host and Origin stop web pages that try to reach this server through a browser;
//! the API key stops all other clients.

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

/// Paths for monitoring that need no key.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// Refuses requests to a foreign host name or from a web page that is not on the list.
pub(crate) async fn check_sender(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let network = &state.config.network;
    match check_host(network, request.headers(), request.uri())
        .and_then(|host| check_origin(network, request.headers(), &host))
    {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Refuses requests without a valid key, if the server has keys.
pub(crate) async fn check_key(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let keys = &state.config.network.api_key;
    let open = OPEN.contains(&request.uri().path());
    if keys.is_empty() || open || has_key(request.headers(), keys) {
        return next.run(request).await;
    }
    let message = "an API key is required; send it as Authorization: Bearer KEY";
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response()
}

fn has_key(headers: &HeaderMap, keys: &[String]) -> bool {
    let given = headers.get(AUTHORIZATION).map(axum::http::HeaderValue::as_bytes).unwrap_or_default();
    let Some((scheme, given)) = given.split_at_checked(7) else { return false };
    if !scheme.eq_ignore_ascii_case(b"bearer ") {
        return false;
    }
    // All keys are compared in full, so that the time reveals nothing about them.
    let matches = |key: &String| key.as_bytes().ct_eq(given);
    keys.iter().map(matches).fold(Choice::from(0), |any, one| any | one).into()
}

/// The host that a request was sent to, if it is one of this server's names.
fn check_host(network: &NetworkConfig, headers: &HeaderMap, uri: &Uri) -> Result<String, ApiError> {
    let header = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = header.or_else(|| uri.authority().map(axum::http::uri::Authority::as_str)).unwrap_or_default();
    let name = host_name(host);
    // DNS rebinding needs a name: a host that is an IP address is where the browser really connected to.
    let is_address = name.parse::<IpAddr>().is_ok();
    let mut allowed = network.allowed_host.iter().map(String::as_str).chain(["localhost"]);
    if is_address || allowed.any(|allowed| allowed.eq_ignore_ascii_case(name)) {
        return Ok(host.to_owned());
    }
    let message =
        format!("the host {name:?} is not allowed; start the server with --allowed-host to allow it");
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

/// The host without its port, and an IPv6 address without its brackets.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Checks the Origin that browsers send. Other programs send none, and pages of this server are allowed.
fn check_origin(network: &NetworkConfig, headers: &HeaderMap, host: &str) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) == Some(host);
    if own || network.cors_origin.iter().any(|allowed| allowed == origin) {
        return Ok(());
    }
    let message = format!(
        "requests from pages of {origin:?} are not allowed; start the server with --cors-origin to allow them"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_complete_keys_match() {
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
    fn host_names_lose_their_port() {
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
