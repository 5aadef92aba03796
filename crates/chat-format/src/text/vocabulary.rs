//! Builds the tokenizer of a folder without tokenizer.json from vocab.json and merges.txt.

use std::collections::HashMap;
use std::path::Path;

use chat_template::guarded;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, Tokenizer};

use super::config::{TokenizerConfig, read_optional};
use super::parse::with_model;
use crate::error::{Error, Result};

/// The pattern that splits a text into words for Qwen2Tokenizer.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Reads the files. Returns `None` if one does not exist. Fails for another class: its words would be split differently.
pub(super) fn read(folder: &Path, config: &TokenizerConfig) -> Result<Option<Tokenizer>> {
    let (vocabulary, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    let (Some(words), Some(lines)) = (read_optional(&vocabulary)?, read_optional(&merges)?) else {
        return Ok(None);
    };
    let of_config = |reason| Error::file(folder.join("tokenizer_config.json"), reason);
    let outline = outline(config).map_err(of_config)?;
    let words = ids(&vocabulary, &words)?.into_iter().collect::<Vocab>();
    let pairs = pairs(&lines).map_err(|reason| Error::file(&merges, reason))?;
    let build = || {
        let model = BPE::builder().vocab_and_merges(words, pairs).build()?;
        with_model(&outline, model)
    };
    // The library panics on a merge that is longer than any token.
    let tokenizer = guarded(build)
        .unwrap_or_else(|| Err("a merge gives no token".into()))
        .map_err(|error| Error::file(&merges, format!("does not fit vocab.json: {error}")))?;
    let added = added_tokens(folder, config)?;
    with_added_tokens(tokenizer, added, &config.named_tokens).map(Some).map_err(of_config)
}

/// Returns tokenizer.json without tokens, as transformers makes it for the class. Fails with the reason if the class is not known.
fn outline(config: &TokenizerConfig) -> Result<Value, String> {
    let bytes = |splits: bool| json!({"type": "ByteLevel", "add_prefix_space": config.add_prefix_space, "trim_offsets": false, "use_regex": splits});
    let class = config.class.as_deref().unwrap_or("missing");
    let (normalizer, pre_tokenizer) = match class.strip_suffix("Fast").unwrap_or(class) {
        "Qwen2Tokenizer" => {
            let split = json!({"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false});
            (json!({"type": "NFC"}), json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]}))
        }
        "GPT2Tokenizer" | "WhisperTokenizer" => (Value::Null, bytes(true)),
        _ => {
            return Err(format!(
                "tokenizer_class is {class}; without tokenizer.json, it must be Qwen2Tokenizer, GPT2Tokenizer or WhisperTokenizer: convert others with transformers' save_pretrained"
            ));
        }
    };
    Ok(json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": bytes(false),
        "decoder": bytes(true),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }))
}

/// Returns the added tokens and their ids: of `tokenizer_config.json`, or of the older `added_tokens.json`.
fn added_tokens(folder: &Path, config: &TokenizerConfig) -> Result<Vec<(u64, AddedToken)>> {
    let path = folder.join("added_tokens.json");
    let older = if config.added_tokens.is_empty() { read_optional(&path)? } else { None };
    let Some(older) = older else { return Ok(config.added_tokens.clone()) };
    let token = |(text, id): (String, u32)| {
        let is_special = config.named_tokens.iter().any(|token| token.content == text);
        (id.into(), AddedToken::from(text, is_special).normalized(false))
    };
    let mut tokens: Vec<_> = ids(&path, &older)?.into_iter().map(token).collect();
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens)
}

/// Adds tokens. Fails if one gets another id, or if the id of a named special token is unknown: the library gives new tokens the ids after
/// the vocabulary.
fn with_added_tokens(
    mut tokenizer: Tokenizer,
    added: Vec<(u64, AddedToken)>,
    named: &[AddedToken],
) -> Result<Tokenizer, String> {
    for (id, token) in added {
        let text = token.content.clone();
        tokenizer.add_tokens([token]).map_err(|error| error.to_string())?;
        let found = tokenizer.token_to_id(&text);
        if found.map(u64::from) != Some(id) {
            let found = found.map_or_else(|| "none".to_owned(), |found| found.to_string());
            return Err(format!(
                "the added token {text:?} should have the id {id}; with vocab.json it is {found}"
            ));
        }
    }
    // Some folders of Whisper name an empty text.
    let is_unknown =
        |token: &&AddedToken| !token.content.is_empty() && tokenizer.token_to_id(&token.content).is_none();
    match named.iter().find(is_unknown) {
        Some(token) => {
            Err(format!("the id of {:?} is unknown; add it to added_tokens_decoder", token.content))
        }
        None => Ok(tokenizer),
    }
}

/// Parses an object of tokens with ids.
fn ids(path: &Path, text: &str) -> Result<HashMap<String, u32>> {
    let wrong = |error| Error::file(path, format!("must be an object of tokens with ids: {error}"));
    serde_json::from_str(text).map_err(wrong)
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

    const MERGES: &str = "#version: 0.2\nh e\nl l\nhe ll\nÃ ©\n1 2\n\n";

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
    fn older_folders_have_a_file_of_added_tokens() {
        let config = json!({"tokenizer_class": "WhisperTokenizer", "eos_token": "<|end|>"});
        let folder = folder(MERGES, &config);
        let load = || Tokenizer::load(folder.path()).map_err(|error| error.to_string());
        assert!(load().expect_err("it lacks a token").contains("the id of \"<|end|>\" is unknown"));
        let added = json!({"<|0.00|>": 15, "<|end|>": 14});
        std::fs::write(folder.path().join("added_tokens.json"), added.to_string()).expect("writes");
        let tokenizer = load().expect("loads");
        // Numbers are words, and letters are not composed.
        assert_eq!(tokenizer.encode("hell12<|0.00|><|end|>", true).expect("tokens"), [11, 13, 15, 14]);
        assert_eq!(tokenizer.decode(&[15, 14], true), "<|0.00|>");
    }

    #[test]
    fn other_tokenizers_and_broken_files_are_named() {
        let qwen = config("Qwen2Tokenizer", "14");
        assert!(
            error(MERGES, &config("LlamaTokenizer", "14")).contains("tokenizer_class is LlamaTokenizer; ")
        );
        assert!(error(MERGES, &json!({})).contains("tokenizer_class is missing; "));
        assert!(
            error(MERGES, &config("Qwen2Tokenizer", "20")).contains("the id 20; with vocab.json it is 14")
        );
        assert!(error("h e\nh e l\n", &qwen).contains("merges.txt: line 2 is \"h e l\""));
        for merges in ["h x\n", "hell hell\n"] {
            assert!(error(merges, &qwen).contains("merges.txt: does not fit vocab.json"));
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_files_never_panic(
            words in proptest::collection::hash_map("[a-cĠ]{0,3}", proptest::prelude::any::<u32>(), 0..12),
            merges in "([a-cĠ]{0,3} ?[a-cĠ]{0,3}\n){0,6}",
            id in 0_u32..13,
        ) {
            let folder = folder(&merges, &config("GPT2Tokenizer", &id.to_string()));
            std::fs::write(folder.path().join("vocab.json"), json!(words).to_string()).expect("writes");
            if let Ok(tokenizer) = Tokenizer::load(folder.path()) {
                let _ = tokenizer.encode("abc cab", true);
            }
        }
    }
}
