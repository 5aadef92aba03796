//! The Hub's HTTP API: requests, redirects, authorization and errors.

use std::io::ErrorKind;
use std::time::Duration;

use mlx_hub::ModelName;
use mlx_hub::{Error, Result};
use ureq::http::{HeaderMap, Method, Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::backoff::{Backoff, FetchError};
use super::{address, token};

/// The maximum size of a file list or an index. For large models they have a few megabytes.
const MAX_TEXT_BYTES: u64 = 64 << 20;
/// Maximum redirects per request.
const MAX_REDIRECTS: u32 = 10;
/// Maximum attempts per API request.
const MAX_ATTEMPTS: u32 = 4;

/// A client for one model on the Hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    name: ModelName,
}

impl Client {
    /// Returns a client with the endpoint and token from the environment variables that all Hub tools read.
    pub(crate) fn from_env(name: &ModelName) -> Result<Self> {
        let endpoint = address::endpoint_from_env()?;
        // This fails only if a provider is already installed.
        rustls::crypto::ring::default_provider().install_default().ok();
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .user_agent(concat!("mlx/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // `send` follows redirects.
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_mins(1)))
            .timeout_per_read(Some(Duration::from_secs(30)));
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint,
            token: token::from_env()?,
            name: name.clone(),
        })
    }

    /// Returns a client for another model.
    pub(crate) fn of(&self, name: &ModelName) -> Self {
        Self {
            agent: self.agent.clone(),
            endpoint: self.endpoint.clone(),
            token: self.token.clone(),
            name: name.clone(),
        }
    }

    /// Returns an error about the model.
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        Error::hub(&self.name, message)
    }

    /// Returns the list of files with their sizes and checksums, as JSON.
    pub(crate) fn listing(&self) -> Result<String> {
        let revision = address::encoded(self.name.revision()).replace('/', "%2F");
        self.text(&format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, self.name.repo))
    }

    /// Returns the text of a file without storing it.
    pub(crate) fn file_text(&self, commit: &str, file: &str) -> Result<String> {
        self.text(&self.address(commit, file))
    }

    fn text(&self, address: &str) -> Result<String> {
        self.with_retries(|| {
            let mut body = self.send(&Method::GET, address, 0)?.into_body();
            body.with_config()
                .limit(MAX_TEXT_BYTES)
                .read_to_string()
                .map_err(|error| self.connection_error(address, error))
        })
    }

    /// Returns the checksum and size of a file.
    pub(crate) fn head(&self, commit: &str, file: &str) -> Result<(String, u64)> {
        let address = self.address(commit, file);
        self.with_retries(|| {
            let response = self.send(&Method::HEAD, &address, 0)?;
            linked(&response).or_else(|| metadata(&response, "etag", "content-length")).ok_or_else(|| {
                FetchError::Final(self.error(format!("the Hub sent no size or no checksum for {file}")))
            })
        })
    }

    /// Requests a file from byte `start`. The response's status shows whether the Hub supports ranges.
    pub(crate) fn file(&self, commit: &str, file: &str, start: u64) -> Result<Response<Body>, FetchError> {
        self.send(&Method::GET, &self.address(commit, file), start)
    }

    fn address(&self, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, self.name.repo, address::encoded(file))
    }

    /// Sends a request and follows redirects. A HEAD request ends at a redirect that has the checksum and size of the
    /// file. After a redirect to another server, no further request of the chain carries the token.
    fn send(&self, method: &Method, address: &str, start: u64) -> Result<Response<Body>, FetchError> {
        let (mut address, mut token) = (address.to_owned(), self.token.as_ref());
        for _ in 0..=MAX_REDIRECTS {
            token = token.filter(|_| address::may_see_token(&self.endpoint, &address));
            let mut request =
                if *method == Method::HEAD { self.agent.head(&address) } else { self.agent.get(&address) };
            request = request.header("accept-encoding", "identity");
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if start > 0 {
                request = request.header("range", format!("bytes={start}-"));
            }
            let response = request.call().map_err(|error| self.connection_error(&address, error))?;
            let location = header(&response, "location").filter(|_| response.status().is_redirection());
            match location {
                Some(_) if *method == Method::HEAD && linked(&response).is_some() => return Ok(response),
                Some(location) => address = self.redirected(&address, location)?,
                None => return self.checked(response),
            }
            // A connection is reused only after its response was read.
            response.into_body().into_with_config().limit(1 << 16).read_to_vec().ok();
        }
        Err(FetchError::Final(self.error(format!("the Hub sent more than {MAX_REDIRECTS} redirects"))))
    }

    fn redirected(&self, address: &str, location: &str) -> Result<String, FetchError> {
        address::redirected(address, location).ok_or_else(|| {
            FetchError::Final(
                self.error(format!("the Hub redirects to {location:?}, which is not an http address")),
            )
        })
    }

    fn checked(&self, response: Response<Body>) -> Result<Response<Body>, FetchError> {
        match response.status() {
            status if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            _ => Err(self.response_error(&response)),
        }
    }

    fn with_retries<T>(&self, attempt: impl Fn() -> Result<T, FetchError>) -> Result<T> {
        let mut backoff = Backoff::new(MAX_ATTEMPTS);
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(FetchError::Final(error)) => return Err(error),
                Err(FetchError::Transient { why, retry_after }) => {
                    backoff.wait(why, retry_after, |_| {}, || false).map_err(|why| self.error(why))?;
                }
            }
        }
    }

    /// Classifies an error of a request to `address` without a response.
    fn connection_error(&self, address: &str, error: ureq::Error) -> FetchError {
        let endpoint = &self.endpoint;
        if is_unreachable(&error) {
            let host = address::host(address).unwrap_or_else(|| endpoint.clone());
            return FetchError::transient(format!(
                "cannot reach {host}; this machine may be offline; a model in a local folder works \
                 without a network: give its path"
            ));
        }
        match error {
            ureq::Error::Timeout(_) => FetchError::transient(format!("{endpoint} timed out")),
            ureq::Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
                FetchError::transient(format!("the connection to {endpoint} failed: {error}"))
            }
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                FetchError::Final(self.error(format!("the request to {endpoint} is invalid: {error}")))
            }
            // Mostly TLS errors. A rejected certificate would be rejected again.
            other => FetchError::Final(self.error(format!("no secure connection to {endpoint}: {other}"))),
        }
    }

    /// Converts an error response to an error.
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

/// Returns true if no connection was made because the host has no known address or no route leads to it.
fn is_unreachable(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => match error.kind() {
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => true,
            // The standard library has no kind for names that cannot be resolved.
            _ => error.to_string().starts_with("failed to lookup address information"),
        },
        _ => false,
    }
}

/// Returns the checksum and size of a file from the Hub's headers, which are also in redirects to the storage.
fn linked(response: &Response<Body>) -> Option<(String, u64)> {
    metadata(response, "x-linked-etag", "x-linked-size")
}

/// Returns the checksum and size in these headers.
fn metadata(response: &Response<Body>, etag: &str, size: &str) -> Option<(String, u64)> {
    let etag = header(response, etag)?.trim_start_matches("W/").trim_matches('"').to_owned();
    Some((etag, header(response, size)?.parse().ok()?))
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get("retry-after")?.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn client(endpoint: &str) -> Client {
        let name = "org/tiny".parse().expect("a name");
        let agent = Agent::config_builder().proxy(None).build().new_agent();
        Client { agent, endpoint: endpoint.to_owned(), token: None, name }
    }

    fn transient(error: FetchError) -> String {
        match error {
            FetchError::Transient { why, .. } => why,
            FetchError::Final(error) => panic!("a retry may help: {error}"),
        }
    }

    /// RFC 6761 reserves `.invalid`, so that no resolver finds it.
    #[test]
    fn an_unknown_host_is_named_without_the_resolvers_words() {
        let client = client("http://hub.invalid:8080/of/us");
        let why = transient(client.file("main", "config.json", 0).expect_err("there is no such host"));
        for words in ["cannot reach hub.invalid;", "may be offline", "local folder"] {
            assert!(why.contains(words), "{why}");
        }
        assert!(!why.contains("lookup") && !why.contains('\n'), "{why}");
    }

    #[test]
    fn the_host_of_a_redirect_is_named() {
        let unreachable = || ureq::Error::Io(io::Error::from(ErrorKind::NetworkUnreachable));
        let why = transient(
            client("https://hub.invalid").connection_error("https://files.invalid/a", unreachable()),
        );
        assert!(why.starts_with("cannot reach files.invalid;"), "{why}");
    }

    #[test]
    fn other_failures_quote_their_reason() {
        let refused = ureq::Error::Io(io::Error::from(ErrorKind::ConnectionRefused));
        let why = transient(client("https://hub.invalid").connection_error("https://hub.invalid/a", refused));
        assert!(why.contains("connection refused") && !why.contains("offline"), "{why}");
    }
}
