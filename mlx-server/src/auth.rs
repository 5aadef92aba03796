//! Access control. The Host and Origin checks stop web pages that try to reach this server through a browser.
//! The API key stops other clients.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use mlx_core::engine::Client;
use subtle::{Choice, ConstantTimeEq};

use crate::config::NetworkConfig;
use crate::error::ApiError;
use crate::routes::page;
use crate::state::AppState;

/// Monitoring paths that need no key.
const PUBLIC_PATHS: [&str; 2] = ["/health", "/ready"];
/// The header in which clients of Anthropic's API send their key.
const API_KEY: &str = "x-api-key";

/// Rejects requests for a foreign host name or from a web page of an origin that is not allowed.
pub(crate) async fn check_sender(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let network = &state.config.network;
    match check_host(network, request.headers(), request.uri())
        .and_then(|host| check_origin(network, request.headers(), &host))
    {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Rejects requests without a valid key, if the server has keys.
pub(crate) async fn check_key(State(state): State<AppState>, mut request: Request, next: Next) -> Response {
    let keys = &state.config.network.api_key;
    let is_public = PUBLIC_PATHS.contains(&request.uri().path()) || page::wants_page(&request);
    if !state.config.network.has_keys() || is_public {
        return next.run(request).await;
    }
    let key = key_of(request.headers(), keys);
    if let Some(client) = key.map(|key| state.identities.of_key(key)) {
        request.extensions_mut().insert(client);
        return next.run(request).await;
    }
    match named_client(&state, request.headers(), counts(request.method(), request.uri().path())) {
        Some(Ok(client)) => {
            request.extensions_mut().insert(client);
            return next.run(request).await;
        }
        Some(Err(wait)) => {
            let message = "this API key has reached its limit of requests or tokens a minute";
            return ApiError::limited(message, wait).into_response();
        }
        None => {}
    }
    let message = "an API key is required; send it as Authorization: Bearer KEY or X-Api-Key: KEY";
    ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message).into_response()
}

/// Returns true if a request counts for the limits of its key. A client that has reached a limit can still read, cancel and delete.
fn counts(method: &Method, path: &str) -> bool {
    method == Method::POST && !path.ends_with("/cancel")
}

/// Admits a request with a named key. Returns its client, or the time after which a limit allows the next request; `None` without such a key.
fn named_client(state: &AppState, headers: &HeaderMap, counts: bool) -> Option<Result<Client, Duration>> {
    let admit = |key: &[u8]| state.keys.admit(key, counts, &state.identities);
    bearer(headers)
        .and_then(admit)
        .or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes).and_then(admit))
}

/// Returns the key of a request if it is one of `keys`. Some clients also send the key of another server.
fn key_of<'a>(headers: &'a HeaderMap, keys: &[String]) -> Option<&'a [u8]> {
    let is_valid = |given: &&[u8]| {
        // Compares all keys in full, in constant time, so that timing reveals nothing about them.
        let matches = |key: &String| key.as_bytes().ct_eq(given);
        keys.iter().map(matches).fold(Choice::from(0), |any, one| any | one).into()
    };
    let api_key = headers.get(API_KEY).map(HeaderValue::as_bytes);
    bearer(headers).filter(is_valid).or_else(|| api_key.filter(is_valid))
}

/// Returns the token of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, given) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(given)
}

/// Returns the host of a request if it is one of this server's names.
fn check_host(network: &NetworkConfig, headers: &HeaderMap, uri: &Uri) -> Result<String, ApiError> {
    let host = request_host(headers, uri)?;
    let name = host_name(host);
    // DNS rebinding needs a name. If the host is an IP address, the browser really connected to that address.
    let is_address = name.parse::<IpAddr>().is_ok();
    let mut allowed = network.allowed_host.iter().map(String::as_str).chain(["localhost"]);
    if is_address || allowed.any(|allowed| allowed.eq_ignore_ascii_case(name)) {
        return Ok(host.to_owned());
    }
    // Containers reach their host under names such as host.docker.internal.
    let from = if name.ends_with(".internal") { ", for clients in a container," } else { "" };
    let message = format!(
        "the host {name:?} is not allowed; to allow it{from} start the server with --allowed-host {name}"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, "host_not_allowed", message))
}

/// Returns the host that a request names, in its Host header or its URI.
fn request_host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Result<&'a str, ApiError> {
    let bad =
        |reason| ApiError::new(StatusCode::BAD_REQUEST, "invalid_host", format!("the request {reason}"));
    let mut given = headers.get_all(HOST).iter();
    let host = match given.next() {
        Some(host) => host.to_str().map_err(|_| bad("has a Host header that is not text"))?,
        None => uri.authority().ok_or_else(|| bad("has no Host header"))?.as_str(),
    };
    if given.next().is_some() {
        return Err(bad("has more than one Host header"));
    }
    Ok(host)
}

/// Returns the host without its port. IPv6 addresses lose their brackets.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Checks the Origin header, which browsers send. Requests without it and from this server's own pages are allowed.
fn check_origin(network: &NetworkConfig, headers: &HeaderMap, host: &str) -> Result<(), ApiError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default();
    if is_same_origin(origin, host) || network.cors_origin.iter().any(|allowed| allowed == origin) {
        return Ok(());
    }
    let message = format!(
        "requests from pages of {origin:?} are not allowed; start the server with --cors-origin to allow them"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, "origin_not_allowed", message))
}

fn is_same_origin(origin: &str, host: &str) -> bool {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) == Some(host)
}

/// Rejects requests of web pages from other origins, including those of `--cors-origin`: such a page may chat, but not run programs. Browsers send
/// `Sec-Fetch-Site` even if a request has no Origin.
pub(crate) fn check_own_page(headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
    let host = request_host(headers, uri)?;
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
    let origin = headers.get(ORIGIN).map(text);
    let site = headers.get("sec-fetch-site").map(text);
    let is_own = origin.is_none_or(|origin| is_same_origin(&origin, host))
        && site.is_none_or(|site| ["same-origin", "none"].contains(&site.as_str()));
    if is_own {
        return Ok(());
    }
    let message =
        "web pages of other origins may not use MCP servers; only this server's page and programs may";
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
            key_of(&headers, &keys).is_some()
        };
        assert!(with("Bearer one") && with("bearer two"));
        for wrong in ["Bearer on", "Bearer onee", "Bearer ", "Basic one", "one", ""] {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(key_of(&HeaderMap::new(), &keys).is_none());
    }

    #[test]
    fn either_of_two_keys_opens() {
        let keys = ["one".to_owned()];
        let with = |bearer: &'static str, api_key: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(bearer));
            headers.insert(API_KEY, HeaderValue::from_static(api_key));
            key_of(&headers, &keys) == Some(b"one")
        };
        assert!(with("Bearer one", "other") && with("Bearer other", "one") && with("Basic b25l", "one"));
        assert!(!with("Bearer other", "another"));
    }

    #[test]
    fn only_the_own_page_may_run_tools() {
        let with = |given: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in [&[("host", "localhost:8080")], given].concat() {
                headers.insert(name, HeaderValue::from_static(value));
            }
            check_own_page(&headers, &Uri::from_static("/v1/mcp/call")).is_ok()
        };
        assert!(with(&[]) && with(&[("origin", "http://localhost:8080"), ("sec-fetch-site", "same-origin")]));
        assert!(with(&[("sec-fetch-site", "none")]));
        for foreign in [
            ("origin", "http://localhost:8081"),
            ("origin", "null"),
            ("origin", "http://localhost:8080.evil.example"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(!with(&[foreign]), "{foreign:?}");
        }
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

    #[test]
    fn a_request_names_one_host() {
        let network = NetworkConfig::default();
        let ask = |hosts: &[&'static str], uri: &'static str| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, HeaderValue::from_static(host));
            }
            check_host(&network, &headers, &Uri::from_static(uri))
                .map_err(|error| (error.status().as_u16(), error.response().error.message))
        };
        assert_eq!(ask(&["localhost:8080"], "/health").as_deref(), Ok("localhost:8080"));
        assert_eq!(ask(&[], "http://localhost/health").as_deref(), Ok("localhost"));
        for hosts in [&[][..], &["localhost", "localhost"], &["localhost", "evil.example"]] {
            assert_eq!(ask(hosts, "/health").expect_err("refused").0, 400, "{hosts:?}");
        }
        let (status, message) = ask(&["host.docker.internal:8080"], "/health").expect_err("refused");
        assert!(status == 403 && message.contains("container"), "{message}");
        assert!(message.ends_with("--allowed-host host.docker.internal"), "{message}");
        assert!(!ask(&["evil.example"], "/health").expect_err("refused").1.contains("container"));
    }
}
