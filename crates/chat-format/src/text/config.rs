//! Reads `tokenizer_config.json` and `special_tokens_map.json`: special tokens, added tokens and flags.

use std::path::Path;

use mlx_files::Warnings;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::truncation_side::TruncationSide;
use super::word_piece_class::WordPieceClass;
use crate::error::{Error, Result};

/// A JSON object in a file. Its errors contain the file and the key.
pub(crate) type Fields = mlx_files::Fields<Error>;

/// The keys that name a special token, in transformers' order.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The keys for lists of special tokens, in transformers 4 and 5.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// The tokenizer settings of a model folder that are not in tokenizer.json.
#[derive(Debug, Default)]
pub(crate) struct TokenizerConfig {
    /// Special tokens by name, such as `bos_token`, and `additional_special_tokens` as a list. They are variables in
    /// templates.
    pub(crate) special_tokens: Map<String, Value>,
    /// The `tokenizer_class`.
    pub(super) class: Option<String>,
    /// True to put a space before a text. Only used without tokenizer.json.
    pub(super) add_prefix_space: bool,
    /// The tokens of `added_tokens_decoder` and their ids, sorted by id. They replace those of tokenizer.json.
    pub(super) added_tokens: Vec<(u64, AddedToken)>,
    /// The other named special tokens. If tokenizer.json also has one, its properties come from there.
    pub(crate) named_tokens: Vec<AddedToken>,
    /// True if encoding adds the BOS token. `None` uses the setting of tokenizer.json.
    pub(crate) add_bos: Option<bool>,
    /// True if encoding adds the EOS token. `None` uses the setting of tokenizer.json.
    pub(crate) add_eos: Option<bool>,
    /// The side of a text that is cut if the text is too long. `None` uses the setting of tokenizer.json.
    pub(super) truncation_side: Option<TruncationSide>,
    /// The settings of a WordPiece class of transformers.
    pub(super) word_piece: Option<WordPieceClass>,
    /// True to turn texts to lower case before all other steps.
    pub(super) lowercases: bool,
    /// The raw `chat_template`: a string or a list of names and templates.
    pub(crate) chat_template: Option<Value>,
    /// Errors in `special_tokens_map.json`, if that file is not required.
    pub(crate) warnings: Warnings,
}

impl TokenizerConfig {
    /// Reads both files. A folder without them gives an empty configuration. `special_tokens_map.json` is required only
    /// in folders without `added_tokens_decoder`, in which it names the tokens of prompts.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let path = |name: &str| folder.join(name);
        let read = |path: &Path| -> Result<Fields> {
            Ok(Fields::read_optional(path)?.unwrap_or_else(|| Fields::of(path, Map::new())))
        };
        let config = read(&path("tokenizer_config.json"))?;
        let word_piece =
            WordPieceClass::read(&config, Fields::read_optional(&path("config.json"))?.as_ref())?;
        let map_path = path("special_tokens_map.json");
        let both = read(&map_path).and_then(|map| Self::from_fields(&config, &map));
        if both.is_ok() || !config.has("added_tokens_decoder") {
            return Ok(Self { word_piece, ..both? });
        }
        let mut without_map = Self::from_fields(&config, &Fields::of(&map_path, Map::new()))?;
        without_map.warnings.or_default(both.map(drop), "the file is not used");
        Ok(Self { word_piece, ..without_map })
    }

    fn from_fields(config: &Fields, map: &Fields) -> Result<Self> {
        // As in transformers, special_tokens_map.json is only used in folders without `added_tokens_decoder`.
        let legacy = !config.has("added_tokens_decoder");
        let (first, second) = if legacy { (map, config) } else { (config, map) };
        let (mut special_tokens, mut named) = (Map::new(), Vec::new());
        for name in NAMES {
            if let Some(token) = special_token(first, name)?.or(special_token(second, name)?) {
                special_tokens.insert(name.to_string(), token.content.clone().into());
                named.push(token);
            }
        }
        for name in LISTS {
            match config.get(name).or_else(|| map.get(name)) {
                Some(Value::Array(tokens)) => {
                    let tokens: Vec<_> = tokens.iter().filter_map(as_special).collect();
                    let texts: Vec<_> = tokens.iter().map(|token| token.content.clone()).collect();
                    special_tokens.insert(name.to_string(), texts.into());
                    named.extend(tokens);
                }
                // transformers also allows model-specific names, such as `image_token`.
                Some(Value::Object(tokens)) => {
                    for (name, token) in tokens.iter().filter_map(|(name, it)| Some((name, as_special(it)?)))
                    {
                        special_tokens.insert(name.clone(), token.content.clone().into());
                        named.push(token);
                    }
                }
                _ => {}
            }
        }
        let mut added_tokens = added_tokens(config)?;
        named.retain(|token| {
            match added_tokens.iter_mut().find(|(_, added)| added.content == token.content) {
                Some((_, added)) => {
                    added.special = true;
                    false
                }
                None => true,
            }
        });
        Ok(Self {
            class: config.get("tokenizer_class").and_then(Value::as_str).map(str::to_owned),
            add_prefix_space: config.get("add_prefix_space") == Some(&Value::Bool(true)),
            added_tokens,
            named_tokens: named,
            special_tokens,
            add_bos: config.optional_flag("add_bos_token")?,
            add_eos: config.optional_flag("add_eos_token")?,
            truncation_side: truncation_side(config)?,
            word_piece: None,
            lowercases: false,
            chat_template: config.get("chat_template").cloned(),
            warnings: Warnings::default(),
        })
    }

    /// Returns the text of a named special token.
    pub(crate) fn special_token(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name).and_then(Value::as_str)
    }
}

fn truncation_side(config: &Fields) -> Result<Option<TruncationSide>> {
    let key = "truncation_side";
    let Some(name) = config.optional_text(key)? else { return Ok(None) };
    let side = TruncationSide::named(name);
    side.map(Some).ok_or_else(|| config.error(key, format_args!("is {name:?}; it must be left or right")))
}

/// Reads a text file. Returns `None` if it does not exist.
pub(crate) fn read_optional(path: &Path) -> Result<Option<String>> {
    let Some(bytes) = mlx_files::read_model_file(path, u64::MAX)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| Error::file(path, "is not UTF-8 text"))
}

/// Parses a special token, which is a string or an object with `content`.
fn as_special(value: &Value) -> Option<AddedToken> {
    match value.as_str() {
        Some(text) => Some(AddedToken::from(text, true)),
        None => added_token(value, true),
    }
}

/// Returns the special token under this key. An invalid one is an error, since it would be missing in every prompt.
fn special_token(fields: &Fields, name: &str) -> Result<Option<AddedToken>> {
    let wrong = || fields.error(name, "must be a string, or an object with the string `content`");
    fields.get(name).map(|value| as_special(value).ok_or_else(wrong)).transpose()
}

/// Returns the tokens of `added_tokens_decoder` and their ids.
fn added_tokens(config: &Fields) -> Result<Vec<(u64, AddedToken)>> {
    let decoder = config.section("added_tokens_decoder")?;
    let mut numbered: Vec<(u64, AddedToken)> = Vec::new();
    for id in decoder.iter().flat_map(Fields::keys) {
        let wrong = || {
            config.error(
                "added_tokens_decoder",
                format_args!("has {id:?}, which is not a token id with a token"),
            )
        };
        let token = decoder.as_ref().and_then(|tokens| tokens.get(id));
        let token = token.and_then(|token| added_token(token, is_true(token, "special")));
        numbered.push((id.parse().map_err(|_| wrong())?, token.ok_or_else(wrong)?));
    }
    numbered.sort_by_key(|(id, _)| *id);
    Ok(numbered)
}

fn added_token(value: &Value, special: bool) -> Option<AddedToken> {
    Some(AddedToken {
        content: value.get("content")?.as_str()?.to_string(),
        single_word: is_true(value, "single_word"),
        lstrip: is_true(value, "lstrip"),
        rstrip: is_true(value, "rstrip"),
        normalized: value.get("normalized").and_then(Value::as_bool).unwrap_or(!special),
        special,
    })
}

fn is_true(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool) == Some(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value, map: &Value) -> Result<TokenizerConfig> {
        let fields = |name: &str, value: &Value| {
            Fields::of(Path::new(name), value.as_object().cloned().unwrap_or_default())
        };
        TokenizerConfig::from_fields(
            &fields("tokenizer_config.json", config),
            &fields("special_tokens_map.json", map),
        )
    }

    fn config(config: &Value, map: &Value) -> TokenizerConfig {
        read(config, map).expect("it can be read")
    }

    #[test]
    fn an_invalid_special_token_is_refused_by_name() {
        for (wrong, word) in [
            (json!({"add_bos_token": "true"}), "add_bos_token"),
            (json!({"truncation_side": "middle"}), "truncation_side"),
            (json!({"bos_token": 5}), "bos_token"),
            (json!({"eos_token": {"text": "</s>"}}), "eos_token"),
            (json!({"added_tokens_decoder": {"x": {"content": "a"}}}), "added_tokens_decoder"),
            (json!({"added_tokens_decoder": {"5": {}}}), "added_tokens_decoder"),
            (json!({"added_tokens_decoder": []}), "added_tokens_decoder"),
        ] {
            let message = read(&wrong, &json!({})).expect_err("it must be refused").to_string();
            assert!(message.starts_with("tokenizer_config.json: ") && message.contains(word), "{message}");
        }
        assert!(read(&json!({"bos_token": null, "add_bos_token": null}), &json!({})).is_ok());
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
        let added: Vec<_> = read
            .added_tokens
            .iter()
            .map(|(id, token)| (*id, token.content.as_str(), token.special))
            .collect();
        assert_eq!(added, [(9, "</s>", true), (10, "b", false)]);
        let named: Vec<_> = read.named_tokens.iter().map(|token| token.content.as_str()).collect();
        assert_eq!(named, ["<s>", "<unk>"]);
    }

    #[test]
    fn the_map_overrides_older_folders() {
        let read = config(&json!({"eos_token": "</s>"}), &json!({"eos_token": "<|im_end|>"}));
        assert_eq!(read.special_token("eos_token"), Some("<|im_end|>"));
    }
}
