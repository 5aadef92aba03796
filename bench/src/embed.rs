//! Measures embeddings: `embed MODEL FILE [VECTORS]`. FILE has a text on each line. All are submitted together, as one request. The vectors
//! are written to VECTORS as rows of little-endian f32, after the steps of the model's modules.

use std::path::Path;
use std::time::Instant;

use chat_format::text::{EncodeLimit, NO_PAUSE};
use mlx_core::engine::{Event, RequestOptions, Task};
use mlx_core::sentence_transformers::normalized;
use mlx_core::{Engine, EngineOptions, Error, Result, array};

use crate::figures::Figures;
use crate::load::argument;

/// Texts before the measured ones.
const BEFORE: usize = 32;

pub(crate) fn measure(arguments: &[String]) -> Result<Figures> {
    let [model, file] = [argument::<String>(arguments, 0, "MODEL")?, argument(arguments, 1, "FILE")?];
    let content = std::fs::read_to_string(&file)
        .map_err(|error| Error::request("FILE", format!("{file} cannot be read: {error}")))?;
    let texts: Vec<&str> = content.lines().collect();
    let engine = Engine::start(Path::new(&model), &EngineOptions::default(), |_, _| {})?;
    vectors(&engine, &texts[..texts.len().min(BEFORE)])?;
    array::reset_peak_memory()?;
    let begin = Instant::now();
    let (vectors, tokens) = vectors(&engine, &texts)?;
    let seconds = begin.elapsed().as_secs_f64();
    if let Some(path) = arguments.get(2) {
        let bytes: Vec<u8> = vectors.concat().iter().flat_map(|number| number.to_le_bytes()).collect();
        std::fs::write(path, bytes)
            .map_err(|error| Error::request("VECTORS", format!("{path} cannot be written: {error}")))?;
    }
    let mut figures = Figures::default();
    figures.add("texts", texts.len() as f64);
    figures.add("tokens", tokens as f64);
    figures.add("texts/s", texts.len() as f64 / seconds);
    figures.add("tokens/s", tokens as f64 / seconds);
    figures.add("peak memory, MiB", array::peak_memory()? as f64 / f64::from(1 << 20));
    Ok(figures)
}

/// Returns the finished vectors of texts and the number of their tokens.
fn vectors(engine: &Engine, texts: &[&str]) -> Result<(Vec<Vec<f32>>, usize)> {
    let (folder, embedding) = (engine.folder(), engine.folder().embedding()?);
    let context = engine.spec().context_length;
    let tokens = embedding.limit().map_or(context, |(tokens, _)| tokens.min(context));
    let limit = EncodeLimit { tokens, pause: NO_PAUSE };
    let prompt = embedding.prompts.text(&mlx_core::sentence_transformers::PromptChoice::Default)?;
    let (mut requests, mut count) = (Vec::new(), 0);
    for text in texts {
        let encoded = embedding.encode(&folder.tokenizer, prompt, text, &limit)?;
        count += encoded.ids.len();
        let options = RequestOptions { task: Task::Embed(embedding.pooling), ..RequestOptions::default() };
        requests.push(engine.request(encoded.ids, &options)?);
    }
    let mut vectors = Vec::new();
    for generation in engine.submit_all(requests)? {
        for event in generation {
            if let Event::Embedding(pooled) = event {
                let vector = embedding.finish(pooled, true)?;
                vectors.push(if embedding.normalizes {
                    normalized(&vector).unwrap_or(vector)
                } else {
                    vector
                });
            }
        }
    }
    if vectors.len() < texts.len() {
        return Err(Error::request("FILE", "has texts without a vector"));
    }
    Ok((vectors, count))
}
