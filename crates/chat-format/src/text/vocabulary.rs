//! Builds the tokenizer of a folder without tokenizer.json from vocab.json and merges.txt.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};

use super::config::{TokenizerConfig, read_optional};
use super::parse::with_model;
use crate::error::{Error, Result};

/// The names that Qwen's byte-pair encoding has in `tokenizer_class`.
const CLASSES: [&str; 2] = ["Qwen2Tokenizer", "Qwen2TokenizerFast"];

/// The pattern that splits a text into words for these classes.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Reads the files. Returns `None` if one does not exist. Fails for another class: its words would be split differently.
pub(super) fn read(folder: &Path, config: &TokenizerConfig) -> Result<Option<Tokenizer>> {
    let (vocabulary, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    let (Some(ids), Some(lines)) = (read_optional(&vocabulary)?, read_optional(&merges)?) else {
        return Ok(None);
    };
    check(config).map_err(|reason| {
        let reason = format!("{reason}; without tokenizer.json, vocab.json needs it; or convert the tokenizer with transformers' save_pretrained");
        Error::file(folder.join("tokenizer_config.json"), reason)
    })?;
    let ids: HashMap<String, u32> = serde_json::from_str(&ids).map_err(|error| {
        Error::file(&vocabulary, format!("must be an object of tokens with ids: {error}"))
    })?;
    let pairs = pairs(&lines).map_err(|reason| Error::file(&merges, reason))?;
    let tokenizer = BPE::builder()
        .vocab_and_merges(ids.into_iter().collect::<Vocab>(), pairs)
        .build()
        .and_then(|model| with_model(&outline(), model))
        .map_err(|error| Error::file(&merges, format!("does not fit vocab.json: {error}")))?;
    with_added_tokens(tokenizer, config)
        .map(Some)
        .map_err(|reason| Error::file(folder.join("tokenizer_config.json"), reason))
}

/// Checks the class, and that the ids of added tokens are known.
fn check(config: &TokenizerConfig) -> Result<(), String> {
    match config.class.as_deref() {
        Some(class) if CLASSES.contains(&class) => {}
        Some(class) => return Err(format!("tokenizer_class is {class}; it must be {}", CLASSES[0])),
        None => return Err(format!("tokenizer_class is missing; it must be {}", CLASSES[0])),
    }
    if config.added_tokens.is_empty() {
        Err("added_tokens_decoder is missing or empty".to_owned())
    } else {
        Ok(())
    }
}

/// Returns tokenizer.json without tokens.
fn outline() -> Value {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": false},
            &bytes,
        ]},
        "post_processor": &bytes,
        "decoder": &bytes,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    })
}

/// Adds the tokens of `added_tokens_decoder`. Fails if one gets another id: the library gives new tokens the ids after the vocabulary.
fn with_added_tokens(mut tokenizer: Tokenizer, config: &TokenizerConfig) -> Result<Tokenizer, String> {
    for (id, token) in &config.added_tokens {
        tokenizer.add_tokens([token.clone()]).map_err(|error| error.to_string())?;
        let found = tokenizer.token_to_id(&token.content);
        if found.map(u64::from) != Some(*id) {
            let free = found.map_or_else(|| "none".to_owned(), |found| found.to_string());
            return Err(format!(
                "added_tokens_decoder gives {:?} the id {id}; with vocab.json it is {free}",
                token.content
            ));
        }
    }
    Ok(tokenizer)
}

/// Reads a merge per line: two tokens and a space. The first line may name the version.
fn pairs(lines: &str) -> Result<Vec<(String, String)>, String> {
    let is_version = |(number, line): &(usize, &str)| *number == 0 && line.starts_with("#version");
    let lines = lines.lines().enumerate().filter(|line| !is_version(line) && !line.1.is_empty());
    let pair = |(number, line): (usize, &str)| {
        let pair = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
        let wrong = || format!("line {} is {line:?}; it must be two tokens and a space", number + 1);
        pair.map(|(left, right)| (left.to_owned(), right.to_owned())).ok_or_else(wrong)
    };
    lines.map(pair).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::text::Tokenizer;

    const MERGES: &str = "#version: 0.2\nh e\nl l\nhe ll\nÃ ©\n\n";

    /// Writes a folder without tokenizer.json.
    fn folder(merges: &str, config: &Value) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("writes");
        write("vocab.json", &vocabulary().to_string());
        write("merges.txt", merges);
        write("tokenizer_config.json", &config.to_string());
        folder
    }

    fn vocabulary() -> Value {
        let words = ["h", "e", "l", "o", "Ġ", "1", "2", "Ã", "©", "he", "ll", "hell", "Ã©", "12"];
        words
            .into_iter()
            .zip(0..)
            .map(|(word, id)| (word.to_owned(), json!(id)))
            .collect::<Map<_, _>>()
            .into()
    }

    fn config(class: &str, id: &str) -> Value {
        json!({"tokenizer_class": class, "eos_token": "<|end|>",
            "added_tokens_decoder": {id: {"content": "<|end|>", "special": true}}})
    }

    fn error(merges: &str, config: &Value) -> String {
        Tokenizer::load(folder(merges, config).path()).expect_err("it must be refused").to_string()
    }

    #[test]
    fn a_vocabulary_and_merges_are_a_tokenizer() {
        let folder = folder(MERGES, &config("Qwen2Tokenizer", "14"));
        let tokenizer = Tokenizer::load(folder.path()).expect("loads");
        let encode = |text: &str| tokenizer.encode(text, true).expect("tokens");
        // The decomposed é is composed, and a word has one digit.
        assert_eq!(encode("hello e\u{301}12<|end|>"), [11, 3, 4, 12, 5, 6, 14]);
        assert_eq!(tokenizer.eos_id(), Some(14));
    }

    #[test]
    fn other_tokenizers_and_broken_files_are_named() {
        let qwen = config("Qwen2Tokenizer", "14");
        assert!(
            error(MERGES, &config("GPT2Tokenizer", "14"))
                .contains("tokenizer_class is GPT2Tokenizer; it must be Qwen2Tokenizer")
        );
        assert!(error(MERGES, &json!({})).contains("tokenizer_class is missing"));
        assert!(
            error(MERGES, &json!({"tokenizer_class": "Qwen2Tokenizer"}))
                .contains("added_tokens_decoder is missing")
        );
        assert!(
            error(MERGES, &config("Qwen2Tokenizer", "20")).contains("the id 20; with vocab.json it is 14")
        );
        assert!(error("h e\nh e l\n", &qwen).contains("merges.txt: line 2 is \"h e l\""));
        assert!(error("h x\n", &qwen).contains("merges.txt: does not fit vocab.json"));
    }
}
