//! `mlx ps` and `mlx stop`: the models in the memory of a running server.

use std::time::Duration;

use clap::Args;
use mlx_files::size;
use serde_json::{Value, json};

use crate::exit_code::Failure;
use crate::server_client::ServerArgs;
use crate::terminal;

/// The time limit of a request. Unloading waits for the memory.
const TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    server: ServerArgs,

    /// Print one JSON list instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The models to unload; a model in use is unloaded after its last answer
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
}

/// Lists the models in memory.
pub(crate) fn list(args: &PsArgs) -> Result<(), Failure> {
    let models = args.server.models(TIMEOUT)?;
    // A profile is listed by its model.
    let is_shown = |model: &Value| model["state"] != "unloaded" && model["profile"] != true;
    let models: Vec<Value> = models.into_iter().filter(is_shown).collect();
    if args.json {
        return terminal::show(&format!("{}\n", Value::from(models)));
    }
    if models.is_empty() {
        terminal::note("no model is loaded");
        return Ok(());
    }
    let name = |model: &Value| model["id"].as_str().unwrap_or_default().to_owned();
    let width = models.iter().map(|model| name(model).chars().count()).max().unwrap_or(0).max(4);
    let heading = format!("{:<width$}  {:>9}  {:<8}  UNTIL\n", "NAME", "SIZE", "STATE");
    let row = |model: &Value| {
        let bytes = model["memory_bytes"].as_u64().map_or_else(String::new, size);
        let is_used = model["in_use"] == true;
        let state = if is_used { "in use" } else { model["state"].as_str().unwrap_or_default() };
        format!("{:<width$}  {bytes:>9}  {state:<8}  {}\n", name(model), until(model))
    };
    let lines: String = std::iter::once(heading).chain(models.iter().map(row)).collect();
    terminal::show(&lines)
}

fn until(model: &Value) -> String {
    match (model["pinned"].as_bool(), model["expires_in"].as_f64()) {
        (Some(true), _) => "pinned".to_owned(),
        (_, Some(seconds)) if seconds >= 120.0 => format!("in {:.0} min", seconds / 60.0),
        (_, Some(seconds)) => format!("in {seconds:.0} s"),
        (_, None) if model["state"] == "loading" => String::new(),
        (_, None) => "memory is needed".to_owned(),
    }
}

/// Unloads models.
pub(crate) fn stop(args: &StopArgs) -> Result<(), Failure> {
    for model in &args.models {
        let answer = args.server.post("/v1/models/unload", &json!({ "model": model }), TIMEOUT)?;
        let name = answer["id"].as_str().unwrap_or(model);
        terminal::note(&match answer["state"].as_str() {
            Some("unloaded") => format!("{name} is unloaded"),
            Some("loading") => format!("{name} is loading and will be unloaded if no request uses it"),
            _ => format!("{name} is in use and will be unloaded after its last answer"),
        });
    }
    Ok(())
}
