//! Computes a lower bound of the number of tokens of a text without tokenizing it, to reject far too long texts
//! quickly. Invariant: the bound never exceeds the real number. There is no bound if the tokenizer may drop text.

use std::collections::HashSet;

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{ModelWrapper, SplitDelimiterBehavior, Tokenizer};

use super::bytes::{byte_token, spelled_bytes};

/// The largest factor by which NFC composition reduces the size in bytes.
const COMPOSITION: usize = 4;

/// The properties of a tokenizer that bound its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct SizeBound {
    /// The size of the longest token in bytes.
    longest: usize,
    /// True if special tokens may strip adjacent whitespace.
    strips_space: bool,
}

impl SizeBound {
    /// Returns `None` unless the tokenizer is known to encode every byte of a text.
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
        // These thirteen bytes never occur in UTF-8.
        let all =
            (0..=255).filter(|byte| !matches!(byte, 0xC0 | 0xC1 | 0xF5..)).all(|it| bytes.contains(&it));
        let longest = vocabulary.keys().map(String::len).max()?;
        let added = tokenizer.get_added_tokens_decoder();
        let strips_space = added.values().any(|token| token.lstrip || token.rstrip);
        all.then_some(Self { longest: longest.max(1) * composition, strips_space })
    }

    /// Returns a lower bound of the tokens of this text.
    pub(super) fn fewest(&self, text: &str) -> usize {
        let bytes = if self.strips_space {
            text.chars().filter(|letter| !letter.is_whitespace()).map(char::len_utf8).sum()
        } else {
            text.len()
        };
        bytes / self.longest
    }
}

/// Returns the largest factor by which this reduces the size of a text in bytes; `None` if it may drop text.
fn shrinkage(normalizer: &NormalizerWrapper) -> Option<usize> {
    match normalizer {
        NormalizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().map(shrinkage).try_fold(1, |all, one| Some(all * one?))
        }
        NormalizerWrapper::NFC(_) => Some(COMPOSITION),
        NormalizerWrapper::Prepend(_) | NormalizerWrapper::ByteLevel(_) => Some(1),
        // In practice, this replaces a space by sentencepiece's longer mark.
        NormalizerWrapper::Replace(replace) => {
            let mark = serde_json::to_value(replace).ok()?;
            (mark["pattern"]["String"] == " " && mark["content"] == "▁").then_some(1)
        }
        _ => None,
    }
}

/// Returns true if this maps bytes to characters; `None` if it may drop text.
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
