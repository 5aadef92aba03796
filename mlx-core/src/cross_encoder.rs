//! Cross-encoders: models that score a pair of a query and a document.

use std::path::Path;

use chat_format::text::{EncodeLimit, EncodedText, Tokenizer, TruncationSide};

use crate::config::Fields;
use crate::error::{Error, Result};
use crate::model::Architecture;
use crate::sentence_transformers::{PromptChoice, Prompts, max_tokens_of_pairs, prompts_of_pairs};

/// The scores of pairs, as the `CrossEncoder` of sentence-transformers computes them.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossEncoder {
    /// The number of logits of a pair.
    pub labels: usize,
    activation: ScoreActivation,
    /// The maximum number of tokens of a pair, with the file and key that set it.
    limit: Option<(usize, String)>,
    prompts: Prompts,
}

/// The function from a logit to a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScoreActivation {
    Sigmoid,
    Identity,
}

impl CrossEncoder {
    /// Reads the files of the model in `folder`, with this config.json.
    pub(crate) fn read(folder: &Path, config: &Fields) -> Result<Self> {
        let head = match Architecture::read(config)? {
            (_, Architecture::Encoder(encoder)) => encoder.head,
            (_, Architecture::Decoder(_) | Architecture::Whisper(_)) => None,
        };
        let head = head.ok_or_else(|| config.error("architectures", "names no classification head"))?;
        Ok(Self {
            labels: head.labels,
            activation: activation(folder, config)?,
            limit: max_tokens_of_pairs(folder)?,
            prompts: prompts_of_pairs(folder)?,
        })
    }

    /// Returns the maximum number of tokens of a pair, with the file and key that set it. `None` if only the context limits it.
    pub fn limit(&self) -> Option<(usize, &str)> {
        self.limit.as_ref().map(|(tokens, source)| (*tokens, source.as_str()))
    }

    /// Encodes a pair in at most `limit.tokens` tokens, with the model's default prompt before the query. The longer text is cut first, then
    /// both, on `side`; by default as the tokenizer cuts them.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        document: &str,
        limit: &EncodeLimit,
        side: Option<TruncationSide>,
    ) -> Result<EncodedText> {
        let prompt = self.prompts.text(&PromptChoice::Default)?;
        let query = format!("{prompt}{query}");
        Ok(tokenizer.encode_pair(&query, document, limit.tokens, side, limit.pause)?)
    }

    /// Returns the score of a pair from its logits.
    ///
    /// # Errors
    /// Fails if the model has several labels: none of them is a score.
    pub fn score(&self, logits: &[f32]) -> Result<f32> {
        match (logits, self.activation) {
            ([logit], ScoreActivation::Identity) => Ok(*logit),
            ([logit], ScoreActivation::Sigmoid) => Ok(1.0 / (1.0 + (-logit).exp())),
            _ => {
                let message = format!("has {} labels; a model that ranks documents has one", logits.len());
                Err(Error::request("model", message))
            }
        }
    }
}

/// Reads the function that the model names, in the format of sentence-transformers 4 and later, or the older one. By default it is the
/// sigmoid.
fn activation(folder: &Path, config: &Fields) -> Result<ScoreActivation> {
    let own = Fields::read_optional(&folder.join("config_sentence_transformers.json"))?;
    let section = config.section("sentence_transformers")?;
    let named = [(own.as_ref(), "activation_fn"), (section.as_ref(), "activation_fn")];
    let old = (Some(config), "sbert_ce_default_activation_function");
    for (fields, key) in named.into_iter().chain([old]) {
        let Some(fields) = fields else { continue };
        let Some(path) = fields.optional_text(key)? else { continue };
        return match path.rsplit('.').next() {
            Some("Sigmoid") => Ok(ScoreActivation::Sigmoid),
            Some("Identity") => Ok(ScoreActivation::Identity),
            _ => {
                Err(fields.error(key, format!("is {path:?}; supported are Sigmoid and Identity of torch.nn")))
            }
        };
    }
    Ok(ScoreActivation::Sigmoid)
}
