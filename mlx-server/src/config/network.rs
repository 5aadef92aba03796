//! The network settings.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use axum::http::Uri;
use serde::{Deserialize, Serialize};

use crate::image_urls::split_port;
use crate::tls::TlsFiles;

/// The minimum length of an API key if other machines can connect, in characters.
const MIN_KEY_LEN: usize = 16;

/// See [`crate::args::NetworkArgs`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NetworkConfig {
    /// The address to listen on.
    pub host: IpAddr,
    /// The port to listen on.
    pub port: u16,
    /// The accepted API keys. Without keys, every client is accepted.
    pub api_key: Vec<String>,
    /// A file with more API keys.
    pub api_key_file: Option<PathBuf>,
    /// The file with named API keys and their limits.
    pub keys: Option<PathBuf>,
    /// The PEM file with the certificate chain, for HTTPS.
    pub tls_cert: Option<PathBuf>,
    /// The PEM file with the certificate's private key.
    pub tls_key: Option<PathBuf>,
    /// Additional host names that requests may name.
    pub allowed_host: Vec<String>,
    /// Origins of web pages that may send requests.
    pub cors_origin: Vec<String>,
    /// Hosts from which images are fetched.
    pub allow_image_urls: Vec<String>,
    /// True to reject requests with unused fields.
    pub strict: bool,
    /// The collector of traces.
    pub otlp_endpoint: Option<String>,
    /// True to serve no web page at `/`.
    pub no_page: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            api_key: Vec::new(),
            api_key_file: None,
            keys: None,
            tls_cert: None,
            tls_key: None,
            allowed_host: Vec::new(),
            cors_origin: Vec::new(),
            allow_image_urls: Vec::new(),
            strict: false,
            otlp_endpoint: None,
            no_page: false,
        }
    }
}

impl NetworkConfig {
    /// Returns true if requests need a key.
    pub(crate) fn has_keys(&self) -> bool {
        !self.api_key.is_empty() || self.keys.is_some()
    }

    /// Returns the minimum length of an API key in characters.
    pub(crate) fn min_key_length(&self) -> usize {
        if self.host.is_loopback() { 1 } else { MIN_KEY_LEN }
    }

    /// Returns the files of the certificate, if the server uses HTTPS.
    pub(crate) fn tls_files(&self) -> Option<TlsFiles> {
        Some(TlsFiles { certificate: self.tls_cert.clone()?, key: self.tls_key.clone()? })
    }

    /// Uses the collector of OpenTelemetry's standard variable, unless another one is set.
    pub(super) fn use_standard_collector(&mut self) {
        let standard = || std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok().filter(|url| !url.is_empty());
        self.otlp_endpoint = self.otlp_endpoint.take().or_else(standard);
    }

    /// Rejects invalid values and settings that would expose the server. An error is the flag and the reason.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.api_key.iter().any(|key| key.trim().is_empty()) {
            let reason = "is empty; leave it out to accept all clients on this machine";
            return Err(("--api-key", reason.to_owned()));
        }
        if !self.host.is_loopback() && !self.has_keys() {
            let reason =
                "accepts connections from other machines; give --api-key, --api-key-file or --keys too";
            return Err(("--host", reason.to_owned()));
        }
        if let Some(url) = &self.otlp_endpoint {
            let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
            if host.is_none_or(str::is_empty) || url.parse::<Uri>().is_err() {
                let reason = format!("{url:?} is no address; give one such as http://localhost:4318");
                return Err(("--otlp-endpoint", reason));
            }
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => return Err(("--tls-key", "is missing; --tls-cert needs it".to_owned())),
            (None, Some(_)) => return Err(("--tls-cert", "is missing; --tls-key needs it".to_owned())),
            (Some(_), Some(_)) if !self.has_keys() => {
                let reason = "serves other machines; give --api-key, --api-key-file or --keys too";
                return Err(("--tls-cert", reason.to_owned()));
            }
            _ => {}
        }
        if !self.host.is_loopback() && self.api_key.iter().any(|key| key.chars().count() < MIN_KEY_LEN) {
            let reason = format!(
                "is too short for --host {}: other machines could guess it; give at least {MIN_KEY_LEN} characters, \
                 as `openssl rand -hex 16` writes them",
                self.host
            );
            return Err(("--api-key", reason));
        }
        if let Some(origin) = self.cors_origin.iter().find(|origin| !is_origin(origin)) {
            let reason = format!(
                "{origin:?} is not an origin; write one such as https://example.org, in small letters and without a path"
            );
            return Err(("--cors-origin", reason));
        }
        if let Some(host) = self.allow_image_urls.iter().find(|host| !is_host_with_port(host)) {
            let reason = format!(
                "{host:?} is not a host; write one such as images.example.org or images.example.org:8443, without scheme, path and wildcard"
            );
            return Err(("--allow-image-urls", reason));
        }
        Ok(())
    }
}

/// Returns true for a host, with or without a port.
pub(super) fn is_host_with_port(text: &str) -> bool {
    let (host, port) = split_port(text);
    is_host(host) && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// Returns true for a host in URL syntax: a name, an IPv4 address, or an IPv6 address in brackets.
fn is_host(text: &str) -> bool {
    let address = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let is_part_of_name = |ch: char| ch.is_ascii_alphanumeric() || "-._".contains(ch);
    match address {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !text.is_empty() && text.chars().all(is_part_of_name),
    }
}

/// Returns true for an origin in the form that browsers send: `scheme://host`, with or without a port.
fn is_origin(text: &str) -> bool {
    let is_small = |ch: char| ch.is_ascii_lowercase() || ch.is_ascii_digit();
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_lowercase())
            && scheme.chars().all(|it| is_small(it) || "+-.".contains(it))
    };
    let is_host =
        |host: &str| !host.is_empty() && host.chars().all(|it| is_small(it) || "-._:[]".contains(it));
    text.split_once("://").is_some_and(|(scheme, host)| is_scheme(scheme) && is_host(host))
}
