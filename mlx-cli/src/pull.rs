//! `mlx pull`: fetches a model from the hub into the cache that all of the hub's tools share. Invariant: the only part of this program that
//! speaks HTTP as a client.

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

/// Which model, and from where.
#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// The model's name on the hub
    #[arg(value_name = "ORG/NAME[@REVISION]")]
    name: String,

    /// A branch, a tag or a commit [default: main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Fetch nothing: only check what is in the cache [default: as HF_HUB_OFFLINE says]
    #[arg(long)]
    offline: bool,
}

impl PullArgs {
    fn name(&self) -> Result<ModelName> {
        let name: ModelName = self.name.parse()?;
        match &self.revision {
            Some(revision) if name.has_revision() && name.revision() != revision => Err(Error::request(
                "--revision",
                format!("is {revision}, but the name says {}", name.revision()),
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
        interrupt::explain(format!("interrupted; `mlx pull {name}` goes on where this stopped"));
        pull(&cache, &name)?
    };
    terminal::show(&format!("{}\n", folder.display()))
}

/// As the hub's other tools read the variable.
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
    say_if_unknown(&folder, &listing);
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

/// Said before gigabytes are fetched: somebody may want the model for another program, so it is no error.
fn say_if_unknown(folder: &Path, listing: &Listing) {
    if !listing.has("tokenizer.json") {
        terminal::note("note: this program cannot run it: the hub has no tokenizer.json of it");
    }
    if let Err(error) = Fields::read(&folder.join("config.json")).and_then(|fields| family::read(&fields)) {
        terminal::note(&format!("note: this program cannot run it: {error}"));
    }
}

/// Without the network: whether everything is there and as it should be.
fn check(cache: &Cache, name: &ModelName) -> Result<PathBuf> {
    let folder = cache.find(name)?;
    let repo = cache.repo(name);
    let bars = Bars::new();
    let mut unknown = 0;
    for path in hub::files(&folder) {
        if !path.exists() {
            let message =
                format!("{} leads nowhere; without --offline, `mlx pull {name}` fetches it", path.display());
            return Err(Error::hub(name, message));
        }
        let Some(file) = HubFile::of_link(&folder, &path) else {
            unknown += 1;
            continue;
        };
        let bar = bars.file(&file.path, file.size);
        if !file.is_sound(&path, &mut |bytes| bar.show("checking", bytes))? {
            let message =
                format!("{} is damaged; without --offline, `mlx pull {name}` fetches it again", file.path);
            return Err(Error::hub(name, message));
        }
        bar.done();
    }
    let checked = match unknown {
        0 => "as the hub has it".to_owned(),
        count => format!("as the hub has it but for {count} files that have no checksum here"),
    };
    terminal::note(&format!("{} is complete and {checked}; nothing was fetched", repo.name()));
    Ok(folder)
}
