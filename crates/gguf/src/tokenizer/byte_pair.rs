//! Vocabularies with merges: of bytes, as in GPT-2, and of whole letters, as in Gemma 4.

use serde_json::{Value, json};

use super::pre_tokenizer::{PreTokenizer, Spelling};
use super::special_tokens::SpecialTokens;
use super::steps::{BytePair, Steps, sentencepiece_decoder, spaces_to_marks};
use super::vocabulary::Vocabulary;
use crate::error::Result;
use crate::metadata::Metadata;

/// The key with the merges of a byte-pair vocabulary, best first.
pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// Returns the steps of a tokenizer with merges.
pub(super) fn steps(
    metadata: &Metadata,
    vocabulary: &mut Vocabulary,
    special: &SpecialTokens,
    pre_tokenizer: &PreTokenizer,
) -> Result<Steps> {
    if pre_tokenizer.spelling == Spelling::Marks {
        vocabulary.mark_runs_of_spaces();
    }
    let vocabulary = &*vocabulary;
    let merges = merges(metadata, vocabulary)?;
    let model = BytePair {
        tokens: vocabulary.texts(),
        unknown: None,
        byte_fallback: false,
        ignore_merges: pre_tokenizer.ignore_merges,
        merges,
    };
    let normalizer = match pre_tokenizer.spelling {
        Spelling::Bytes => Value::Null,
        Spelling::ComposedBytes => json!({"type": "NFC"}),
        Spelling::Marks => {
            let unknown = special.unknown.map(|id| vocabulary.text(id).to_owned());
            return Ok(Steps {
                normalizer: spaces_to_marks(),
                pre_tokenizer: Value::Null,
                decoder: sentencepiece_decoder(false),
                model: BytePair { unknown, byte_fallback: vocabulary.has_bytes(), ..model },
            });
        }
    };
    Ok(Steps {
        normalizer,
        pre_tokenizer: pre_tokenizer.json(),
        decoder: json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
        model,
    })
}

/// Returns the merges of the file. As in llama.cpp, a merge into a text without a token is not used.
fn merges(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Vec<(String, String)>> {
    let lines = metadata.texts(MERGES)?.ok_or_else(|| metadata.error(MERGES, "is missing"))?;
    let mut merges = Vec::with_capacity(lines.len());
    let mut joined = String::new();
    for line in lines {
        // The left token may be a space.
        let space = line.bytes().skip(1).position(|byte| byte == b' ');
        let Some((left, right)) = space.map(|at| (&line[..=at], &line[at + 2..])) else {
            return Err(metadata.error(MERGES, format_args!("contains {line:?}, which is not two tokens")));
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if [left, right, &joined].into_iter().all(|text| vocabulary.id(text).is_some()) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}
