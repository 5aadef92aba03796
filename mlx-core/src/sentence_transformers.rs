//! Text embeddings as sentence-transformers computes them, with its modules, prompts and limits. An unsupported setting is an error that
//! names the file and the key.

mod dense;
mod linear;
mod modules;
mod pooling;
mod prompts;
mod transformer;

use std::path::Path;

use chat_format::text::{EncodeLimit, EncodedText, Tokenizer};

pub use pooling::{Pooling, Poolings};
pub use prompts::{PromptChoice, Prompts};

use self::dense::Dense;
use self::modules::{Kind, Module};
use self::transformer::Transformer;
use crate::error::{Error, Result};

/// The folder of the pooling module in a model without modules.json.
const POOLING: &str = "1_Pooling";

/// A step after pooling.
#[derive(Debug, Clone)]
enum Step {
    Dense(Dense),
    Normalize,
}

/// The steps from the hidden states of a text to its embedding.
#[derive(Debug, Clone)]
pub struct TextEmbedding {
    /// The poolings of the hidden states.
    pub pooling: Poolings,
    /// True if the tokens of a text's prompt are pooled, too.
    pub include_prompt: bool,
    /// The prompts by name.
    pub prompts: Prompts,
    /// True if embeddings have length 1 unless a request overrides it.
    pub normalizes: bool,
    transformer: Transformer,
    steps: Vec<Step>,
}

impl TextEmbedding {
    /// Reads the files of the model in `folder`. Without modules.json, embeddings have length 1, and `1_Pooling` sets the pooling. Without both,
    /// the pooling is the mean for an encoder. For a decoder it is the last state if the tokenizer ends every text with a special token, as
    /// embedding models with causal attention do, or else the mean.
    pub(crate) fn read(folder: &Path, tokenizer: &Tokenizer, is_encoder: bool) -> Result<Self> {
        let prompts = Prompts::read(folder, "SentenceTransformer")?;
        let Some(modules) = modules::read(folder)? else {
            let path = folder.join(POOLING).join("config.json");
            let named = if path.exists() { Some(pooling::read(&path)?) } else { None };
            let (pooling, include_prompt) =
                named.map_or_else(|| Ok((usual(tokenizer, is_encoder)?.into(), true)), Ok::<_, Error>)?;
            let dense = if is_encoder { Dense::all_of_model(folder)? } else { Vec::new() };
            let mut steps: Vec<Step> = dense.into_iter().map(Step::Dense).collect();
            if !steps.is_empty() {
                steps.push(Step::Normalize);
            }
            let transformer = Transformer::default();
            return Ok(Self { pooling, include_prompt, prompts, normalizes: true, transformer, steps });
        };
        let (mut pooling, mut steps, mut dense) = (None, Vec::new(), 0);
        for Module { kind, path } in &modules {
            match kind {
                Kind::Transformer | Kind::Dropout => {}
                Kind::Pooling => {
                    let path = folder.join(path).join("config.json");
                    // mlx-embeddings stores Dense modules in the model's file. With them, the pooling is the mean if no file names it.
                    let is_implied = !path.exists() && is_encoder && !Dense::all_of_model(folder)?.is_empty();
                    pooling =
                        Some(if is_implied { (Pooling::Mean.into(), true) } else { pooling::read(&path)? });
                }
                Kind::Dense => {
                    steps.push(Step::Dense(Dense::open(folder, path, dense)?));
                    dense += 1;
                }
                Kind::Normalize => steps.push(Step::Normalize),
            }
        }
        let (pooling, include_prompt) =
            pooling.ok_or_else(|| Error::file(folder.join(modules::FILE), "has no Pooling module"))?;
        let normalizes = matches!(steps.last(), Some(Step::Normalize));
        let transformer = Transformer::read(folder, transformer::EMBEDS)?;
        Ok(Self { pooling, include_prompt, prompts, normalizes, transformer, steps })
    }

    /// Encodes a prompt and a text, in at most `limit.tokens` tokens. A longer text is cut as the tokenizer cuts it; special tokens stay.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        prompt: &str,
        text: &str,
        limit: &EncodeLimit,
    ) -> Result<EncodedText> {
        Ok(tokenizer.encode_truncated(&format!("{prompt}{text}"), limit.tokens, None, limit.pause)?)
    }

    /// Returns the length of an embedding with these poolings, for a model of width `hidden`.
    ///
    /// # Errors
    /// Fails if the poolings are not the model's and its Dense modules expect another number of them.
    pub fn dimensions(&self, hidden: usize, poolings: Poolings) -> Result<usize> {
        let last = self.steps.iter().rev().find_map(|step| match step {
            Step::Dense(dense) => Some(dense.outputs()),
            Step::Normalize => None,
        });
        if last.is_some() && poolings.count() != self.pooling.count() {
            let message = format!(
                "makes {} numbers; the model's Dense module takes the {} of its own poolings",
                hidden * poolings.count(),
                hidden * self.pooling.count()
            );
            return Err(Error::request("pooling", message));
        }
        Ok(last.unwrap_or(hidden * poolings.count()))
    }

    /// Returns the maximum number of tokens of a text, with the file and key that set it. `None` if only the context limits it.
    pub fn limit(&self) -> Option<(usize, &str)> {
        self.transformer.limit.as_ref().map(|(tokens, source)| (*tokens, source.as_str()))
    }

    /// Returns the number of prompt tokens that are excluded from pooling; 0 if the prompt is pooled.
    pub fn unpooled(&self, prompt: &str, tokenizer: &Tokenizer) -> Result<usize> {
        if self.include_prompt || prompt.is_empty() {
            return Ok(0);
        }
        let ids = tokenizer.encode(prompt, true)?;
        let ends = ids.last().is_some_and(|id| tokenizer.is_special(*id));
        Ok(ids.len() - usize::from(ends))
    }

    /// Returns the embedding of a text from its pooled hidden states. A Normalize module at the end applies only if `normalize` is true.
    pub fn finish(&self, pooled: Vec<f32>, normalize: bool) -> Result<Vec<f32>> {
        let steps = match self.steps.split_last() {
            Some((Step::Normalize, earlier)) if !normalize => earlier,
            _ => &self.steps,
        };
        steps.iter().try_fold(pooled, |vector, step| match step {
            Step::Dense(dense) => dense.forward(&vector),
            // A vector of zeros stays unchanged.
            Step::Normalize => Ok(normalized(&vector).unwrap_or(vector)),
        })
    }
}

/// Returns the maximum number of tokens of a pair of texts for the cross-encoder in `folder`, with the file and key that set it.
pub(crate) fn max_tokens_of_pairs(folder: &Path) -> Result<Option<(usize, String)>> {
    Ok(Transformer::read(folder, transformer::RANKS)?.limit)
}

/// Returns the prompts of the cross-encoder in `folder`.
pub(crate) fn prompts_of_pairs(folder: &Path) -> Result<Prompts> {
    // Without modules.json, sentence-transformers reads no prompts.
    if folder.join(modules::FILE).exists() {
        Prompts::read(folder, "CrossEncoder")
    } else {
        Ok(Prompts::default())
    }
}

/// Returns true if the model in `folder` reads texts in lower case. An invalid file is reported by those who read all of it.
pub(crate) fn lowercases(folder: &Path) -> bool {
    transformer::lowercases(folder).unwrap_or(false)
}

/// Returns true if the files of sentence-transformers in `folder` say how to pool a text.
pub(crate) fn is_sentence_transformer(folder: &Path) -> bool {
    folder.join(modules::FILE).exists() || folder.join(POOLING).join("config.json").exists()
}

/// Returns the vector scaled to length 1; `None` for a vector of zeros.
pub fn normalized(vector: &[f32]) -> Option<Vec<f32>> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    (length > 0.0).then(|| vector.iter().map(|value| (f64::from(*value) / length) as f32).collect())
}

/// Returns the pooling of a model that does not configure any.
fn usual(tokenizer: &Tokenizer, is_encoder: bool) -> Result<Pooling> {
    // The texts of most encoders end with a special token, whose state they do not use.
    if is_encoder {
        return Ok(Pooling::Mean);
    }
    let last = tokenizer.encode("a", true)?.last().copied();
    Ok(if last.is_some_and(|id| tokenizer.is_special(id)) { Pooling::Last } else { Pooling::Mean })
}
