//! Parses tokenizer.json. To detect the kind of model, the library parses the whole file into values, and changing its
//! cache size needs a copy. Both take hundreds of megabytes for a large vocabulary. Nearly all models use byte-pair
//! encoding, so that is tried first, with the cache size set while parsing.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use mlx_files::TokenizerParts;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Result, Token, Tokenizer, TokenizerImpl,
};

/// The word cache size per thread. The library's default of ten thousand words with up to 256 letters each would cost
/// megabytes per thread of a server.
const CACHED_WORDS: usize = 1000;

/// The part of a file that is read before its kind of model is known.
#[derive(Deserialize)]
struct Outline {
    pre_tokenizer: Option<IgnoredAny>,
}

/// Byte-pair encoding that caches WORDS words.
#[derive(Deserialize)]
#[serde(transparent)]
struct Bpe<const WORDS: usize>(BPE);

type BpeTokenizer<const WORDS: usize> =
    TokenizerImpl<Bpe<WORDS>, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Parses a tokenizer, or returns an error with the reason. The library panics on some files.
pub(super) fn parse(bytes: &[u8]) -> Result<Tokenizer> {
    // Without a pre-tokenizer the cache would contain whole texts, which rarely repeat.
    let has_words = serde_json::from_slice::<Outline>(bytes)?.pre_tokenizer.is_some();
    let known = if has_words { parse_bpe::<CACHED_WORDS>(bytes) } else { parse_bpe::<0>(bytes) };
    if let Some(tokenizer) = known {
        return Ok(tokenizer);
    }
    let mut tokenizer = Tokenizer::from_bytes(bytes)?;
    let mut model = tokenizer.get_model().clone();
    model.resize_cache(if has_words { CACHED_WORDS } else { 0 });
    tokenizer.with_model(model);
    Ok(tokenizer)
}

/// Builds the tokenizer of a GGUF file. Its vocabulary is not written and parsed as text.
pub(super) fn build(parts: TokenizerParts) -> Result<Tokenizer> {
    let ids = parts.model.tokens.into_iter().zip(0..);
    let mut model = BPE::new(ids.collect(), parts.model.merges);
    model.fuse_unk = parts.model.unknown.is_some();
    model.unk_token = parts.model.unknown;
    model.byte_fallback = parts.model.byte_fallback;
    model.ignore_merges = parts.model.ignore_merges;
    let mut tokenizer = with_model(&parts.outline, model)?;
    tokenizer.add_tokens(serde_json::from_value::<Vec<AddedToken>>(parts.added_tokens)?)?;
    Ok(tokenizer)
}

/// Builds a tokenizer from the content of tokenizer.json without tokens, and its model.
pub(super) fn with_model(outline: &Value, mut model: BPE) -> Result<Tokenizer> {
    let mut tokenizer = parse(&serde_json::to_vec(outline)?)?;
    let has_words = tokenizer.get_pre_tokenizer().is_some();
    model.resize_cache(if has_words { CACHED_WORDS } else { 0 });
    tokenizer.with_model(model);
    Ok(tokenizer)
}

fn parse_bpe<const WORDS: usize>(bytes: &[u8]) -> Option<Tokenizer> {
    serde_json::from_slice::<BpeTokenizer<WORDS>>(bytes).ok().map(Into::into)
}

impl<const WORDS: usize> From<Bpe<WORDS>> for ModelWrapper {
    fn from(Bpe(mut model): Bpe<WORDS>) -> Self {
        model.resize_cache(WORDS);
        Self::BPE(model)
    }
}

/// The methods that the library needs while it reads added tokens.
impl<const WORDS: usize> Model for Bpe<WORDS> {
    type Trainer = <BPE as Model>::Trainer;

    fn tokenize(&self, sequence: &str) -> Result<Vec<Token>> {
        self.0.tokenize(sequence)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> Self::Trainer {
        self.0.get_trainer()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn file(model: &Value, pre_tokenizer: &Value) -> Vec<u8> {
        let added = json!([{
            "id": 4, "content": "<|end|>", "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        }]);
        json!({"version": "1.0", "added_tokens": added, "pre_tokenizer": pre_tokenizer, "model": model})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn all_files_become_what_the_library_makes_of_them() {
        let vocab = json!({"a": 0, "b": 1, "ab": 2, "c": 3});
        let models = [
            json!({"type": "BPE", "vocab": vocab, "merges": ["a b"]}),
            json!({"type": "BPE", "vocab": vocab, "merges": [["a", "b"]], "byte_fallback": true}),
            json!({"vocab": vocab, "merges": ["a b"]}),
            json!({"type": "BPE", "vocab": vocab, "merges": ["a b"], "of_a_later_version": [1]}),
            json!({"type": "WordLevel", "vocab": vocab, "unk_token": "a"}),
            json!({"vocab": vocab, "unk_token": "a"}),
            json!({"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]], "unk_id": 0}),
        ];
        for model in models {
            for pre_tokenizer in [Value::Null, json!({"type": "Whitespace"})] {
                let bytes = file(&model, &pre_tokenizer);
                let [ours, theirs] = [parse(&bytes), Tokenizer::from_bytes(&bytes)]
                    .map(|it| it.expect("a tokenizer").to_string(false).expect("JSON"));
                assert_eq!(ours, theirs, "{model}");
            }
        }
    }

    #[test]
    fn the_parts_of_gguf_files_become_the_tokenizer_of_their_text() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf");
        for name in ["llama.gguf", "gemma3.gguf", "qwen35.gguf", "qwen3moe-00001-of-00003.gguf"] {
            let path = folder.join(name);
            let parts = mlx_files::tokenizer_parts(&path).expect("a valid file").expect("a GGUF file");
            let text =
                mlx_files::read_model_file(&path.join("tokenizer.json"), u64::MAX).expect("a valid file");
            let [parts, text] = [build(parts), parse(&text.expect("a tokenizer"))]
                .map(|it| it.expect("a tokenizer").to_string(false).expect("JSON"));
            assert_eq!(parts, text, "{name}");
        }
    }

    #[test]
    fn an_error_is_the_library_s() {
        let bytes = file(&json!({"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}), &Value::Null);
        let [ours, theirs] = [parse(&bytes), Tokenizer::from_bytes(&bytes)]
            .map(|it| it.map(drop).expect_err("a merge of an unknown token").to_string());
        assert_eq!(ours, theirs);
    }
}
