//! The Hub's HTTP API: URLs, authorization and errors.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use mlx_core::hub::{self, ModelName};
use mlx_core::{Error, Result};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::backoff::{Backoff, FetchError};

const ENDPOINT: &str = "https://huggingface.co";
/// The largest list of files; that of a large model has a few hundred kilobytes.
const MAX_LISTING_BYTES: u64 = 64 << 20;
const NO_TOKEN: &str = "is not a token; a token is one word of printable ASCII characters";
/// Attempts per API request.
const MAX_ATTEMPTS: u32 = 4;

/// A client for one model on the Hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    name: ModelName,
}

impl Client {
    /// A client with the endpoint and token from the environment variables that all Hub tools read.
    pub(super) fn from_env(name: &ModelName) -> Result<Self> {
        let endpoint = endpoint(variable("HF_ENDPOINT"))?;
        // It fails only if a provider is installed already.
        rustls::crypto::ring::default_provider().install_default().ok();
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .user_agent(concat!("mlx/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // The token must not reach the storage servers that the Hub redirects to.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_mins(1)))
            .timeout_per_read(Some(Duration::from_secs(30)));
        Ok(Self { agent: config.build().new_agent(), endpoint, token: token()?, name: name.clone() })
    }

    /// An error about the model.
    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error::hub(&self.name, message)
    }

    /// The list of files with their sizes and checksums, as JSON.
    pub(super) fn listing(&self) -> Result<String> {
        let revision = encoded(self.name.revision()).replace('/', "%2F");
        let address =
            format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, self.name.repo);
        self.with_retries(|| {
            let mut body = self.get(&address, 0)?.into_body();
            body.with_config()
                .limit(MAX_LISTING_BYTES)
                .read_to_string()
                .map_err(|error| self.connection_error(error))
        })
    }

    /// The checksum and size of a file.
    pub(super) fn head(&self, commit: &str, file: &str) -> Result<(String, u64)> {
        let address = self.address(commit, file);
        self.with_retries(|| {
            let request =
                self.agent.head(&address).config().max_redirects(0).max_redirects_will_error(false).build();
            let response = self.authorized(request).call().map_err(|error| self.connection_error(error))?;
            if response.status().as_u16() >= 400 {
                return Err(self.response_error(&response));
            }
            let etag = header(&response, "x-linked-etag").or_else(|| header(&response, "etag"));
            let size = header(&response, "x-linked-size").or_else(|| header(&response, "content-length"));
            let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
            etag.zip(size.and_then(|size| size.parse().ok())).ok_or_else(|| {
                FetchError::Final(self.error(format!("the Hub sends no size or no checksum for {file}")))
            })
        })
    }

    /// Requests a file from byte `start` on; the status shows whether the Hub supports that.
    pub(super) fn file(&self, commit: &str, file: &str, start: u64) -> Result<Response<Body>, FetchError> {
        self.get(&self.address(commit, file), start)
    }

    fn address(&self, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, self.name.repo, encoded(file))
    }

    fn get(&self, address: &str, start: u64) -> Result<Response<Body>, FetchError> {
        let mut request = self.authorized(self.agent.get(address)).header("accept-encoding", "identity");
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        let response = request.call().map_err(|error| self.connection_error(error))?;
        match response.status() {
            status if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            _ => Err(self.response_error(&response)),
        }
    }

    fn authorized<T>(&self, request: ureq::RequestBuilder<T>) -> ureq::RequestBuilder<T> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn with_retries<T>(&self, attempt: impl Fn() -> Result<T, FetchError>) -> Result<T> {
        let mut backoff = Backoff::new(MAX_ATTEMPTS);
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(FetchError::Final(error)) => return Err(error),
                Err(FetchError::Transient { why, retry_after }) => {
                    backoff.wait(why, retry_after, |_| {}).map_err(|why| self.error(why))?;
                }
            }
        }
    }

    /// Classifies an error without a response.
    pub(super) fn connection_error(&self, error: ureq::Error) -> FetchError {
        let endpoint = &self.endpoint;
        match error {
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
                FetchError::transient(format!("cannot connect to {endpoint}; check the network connection"))
            }
            ureq::Error::Timeout(_) => FetchError::transient(format!("{endpoint} timed out")),
            ureq::Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
                FetchError::transient(format!("the connection to {endpoint} failed: {error}"))
            }
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                FetchError::Final(self.error(format!("the request to {endpoint} is invalid: {error}")))
            }
            // Mostly TLS errors: a certificate that was rejected will be rejected again.
            other => FetchError::Final(self.error(format!("no secure connection to {endpoint}: {other}"))),
        }
    }

    /// Converts an error response.
    fn response_error(&self, response: &Response<Body>) -> FetchError {
        let status = response.status();
        let code = header(response, "x-error-code").unwrap_or_default();
        let final_error = |message: String| FetchError::Final(self.error(message));
        match (code, status.as_u16()) {
            ("GatedRepo", _) => final_error(self.gated()),
            ("RevisionNotFound", _) => final_error(format!("has no revision {}", self.name.revision())),
            ("EntryNotFound", _) => final_error("a file that the Hub lists does not exist".to_owned()),
            ("RepoNotFound", _) | (_, 404 | 401) => final_error(self.unknown(status)),
            (_, 403) => final_error(format!(
                "the Hub refuses access ({}); the token needs permission to read this model",
                header(response, "x-error-message").unwrap_or("403")
            )),
            (_, 429) => FetchError::Transient {
                why: "the Hub refuses too many requests (429); try again later, or set HF_TOKEN".into(),
                retry_after: retry_after(response.headers()),
            },
            (_, 500..) => FetchError::Transient {
                why: format!("the Hub reports a server error ({status}); try again later"),
                retry_after: retry_after(response.headers()),
            },
            _ => final_error(format!("the Hub responds with {status}")),
        }
    }

    fn gated(&self) -> String {
        let page = format!("{}/{}", self.endpoint, self.name.repo);
        match self.token {
            None => format!("is gated: accept its terms on {page} and set HF_TOKEN"),
            Some(_) => {
                format!("is gated: accept its terms on {page} with the account of the token")
            }
        }
    }

    /// The message for a model that was not found. The Hub does not reveal private models without a token.
    fn unknown(&self, status: StatusCode) -> String {
        let endpoint = &self.endpoint;
        match self.token {
            Some(_) if status == StatusCode::UNAUTHORIZED => {
                format!("{endpoint} rejects the token; renew HF_TOKEN, or unset it")
            }
            Some(_) => {
                format!("{endpoint} has no model of that name that the token can read; check the spelling")
            }
            None => format!(
                "{endpoint} has no model of that name; check the spelling; a private model needs HF_TOKEN"
            ),
        }
    }
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get("retry-after")?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The URL of the Hub without a trailing slash.
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
fn encoded(path: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(byte).to_string()
        }
        other => format!("%{other:02X}"),
    };
    path.bytes().map(byte).collect()
}

/// `HF_TOKEN`, or the token that the Hub's own tool saved at login.
fn token() -> Result<Option<String>> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(token) = variable(name) {
            return checked_token(token, || Error::environment(name, NO_TOKEN)).map(Some);
        }
    }
    match variable("HF_TOKEN_PATH") {
        Some(path) => saved_token(Path::new(&path), true),
        None => saved_token(&hub::home()?.join("token"), false),
    }
}

/// Reads a token from a file; `required` makes a missing file an error.
fn saved_token(path: &Path, required: bool) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => checked_token(text.trim().to_owned(), || Error::file(path, NO_TOKEN)).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound && !required => Ok(None),
        Err(error) => Err(Error::io(path, error)),
    }
}

fn checked_token(token: String, wrong: impl FnOnce() -> Error) -> Result<String> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(token) } else { Err(wrong()) }
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
    fn a_given_token_file_must_exist_and_hold_a_token() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("token");
        assert_eq!(saved_token(&path, false).expect("a missing file is no error"), None);
        let message = saved_token(&path, true).expect_err("it was named").to_string();
        assert!(message.contains("token: "), "{message}");
        std::fs::write(&path, "hf_abc\n").expect("writes");
        assert_eq!(saved_token(&path, true).expect("readable").as_deref(), Some("hf_abc"));
        std::fs::write(&path, "hf_abc\nhf_def").expect("writes");
        assert!(saved_token(&path, false).expect_err("two lines").to_string().contains("one word"));
    }
}
