//! `mlx pull`: downloads a model into the shared Hub cache. Only `mlx-hub-client` accesses the Hub.

mod progress;

use std::path::{Path, PathBuf};

use clap::Args;
use mlx_core::{Abilities, Error, Result, model};
use mlx_hub::{Cache, Found, HubName};
use mlx_hub_client::{Download, HubFile, Progress as _, is_offline};
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
        name = download.name().clone();
        fetch(&download)?
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

/// Downloads the missing files with a progress bar. Returns the model's folder or GGUF file.
pub(crate) fn fetch(download: &Download) -> Result<PathBuf> {
    let (name, progress) = (download.name(), Progress::new(download.bytes()));
    let path = download.run(&progress, |path| {
        progress.pausing(|| warn_if_unsupported(download, path));
        Ok(())
    })?;
    progress.finish();
    let size = rough_size(download.bytes());
    terminal::note(&format!("{name} is complete: {size} at revision {}", download.commit()));
    Ok(path)
}

/// Warns about a model that this program cannot run. This is not an error, since another program may use the model.
fn warn_if_unsupported(download: &Download, path: &Path) {
    if download.lacks_tokenizer() {
        terminal::note("note: this program cannot run the model: it has no tokenizer.json on the Hub");
    }
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
