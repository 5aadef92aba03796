//! SentencePiece's byte-pair encoding. GGUF stores a score per token; tokenizer.json needs the merges that the scores imply.

use serde_json::{Value, json};

use super::special_tokens::SpecialTokens;
use super::steps::{BytePair, Steps, sentencepiece_decoder, spaces_to_marks};
use super::vocabulary::{Kind, TOKENS, Vocabulary};
use crate::error::Result;
use crate::metadata::Metadata;

const SCORES: &str = "tokenizer.ggml.scores";
/// The maximum size of a token in bytes. The work to find its merges grows with the square of it.
const LONGEST_TOKEN: usize = 512;
/// The maximum average number of merges per token. Real vocabularies have two.
const MERGES_PER_TOKEN: usize = 32;

/// Returns the steps of a tokenizer with scores.
pub(super) fn steps(
    metadata: &Metadata,
    vocabulary: &mut Vocabulary,
    special: &SpecialTokens,
) -> Result<Steps> {
    let mut scores = scores(metadata, vocabulary.len())?;
    if metadata.architecture()?.starts_with("gemma") {
        // SentencePiece finds them before it merges other tokens.
        for id in vocabulary.mark_runs_of_spaces() {
            scores[id as usize] = f64::INFINITY;
        }
    }
    let vocabulary = &*vocabulary;
    let merges = merges(metadata, vocabulary, &scores)?;
    let model = BytePair {
        tokens: vocabulary.texts(),
        unknown: special.unknown.map(|id| vocabulary.text(id).to_owned()),
        byte_fallback: vocabulary.has_bytes(),
        ignore_merges: false,
        merges,
    };
    let adds_space = metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let (normalizer, pre_tokenizer) = marks(adds_space, vocabulary);
    let decoder = sentencepiece_decoder(adds_space);
    Ok(Steps { normalizer, pre_tokenizer, decoder, model })
}

/// Returns the normalizer and the pre-tokenizer, which write spaces as marks and add one before a text.
fn marks(adds_space: bool, vocabulary: &Vocabulary) -> (Value, Value) {
    if !adds_space {
        return (spaces_to_marks(), Value::Null);
    }
    // The templates of Mistral's later models write a space after `[INST]`, so these tokenizers add one only at the start of a text. GGUF has no
    // key for it.
    if vocabulary.id("[INST]").is_some_and(|id| vocabulary.kind(id) == Kind::Control) {
        let marks =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
        return (Value::Null, marks);
    }
    let normalizers = [json!({"type": "Prepend", "prepend": "▁"}), spaces_to_marks()];
    (json!({"type": "Sequence", "normalizers": normalizers}), Value::Null)
}

/// Returns the score of each token.
fn scores(metadata: &Metadata, tokens: usize) -> Result<Vec<f64>> {
    let scores = metadata.numbers(SCORES)?.ok_or_else(|| metadata.error(SCORES, "is missing"))?;
    match scores.get(..tokens) {
        Some(scores) => Ok(scores.to_vec()),
        None => Err(metadata.error(SCORES, format_args!("has {} values for {tokens} tokens", scores.len()))),
    }
}

/// The limit of the sum of the squared lengths of all tokens: fifty times that of Gemma's vocabulary.
const MOST_WORK: usize = 1 << 30;

/// A division of a token into two others.
struct Division {
    id: u32,
    /// The size of the left token in bytes.
    left: u32,
    score: f64,
}

/// Returns the merges that give SentencePiece's tokens, best first.
fn merges(metadata: &Metadata, vocabulary: &Vocabulary, scores: &[f64]) -> Result<Vec<(String, String)>> {
    let takes_part = |text: &str| vocabulary.id(text).is_some_and(|id| vocabulary.kind(id) == Kind::Normal);
    let mut divisions = Vec::with_capacity(2 * vocabulary.len());
    let mut work = 0;
    for id in (0..vocabulary.len() as u32).filter(|id| vocabulary.kind(*id) == Kind::Normal) {
        let text = vocabulary.text(id);
        if text.len() > LONGEST_TOKEN {
            let message =
                format!("contains token {id} of {} bytes; the limit is {LONGEST_TOKEN}", text.len());
            return Err(metadata.error(TOKENS, message));
        }
        // Every part of a token is looked up.
        work += text.len() * text.len();
        if work > MOST_WORK {
            return Err(metadata.error(TOKENS, "has too many long tokens to find their parts"));
        }
        for (left, _) in text.char_indices().skip(1) {
            if takes_part(&text[..left]) && takes_part(&text[left..]) {
                divisions.push(Division { id, left: left as u32, score: scores[id as usize] });
            }
        }
        if divisions.len() > MERGES_PER_TOKEN * vocabulary.len() {
            let message = format!("imply more than {MERGES_PER_TOKEN} merges per token; the file is damaged");
            return Err(metadata.error(TOKENS, message));
        }
    }
    // Converters that do not know the scores write equal ones. The ids follow the merges too.
    divisions.sort_by(|one, other| {
        other.score.total_cmp(&one.score).then(one.id.cmp(&other.id)).then(other.left.cmp(&one.left))
    });
    let merge = |it: &Division| {
        let (left, right) = vocabulary.text(it.id).split_at(it.left as usize);
        (left.to_owned(), right.to_owned())
    };
    Ok(divisions.iter().map(merge).collect())
}
