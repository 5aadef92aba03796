//! How few tokens a text may become, without tokenizing it: enough to refuse a text that is far too long at once.
//! Invariant: never more than the tokenizer gives; where it might drop text, there is no bound.

use std::collections::HashSet;

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{ModelWrapper, SplitDelimiterBehavior, Tokenizer};

use super::bytes::{byte_token, spelled_bytes};

/// Composed characters take at most this many times fewer bytes.
const COMPOSITION: usize = 4;

/// What is known of a tokenizer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeBound {
    /// No token stands for more bytes than this.
    longest: usize,
    /// Special tokens may take white space beside them with them.
    swallows_space: bool,
}

impl SizeBound {
    /// None if the tokenizer is not known to give every byte of a text to some token.
    pub(super) fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let composition = tokenizer.get_normalizer().map_or(Some(1), shrinkage)?;
        let byte_level = tokenizer.get_pre_tokenizer().map_or(Some(false), keeps_all)?;
        let vocabulary = tokenizer.get_vocab(true);
        let bytes: HashSet<u8> = if byte_level {
            let single = vocabulary.keys().map(|token| spelled_bytes(token)).filter(|it| it.len() == 1);
            single.flatten().collect()
        } else if model.byte_fallback {
            vocabulary.keys().filter_map(|token| byte_token(token)).collect()
        } else {
            return None;
        };
        // These thirteen stand in no UTF-8.
        let all =
            (0..=255).filter(|byte| !matches!(byte, 0xC0 | 0xC1 | 0xF5..)).all(|it| bytes.contains(&it));
        let longest = vocabulary.keys().map(String::len).max()?;
        let added = tokenizer.get_added_tokens_decoder();
        let swallows_space = added.values().any(|token| token.lstrip || token.rstrip);
        all.then_some(Self { longest: longest.max(1) * composition, swallows_space })
    }

    /// The fewest tokens that this text may become.
    pub(super) fn fewest(&self, text: &str) -> usize {
        let bytes = if self.swallows_space {
            text.chars().filter(|letter| !letter.is_whitespace()).map(char::len_utf8).sum()
        } else {
            text.len()
        };
        bytes / self.longest
    }
}

/// How many times fewer bytes a text may have after this; none if it may lose text.
fn shrinkage(normalizer: &NormalizerWrapper) -> Option<usize> {
    match normalizer {
        NormalizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().map(shrinkage).try_fold(1, |all, one| Some(all * one?))
        }
        NormalizerWrapper::NFC(_) => Some(COMPOSITION),
        NormalizerWrapper::Prepend(_) | NormalizerWrapper::ByteLevel(_) => Some(1),
        // In practice a space becomes sentencepiece's longer mark.
        NormalizerWrapper::Replace(replace) => {
            let mark = serde_json::to_value(replace).ok()?;
            (mark["pattern"]["String"] == " " && mark["content"] == "▁").then_some(1)
        }
        _ => None,
    }
}

/// Whether this spells bytes as characters; none if it may lose text.
fn keeps_all(pre_tokenizer: &PreTokenizerWrapper) -> Option<bool> {
    match pre_tokenizer {
        PreTokenizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().map(keeps_all).try_fold(false, |any, one| Some(any | one?))
        }
        PreTokenizerWrapper::ByteLevel(_) => Some(true),
        PreTokenizerWrapper::Metaspace(_) | PreTokenizerWrapper::Digits(_) => Some(false),
        PreTokenizerWrapper::Split(split) => {
            (split.behavior != SplitDelimiterBehavior::Removed).then_some(false)
        }
        _ => None,
    }
}
