//! `mlx pull`: downloads a model from the Hub into the cache that all Hub tools share. Invariant: the only HTTP client of this program.

mod backoff;
mod checksum;
mod client;
mod fetch;
mod listing;

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_core::config::Fields;
use mlx_core::hub::{self, Cache, ModelName};
use mlx_core::model::family;
use mlx_core::{Error, Result, size, weights};

use crate::exit_code::Failure;
use crate::interrupt;
use crate::terminal::{self, Bars};
use client::Client;
use fetch::Fetch;
use listing::{HubFile, Listing};

/// The arguments of `mlx pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The model's name on the Hugging Face Hub
    #[arg(value_name = "ORG/NAME[@REVISION]")]
    name: String,

    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Download nothing, only verify the files in the cache [default: the value of HF_HUB_OFFLINE]
    #[arg(long)]
    offline: bool,
}

impl PullArgs {
    fn name(&self) -> Result<ModelName> {
        let name: ModelName = self.name.parse()?;
        match &self.revision {
            Some(revision) if name.has_revision() && name.revision() != revision => Err(Error::option(
                "revision",
                format!("is {revision}, but NAME gives {}; give only one of them", name.revision()),
            )),
            Some(revision) => name.at(revision),
            None => Ok(name),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &PullArgs) -> Result<(), Failure> {
    let name = args.name()?;
    let cache = Cache::from_env()?;
    let folder = if args.offline || is_offline() {
        check(&cache, &name)?
    } else {
        interrupt::explain(format!("interrupted; `mlx pull {name}` resumes the download"));
        pull(&cache, &name)?
    };
    terminal::show(&format!("{}\n", folder.display()))
}

/// Reads `HF_HUB_OFFLINE` as the other Hub tools do.
fn is_offline() -> bool {
    let value = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
    ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str())
}

fn pull(cache: &Cache, name: &ModelName) -> Result<PathBuf> {
    let client = Client::from_env(name)?;
    let listing = Listing::fetch(&client)?;
    listing.expect_model(name)?;
    let repo = cache.repo(name);
    let folder = repo.snapshot(&listing.commit);
    let fetch = Fetch::new(&client, &repo, &listing.commit);
    let described: Vec<&HubFile> = listing.files.iter().filter(|file| hub::described(&file.path)).collect();
    fetch.all(&described)?;
    warn_if_unsupported(&folder, &listing);
    let weights = weights::files(&folder)?;
    let weights: Vec<&HubFile> =
        weights.iter().map(|file| listing.file(file, name)).collect::<Result<_>>()?;
    fetch.all(&weights)?;
    if name.revision() != listing.commit {
        repo.write_reference(name.revision(), &listing.commit)?;
    }
    let bytes = size(described.iter().chain(&weights).map(|file| file.size).sum());
    terminal::note(&format!("{name} is complete: {bytes} at revision {}", listing.commit));
    Ok(folder)
}

/// Warns before gigabytes are downloaded. It is no error, since another program may use the model.
fn warn_if_unsupported(folder: &Path, listing: &Listing) {
    if !listing.has("tokenizer.json") {
        terminal::note("note: this program cannot run the model: it has no tokenizer.json on the Hub");
    }
    if let Err(error) = Fields::read(&folder.join("config.json")).and_then(|fields| family::read(&fields)) {
        terminal::note(&format!("note: this program cannot run the model: {error}"));
    }
}

/// Verifies the files in the cache without network access.
fn check(cache: &Cache, name: &ModelName) -> Result<PathBuf> {
    let folder = cache.find(name)?;
    let repo = cache.repo(name);
    let bars = Bars::new();
    let mut unverified = 0;
    for path in hub::files(&folder) {
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
        let bar = bars.file(&file.path, file.size);
        if !file.is_intact(&path, &mut |bytes| bar.show("checking", bytes))? {
            let message =
                format!("{} is damaged; `mlx pull {name}` without --offline downloads it again", file.path);
            return Err(Error::hub(name, message));
        }
        bar.done();
    }
    let checked = match unverified {
        0 => "all checksums match".to_owned(),
        count => format!("all checksums match, except that {count} files have none"),
    };
    terminal::note(&format!("{} is complete: {checked}; nothing was downloaded", repo.name()));
    Ok(folder)
}
