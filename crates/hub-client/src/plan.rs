//! Selects the files of a download. The confirmation prompt, the check of free space and the download all use this
//! selection.

use std::fs;

use mlx_files::weight_files;
use mlx_hub::{Error, GgufModel, Repo, Result};

use super::client::Client;
use super::lender::Lender;
use super::listing::{HubFile, Listing, is_weights};

/// The files of one commit that a download fetches.
pub(crate) struct Plan {
    /// The commit hash.
    pub(crate) commit: String,
    /// All files except the weights. They are fetched first.
    pub(crate) described: Vec<HubFile>,
    /// The weights.
    pub(crate) weights: Vec<HubFile>,
    /// The other model whose tokenizer is fetched, if the model has none.
    pub(crate) lender: Option<Lender>,
    /// The GGUF model, if the download is one. Its files are the weights.
    pub(crate) gguf: Option<GgufModel>,
}

impl Plan {
    /// Requests the file list from the Hub, and the index if there is one. `file` is the quantization or the name of a GGUF
    /// file.
    pub(crate) fn make(client: &Client, repo: &Repo, file: Option<&str>) -> Result<Self> {
        let listing = Listing::fetch(client, file)?;
        if listing.gguf.is_some() {
            let Listing { commit, files, gguf } = listing;
            return Ok(Self { commit, described: Vec::new(), weights: files, lender: None, gguf });
        }
        let named = match listing.file(weight_files::INDEX) {
            Some(index) => weight_files::files_of_index(&index_text(client, repo, &listing.commit, index)?)?,
            None => Vec::new(),
        };
        let weights = listing.weights(&named).map_err(|reason| client.error(reason))?;
        if listing.file("config.json").is_none() {
            return Err(client.error("has no config.json, which is needed to load the model"));
        }
        let lender = Lender::find(client, &listing)?;
        let Listing { commit, mut files, gguf } = listing;
        files.retain(|file| !is_weights(&file.path));
        Ok(Self { commit, described: files, weights, lender, gguf })
    }

    /// Returns all files.
    fn files(&self) -> impl Iterator<Item = &HubFile> {
        let borrowed = self.lender.iter().flat_map(|lender| &lender.files);
        self.described.iter().chain(borrowed).chain(&self.weights)
    }

    /// Returns the total size of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files().map(|file| file.size).sum()
    }

    /// Returns the number of bytes that are not in the cache yet.
    pub(crate) fn missing_bytes(&self, repo: &Repo) -> u64 {
        let length = |path| fs::metadata(path).map_or(0, |file| file.len());
        let there = |file: &HubFile| length(repo.blob(&file.etag)).max(length(repo.partial(&file.etag)));
        self.files().map(|file| file.size.saturating_sub(there(file))).sum()
    }

    /// Returns true if the model has a file at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files().any(|file| file.path == path)
    }
}

/// Returns the index, from the cache if possible. Does not store it, because the user has not confirmed the download
/// yet.
fn index_text(client: &Client, repo: &Repo, commit: &str, index: &HubFile) -> Result<String> {
    let blob = repo.blob(&index.etag);
    if blob.exists() && index.is_intact(&blob, &mut |_| {})? {
        return fs::read_to_string(&blob).map_err(|error| Error::io(blob, error));
    }
    client.file_text(commit, &index.path)
}
