//! Counts the operations per layer of a decode step: `graph [--backend gpu|cpu] [--json] FOLDER...`. On a GPU each is a kernel launch.

use std::path::Path;

use mlx_core::backend::{Backend, DeviceKind};
use mlx_core::model;
use mlx_core::operations::{of_chunk, of_step};
use mlx_core::weights::WeightPolicy;
use mlx_core::{Error, Result};
use serde_json::json;

use crate::figures::Figures;

/// Positions before the step.
const PROMPT: usize = 40;

/// Rows of a decode step.
const ROWS: [usize; 3] = [1, 8, 32];

/// Positions before the rows of a step with sequences of different lengths.
const MIXED: [usize; 8] = [40, 60, 90, 130, 200, 290, 330, 700];

/// The parsed arguments.
struct Question<'a> {
    backend: Backend,
    json: bool,
    folders: Vec<&'a str>,
}

impl<'a> Question<'a> {
    fn read(arguments: &'a [String]) -> Result<Self> {
        let mut question = Self { backend: Backend::detect()?, json: false, folders: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => question.json = true,
                "--backend" => {
                    let kind = arguments.next().map_or("", String::as_str);
                    let wrong = |why| Error::option("backend", format!("is {kind:?}; {why}"));
                    question.backend = match kind.parse().map_err(wrong)? {
                        DeviceKind::Gpu => Backend::GPU,
                        DeviceKind::Cpu => Backend::CPU,
                    };
                }
                folder => question.folders.push(folder),
            }
        }
        Ok(question)
    }
}

/// The operations per layer of a model: for steps of [`ROWS`] rows, for a mixed step of the most rows, and for a chunk.
struct Counts {
    family: String,
    rows: [f64; 3],
    mixed: f64,
    chunk: f64,
}

fn count(folder: &str, backend: Backend) -> Result<Counts> {
    let model = model::load(Path::new(folder), WeightPolicy::new(backend, false), &mut |_, _| {})?;
    let model = model.as_ref();
    let mut rows = [0.0; 3];
    for (place, count) in ROWS.into_iter().enumerate() {
        rows[place] = of_step(model, &vec![PROMPT; count])?;
    }
    let mixed: Vec<usize> = MIXED.into_iter().cycle().take(ROWS[2]).collect();
    Ok(Counts {
        family: model.spec().family.clone(),
        rows,
        mixed: of_step(model, &mixed)?,
        chunk: of_chunk(model, PROMPT)?,
    })
}

/// Returns one JSON line per model with `--json`; otherwise figures for run.py.
pub(crate) fn measure(arguments: &[String]) -> Result<String> {
    let question = Question::read(arguments)?;
    let (mut figures, mut lines) = (Figures::default(), Vec::new());
    for folder in question.folders {
        let Counts { family, rows, mixed, chunk } = count(folder, question.backend)?;
        let [one, eight, most] = rows;
        lines.push(
            json!({
                "model": folder,
                "family": family,
                "rows": { "1": one, "8": eight, "32": most },
                "mixed": { "32": mixed },
            })
            .to_string(),
        );
        for (rows, count) in ROWS.into_iter().zip(rows) {
            figures.add(format!("{family}, a layer of a step of {rows}"), count.round());
        }
        figures.add(format!("{family}, a layer of a step of {} of several lengths", ROWS[2]), mixed.round());
        figures.add(format!("{family}, a layer of a chunk"), chunk.round());
    }
    Ok(if question.json { lines.join("\n") } else { figures.to_string() })
}
