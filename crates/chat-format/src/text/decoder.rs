//! The decoder of tokenizer.json, as a chain of streaming stages.
//!
//! Invariant: the output of a stage never depends on later tokens, so the text so far is always a prefix of the final
//! text. A stage that cannot guarantee this holds back everything until the end.

use std::sync::Arc;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::strip::Strip;
use tokenizers::{Decoder, Tokenizer};

use super::bytes::{ByteRun, Utf8, spelled_bytes};

/// The stages of a decoder with their state.
#[derive(Debug, Clone)]
pub(super) struct Chain {
    stages: Vec<Stage>,
}

/// A stage of a decoder, from tokens to tokens.
#[derive(Debug, Clone)]
enum Stage {
    /// Joins tokens by spaces. Used without a decoder.
    Spaced { first: bool },
    /// Decodes each token separately.
    Each(Arc<DecoderWrapper>),
    /// Decodes each token separately, and the first one differently.
    FirstDiffers { decoder: Arc<DecoderWrapper>, first: bool },
    /// Decodes each token separately, and the last one differently.
    LastDiffers { decoder: Arc<DecoderWrapper>, held: Option<String> },
    /// Drops repetitions of a token.
    Distinct { decoder: Arc<DecoderWrapper>, previous: Option<String> },
    /// Decodes tokens that are bytes in a printable alphabet.
    ByteLevel(Utf8),
    /// Decodes tokens such as `<0xE2>` to bytes.
    ByteFallback(ByteRun),
    /// Strips characters from both ends of each token.
    StripEach(Strip),
    /// Strips characters from both ends of the text, which arrives in chunks.
    StripText { strip: Strip, start: usize, held: String },
    /// Needs the complete text.
    CompleteText { decoder: Arc<DecoderWrapper>, held: String },
}

impl Chain {
    /// Returns the chain for a tokenizer's decoder.
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let mut stages = Vec::new();
        match tokenizer.get_decoder() {
            Some(decoder) => add_stages(&mut stages, decoder, &mut false),
            None => stages.push(Stage::Spaced { first: true }),
        }
        Self { stages }
    }

    /// Adds a token and returns the text that is now final.
    pub(super) fn push(&mut self, token: String) -> String {
        let mut tokens = vec![token];
        for stage in &mut self.stages {
            tokens = stage.push(tokens);
        }
        tokens.concat()
    }

    /// Ends the text and returns the remaining text.
    pub(super) fn finish(&mut self) -> String {
        let mut tokens = Vec::new();
        for stage in &mut self.stages {
            tokens = stage.push(tokens);
            stage.finish(&mut tokens);
        }
        tokens.concat()
    }

    /// Returns true if there is no output before the end.
    pub(super) fn holds_all(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage, Stage::CompleteText { .. }))
    }

    /// Drops the bytes of an incomplete character.
    pub(super) fn drop_incomplete(&mut self) {
        for stage in &mut self.stages {
            match stage {
                Stage::ByteLevel(bytes) => bytes.drop_incomplete(),
                Stage::ByteFallback(run) => run.drop_incomplete(),
                _ => {}
            }
        }
    }
}

/// Appends the stages of `decoder`. `fused` is true if the previous stages return chunks of one text instead of
/// tokens.
fn add_stages(stages: &mut Vec<Stage>, decoder: &DecoderWrapper, fused: &mut bool) {
    let shared = || Arc::new(decoder.clone());
    stages.push(match decoder {
        DecoderWrapper::Sequence(sequence) => {
            for decoder in sequence.get_decoders() {
                add_stages(stages, decoder, fused);
            }
            return;
        }
        DecoderWrapper::Fuse(_) => {
            *fused = true;
            return;
        }
        DecoderWrapper::Strip(strip) if *fused => {
            Stage::StripText { strip: strip.clone(), start: strip.start, held: String::new() }
        }
        DecoderWrapper::Strip(strip) => Stage::StripEach(strip.clone()),
        // A fused text counts as the first token, and Metaspace replaces single characters.
        DecoderWrapper::Metaspace(_) if *fused => Stage::Each(shared()),
        _ if *fused => Stage::CompleteText { decoder: shared(), held: String::new() },
        DecoderWrapper::ByteLevel(_) => {
            *fused = true;
            Stage::ByteLevel(Utf8::default())
        }
        DecoderWrapper::ByteFallback(_) => Stage::ByteFallback(ByteRun::default()),
        DecoderWrapper::Replace(_) => Stage::Each(shared()),
        DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) => {
            Stage::FirstDiffers { decoder: shared(), first: true }
        }
        DecoderWrapper::BPE(_) => Stage::LastDiffers { decoder: shared(), held: None },
        DecoderWrapper::CTC(_) => Stage::Distinct { decoder: shared(), previous: None },
    });
}

impl Stage {
    fn push(&mut self, tokens: Vec<String>) -> Vec<String> {
        let mut output = Vec::with_capacity(tokens.len());
        for token in tokens {
            self.push_one(token, &mut output);
        }
        output
    }

    fn push_one(&mut self, token: String, output: &mut Vec<String>) {
        match self {
            Self::Spaced { first: true } => output.push(token),
            Self::Spaced { first: false } => output.push(format!(" {token}")),
            Self::Each(decoder) | Self::FirstDiffers { decoder, first: true } => {
                output.extend(decode(decoder, vec![token]));
            }
            Self::FirstDiffers { decoder, first: false } => {
                output.extend(decode(decoder, vec![String::new(), token]).into_iter().skip(1));
            }
            Self::LastDiffers { decoder, held } => {
                if let Some(earlier) = held.replace(token) {
                    output.extend(decode(decoder, vec![earlier, String::new()]).into_iter().take(1));
                }
            }
            Self::Distinct { previous, .. } if previous.as_ref() == Some(&token) => {}
            Self::Distinct { decoder, previous } => {
                *previous = Some(token.clone());
                output.extend(decode(decoder, vec![token]));
            }
            Self::ByteLevel(bytes) => output.push(bytes.push(&spelled_bytes(&token))),
            Self::ByteFallback(run) => run.push(token, output),
            Self::StripEach(strip) => {
                let mut start = strip.start;
                let token = strip_start(&token, strip.content, &mut start);
                output.push(token[..token.len() - stripped_tail(token, strip)].to_string());
            }
            Self::StripText { strip, start, held } => {
                held.push_str(strip_start(&token, strip.content, start));
                let rest = held.split_off(held.len() - stripped_tail(held, strip));
                output.push(std::mem::replace(held, rest));
            }
            Self::CompleteText { held, .. } => held.push_str(&token),
        }
        if let Self::Spaced { first } | Self::FirstDiffers { first, .. } = self {
            *first = false;
        }
    }

    fn finish(&mut self, output: &mut Vec<String>) {
        match self {
            Self::LastDiffers { decoder, held } => {
                output.extend(held.take().map(|token| decode(decoder, vec![token])).into_iter().flatten());
            }
            Self::ByteLevel(bytes) => output.extend(bytes.finish()),
            Self::ByteFallback(run) => run.end(output),
            Self::CompleteText { decoder, held } => {
                output.extend(decode(decoder, vec![std::mem::take(held)]));
            }
            // The text that StripText still holds is stripped.
            Self::StripText { .. }
            | Self::StripEach(_)
            | Self::Spaced { .. }
            | Self::Each(_)
            | Self::FirstDiffers { .. }
            | Self::Distinct { .. } => {}
        }
    }
}

/// Runs a decoder of the tokenizers crate. If it fails, for example in its regex engine, the tokens are returned
/// unchanged.
fn decode(decoder: &DecoderWrapper, tokens: Vec<String>) -> Vec<String> {
    decoder.decode_chain(tokens.clone()).unwrap_or(tokens)
}

/// Strips up to `remaining` leading `content` characters from `text`. Any other character ends the stripping.
fn strip_start<'a>(text: &'a str, content: char, remaining: &mut usize) -> &'a str {
    let mut text = text;
    while *remaining > 0 && !text.is_empty() {
        match text.strip_prefix(content) {
            Some(rest) => (text, *remaining) = (rest, *remaining - 1),
            None => *remaining = 0,
        }
    }
    text
}

/// Returns the number of trailing bytes of `text` to strip.
fn stripped_tail(text: &str, strip: &Strip) -> usize {
    text.chars().rev().take(strip.stop).take_while(|found| *found == strip.content).map(char::len_utf8).sum()
}
