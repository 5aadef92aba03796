//! Handles of loaded models.

use std::ops::Deref;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use mlx_options::Profile;

use super::Loaded;

/// A handle of a loaded model. The model stays loaded until all of its leases are dropped.
#[derive(Clone)]
pub(crate) struct Lease {
    loaded: Option<Arc<Loaded>>,
    /// The profile that the request names.
    profile: Option<Arc<Profile>>,
}

impl Lease {
    pub(super) fn new(loaded: Arc<Loaded>) -> Self {
        Self { loaded: Some(loaded), profile: None }
    }

    /// Returns the lease for a request that names this profile.
    pub(in crate::models) fn with_profile(mut self, profile: Option<Arc<Profile>>) -> Self {
        self.profile = profile;
        self
    }

    /// Returns the profile that the request names.
    pub(crate) fn profile(&self) -> Option<&Arc<Profile>> {
        self.profile.as_ref()
    }

    /// Returns the name for the answer: that of the profile, or that of the model.
    pub(crate) fn model_name(&self) -> &str {
        self.profile.as_ref().map_or(&self.name, |profile| &profile.name)
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        self.loaded.as_deref().expect("only dropping a lease takes its model")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(loaded) = self.loaded.take() else { return };
        *loaded.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let released = Arc::clone(&loaded.released);
        drop(loaded);
        // The model is unused now, if this was its last lease.
        released.notify();
    }
}
