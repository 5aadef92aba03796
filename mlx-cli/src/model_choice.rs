//! Chooses the model of a command: the named one, or the default. A terminal offers to download a missing model. A chat without a model
//! offers a choice on a terminal and uses the guide in a pipe.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use mlx_core::machine::Machine;
use mlx_core::weights::WeightPolicy;
use mlx_core::{Abilities, ModelFolder, Result};
use mlx_guide as guide;
use mlx_hub::{HubName, LocalModel, Store, Stores};
use mlx_hub_client::{Download, is_offline};
use mlx_options::rough_size;

use crate::exit_code::Failure;
use crate::pull;
use crate::shell_word::quoted;
use crate::starter_models::{self, StarterModel};
use crate::{default_file, models, terminal};

/// The model of a chat.
pub(crate) struct ChosenModel {
    pub(crate) folder: PathBuf,
    pub(crate) is_guide: bool,
}

/// Returns the model named by the command line, `MLX_MODEL` or `mlx default`, in this order.
pub(crate) fn named_model(given: Option<&Path>) -> Result<Option<PathBuf>> {
    let variable = || std::env::var_os("MLX_MODEL").filter(|name| !name.is_empty()).map(PathBuf::from);
    given.map(Path::to_path_buf).or_else(variable).map_or_else(default_file::read, |name| Ok(Some(name)))
}

/// Returns true if this names the built-in model.
pub(crate) fn is_guide(given: &Path) -> bool {
    given.as_os_str() == guide::NAME
}

/// Returns a note about a model that continues text because it has no chat template.
pub(crate) fn base_model_note(folder: &ModelFolder) -> Option<String> {
    let name = || format!("{} is a base model without a chat template: it continues the text", folder.name());
    folder.template.is_none().then(name)
}

/// Rejects a model that does not generate text, before it is loaded. The error names the command to run instead.
pub(crate) fn expect_chat_model(model: &Path) -> Result<(), Failure> {
    // The loader reports an invalid config.
    let Ok(Abilities { chats: false, embeds, reranks, transcribes }) = Abilities::of(model) else {
        return Ok(());
    };
    let name = mlx_hub::name_of(model).unwrap_or_else(|| model.display().to_string());
    let name = quoted(&name);
    let message = match (embeds, reranks) {
        _ if transcribes => {
            format!("transcribes audio and does not chat; run `mlx transcribe -m {name} FILE`")
        }
        (true, _) => format!("computes embeddings and does not chat; run `mlx embed {name} 'some text'`"),
        (_, true) => {
            format!(
                "ranks documents and does not chat; run `mlx serve {name}` and send requests to /v1/rerank"
            )
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(format!("{name} {message}")))
}

/// Returns true if an argument is a model and not a prompt: the guide, a folder, a GGUF file, `ORG/NAME`, or a name in the store of another
/// program.
pub(crate) fn looks_like_model(word: &Path) -> bool {
    let is_hub_name = |text: &str| text.contains('/') && text.parse::<HubName>().is_ok();
    let is_local = |text: &str| Stores::from_env().is_ok_and(|stores| stores.has(text));
    is_guide(word) || word.exists() || word.to_str().is_some_and(|text| is_hub_name(text) || is_local(text))
}

/// Returns the folder of the named model, or of the default. The guide is no substitute: it only answers questions about this program.
pub(crate) fn find(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(name) = named_model(given)? else {
        terminal::note(NO_MODEL);
        return Err(Failure::Reported);
    };
    resolve(&name)
}

const NO_MODEL: &str = "error: no model is named, and there is no default model; name one with -m ORG/NAME, or choose one for all commands with \
    `mlx default ORG/NAME`. `mlx chat` offers models that fit this machine; `mlx ask` answers questions about mlx";

/// Returns the model of a chat. Without a name and a default, a terminal offers a choice; elsewhere the guide answers.
pub(crate) fn find_or_ask(given: Option<&Path>) -> Result<ChosenModel, Failure> {
    match named_model(given)? {
        Some(name) => Ok(ChosenModel { folder: resolve(&name)?, is_guide: is_guide(&name) }),
        None if terminal::can_ask() && !is_offline() => ask(),
        None => guide_choice(),
    }
}

/// Returns the folder or the GGUF file of a named model. A terminal offers to download a missing one.
pub(crate) fn resolve(given: &Path) -> Result<PathBuf, Failure> {
    if is_guide(given) {
        return Ok(guide::folder()?);
    }
    match mlx_hub::resolve(given) {
        Err(error @ mlx_hub::Error::NotDownloaded { .. }) => offer_download(given, error),
        other => Ok(other?),
    }
}

fn guide_choice() -> Result<ChosenModel, Failure> {
    Ok(ChosenModel { folder: guide::folder()?, is_guide: true })
}

/// Offers to download a model if the user can be asked.
fn offer_download(given: &Path, missing: mlx_hub::Error) -> Result<PathBuf, Failure> {
    let text = given.to_str().unwrap_or_default();
    let Some(name) = text.parse::<HubName>().ok().filter(|name| name.model.repo.contains('/')) else {
        return Err(unknown_model_error(text, missing));
    };
    if !terminal::can_ask() || is_offline() {
        return Err(missing.into());
    }
    let download = Download::find(&name)?;
    let size = rough_size(download.remaining_bytes());
    let question = format!("{} is not downloaded. Download it now ({size})? [Y/n] ", download.name());
    match terminal::ask(&question)?.as_deref().map(str::trim) {
        Some("" | "y" | "Y" | "yes" | "Yes") => Ok(pull::fetch(&download)?),
        Some(_) => Err(missing.into()),
        None => Err(Failure::Interrupted),
    }
}

/// Returns the error for a name that cannot be on the Hub, because it has no organization.
fn unknown_model_error(given: &str, missing: mlx_hub::Error) -> Failure {
    let chars = |text: &str| text.to_lowercase().replace(|ch: char| !ch.is_alphanumeric(), "");
    let last = |full: &str| full.rsplit('/').next().unwrap_or_default().to_owned();
    // Another tag of the model is similar too.
    let needle = chars(last(given).split(':').next().unwrap_or_default());
    let known = local_names().into_iter().chain(starter_models::all().into_iter().map(|model| model.name));
    let similar = known.filter(|full| !needle.is_empty() && chars(&last(full)).contains(&needle));
    let mut similar: Vec<String> = similar.collect();
    // A name of Ollama's library means one model, even if others are similar.
    if let Some(model) = mlx_hub::model_for_ollama(given) {
        similar.insert(0, model.to_owned());
    }
    let mut seen = HashSet::new();
    similar.retain(|name| seen.insert(name.clone()));
    similar.truncate(3);
    match missing {
        mlx_hub::Error::NotDownloaded { message, .. } if !similar.is_empty() => {
            mlx_hub::Error::hub(given, format!("{message}; did you mean {}?", similar.join(" or "))).into()
        }
        other => other.into(),
    }
}

/// Lets the user choose a local model, or one to download if there are none.
fn ask() -> Result<ChosenModel, Failure> {
    let local = runnable()?;
    if !local.is_empty() {
        return choose_from(&local);
    }
    let starters = starter_models::fitting(&Machine::detect()?);
    if starters.is_empty() {
        return guide_choice();
    }
    let text = format!("No models yet. Choose one to download:\n\n{}\n", menu(&starters));
    let Some(index) = choice(&text, starters.len())? else { return guide_choice() };
    let name = &starters[index].name;
    let folder = pull::fetch(&Download::find(&name.parse()?)?)?;
    default_file::write(name)?;
    terminal::note(&format!("{name} is now the default model; `mlx default` changes it"));
    Ok(ChosenModel { folder, is_guide: false })
}

/// Returns the names of the models in all stores, each once.
pub(crate) fn local_names() -> Vec<String> {
    let models = Stores::from_env().and_then(|stores| stores.list()).unwrap_or_default();
    let mut seen = HashSet::new();
    models.into_iter().map(|model| model.name).filter(|name| seen.insert(name.clone())).collect()
}

/// Returns the local models that can chat, the latest first. A model that the Hub cache has too is returned only once.
fn runnable() -> Result<Vec<LocalModel>> {
    let policy = WeightPolicy::for_device(false)?;
    let mut models = Stores::from_env()?.list()?;
    models.retain(|model| model.problem.is_none() && Abilities::of(&model.path).is_ok_and(|it| it.chats));
    models.retain(|model| models::check_runs(&model.path, policy).is_ok());
    let mut seen = HashSet::new();
    models.retain(|model| seen.insert(model.name.clone()) || model.store == Store::Hub);
    models.sort_by_key(|model| std::cmp::Reverse(model.modified));
    Ok(models)
}

fn choose_from(local: &[LocalModel]) -> Result<ChosenModel, Failure> {
    let line = |(index, model): (usize, &LocalModel)| {
        let store = if model.store == Store::Hub { String::new() } else { format!("  ({})", model.store) };
        format!("  {}  {}{store}", index + 1, model.name)
    };
    let lines: Vec<String> = local.iter().take(9).enumerate().map(line).collect();
    let text = format!(
        "Which model? (`mlx default NAME` skips this question)\n\n{}\n{GUIDE_LINE}\n",
        lines.join("\n")
    );
    match choice(&text, lines.len())? {
        Some(index) => Ok(ChosenModel { folder: local[index].path.clone(), is_guide: false }),
        None => guide_choice(),
    }
}

const GUIDE_LINE: &str = "  g  the guide, which is built in and only knows mlx";

fn menu(starters: &[StarterModel]) -> String {
    let short = |model: &StarterModel| model.name.rsplit('/').next().unwrap_or_default().to_owned();
    let width = starters.iter().map(|model| short(model).len()).max().unwrap_or_default();
    let line = |(index, model): (usize, &StarterModel)| {
        let (name, size) = (short(model), rough_size(model.bytes));
        format!("  {}  {name:width$}  {size:>7}  {}  {}\n", index + 1, model.license, model.about)
    };
    starters.iter().enumerate().map(line).chain([format!("{GUIDE_LINE}\n")]).collect()
}

/// Returns the index of the chosen line; `None` for the guide.
fn choice(text: &str, count: usize) -> Result<Option<usize>, Failure> {
    terminal::note(text);
    loop {
        let Some(answer) = terminal::ask("Number, q to quit, or Enter for 1: ")? else {
            return Err(Failure::Interrupted);
        };
        match answer.trim() {
            "" => return Ok(Some(0)),
            "g" | "G" => return Ok(None),
            "q" | "Q" | "/quit" => return Err(Failure::Interrupted),
            other => match other.parse::<usize>() {
                Ok(number) if (1..=count).contains(&number) => return Ok(Some(number - 1)),
                _ => {
                    terminal::note(&format!(
                        "type a number from 1 to {count}, g for the guide, or q to quit"
                    ));
                }
            },
        }
    }
}
