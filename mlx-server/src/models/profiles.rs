//! Profiles: names for models with settings, from a file that is read again when it changes. Invariant: a file that cannot be used never
//! replaces profiles in use.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use mlx_options::Profile;
use tokio::task::spawn_blocking;

use super::Models;
use super::catalog::Catalog;
use super::entry::Entry;
use super::profile_file::{about, check_names, read};
use crate::file_watch::FileWatch;

/// The profiles of a server.
#[derive(Default)]
pub(super) struct Profiles {
    path: Option<PathBuf>,
    current: RwLock<Arc<Vec<Arc<Profile>>>>,
}

/// A model that a client can name.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) entry: Arc<Entry>,
    /// The profile, if the name is that of a profile.
    pub(crate) profile: Option<Arc<Profile>>,
}

impl Profiles {
    /// Reads the file of profiles. An error names the file, the line and the key.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, String> {
        let current = path.map(read).transpose()?.unwrap_or_default();
        Ok(Self { path: path.map(Path::to_owned), current: RwLock::new(Arc::new(current)) })
    }

    /// Returns all profiles, in the order of the file.
    pub(super) fn all(&self) -> Arc<Vec<Arc<Profile>>> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the profile with this name.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Profile>> {
        self.all().iter().find(|profile| profile.name == name).cloned()
    }

    /// Reads the file again. The models of the flags stay: their names are taken, and they have all adapters.
    fn read_again(&self, path: &Path, catalog: &Catalog) -> Result<usize, String> {
        let read = read(path)?;
        check_names(&read, catalog.given()).map_err(|reason| about(path, &reason))?;
        if let Some(new) = read.iter().find(|it| it.adapter.is_some() && known_model(it, catalog).is_none()) {
            let Profile { line, name, .. } = &**new;
            let reason = "has a new adapter or another model; restart the server to load it";
            return Err(about(path, &format!("line {line}: {name:?} {reason}")));
        }
        let count = read.len();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(read);
        Ok(count)
    }
}

impl Models {
    /// Returns the known model of a profile.
    pub(super) fn known_model_of(&self, profile: &Profile) -> Option<Arc<Entry>> {
        known_model(profile, &self.catalog)
    }

    /// Returns the model of a profile, which is searched on this machine if it is not known.
    pub(super) async fn model_of(&self, profile: &Arc<Profile>) -> Option<Arc<Entry>> {
        if profile.adapter.is_none()
            && let Some(entry) = self.catalog.known(&profile.model)
        {
            return Some(entry);
        }
        let (catalog, profile) = (Arc::clone(&self.catalog), Arc::clone(profile));
        let open = move || match profile.adapter {
            Some(_) => known_model(&profile, &catalog),
            None => catalog.open(&profile.model),
        };
        spawn_blocking(open).await.ok().flatten()
    }

    /// Reads the file of profiles again whenever it changes, in an endless loop.
    pub(crate) async fn watch_profiles(self: Arc<Self>) {
        let Some(path) = self.profiles.path.clone() else { return };
        let mut watch = FileWatch::new(vec![path.clone()]).await;
        loop {
            watch.changed().await;
            let (models, path) = (Arc::clone(&self), path.clone());
            match spawn_blocking(move || models.profiles.read_again(&path, &models.catalog)).await {
                Ok(Ok(profiles)) => tracing::info!(profiles, "the profiles were read again"),
                Ok(Err(reason)) => {
                    tracing::error!(
                        reason,
                        "the file of profiles has changed and cannot be used; the old profiles stay"
                    );
                }
                Err(_) => tracing::error!("reading the profiles panicked; the old ones stay"),
            }
        }
    }
}

/// Returns the known model of a profile.
fn known_model(profile: &Profile, catalog: &Catalog) -> Option<Arc<Entry>> {
    let model = catalog.located(&profile.model)?;
    let Some(adapter) = &profile.adapter else { return Some(model) };
    catalog.given().iter().find(|entry| entry.adapts(&model, adapter)).cloned()
}
