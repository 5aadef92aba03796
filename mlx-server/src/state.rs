//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, StartError};
use crate::metrics::Metrics;
use crate::models::Models;

/// What all requests share; clones are cheap.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// See [`AppState`].
pub struct Shared {
    /// The settings.
    pub config: Config,
    /// The models.
    pub(crate) models: Arc<Models>,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// Permits to compute beside the engines, as many as there are processors: a crowd's requests are tokenized a few at a time, and an
    /// engine's thread does not have to share the processors with dozens.
    pub(crate) permits: Arc<Semaphore>,
    /// How the server ends.
    pub shutdown: Shutdown,
    /// Whether everything that was to be loaded at the start is loaded.
    pub started: AtomicBool,
}

/// The two steps in which a server ends.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Nobody new is let in.
    pub draining: CancellationToken,
    /// What still runs ends now.
    pub forced: CancellationToken,
}

impl AppState {
    /// The state of a server that has just been started.
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

    /// Whether requests are welcome.
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
