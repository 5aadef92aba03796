//! `mlx pull`: downloads a model into the shared Hub cache. Only `mlx-hub-client` accesses the Hub.

mod progress;

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_core::{Abilities, Error, Result, model};
use mlx_hub::{Cache, Found, HubName};
use mlx_hub_client::{Client, Fetch, HubFile, Plan, Progress as _};
use mlx_options::rough_size;

use crate::exit_code::Failure;
use crate::interrupt;
use crate::terminal;
use progress::Progress;

/// The arguments of `mlx pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The model's name on the Hugging Face Hub, or the URL of its page. With a quantization such as Q4_K_M or a file's name, one of its
    /// GGUF files
    #[arg(value_name = "ORG/NAME[@REVISION][:QUANTIZATION]")]
    name: String,

    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Only verify the files in the cache, without downloading [default: the value of HF_HUB_OFFLINE]
    #[arg(long)]
    offline: bool,
}

impl PullArgs {
    fn name(&self) -> Result<HubName> {
        let HubName { model, file } = self.name.parse()?;
        let model = match &self.revision {
            Some(revision) if model.has_revision() && model.revision() != revision => {
                return Err(Error::option(
                    "revision",
                    format!("is {revision}, but NAME gives {}; give only one of them", model.revision()),
                ));
            }
            Some(revision) => model.at(revision)?,
            None => model,
        };
        Ok(HubName { model, file })
    }
}

/// Runs the command.
pub(crate) fn run(args: &PullArgs) -> Result<(), Failure> {
    let mut name = args.name()?;
    let path = if args.offline || is_offline() {
        check(&Cache::from_env()?, &name)?
    } else {
        interrupt::exit_with_message(format!("interrupted; `mlx pull {name}` resumes the download"));
        let download = Download::find(&name)?;
        name = download.name.clone();
        download.run()?
    };
    if terminal::is_output_terminal() {
        // A model with an invalid config got a note already.
        let Abilities { embeds, reranks, transcribes, .. } = Abilities::of(&path).unwrap_or_default();
        let next = match (embeds, reranks) {
            _ if transcribes => format!("mlx transcribe -m {name} FILE"),
            (true, _) => format!("mlx embed {name} 'some text'"),
            (false, true) => format!("mlx serve {name}"),
            (false, false) => format!("mlx chat {name}"),
        };
        terminal::note(&format!("next: {next}"));
        return Ok(());
    }
    terminal::show(&format!("{}\n", path.display()))
}

/// Returns true if `HF_HUB_OFFLINE` is set, with the values that other Hub tools accept.
pub(crate) fn is_offline() -> bool {
    let value = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
}

/// A model on the Hub, ready to download.
pub(crate) struct Download {
    /// The model's name, with the quantization of a GGUF file.
    name: HubName,
    client: Client,
    cache: Cache,
    plan: Plan,
}

impl Download {
    /// Requests the list of a model's files from the Hub.
    pub(crate) fn find(name: &HubName) -> Result<Self> {
        let (cache, client) = (Cache::from_env()?, Client::from_env(&name.model)?);
        let plan = Plan::make(&client, &cache.repo(&name.model), name.file.as_deref())?;
        let file = plan.gguf.as_ref().map(|model| model.label.clone());
        Ok(Self { name: HubName { model: name.model.clone(), file }, client, cache, plan })
    }

    /// The model's name, with the quantization of a GGUF file.
    pub(crate) fn name(&self) -> &HubName {
        &self.name
    }

    /// Returns the number of bytes to download.
    pub(crate) fn remaining_bytes(&self) -> u64 {
        self.plan.missing_bytes(&self.cache.repo(&self.name.model))
    }

    /// Downloads the missing files and returns the model's folder or GGUF file.
    pub(crate) fn run(&self) -> Result<PathBuf> {
        let Self { name, client, cache, plan } = self;
        check_disk_space(name, self.remaining_bytes(), cache.root())?;
        let repo = cache.repo(&name.model);
        let folder = repo.snapshot(&plan.commit);
        let fetch = Fetch::new(client, &repo, &plan.commit);
        let progress = Progress::new(plan.bytes());
        fetch.all(&plan.described, &progress)?;
        fetch.borrowed(plan, &progress)?;
        if plan.gguf.is_none() {
            progress.pausing(|| warn_if_unsupported(&folder, plan));
        }
        fetch.all(&plan.weights, &progress)?;
        progress.finish();
        if name.model.revision() != plan.commit {
            repo.write_reference(name.model.revision(), &plan.commit)?;
        }
        let size = rough_size(plan.bytes());
        terminal::note(&format!("{name} is complete: {size} at revision {}", plan.commit));
        let Some(gguf) = &plan.gguf else { return Ok(folder) };
        let path = folder.join(&gguf.path);
        // The config is in the file.
        warn_about_config(&path);
        Ok(path)
    }
}

/// Rejects a download that does not fit on the disk. If the system does not report the free space, any size is allowed.
fn check_disk_space(name: &HubName, bytes: u64, cache: &Path) -> Result<()> {
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
    Err(Error::hub(name, message))
}

/// Warns before gigabytes are downloaded. This is not an error, since another program may use the model.
fn warn_if_unsupported(folder: &Path, plan: &Plan) {
    if !plan.has("tokenizer.json") {
        terminal::note("note: this program cannot run the model: it has no tokenizer.json on the Hub");
    }
    warn_about_config(folder);
}

/// Warns if the config of a folder or the header of a GGUF file is not supported.
fn warn_about_config(path: &Path) {
    if let Err(error) = model::check_config(path) {
        terminal::note(&format!("note: this program cannot run the model: {error}"));
    }
}

/// Verifies the files in the cache without network access.
fn check(cache: &Cache, name: &HubName) -> Result<PathBuf> {
    let Found { path: found, files, folder } = cache.find(name)?;
    let length = |path: &PathBuf| path.metadata().map_or(0, |file| file.len());
    let progress = Progress::new(files.iter().map(length).sum());
    let mut unverified = 0;
    for path in files {
        if !path.exists() {
            let message = format!(
                "{} is a broken link; `mlx pull {name}` without --offline downloads the file",
                path.display()
            );
            return Err(Error::hub(name, message));
        }
        let Some(file) = HubFile::of_link(&folder, &path) else {
            unverified += 1;
            continue;
        };
        let bar = progress.file(&file.path);
        if !file.is_intact(&path, &mut |bytes| bar.verified(bytes))? {
            let message =
                format!("{} is damaged; `mlx pull {name}` without --offline downloads it again", file.path);
            return Err(Error::hub(name, message));
        }
        bar.done(file.size);
    }
    progress.finish();
    let checked = match unverified {
        0 => "all checksums match".to_owned(),
        count => format!("all checksums match, except that {count} files have none"),
    };
    terminal::note(&format!("{name} is complete: {checked}; nothing was downloaded"));
    Ok(found)
}
