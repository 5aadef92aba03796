//! Fetches an image from another host, within limits of size, time and redirects. It blocks, so it belongs on a separate thread.
//! Invariant: each connection, also after a redirect, is to a listed host, on an address that the rule allows, with the scheme and port
//! of the first URL. Names are resolved once, and the connection uses that result, so DNS rebinding has no effect.

use std::io::Read;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chat_format::Image;
use mlx_options::ByteSize;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::uri::Scheme;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

use super::AddressRule;
use crate::body_memory::Charge;
use crate::error::ApiError;

/// The time limit for one image, from the DNS lookup to the last byte.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of redirects per image.
const MAX_REDIRECTS: u32 = 3;
/// The number of bytes to read before charging them.
const CHUNK: u64 = 64 << 10;

/// Fetches images.
pub(super) struct Fetcher {
    config: Config,
    hosts: Arc<[String]>,
    rule: AddressRule,
    time: Duration,
}

impl Fetcher {
    /// Creates a fetcher for these hosts, on addresses that `rule` allows, with this time limit per image.
    pub(super) fn new(hosts: &[String], rule: AddressRule, time: Duration) -> Self {
        // Fails only if a provider is already installed.
        rustls::crypto::ring::default_provider().install_default().ok();
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .user_agent(concat!("mlx/", env!("CARGO_PKG_VERSION")))
            // A proxy would resolve the host itself.
            .proxy(None)
            .max_redirects(MAX_REDIRECTS)
            // A reused connection would skip the resolver.
            .max_idle_connections(0)
            .timeout_global(Some(time))
            .build();
        Self { config, hosts: hosts.into(), rule, time }
    }

    /// Returns an agent for one image. It remembers the scheme and port of the first URL.
    fn agent(&self) -> Agent {
        let (allowed, rule) = (Arc::clone(&self.hosts), self.rule);
        let hosts = Hosts { allowed, rule, first: OnceLock::new(), system: DefaultResolver::default() };
        Agent::with_parts(self.config.clone(), DefaultConnector::new(), hosts)
    }

    /// Returns the image as a data URL.
    ///
    /// # Errors
    /// Returns an error with the reason and the path of the field.
    pub(super) fn data_url(
        &self,
        url: &str,
        path: &str,
        max_len: ByteSize,
        charge: &mut Charge,
    ) -> Result<String, ApiError> {
        let refused = |why: &str| ApiError::field(path, format!("cannot be fetched: {why}"));
        let request = self.agent().get(url).header("accept", "image/*").header("accept-encoding", "identity");
        let response = request.call().map_err(|error| refused(&self.reason(&error)))?;
        let mut rest = response.into_body().into_reader();
        let mut bytes = Vec::new();
        loop {
            let read = rest.by_ref().take(CHUNK).read_to_end(&mut bytes);
            let count = read.map_err(|error| refused(&self.reason(&Error::from(error))))?;
            if count == 0 {
                break;
            }
            if bytes.len() as u64 > max_len.0 {
                return Err(refused(&format!("it is larger than {max_len}")));
            }
            // The raw bytes and their base64 form.
            charge.set(bytes.len() as u64 / 3 * 7)?;
        }
        let kind = Image::media_type(&bytes);
        let kind = kind.ok_or_else(|| refused("it is not a png, jpeg, webp or gif file"))?;
        Ok(format!("data:{kind};base64,{}", STANDARD.encode(&bytes)))
    }

    fn reason(&self, error: &Error) -> String {
        match error {
            Error::Other(refusal) => refusal.to_string(),
            Error::StatusCode(status) => format!("the host returned {status}"),
            Error::HostNotFound => "the host was not found".to_owned(),
            Error::Timeout(_) => format!("it took longer than {} seconds", self.time.as_secs_f64()),
            Error::TooManyRedirects => format!("it takes more than {MAX_REDIRECTS} redirects"),
            Error::BadUri(_) | Error::Http(_) => "it is not a URL".to_owned(),
            Error::Io(error) => format!("the connection failed: {error}"),
            other => format!("the connection failed: {other}"),
        }
    }
}

/// Resolves listed hosts to the addresses that a rule allows.
#[derive(Debug)]
struct Hosts {
    /// The hosts, each with one allowed port, or without a port to allow all ports.
    allowed: Arc<[String]>,
    rule: AddressRule,
    /// The scheme and port of the first URL.
    first: OnceLock<(Scheme, u16)>,
    system: DefaultResolver,
}

impl Resolver for Hosts {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let host = uri.host().unwrap_or_default();
        let (scheme, default) = match uri.scheme_str() {
            Some("https") => (Scheme::HTTPS, 443),
            Some("http") => (Scheme::HTTP, 80),
            _ => return Err(refusal("it is neither http nor https")),
        };
        let port = uri.port_u16().unwrap_or(default);
        if !self.allowed.iter().any(|it| allows(it, host, port)) {
            let what = if self.allowed.iter().any(|it| split_port(it).0.eq_ignore_ascii_case(host)) {
                format!("port {port} of {host}")
            } else {
                host.to_owned()
            };
            return Err(refusal(format!("{what} is not among the hosts of --allow-image-urls")));
        }
        let first = self.first.get_or_init(|| (scheme.clone(), port));
        if *first != (scheme, port) {
            return Err(refusal(
                "it is redirected to another scheme or port; such redirects are not followed",
            ));
        }
        let all = self.system.resolve(uri, config, timeout).map_err(|error| match error {
            Error::Io(_) => Error::HostNotFound,
            other => other,
        })?;
        let mut allowed = self.empty();
        for address in all.iter().filter(|it| (self.rule)(it.ip())) {
            allowed.push(*address);
        }
        if allowed.is_empty() { Err(refusal(format!("{host} has no public address"))) } else { Ok(allowed) }
    }
}

/// Returns true if an entry of the list allows this port of a host. An entry without a port allows all ports.
pub(crate) fn allows(entry: &str, host: &str, port: u16) -> bool {
    let (name, allowed_port) = split_port(entry);
    name.eq_ignore_ascii_case(host)
        && allowed_port.is_none_or(|allowed_port| allowed_port.parse() == Ok(port))
}

/// Splits a host from its port. An IPv6 address is in brackets.
pub(crate) fn split_port(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    }
}

fn refusal(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Other(why.into())
}
