//! The hub over HTTP: addresses, who asks, and what its refusals mean.

use std::path::PathBuf;
use std::time::Duration;

use mlx_core::hub::{self, ModelName};
use mlx_core::{Error, Result};
use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::patience::{Patience, Trouble};

const ENDPOINT: &str = "https://huggingface.co";
/// The list of a large model is a few hundred thousand bytes.
const LARGEST_LISTING: u64 = 64 << 20;
/// Tries of a question.
const TRIES: u32 = 4;

/// Asks the hub about one model.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    name: ModelName,
}

impl Client {
    /// For the hub and the token that the environment names, as the hub's other tools read it.
    pub(super) fn from_env(name: &ModelName) -> Result<Self> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        // It fails only if there is one already.
        rustls::crypto::ring::default_provider().install_default().ok();
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .user_agent(concat!("mlx/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // A token is for the hub, not for the servers that keep its files.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_mins(1)))
            .timeout_per_read(Some(Duration::from_secs(30)));
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token()?,
            name: name.clone(),
        })
    }

    /// An error about the model.
    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error::hub(&self.name, message)
    }

    /// The list of files with their sizes and checksums, as JSON.
    pub(super) fn listing(&self) -> Result<String> {
        let revision = self.name.revision().replace('/', "%2F");
        let address =
            format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, self.name.repo);
        self.patiently(|| {
            let mut body = self.get(&address, 0)?.into_body();
            body.with_config().limit(LARGEST_LISTING).read_to_string().map_err(|error| self.trouble(error))
        })
    }

    /// The checksum and size of a file.
    pub(super) fn head(&self, commit: &str, file: &str) -> Result<(String, u64)> {
        let address = self.address(commit, file);
        self.patiently(|| {
            let request =
                self.agent.head(&address).config().max_redirects(0).max_redirects_will_error(false).build();
            let response = self.authorised(request).call().map_err(|error| self.trouble(error))?;
            if response.status().as_u16() >= 400 {
                return Err(self.refusal(&response));
            }
            let etag = header(&response, "x-linked-etag").or_else(|| header(&response, "etag"));
            let size = header(&response, "x-linked-size").or_else(|| header(&response, "content-length"));
            let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
            etag.zip(size.and_then(|size| size.parse().ok())).ok_or_else(|| {
                Trouble::Final(
                    self.error(format!("the hub does not say the size and the checksum of {file}")),
                )
            })
        })
    }

    /// A file from byte `start` on, if the hub can do that; the status tells.
    pub(super) fn file(&self, commit: &str, file: &str, start: u64) -> Result<Response<Body>, Trouble> {
        self.get(&self.address(commit, file), start)
    }

    fn address(&self, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{file}", self.endpoint, self.name.repo)
    }

    fn get(&self, address: &str, start: u64) -> Result<Response<Body>, Trouble> {
        let mut request = self.authorised(self.agent.get(address)).header("accept-encoding", "identity");
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        let response = request.call().map_err(|error| self.trouble(error))?;
        match response.status() {
            status if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            _ => Err(self.refusal(&response)),
        }
    }

    fn authorised<T>(&self, request: ureq::RequestBuilder<T>) -> ureq::RequestBuilder<T> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn patiently<T>(&self, attempt: impl Fn() -> Result<T, Trouble>) -> Result<T> {
        let mut patience = Patience::new(TRIES);
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Passing { why, wait }) => {
                    patience.wait(why, wait, |_| {}).map_err(|why| self.error(why))?;
                }
            }
        }
    }

    /// What an error without an answer means.
    pub(super) fn trouble(&self, error: ureq::Error) -> Trouble {
        let endpoint = &self.endpoint;
        match error {
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
                Trouble::passing(format!("{endpoint} cannot be reached; is this machine connected?"))
            }
            ureq::Error::Timeout(_) => Trouble::passing(format!("{endpoint} does not answer")),
            ureq::Error::Io(error) if error.kind() != std::io::ErrorKind::InvalidData => {
                Trouble::passing(format!("no connection to {endpoint}: {error}"))
            }
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                Trouble::Final(Error::request("HF_ENDPOINT", format!("{endpoint:?} is not an address")))
            }
            // Of TLS, mostly: a certificate that is not accepted will not be accepted the next time.
            other => Trouble::Final(self.error(format!("no safe connection to {endpoint}: {other}"))),
        }
    }

    /// What an answer means that is none.
    fn refusal(&self, response: &Response<Body>) -> Trouble {
        let status = response.status();
        let code = header(response, "x-error-code").unwrap_or_default();
        let final_error = |message: String| Trouble::Final(self.error(message));
        match (code, status.as_u16()) {
            ("GatedRepo", _) => final_error(self.gated()),
            ("RevisionNotFound", _) => final_error(format!("has no revision {}", self.name.revision())),
            ("EntryNotFound", _) => final_error("a file that the hub lists is not there".to_owned()),
            ("RepoNotFound", _) | (_, 404 | 401) => final_error(self.unknown(status)),
            (_, 403) => final_error(format!(
                "the hub refuses access ({}); a token for it needs the right to read this model",
                header(response, "x-error-message").unwrap_or("403")
            )),
            (_, 429) => Trouble::Passing {
                why: "the hub asks for a pause (429), since it was asked too often; try again later, or set HF_TOKEN".into(),
                wait: retry_after(response.headers()),
            },
            (_, 500..) => Trouble::Passing {
                why: format!("the hub is in trouble ({status}); try again later"),
                wait: retry_after(response.headers()),
            },
            _ => final_error(format!("the hub answers {status}")),
        }
    }

    fn gated(&self) -> String {
        let page = format!("{}/{}", self.endpoint, self.name.repo);
        match self.token {
            None => format!("is gated: accept its terms on {page} and set HF_TOKEN"),
            Some(_) => {
                format!("is gated: accept its terms on {page} with the account that the token belongs to")
            }
        }
    }

    /// The hub does not tell strangers which private models there are.
    fn unknown(&self, status: StatusCode) -> String {
        let endpoint = &self.endpoint;
        match self.token {
            Some(_) if status == StatusCode::UNAUTHORIZED => {
                format!("{endpoint} does not know the token; renew HF_TOKEN, or unset it")
            }
            Some(_) => {
                format!("{endpoint} has no model of that name that the token may read; check the spelling")
            }
            None => format!(
                "{endpoint} has no model of that name; check the spelling; a private one needs HF_TOKEN"
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

/// `HF_TOKEN`, or what the hub's own tool has saved when somebody logged in.
fn token() -> Result<Option<String>> {
    if let Some(token) = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")) {
        return Ok(Some(token));
    }
    let path = variable("HF_TOKEN_PATH")
        .map_or_else(|| Ok(hub::home()?.join("token")), |path| Ok::<_, Error>(PathBuf::from(path)))?;
    let saved = std::fs::read_to_string(path).unwrap_or_default();
    Ok(Some(saved.trim().to_owned()).filter(|token| !token.is_empty()))
}
