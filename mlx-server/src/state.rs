//! The state shared by all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, StartError};
use crate::metrics::Metrics;
use crate::models::Models;

/// The state shared by all requests; clones are cheap.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// See [`AppState`].
pub struct Shared {
    /// The settings.
    pub config: Config,
    /// The models.
    pub(crate) models: Arc<Models>,
    /// The metrics.
    pub(crate) metrics: Metrics,
    /// Limits concurrent tokenization to the number of processors, so that many requests cannot starve the engine's thread.
    pub(crate) permits: Arc<Semaphore>,
    /// The shutdown signals.
    pub shutdown: Shutdown,
    /// Whether preloading is complete.
    pub started: AtomicBool,
}

/// The two stages of a shutdown.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// No new connections or requests are accepted.
    pub draining: CancellationToken,
    /// Running answers are aborted.
    pub forced: CancellationToken,
}

impl AppState {
    /// The state of a new server.
    pub fn new(config: Config) -> Result<Self, StartError> {
        let models = Models::open(&config.models, config.engine_options())?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self(Arc::new(Shared {
            models: Arc::new(models),
            metrics: Metrics::default(),
            permits: Arc::new(Semaphore::new(processors)),
            shutdown: Shutdown::default(),
            started: AtomicBool::new(!config.models.preload),
            config,
        })))
    }

    /// Whether the server accepts requests.
    pub fn is_ready(&self) -> bool {
        self.started.load(Ordering::Relaxed)
            && !self.shutdown.draining.is_cancelled()
            && self.models.are_ready()
    }
}

impl std::ops::Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
