//! Measures the cost of constraints: `masks FOLDER`, with a tokenizer.json in the folder. Compilation including the first mask in milliseconds,
//! and the masks of random walks in microseconds.

use std::path::Path;
use std::time::Instant;

use chat_format::{ConstraintSpec, Grammar};
use mlx_core::engine::Grammars;
use mlx_core::sampling::{Constraint, Stream, TokenHistory, TokenMask, uniform};
use mlx_core::{Error, ModelFolder, Result};
use serde_json::json;

use crate::figures::{Figures, median, percentile};

const WALKS: u64 = 20;
const LONGEST: usize = 200;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let [folder] = arguments else {
        return Err(Error::request("masks", "needs one folder with a tokenizer.json"));
    };
    let copy = model_folder(Path::new(folder))?;
    let folder = ModelFolder::open(copy.path())?;
    let width = folder.tokenizer.vocab_size();
    let mut figures = Figures::default();
    let grammars = Grammars::default();
    let begun = Instant::now();
    grammars.follower(&Grammar::Regex("a".into()).into(), &folder, width, &TokenHistory::default(), false)?;
    figures.add(format!("tree of the vocabulary, {width}, ms"), begun.elapsed().as_secs_f64() * 1e3);
    for (name, grammar) in cases() {
        let spec = ConstraintSpec::from(grammar);
        let begun = Instant::now();
        grammars.follower(&spec, &folder, width, &TokenHistory::default(), false)?;
        figures.add(format!("{name}, {width}, compiled, ms"), begun.elapsed().as_secs_f64() * 1e3);
        let mut times = Vec::new();
        for seed in 0..WALKS {
            let history = TokenHistory::default();
            let follower = grammars.follower(&spec, &folder, width, &history, false)?;
            walk(follower, history, width, seed, &mut times)?;
        }
        figures.add(format!("{name}, {width}, median, µs"), median(&times));
        figures.add(format!("{name}, {width}, p99, µs"), percentile(&times, 99));
    }
    Ok(figures)
}

fn cases() -> [(&'static str, Grammar); 4] {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"type": "string"}},
            "address": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}},
        },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    [
        ("a schema", Grammar::JsonSchema(person)),
        ("any object", Grammar::JsonSchema(json!({"type": "object"}))),
        ("a regular expression", Grammar::Regex("[A-Z][a-z]+( [a-z]+){3,30}\\.".into())),
        ("text between tags", Grammar::Lark("start: \"<a>\" text\ntext[suffix=\"</a>\"]: /(?s:.*)/".into())),
    ]
}

/// Creates a model folder without weights. The last token of the vocabulary ends texts.
fn model_folder(of_tokenizer: &Path) -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir().map_err(|error| Error::io(std::env::temp_dir(), error))?;
    let path = of_tokenizer.join("tokenizer.json");
    let tokenizer = std::fs::read(&path).map_err(|error| Error::io(&path, error))?;
    let vocabulary = chat_format::text::Tokenizer::load(of_tokenizer)?.vocab_size();
    let config = json!({ "eos_token_id": vocabulary - 1 }).to_string();
    for (name, bytes) in [("tokenizer.json", tokenizer.as_slice()), ("config.json", config.as_bytes())] {
        std::fs::write(folder.path().join(name), bytes).map_err(|error| Error::io(folder.path(), error))?;
    }
    Ok(folder)
}

/// Draws allowed tokens at random and times their masks.
fn walk(
    mut follower: Box<dyn Constraint>,
    mut history: TokenHistory,
    width: usize,
    seed: u64,
    times: &mut Vec<f64>,
) -> Result<()> {
    for step in 0..LONGEST {
        let begun = Instant::now();
        follower.prepare(&history);
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        let mut mask = TokenMask::default();
        mask.allow_all(width);
        follower.restrict(&history, &mut mask)?;
        let allowed: Vec<u32> = (0..width as u32).filter(|&token| mask.allows(token)).collect();
        let place = (uniform(seed, step as u64, Stream::Draw) * allowed.len() as f64) as usize;
        match allowed.get(place) {
            Some(&token) if token as usize + 1 < width => history.push(token),
            _ => break,
        }
    }
    Ok(())
}
