//! `mlx list` and `mlx rm`: the models on this machine.

use std::path::Path;
use std::time::SystemTime;

use clap::Args;
use mlx_core::weights::WeightPolicy;
use mlx_core::{Abilities, Result, model};
use mlx_files::size;
use mlx_hub::{LocalModel, ModelName, Store, Stores};
use serde_json::{Value, json};

use crate::exit_code::Failure;
use crate::{default_file, starter_models, terminal};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print one JSON list instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// Models to remove; with @REVISION, only that revision
    #[arg(value_name = "ORG/NAME[@REVISION]", required = true)]
    names: Vec<String>,
}

/// A model, its task, and the reason if it cannot run.
struct Row {
    model: LocalModel,
    /// `chat`, `embed` or `rerank`; empty if its config is invalid.
    task: &'static str,
    problem: Option<String>,
}

/// Lists the models of all stores.
pub(crate) fn list(args: &ListArgs) -> Result<(), Failure> {
    let stores = Stores::from_env()?;
    let policy = WeightPolicy::for_device(false)?;
    let rows: Vec<Row> = stores.list()?.into_iter().map(|model| Row::new(model, policy)).collect();
    if args.json {
        terminal::show(&format!("{}\n", rows.iter().map(Row::json).collect::<Value>()))?;
        return Ok(());
    }
    if rows.is_empty() {
        // A broken file of the default is an error of the commands that use it.
        terminal::note(&match default_file::read().ok().flatten() {
            Some(model) => format!("No downloaded models. The default model is {}", model.display()),
            None => format!("No models yet. Try: mlx pull {}", starter_models::all()[0].name),
        });
        return Ok(());
    }
    terminal::show(&table(&rows))?;
    terminal::note(&format!("{} in all; the Hub cache is {}", rows.len(), stores.hub().root().display()));
    Ok(())
}

/// Returns the reason if this program cannot run the complete model at `path`: a folder or a GGUF file.
pub(crate) fn check_runs(path: &Path, policy: WeightPolicy) -> Result<(), String> {
    // The reader of the reason sees the model's name already.
    let shown = path.display();
    let short = |text: String| text.replace(&format!("{shown}/"), "").replace(&format!("{shown}: "), "");
    model::inspect(path, policy).map(drop).map_err(|error| short(error.to_string()))
}

/// Returns the task that a model is made for; empty if its config is invalid.
fn task(model: &Path) -> &'static str {
    match Abilities::of(model) {
        Ok(Abilities { embeds: true, .. }) => "embed",
        Ok(Abilities { reranks: true, .. }) => "rerank",
        Ok(Abilities { transcribes: true, .. }) => "transcribe",
        Ok(Abilities { chats: true, .. }) => "chat",
        Ok(_) | Err(_) => "",
    }
}

/// Removes models from the Hub cache.
pub(crate) fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let stores = Stores::from_env()?;
    let parsed =
        |text: &String| text.parse::<ModelName>().map_err(|error| not_removable(&stores, text, error));
    let names: Vec<ModelName> = args.names.iter().map(parsed).collect::<Result<_, _>>()?;
    for name in names {
        let bytes = stores.hub().remove(&name).map_err(|error| match error {
            mlx_hub::Error::NotDownloaded { .. } => {
                let message = "is not in the cache; `mlx list` shows the cached models";
                not_removable(&stores, &name.to_string(), mlx_hub::Error::hub(&name, message))
            }
            other => other,
        })?;
        terminal::note(&format!("removed {name}; {} freed", size(bytes)));
    }
    Ok(())
}

/// Returns the error for a name that is not a model of the Hub cache. Models of other programs are never removed.
fn not_removable(stores: &Stores, name: &str, other: mlx_hub::Error) -> mlx_hub::Error {
    let repo = name.rsplit_once(':').and_then(|(repo, _)| repo.parse::<ModelName>().ok());
    if let Some(repo) = repo.filter(|repo| stores.hub().repo(repo).folder().exists()) {
        let message = format!("names a file in the cache; `mlx rm {repo}` removes all files of the model");
        return mlx_hub::Error::hub(name, message);
    }
    let message = match stores.foreign_store(name) {
        Some(Store::LmStudio) => {
            "is in LM Studio's folder, which this program only reads; remove the model in LM Studio, under My Models"
                .to_owned()
        }
        Some(Store::Ollama) => {
            format!("is in Ollama's store, which this program only reads; `ollama rm {name}` removes the model")
        }
        Some(Store::Hub) | None => return other,
    };
    mlx_hub::Error::hub(name, message)
}

impl Row {
    fn new(model: LocalModel, policy: WeightPolicy) -> Self {
        let problem = model.problem.clone().or_else(|| check_runs(&model.path, policy).err());
        Self { task: task(&model.path), model, problem }
    }

    /// An element of the output of `--json`. Scripts rely on it: fields may be added, never changed.
    fn json(&self) -> Value {
        let Self { model, task, problem } = self;
        let modified = model.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_folder = model.path.is_dir();
        json!({
            "name": model.name,
            "revision": model.revision.as_ref().map(|revision| &revision.commit),
            "references": model.revision.as_ref().map_or(&[][..], |revision| &revision.references),
            "bytes": model.bytes,
            "modified": modified.as_secs(),
            "folder": if is_folder { Some(&*model.path) } else { model.path.parent() },
            "problem": problem,
            "store": model.store.id(),
            "abilities": Some(task).filter(|task| !task.is_empty()).into_iter().collect::<Vec<_>>(),
            "path": model.path,
        })
    }

    fn cells(&self) -> [String; 7] {
        let Self { model, task, problem } = self;
        let revision = model.revision.as_ref().map_or_else(String::new, |revision| {
            let short: String = revision.commit.chars().take(8).collect();
            revision.references.iter().fold(short, |all, reference| format!("{all} {reference}"))
        });
        let state =
            problem.as_ref().map_or_else(|| "ready".to_owned(), |reason| format!("not ready: {reason}"));
        let store = model.store.to_string();
        let size = size(model.bytes);
        [model.name.clone(), (*task).to_owned(), store, revision, size, age(model.modified), state]
    }
}

/// Formats the rows with all columns but the last padded to their widest cell.
fn table(rows: &[Row]) -> String {
    let rows: Vec<_> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3), width(4), width(5)];
    let line = |row: &[String; 7]| {
        let [cells @ .., state] = row;
        let cells: String = cells.iter().zip(widths).map(|(cell, width)| pad(cell, width)).collect();
        format!("{cells}{state}\n")
    };
    rows.iter().map(line).collect()
}

fn pad(cell: &str, width: usize) -> String {
    format!("{cell:width$}  ")
}

/// Formats a human-readable age.
fn age(then: SystemTime) -> String {
    let seconds = then.elapsed().unwrap_or_default().as_secs();
    let units = [(86400, "day"), (3600, "hour"), (60, "minute")];
    match units.into_iter().find(|(length, _)| seconds >= *length) {
        Some((length, unit)) => {
            let count = seconds / length;
            format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
        }
        None => "just now".to_owned(),
    }
}
