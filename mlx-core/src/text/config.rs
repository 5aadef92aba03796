//! Reads `tokenizer_config.json` and `special_tokens_map.json`: special tokens, added tokens and flags.

use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::error::{Error, Result};

/// The keys that name a special token, in transformers' order.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The keys that list special tokens: transformers 4 and 5.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// What a model folder says about its tokenizer outside of tokenizer.json.
#[derive(Debug, Default)]
pub(super) struct TokenizerConfig {
    /// Name to text: `bos_token` and so on, and `additional_special_tokens` as a list. Templates see these as
    /// variables.
    pub(super) special_tokens: Map<String, Value>,
    /// Tokens that must exist besides those of tokenizer.json, lowest id first.
    pub(super) added_tokens: Vec<AddedToken>,
    /// Whether encoding starts with the first token of a text; `None` leaves it to tokenizer.json.
    pub(super) add_bos: Option<bool>,
    /// Whether encoding ends with the last token of a text; `None` leaves it to tokenizer.json.
    pub(super) add_eos: Option<bool>,
    /// `chat_template` as it stands: a string or a list of names and templates.
    pub(super) chat_template: Option<Value>,
}

impl TokenizerConfig {
    /// Reads what is there; a folder with neither file gives an empty configuration.
    pub(super) fn load(folder: &Path) -> Result<Self> {
        let config = read_object(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let map = read_object(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
        Ok(Self::from_objects(&config, &map))
    }

    fn from_objects(config: &Map<String, Value>, map: &Map<String, Value>) -> Self {
        // As in transformers, special_tokens_map.json only overrules folders from before
        // `added_tokens_decoder`.
        let legacy = !config.contains_key("added_tokens_decoder");
        let (first, second) = if legacy { (map, config) } else { (config, map) };
        let mut special_tokens = Map::new();
        for name in NAMES {
            if let Some(text) = token_text(first.get(name)).or_else(|| token_text(second.get(name))) {
                special_tokens.insert(name.to_string(), text.into());
            }
        }
        for name in LISTS {
            match config.get(name).or_else(|| map.get(name)) {
                Some(Value::Array(tokens)) => {
                    let texts: Vec<_> = tokens.iter().filter_map(|token| token_text(Some(token))).collect();
                    special_tokens.insert(name.to_string(), texts.into());
                }
                // transformers also allows names of the model's own, such as `image_token`.
                Some(Value::Object(tokens)) => special_tokens.extend(
                    tokens
                        .iter()
                        .filter_map(|(name, token)| Some((name.clone(), token_text(Some(token))?.into()))),
                ),
                _ => {}
            }
        }
        let flag = |name| config.get(name).and_then(Value::as_bool);
        Self {
            added_tokens: added_tokens(config.get("added_tokens_decoder"), &special_tokens),
            special_tokens,
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
            chat_template: config.get("chat_template").filter(|template| !template.is_null()).cloned(),
        }
    }

    /// The text of a named special token.
    pub(super) fn special_token(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name).and_then(Value::as_str)
    }
}

/// Reads a JSON object; `None` when there is no such file.
pub(super) fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(text) = read_optional(path)? else { return Ok(None) };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(Error::file(path, "is not a JSON object")),
        Err(error) => Err(Error::file(path, format!("is not valid JSON: {error}"))),
    }
}

/// Reads a text file; `None` when there is no such file.
pub(super) fn read_optional(path: &Path) -> Result<Option<String>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, error)),
    };
    String::from_utf8(bytes).map(Some).map_err(|_| Error::file(path, "is not UTF-8 text"))
}

/// A special token is given as a string or as an object with `content`.
fn token_text(value: Option<&Value>) -> Option<String> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_string)
}

/// The tokens of `added_tokens_decoder` and the special tokens that are not among them.
fn added_tokens(decoder: Option<&Value>, special_tokens: &Map<String, Value>) -> Vec<AddedToken> {
    let mut numbered: Vec<(u64, AddedToken)> = decoder
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?)))
        .collect();
    numbered.sort_by_key(|(id, _)| *id);
    let mut tokens: Vec<AddedToken> = numbered.into_iter().map(|(_, token)| token).collect();
    let named = special_tokens.values().flat_map(|value| match value {
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect(),
        text => text.as_str().into_iter().collect::<Vec<_>>(),
    });
    for text in named {
        match tokens.iter_mut().find(|token| token.content == text) {
            Some(token) => token.special = true,
            None => tokens.push(AddedToken::from(text, true)),
        }
    }
    tokens
}

fn added_token(value: &Value) -> Option<AddedToken> {
    let flag = |name, default| value.get(name).and_then(Value::as_bool).unwrap_or(default);
    let special = flag("special", false);
    Some(AddedToken {
        content: value.get("content")?.as_str()?.to_string(),
        single_word: flag("single_word", false),
        lstrip: flag("lstrip", false),
        rstrip: flag("rstrip", false),
        normalized: flag("normalized", !special),
        special,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(config: &Value, map: &Value) -> TokenizerConfig {
        let empty = Map::new();
        let object = |value: &Value| value.as_object().unwrap_or(&empty).clone();
        TokenizerConfig::from_objects(&object(config), &object(map))
    }

    #[test]
    fn special_tokens_are_strings_or_objects() {
        let read = config(
            &json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
                "add_bos_token": true,
                "added_tokens_decoder": {"10": {"content": "b"}, "9": {"content": "</s>"}}}),
            &json!({"eos_token": "<other>", "unk_token": "<unk>"}),
        );
        assert_eq!(read.special_token("bos_token"), Some("<s>"));
        assert_eq!(read.special_token("eos_token"), Some("</s>"));
        assert_eq!(read.special_token("unk_token"), Some("<unk>"));
        assert_eq!(read.special_token("pad_token"), None);
        assert_eq!((read.add_bos, read.add_eos), (Some(true), None));
        let added: Vec<_> =
            read.added_tokens.iter().map(|token| (token.content.as_str(), token.special)).collect();
        assert_eq!(added, [("</s>", true), ("b", false), ("<s>", true), ("<unk>", true)]);
    }

    #[test]
    fn the_map_overrules_older_folders() {
        let read = config(&json!({"eos_token": "</s>"}), &json!({"eos_token": "<|im_end|>"}));
        assert_eq!(read.special_token("eos_token"), Some("<|im_end|>"));
    }
}
