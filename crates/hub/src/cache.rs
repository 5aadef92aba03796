//! Locates the Hub cache from the environment variables that all Hub tools read, and finds models in it.

use std::path::{Path, PathBuf};

use super::contents;
use super::env_path::path_in;
use super::folder_files;
use super::local_model::Store;
use super::local_name::HubName;
use super::name::ModelName;
use super::repo::{self, Repo};
use crate::error::{Error, Result};

/// Returns the data folder of the Hub tools: `HF_HOME`, or `huggingface` in the user's cache folder.
pub fn home() -> Result<PathBuf> {
    if let Some(home) = path_in("HF_HOME") {
        return Ok(home);
    }
    let cache = path_in("XDG_CACHE_HOME").or_else(|| Some(std::env::home_dir()?.join(".cache")));
    let cache = cache.ok_or_else(|| {
        Error::environment(
            "HF_HOME",
            "is not set, and neither is HOME; set one of them to locate the model cache",
        )
    })?;
    Ok(cache.join("huggingface"))
}

/// A complete model in the cache.
#[derive(Debug)]
pub struct Found {
    /// The folder, or the GGUF file.
    pub path: PathBuf,
    /// Its files.
    pub files: Vec<PathBuf>,
    /// The snapshot folder.
    pub folder: PathBuf,
}

/// The local Hub cache.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// Returns the cache of the Hub tools: `HF_HUB_CACHE`, or `hub` in [`home`].
    pub fn from_env() -> Result<Self> {
        let named = path_in("HF_HUB_CACHE").or_else(|| path_in("HUGGINGFACE_HUB_CACHE"));
        let root = named.map_or_else(|| Ok(home()?.join("hub")), Ok::<_, Error>)?;
        Ok(Self::at(root))
    }

    /// Returns the cache in this folder.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The folder of the cache.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the cache entry of a model, even if it does not exist.
    pub fn repo(&self, name: &ModelName) -> Repo {
        Repo::new(&self.root, &name.repo)
    }

    /// Returns all models in the cache, complete or not, sorted by name.
    pub(super) fn repos(&self) -> Result<Vec<Repo>> {
        let mut names: Vec<String> =
            repo::names_in(&self.root)?.iter().filter_map(|folder| repo::name_of_folder(folder)).collect();
        names.sort_unstable();
        Ok(names.iter().map(|name| Repo::new(&self.root, name)).collect())
    }

    /// Returns a complete model.
    pub fn find(&self, name: &HubName) -> Result<Found> {
        let Some(folder) = self.snapshot(&name.model)? else {
            return Err(Error::not_downloaded(name, "no such model in the cache"));
        };
        let content = contents::chosen(name, name.file.as_deref(), &folder, Store::Hub)?;
        let files = if content.is_file() { content.files } else { folder_files::files(&folder) };
        Ok(Found { path: content.path, files, folder })
    }

    /// Returns the snapshot folder of a model, complete or not. `None` if the cache has no revision of the model.
    pub(super) fn snapshot(&self, name: &ModelName) -> Result<Option<PathBuf>> {
        let repo = self.repo(name);
        if let Some(commit) = repo.commit(name)? {
            return Ok(Some(repo.snapshot(&commit)));
        }
        let others = repo.commits()?;
        if others.is_empty() {
            return Ok(None);
        }
        let message = format!(
            "this revision is not in the cache, but {} is; NAME@REVISION chooses another",
            others.join(", ")
        );
        Err(Error::not_downloaded(name, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "1122222222222222222222222222222222222222";

    fn name(text: &str) -> ModelName {
        text.parse().expect("a name")
    }

    fn find(cache: &Cache, text: &str) -> Result<PathBuf> {
        cache.find(&text.parse().expect("a name")).map(|found| found.path)
    }

    fn put(repo: &Repo, commit: &str, files: &[&str]) {
        for (number, file) in files.iter().enumerate() {
            let etag = format!("{number}{commit}");
            std::fs::create_dir_all(repo.blob(&etag).parent().expect("a folder")).expect("writes");
            std::fs::write(repo.blob(&etag), "{}").expect("writes");
            repo.link(commit, file, &etag).expect("links");
        }
    }

    #[test]
    fn a_model_is_found_by_branch_commit_and_commit_prefix() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::at(root.path());
        let repo = cache.repo(&name("org/name"));
        let error = find(&cache, "org/name").expect_err("nothing is there");
        assert!(matches!(&error, Error::NotDownloaded { name, .. } if name == "org/name"), "{error}");
        put(&repo, ONE, &["config.json", "tokenizer.json", "model.safetensors"]);
        std::fs::write(repo.snapshot(ONE).with_file_name(".DS_Store"), "").expect("writes");
        assert_eq!(find(&cache, "org/name").expect("the only one"), repo.snapshot(ONE));
        put(&repo, TWO, &["config.json"]);
        let message = find(&cache, "org/name").expect_err("which of them").to_string();
        assert!(message.contains(ONE) && message.contains(TWO), "{message}");
        repo.write_reference("main", ONE).expect("writes");
        repo.write_reference("refs/pr/1", TWO).expect("writes");
        for text in ["org/name", "org/name@main", &format!("org/name@{ONE}"), "org/name@1111111"] {
            assert_eq!(find(&cache, text).expect(text), repo.snapshot(ONE));
        }
        for text in ["org/name@refs/pr/1", "org/name@1122222"] {
            let message = find(&cache, text).expect_err("half").to_string();
            assert!(message.contains("tokenizer.json, model.safetensors is missing"), "{message}");
        }
        assert_eq!(repo::name_of_snapshot(&repo.snapshot(ONE)).as_deref(), Some("org/name"));
        assert_eq!(repo::name_of_snapshot(root.path()), None);
    }

    #[test]
    fn links_are_relative_and_survive_a_move() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let old = Cache::at(root.path().join("old"));
        let files = ["config.json", "model.safetensors", "additional_chat_templates/tool.jinja"];
        put(&old.repo(&name("org/name")), ONE, &files);
        std::fs::rename(old.root(), root.path().join("new")).expect("moves");
        let repo = Cache::at(root.path().join("new")).repo(&name("org/name"));
        for file in files {
            assert_eq!(std::fs::read(repo.snapshot(ONE).join(file)).expect(file), b"{}");
        }
    }

    #[test]
    fn every_revision_is_listed_and_removed_alone() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::at(root.path());
        assert!(cache.list().expect("nothing").is_empty());
        let repo = cache.repo(&name("org/name"));
        put(&repo, ONE, &["config.json", "model.safetensors"]);
        put(&repo, TWO, &["config.json"]);
        // A file that both revisions share.
        repo.link(TWO, "tokenizer.json", &format!("0{ONE}")).expect("links");
        repo.write_reference("main", TWO).expect("writes");
        std::fs::create_dir_all(root.path().join("datasets--org--name/snapshots/a")).expect("writes");
        let listed = cache.list().expect("two");
        let short: Vec<_> =
            listed.iter().map(|model| (model.commit.as_str(), model.bytes, model.missing.len())).collect();
        assert_eq!(short, [(ONE, 4, 1), (TWO, 4, 1)]);
        assert_eq!(listed[1].references, ["main"]);
        assert_eq!(cache.remove(&name(&format!("org/name@{ONE}"))).expect("goes"), 2, "one is shared");
        assert!(repo.blob(&format!("0{ONE}")).exists() && !repo.blob(&format!("1{ONE}")).exists());
        let rest = 4 + TWO.len() as u64;
        assert_eq!(cache.remove(&name("org/name@main")).expect("goes"), rest, "the last one takes all");
        assert!(cache.list().expect("nothing").is_empty());
        let error = cache.remove(&name("org/name")).expect_err("gone");
        assert!(matches!(&error, Error::NotDownloaded { name, .. } if name == "org/name"), "{error}");
    }

    #[test]
    fn removing_a_model_does_not_follow_links_out_of_the_cache() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let elsewhere = root.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("writes");
        std::fs::write(elsewhere.join("precious"), "x").expect("writes");
        let cache = Cache::at(root.path().join("hub"));
        let repo = cache.repo(&name("org/name"));
        put(&repo, ONE, &["config.json"]);
        std::os::unix::fs::symlink(elsewhere.join("precious"), repo.blob("linked")).expect("links");
        std::os::unix::fs::symlink(&elsewhere, repo.snapshot(ONE).join("folder")).expect("links");
        assert_eq!(cache.remove(&name("org/name")).expect("goes"), 2);
        std::os::unix::fs::symlink(&elsewhere, cache.root().join("models--org--other")).expect("links");
        let message = cache.remove(&name("org/other")).expect_err("a link").to_string();
        assert!(message.contains("link"), "{message}");
        assert!(elsewhere.join("precious").exists());
    }

    #[test]
    fn a_model_that_is_being_downloaded_is_not_removed() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::at(root.path());
        let repo = cache.repo(&name("org/name"));
        put(&repo, ONE, &["config.json"]);
        let lock = repo.lock("etag", || Ok(())).expect("locks");
        let message = cache.remove(&name("org/name")).expect_err("in use").to_string();
        assert!(message.contains("download"), "{message}");
        drop(lock);
        assert!(cache.remove(&name("org/name")).is_ok());
    }
}
