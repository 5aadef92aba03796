//! The state shared by all requests.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use mlx_core::engine::Client;
use tokio_util::sync::CancellationToken;

use crate::batches::Batches;
use crate::body_memory::BodyMemory;
use crate::client::Identities;
use crate::config::{Config, StartError};
use crate::downloads::Downloads;
use crate::error::ApiError;
use crate::image_urls::{AddressRule, ImageUrls, is_public};
use crate::keys::Keys;
use crate::mcp::McpServers;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::responses::Responses;
use crate::tls::Tls;
use crate::traces::Traces;
use crate::work::CpuSlots;

/// The state shared by all requests. Clones are cheap.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// See [`AppState`].
pub struct Shared {
    /// The settings.
    pub config: Config,
    /// The models.
    pub(crate) models: Arc<Models>,
    /// The downloads of models.
    pub(crate) downloads: Downloads,
    /// The metrics.
    pub(crate) metrics: Metrics,
    /// The slots for CPU work of requests.
    pub(crate) cpu_slots: CpuSlots,
    /// The memory budget of request bodies.
    pub(crate) bodies: BodyMemory,
    /// Derives clients from API keys and addresses.
    pub(crate) identities: Identities,
    /// The named API keys.
    pub(crate) keys: Keys,
    /// The certificate, with HTTPS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Fetches images that requests reference by URL.
    pub(crate) image_urls: Arc<ImageUrls>,
    /// Stored responses.
    pub(crate) responses: Responses,
    /// The MCP servers.
    pub(crate) mcp: Arc<McpServers>,
    /// Files and batches, unless they are off.
    pub(crate) batches: Option<Arc<Batches>>,
    /// The tracer, if traces are sent.
    pub(crate) traces: Option<Traces>,
    /// The shutdown signals.
    pub shutdown: Shutdown,
    /// True once preloading is complete.
    pub started: AtomicBool,
}

/// The two stages of a shutdown.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Cancelled when the server stops accepting connections and requests.
    pub draining: CancellationToken,
    /// Cancelled when running answers are to be aborted.
    pub forced: CancellationToken,
}

impl AppState {
    /// Creates the state of a server.
    pub fn new(config: Config) -> Result<Self, StartError> {
        Self::with_address_rule(config, is_public)
    }

    /// Creates the state of a server that fetches images from addresses that `rule` allows, instead of all public ones.
    pub fn with_address_rule(config: Config, rule: AddressRule) -> Result<Self, StartError> {
        let mut options = config.engine_options();
        options.workers = config.workers()?;
        let models = Models::open(&config.models, options)?;
        let journal = config.responses.open_journal()?;
        let identities = config.identities()?;
        let traces = config.network.otlp_endpoint.as_deref().map(Traces::open).transpose();
        let traces = traces.map_err(|reason| StartError::new("--otlp-endpoint", reason))?;
        let batches = Batches::open(&config.files);
        let batches = batches.map_err(|error| StartError::new("--files-dir", error))?;
        let network = &config.network;
        let keys = Keys::open(network.keys.as_deref(), network.min_key_length(), &network.api_key)
            .map_err(|reason| StartError::new("--keys", reason))?;
        let tls = network.tls_files().map(Tls::open).transpose();
        let tls = tls.map_err(|(flag, reason)| StartError::new(flag, reason))?;
        Ok(Self(Arc::new(Shared {
            models: Arc::new(models),
            downloads: Downloads::default(),
            metrics: Metrics::default(),
            cpu_slots: CpuSlots::default(),
            bodies: BodyMemory::new(config.limits.body_memory),
            identities,
            keys,
            tls,
            image_urls: Arc::new(ImageUrls::new(&config.network.allow_image_urls, rule)),
            responses: Responses::new(config.responses.responses_store, journal),
            mcp: Arc::new(McpServers::open(&config.tools)?),
            batches,
            traces,
            shutdown: Shutdown::default(),
            started: AtomicBool::new(!config.models.preload),
            config,
        })))
    }

    /// Returns the client at an address. Each request carries it as an extension.
    pub fn client_at(&self, address: IpAddr) -> Client {
        self.identities.of_address(address)
    }

    /// Returns the files and batches, or the error if they are off.
    pub(crate) fn batches(&self) -> Result<&Arc<Batches>, ApiError> {
        self.batches.as_ref().ok_or_else(|| {
            let message = "files and batches are off; start the server with --files-dir FOLDER";
            ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
        })
    }

    /// Returns true if clients may download models. With workers, only the divided model is served.
    pub(crate) fn allows_pull(&self) -> bool {
        self.config.models.allow_pull && !self.models.is_distributed()
    }

    /// Returns the maximum size of the pictures of a tool's result, in bytes. Clients send them back with the conversation, whose body is limited.
    pub(crate) fn max_result_pictures(&self) -> usize {
        usize::try_from(self.config.limits.max_body.0 / 8).unwrap_or(usize::MAX)
    }

    /// Returns true if the server accepts requests.
    pub fn is_ready(&self) -> bool {
        self.started.load(Ordering::Relaxed)
            && !self.shutdown.draining.is_cancelled()
            && self.models.is_ready()
    }
}

impl std::ops::Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
