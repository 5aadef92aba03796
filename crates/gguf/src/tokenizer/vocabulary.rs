//! The tokens of a GGUF file and their kinds.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde_json::{Value, json};

use super::known_tokens::looks_like_control;
use crate::error::Result;
use crate::metadata::Metadata;

/// The key with the texts of the tokens.
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
/// The key with the kinds of the tokens.
const TYPES: &str = "tokenizer.ggml.token_type";

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of text, or a token that no text contains.
    Normal,
    /// The token for text without a token.
    Unknown,
    /// A token with a meaning, such as the end of a message.
    Control,
    /// A text that is always one token.
    UserDefined,
    /// A byte of text without a token.
    Byte,
}

/// The tokens. Every one has a different text.
#[derive(Debug)]
pub(crate) struct Vocabulary<'a> {
    tokens: Vec<Cow<'a, str>>,
    kinds: Vec<Kind>,
    ids: HashMap<Cow<'a, str>, u32>,
}

impl<'a> Vocabulary<'a> {
    /// Reads the tokens and their kinds.
    pub(crate) fn read(metadata: &'a Metadata) -> Result<Self> {
        let texts = metadata.texts(TOKENS)?.ok_or_else(|| metadata.error(TOKENS, "is missing"))?;
        let types = metadata.integers(TYPES)?;
        if let Some(types) = types.as_ref().filter(|types| types.len() < texts.len()) {
            let message = format!("has {} values for {} tokens", types.len(), texts.len());
            return Err(metadata.error(TYPES, message));
        }
        let mut vocabulary = Self {
            tokens: Vec::with_capacity(texts.len()),
            kinds: Vec::with_capacity(texts.len()),
            ids: HashMap::with_capacity(texts.len()),
        };
        for (id, text) in texts.iter().enumerate() {
            let text =
                if text.is_empty() { format!("[EMPTY_{id}]").into() } else { Cow::Borrowed(text.as_str()) };
            let kind = kind(types.as_ref().map_or(1, |types| types[id]), &text);
            match vocabulary.ids.entry(text.clone()) {
                Entry::Occupied(first) => {
                    let message = format!("contains {text:?} twice: ids {} and {id}", first.get());
                    return Err(metadata.error(TOKENS, message));
                }
                Entry::Vacant(free) => free.insert(id as u32),
            };
            vocabulary.tokens.push(text);
            vocabulary.kinds.push(kind);
        }
        Ok(vocabulary)
    }

    /// The number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the id of a token.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Returns the text of a token. Panics if the id is not in the vocabulary.
    pub(crate) fn text(&self, id: u32) -> &str {
        &self.tokens[id as usize]
    }

    /// Returns the kind of a token. Panics if the id is not in the vocabulary.
    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds[id as usize]
    }

    /// Returns true if the token is found in a text before other tokens.
    pub(crate) fn is_added(&self, id: u32) -> bool {
        !matches!(self.kind(id), Kind::Normal | Kind::Byte)
    }

    /// Returns true if there are tokens of bytes.
    pub(crate) fn has_bytes(&self) -> bool {
        self.kinds.contains(&Kind::Byte) || self.id("<0x0A>").is_some()
    }

    /// Writes runs of spaces as SentencePiece does and makes them normal tokens. Converters to GGUF replace SentencePiece's marks in user-defined
    /// tokens. Returns the ids.
    pub(crate) fn mark_runs_of_spaces(&mut self) -> Vec<u32> {
        let mut changed = Vec::new();
        for id in 0..self.tokens.len() {
            let text = &self.tokens[id];
            if !text.bytes().all(|byte| byte == b' ') {
                continue;
            }
            let marked: Cow<str> = "▁".repeat(text.len()).into();
            if self.ids.contains_key(&marked) {
                continue;
            }
            self.ids.remove(text);
            self.ids.insert(marked.clone(), id as u32);
            self.tokens[id] = marked;
            self.kinds[id] = Kind::Normal;
            changed.push(id as u32);
        }
        changed
    }

    /// Returns the texts of the tokens, by id.
    pub(super) fn texts(&self) -> Vec<String> {
        self.tokens.iter().map(|text| text.as_ref().to_owned()).collect()
    }

    /// Returns `added_tokens`. If `follows_spaces` is true, most of them include the white space that follows.
    pub(super) fn added_tokens(&self, follows_spaces: bool) -> Value {
        let ids = (0..self.tokens.len() as u32).filter(|id| self.is_added(*id));
        let token = |id: u32| {
            let text = self.text(id);
            let rstrip = follows_spaces && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>");
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": rstrip,
                "normalized": false, "special": self.kind(id) != Kind::UserDefined})
        };
        Value::Array(ids.map(token).collect())
    }
}

/// Returns the kind of a token from the number in the file. Some files mark control tokens as normal.
fn kind(number: i64, text: &str) -> Kind {
    match number {
        2 => Kind::Unknown,
        3 => Kind::Control,
        _ if looks_like_control(text) => Kind::Control,
        4 => Kind::UserDefined,
        6 => Kind::Byte,
        _ => Kind::Normal,
    }
}
