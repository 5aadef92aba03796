//! Lists the models in the cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use super::cache::Cache;
use super::folder_files::{files, folder_bytes};
use super::model_files;
use super::repo::Repo;
use crate::error::Result;

/// A revision of a model in the cache.
#[derive(Debug, Clone)]
pub struct CachedModel {
    /// `ORG/NAME`.
    pub name: String,
    /// The commit.
    pub commit: String,
    /// The branches and tags that point to the commit.
    pub references: Vec<String>,
    /// The snapshot folder with its files.
    pub folder: PathBuf,
    /// The total size of the files in bytes. Other revisions may share some of them.
    pub bytes: u64,
    /// The time when files were last added.
    pub modified: SystemTime,
    /// Missing files that the model needs.
    pub missing: Vec<String>,
}

impl Cache {
    /// Returns every revision of every model, sorted by name. Unreadable entries are skipped.
    pub fn list(&self) -> Result<Vec<CachedModel>> {
        let mut models = Vec::new();
        for repo in self.repos()? {
            for commit in repo.commits()? {
                models.extend(model(&repo, commit));
            }
        }
        Ok(models)
    }
}

fn model(repo: &Repo, commit: String) -> Option<CachedModel> {
    let folder = repo.snapshot(&commit);
    let modified = fs::metadata(&folder).ok().filter(fs::Metadata::is_dir)?.modified().ok()?;
    Some(CachedModel {
        name: repo.name().to_owned(),
        references: references(repo)
            .into_iter()
            .filter(|(_, target)| *target == commit)
            .map(|(name, _)| name)
            .collect(),
        commit,
        bytes: folder_bytes(&folder),
        modified,
        // An unreadable index is reported when the model is loaded.
        missing: model_files::missing(&folder).unwrap_or_default(),
        folder,
    })
}

/// Returns all branches and tags with their commits.
pub(super) fn references(repo: &Repo) -> Vec<(String, String)> {
    let folder = repo.references_folder();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&folder).ok()?.to_str()?.to_owned();
        Some((name, fs::read_to_string(&path).ok()?.trim().to_owned()))
    };
    let mut found: Vec<_> = files(&folder).into_iter().filter_map(read).collect();
    found.sort_unstable();
    found
}

/// Returns the checksums of a commit's files.
pub(super) fn contents(repo: &Repo, commit: &str) -> BTreeSet<String> {
    let name = |link: PathBuf| Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned());
    files(&repo.snapshot(commit)).into_iter().filter_map(name).collect()
}
