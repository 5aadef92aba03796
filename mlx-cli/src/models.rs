//! `mlx list` and `mlx rm`: the models in the Hub cache.

use std::time::SystemTime;

use clap::Args;
use mlx_core::weights::WeightPolicy;
use mlx_core::{Result, model};
use mlx_files::size;
use mlx_hub::{Cache, CachedModel, ModelName};
use serde_json::{Value, json};

use crate::exit_code::Failure;
use crate::{starter_models, terminal};

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

/// A model, and the reason if it cannot run.
struct Row(CachedModel, Option<String>);

/// Lists the models in the cache.
pub(crate) fn list(args: &ListArgs) -> Result<(), Failure> {
    let cache = Cache::from_env()?;
    let policy = WeightPolicy::for_device(false)?;
    let rows: Vec<Row> = cache.list()?.into_iter().map(|model| Row::new(model, policy)).collect();
    if args.json {
        terminal::show(&format!("{}\n", rows.iter().map(Row::json).collect::<Value>()))?;
        return Ok(());
    }
    if rows.is_empty() {
        terminal::note(&format!("No models yet. Try: mlx pull {}", starter_models::all()[0].name));
        return Ok(());
    }
    terminal::show(&table(&rows))?;
    terminal::note(&format!("{} in {}", rows.len(), cache.root().display()));
    Ok(())
}

/// Removes models from the cache.
pub(crate) fn remove(args: &RemoveArgs) -> Result<(), Failure> {
    let cache = Cache::from_env()?;
    let names: Vec<ModelName> = args.names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    for name in names {
        let bytes = cache.remove(&name).map_err(|error| match error {
            mlx_hub::Error::NotDownloaded { .. } => {
                mlx_hub::Error::hub(&name, "is not in the cache; `mlx list` shows the cached models")
            }
            other => other,
        })?;
        terminal::note(&format!("removed {name}; {} freed", size(bytes)));
    }
    Ok(())
}

impl Row {
    fn new(model: CachedModel, policy: WeightPolicy) -> Self {
        let problem = if model.missing.is_empty() {
            model::inspect(&model.folder, policy).err().map(|error| {
                // The table shows the folder already.
                error.to_string().replace(&format!("{}/", model.folder.display()), "")
            })
        } else {
            Some(format!("{} is missing; `mlx pull` downloads it", model.missing.join(", ")))
        };
        Self(model, problem)
    }

    /// An element of the output of `--json`. Scripts rely on it: fields may be added, never changed.
    fn json(&self) -> Value {
        let Self(model, problem) = self;
        let modified = model.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        json!({
            "name": model.name,
            "revision": model.commit,
            "references": model.references,
            "bytes": model.bytes,
            "modified": modified.as_secs(),
            "folder": model.folder,
            "problem": problem,
        })
    }

    fn cells(&self) -> [String; 5] {
        let Self(model, problem) = self;
        let short: String = model.commit.chars().take(8).collect();
        let revision = model.references.iter().fold(short, |all, reference| format!("{all} {reference}"));
        let state =
            problem.as_ref().map_or_else(|| "ready".to_owned(), |reason| format!("not ready: {reason}"));
        [model.name.clone(), revision, size(model.bytes), age(model.modified), state]
    }
}

/// Formats the rows with all columns but the last padded to their widest cell.
fn table(rows: &[Row]) -> String {
    let rows: Vec<_> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    let line = |row: &[String; 5]| {
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
