//! The Hub's description of a model: commit, files, sizes and checksums. Invariant: every string that becomes part of a
//! path is validated here.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use mlx_files::weight_files;
use mlx_hub::{Error, GgufModel, Result, TOKENIZER, VOCABULARY};
use mlx_hub::{affects_output, choose_gguf, gguf_models};
use serde::Deserialize;

use super::checksum::Checksum;
use super::client::Client;

/// A model at one commit.
pub(crate) struct Listing {
    pub commit: String,
    pub files: Vec<HubFile>,
    /// The GGUF model, if the download is one. Then `files` has only its files.
    pub gguf: Option<GgufModel>,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// The path in the repository.
    pub path: String,
    /// The checksum, which is also the file's name in the cache.
    pub etag: String,
    /// The size in bytes.
    pub size: u64,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Requests the listing from the Hub: of the GGUF model with this quantization or file name, or of the safetensors
    /// model. A repository without safetensors gives its default GGUF model.
    pub(crate) fn fetch(client: &Client, file: Option<&str>) -> Result<Self> {
        let text = client.listing()?;
        let answer: Answer = serde_json::from_str(&text)
            .map_err(|error| client.error(format!("the Hub's list of files is invalid: {error}")))?;
        if !is_plain(&answer.sha) {
            return Err(client.error(format!("the Hub sent an invalid commit: {:?}", answer.sha)));
        }
        let gguf = chosen_gguf(&answer, file).map_err(|reason| client.error(reason))?;
        let has_tokenizer = answer.siblings.iter().any(|sibling| sibling.rfilename == TOKENIZER);
        let is_vocabulary = |path: &str| !has_tokenizer && VOCABULARY.contains(&path);
        // Other files are not downloaded, so their names need no validation.
        let needed = |path: &str| match &gguf {
            Some(model) => model.files.iter().any(|file| file == Path::new(path)),
            None => affects_output(path) || is_vocabulary(path) || is_weights(path),
        };
        let siblings = answer.siblings.into_iter().filter(|sibling| needed(&sibling.rfilename));
        let files = siblings.map(|sibling| sibling.complete(client, &answer.sha)).collect::<Result<_>>()?;
        Ok(Self { commit: answer.sha, files, gguf })
    }

    /// Returns the file at `path`, if the Hub has it.
    pub(crate) fn file(&self, path: &str) -> Option<&HubFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns the weights of the model: the files in its index, the single file, or the numbered shards. An index is
    /// ignored if none of its files exists but the single file does: some repositories keep the index after merging
    /// their shards. Fails with the reason.
    pub(crate) fn weights(&self, named: &[String]) -> Result<Vec<HubFile>, String> {
        if let Some(single) = self.file(weight_files::SINGLE)
            && named.iter().all(|path| self.file(path).is_none())
        {
            return Ok(vec![single.clone()]);
        }
        if named.is_empty()
            && let Some(single) = weight_files::SINGLES.iter().find_map(|name| self.file(name))
        {
            return Ok(vec![single.clone()]);
        }
        let numbered = || weight_files::numbered_among(self.files.iter().map(|file| file.path.clone()));
        let paths = if named.is_empty() { numbered()? } else { named.to_vec() };
        let found = |path: &String| {
            let missing = || format!("{} names {path}, which the Hub does not have", weight_files::INDEX);
            self.file(path).cloned().ok_or_else(missing)
        };
        let found: Vec<HubFile> = paths.iter().map(found).collect::<Result<_, _>>()?;
        if found.is_empty() { Err(NO_WEIGHTS.to_owned()) } else { Ok(found) }
    }
}

const NO_WEIGHTS: &str = "has no safetensors files and no GGUF files; other formats are not supported. \
    Look for the same model in mlx-community";

/// Returns the GGUF model to download; `None` for the safetensors model. Fails with the reason.
fn chosen_gguf(answer: &Answer, file: Option<&str>) -> Result<Option<GgufModel>, String> {
    let names = || answer.siblings.iter().map(|sibling| &*sibling.rfilename);
    if file.is_none() && names().any(is_weights) {
        return Ok(None);
    }
    // Some mirrors do not list sizes, and the choice needs none.
    let models = gguf_models(names().map(|name| (PathBuf::from(name), 0)));
    if models.is_empty() && file.is_none() {
        return Ok(None);
    }
    let model = choose_gguf(&models, file).map_err(|labels| {
        let others = if labels.is_empty() { "no GGUF model".to_owned() } else { labels.join(", ") };
        format!("has no {:?} on the Hub, but {others}", file.unwrap_or_default())
    })?;
    if let Some(shard) = model.missing.first() {
        return Err(format!("{} is incomplete on the Hub: {shard} is missing", model.label));
    }
    Ok(Some(model.clone()))
}

impl Sibling {
    fn complete(self, client: &Client, commit: &str) -> Result<HubFile> {
        let (sum, large) = self.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
        let (etag, size) = match (sum.or(self.blob_id), large.or(self.size)) {
            (Some(etag), Some(size)) => (etag, size),
            // Some mirrors do not list sizes and checksums.
            _ => client.head(commit, &self.rfilename)?,
        };
        if !is_plain(&etag) {
            return Err(
                client.error(format!("the Hub sent an invalid checksum for {}: {etag:?}", self.rfilename))
            );
        }
        Ok(HubFile { path: self.rfilename, etag, size })
    }
}

impl HubFile {
    /// Returns the file that a link of a snapshot points to.
    pub fn of_link(folder: &Path, link: &Path) -> Option<Self> {
        let etag = fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned();
        let path = link.strip_prefix(folder).ok()?.to_str()?.to_owned();
        Some(Self { path, etag, size: fs::metadata(link).ok()?.len() })
    }

    /// Returns true if the file at `path` has the expected size and checksum.
    pub fn is_intact(&self, path: &Path, progress: &mut dyn FnMut(u64)) -> Result<bool> {
        let io = |error| Error::io(path, error);
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() != self.size {
            return Ok(false);
        }
        let mut checksum = Checksum::new(&self.etag, self.size);
        checksum.read(file, progress).map_err(io)?;
        Ok(checksum.matches(&self.etag))
    }
}

/// Returns true for the name of a weights file. A download may not need all of them.
pub(crate) fn is_weights(path: &str) -> bool {
    let is_safetensors = !path.contains('/')
        && Path::new(path).extension().is_some_and(|extension| extension == "safetensors");
    is_safetensors || weight_files::SINGLES.contains(&path)
}

/// Returns true if a checksum or commit is safe as a file name.
fn is_plain(name: &str) -> bool {
    let plain = |symbol: char| symbol.is_ascii_alphanumeric() || "-_.".contains(symbol);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(plain)
}
