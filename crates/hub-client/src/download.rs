//! The download of one model: finds its files on the Hub, checks the free space, and fetches the missing files.

use std::path::{Path, PathBuf};

use mlx_files::rough_size;
use mlx_hub::{Cache, Error, HubName, Result, TOKENIZER, VOCABULARY};

use super::client::Client;
use super::fetch::Fetch;
use super::plan::Plan;
use super::progress::Progress;

/// A model on the Hub, ready to download.
pub struct Download {
    /// The model's name, with the quantization of a GGUF file.
    name: HubName,
    client: Client,
    cache: Cache,
    plan: Plan,
}

impl Download {
    /// Requests the list of a model's files from the Hub.
    pub fn find(name: &HubName) -> Result<Self> {
        let (cache, client) = (Cache::from_env()?, Client::from_env(&name.model)?);
        let plan = Plan::make(&client, &cache.repo(&name.model), name.file.as_deref())?;
        let file = plan.gguf.as_ref().map(|model| model.label.clone());
        Ok(Self { name: HubName { model: name.model.clone(), file }, client, cache, plan })
    }

    /// The model's name, with the quantization of a GGUF file.
    pub fn name(&self) -> &HubName {
        &self.name
    }

    /// The commit hash.
    pub fn commit(&self) -> &str {
        &self.plan.commit
    }

    /// Returns the size of all files, with those in the cache.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// Returns the number of bytes to download.
    pub fn remaining_bytes(&self) -> u64 {
        self.plan.missing_bytes(&self.cache.repo(&self.name.model))
    }

    /// Downloads the missing files and returns the model's folder or GGUF file. Calls `check` with the folder before the weights are downloaded.
    /// The config of a GGUF file is in the file, so `check` gets the complete file. An error of `check` ends the download.
    pub fn run(&self, progress: &dyn Progress, check: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
        let Self { name, client, cache, plan } = self;
        self.check_disk_space()?;
        let repo = cache.repo(&name.model);
        let folder = repo.snapshot(&plan.commit);
        let fetch = Fetch::new(client, &repo, &plan.commit);
        fetch.all(&plan.described, progress)?;
        fetch.borrowed(plan, progress)?;
        if plan.gguf.is_none() {
            check(&folder)?;
        }
        fetch.all(&plan.weights, progress)?;
        if name.model.revision() != plan.commit {
            repo.write_reference(name.model.revision(), &plan.commit)?;
        }
        let Some(gguf) = &plan.gguf else { return Ok(folder) };
        let path = folder.join(&gguf.path);
        check(&path)?;
        Ok(path)
    }

    /// Returns true if the model needs a tokenizer, and neither the Hub nor the lender of its config has one.
    pub fn lacks_tokenizer(&self) -> bool {
        let has = |file: &str| self.plan.has(file);
        self.plan.gguf.is_none() && !has(TOKENIZER) && !VOCABULARY.into_iter().all(has)
    }

    /// Rejects a download that does not fit on the disk. If the system does not report the free space, any size is allowed.
    fn check_disk_space(&self) -> Result<()> {
        let (bytes, cache) = (self.remaining_bytes(), self.cache.root());
        let Some(existing) = cache.ancestors().find(|folder| folder.exists()) else { return Ok(()) };
        let Ok(disk) = rustix::fs::statvfs(existing) else { return Ok(()) };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes <= free {
            return Ok(());
        }
        let message = format!(
            "needs {}, but the disk of {} has only {} left; free some space, or move the cache with HF_HOME",
            rough_size(bytes),
            cache.display(),
            rough_size(free)
        );
        Err(Error::hub(&self.name, message))
    }
}

/// Returns true if `HF_HUB_OFFLINE` is set, with the values that other Hub tools accept.
pub fn is_offline() -> bool {
    let value = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
}
