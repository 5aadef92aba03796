//! The tokenizer of a model folder: converts text to token ids and back.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use aho_corasick::AhoCorasick;
use chat_template::guarded;
use mlx_files::{Fields, Warnings, expect_utf8_json};
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::config::TokenizerConfig;
use super::decoder::Chain;
use super::encoded::{EncodeLimit, Encoded, Stop};
use super::frame::{Frame, frame};
use super::overrides;
use super::pair_frame::PairFrame;
use super::parse::{build, parse};
use super::pipeline::Pipeline;
use super::size_bound::SizeBound;
use super::token_bytes::token_bytes;
use super::token_index::TokenIndex;
use super::truncation_side::TruncationSide;
use super::vocabulary;
use crate::error::{Error, Result};

/// The maximum size of a text in bytes if the tokenizer has a step that does not support chunks.
const LONGEST_WHOLE: usize = 1 << 20;

/// A tokenizer that can be shared between threads. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Inner,
    chain: Chain,
    special_tokens: Map<String, Value>,
    warnings: Warnings,
    /// The encoding steps. If it is `None`, the tokenizers crate encodes whole texts.
    pipeline: Option<Pipeline>,
    /// The special tokens around every text. If it is `None`, the tokenizers crate adds them as tokenizer.json
    /// specifies.
    frame: Option<Frame>,
    truncation_side: TruncationSide,
    /// The special tokens of a pair. Found when a pair first needs them.
    pair_frame: OnceLock<Option<PairFrame>>,
    size: Option<SizeBound>,
    /// Created when a constraint first needs it.
    index: OnceLock<TokenIndex>,
    /// Finds spelled-out control tokens. Created when a prompt first quotes a text.
    control: OnceLock<AhoCorasick>,
    /// See [`Tokenizer::broken_tokens`].
    broken: OnceLock<Vec<(u32, Vec<u8>)>>,
}

impl Tokenizer {
    /// Loads tokenizer.json of a model folder, or its vocab.json and merges.txt, and `tokenizer_config.json` and `special_tokens_map.json`
    /// if they exist.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_as(folder, false)
    }

    /// Like [`Self::load`]. With `lowercases`, texts turn to lower case before all other steps.
    pub fn load_as(folder: &Path, lowercases: bool) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let valid = |tokenizer: Option<tokenizers::Result<Self>>| {
            tokenizer
                .unwrap_or_else(|| Err("it is inconsistent".into()))
                .map_err(|error| Error::file(&path, format!("is not a valid tokenizer: {error}")))
        };
        let config = || Ok::<_, Error>(TokenizerConfig { lowercases, ..TokenizerConfig::load(folder)? });
        if let Some(parts) = mlx_files::tokenizer_parts(folder)? {
            let config = config()?;
            return valid(guarded(|| Self::new(build(parts)?, config)));
        }
        let (bytes, config) = (mlx_files::read_model_file(&path, u64::MAX)?, config()?);
        let Some(bytes) = bytes else {
            let inner = vocabulary::read(folder, &config)?.ok_or_else(|| missing(folder))?;
            return valid(guarded(|| Self::new(inner, config)));
        };
        expect_utf8_json(&path, &bytes)?;
        // The library panics on some invalid files, so check the syntax first and guard the rest.
        serde_json::from_slice::<serde::de::IgnoredAny>(&bytes)
            .map_err(|error| Error::file(&path, format!("is not valid JSON: {error}")))?;
        valid(guarded(|| Self::new(parse(&bytes)?, config)))
    }

    pub(super) fn new(mut inner: Inner, config: TokenizerConfig) -> tokenizers::Result<Self> {
        let truncation_side = overrides::apply(&mut inner, &config)?;
        let (bos, eos) =
            ["bos_token", "eos_token"].map(|name| config.special_token(name).map(str::to_string)).into();
        inner.add_tokens(config.added_tokens.into_iter().map(|(_, token)| token))?;
        let known = inner.get_added_tokens_decoder();
        let named = config.named_tokens.into_iter().map(|token| {
            let own = inner.token_to_id(&token.content).and_then(|id| known.get(&id)).cloned();
            AddedToken { special: true, ..own.unwrap_or(token) }
        });
        let named: Vec<AddedToken> = named.collect();
        inner.add_tokens(named)?;
        let id = |token: Option<String>| token.and_then(|token| inner.token_to_id(&token));
        let frame = frame(&inner, [(config.add_bos, id(bos)), (config.add_eos, id(eos))])?;
        let (chain, size, pipeline) = (Chain::new(&inner), SizeBound::new(&inner), Pipeline::new(&inner));
        let (special_tokens, warnings) = (config.special_tokens, config.warnings);
        let (index, control, pair_frame) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        let shared = Shared {
            inner,
            chain,
            special_tokens,
            warnings,
            pipeline,
            frame,
            truncation_side,
            pair_frame,
            size,
            index,
            control,
            broken: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Errors in optional files.
    pub fn warnings(&self) -> &Warnings {
        &self.shared.warnings
    }

    /// Encodes `text`. `add_special_tokens` adds the special tokens that the model expects around a text, such as BOS.
    /// Special tokens spelled out in `text` are encoded as such.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>> {
        self.encode_within(text, add_special_tokens, &EncodeLimit::NONE)?.whole()
    }

    /// Like [`Self::encode`], with limits.
    pub fn encode_within(
        &self,
        text: &str,
        add_special_tokens: bool,
        limit: &EncodeLimit,
    ) -> Result<Encoded> {
        match self.ids(text, add_special_tokens, limit) {
            Ok(ids) if ids.len() > limit.tokens => Ok(Encoded::AtLeast(ids.len())),
            Ok(ids) => Ok(Encoded::Whole(ids)),
            Err(Stop::Limit(fewest)) => Ok(Encoded::AtLeast(fewest)),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn ids(&self, text: &str, framed: bool, limit: &EncodeLimit) -> Result<Vec<u32>, Stop> {
        let fewest = self.min_tokens(text);
        if fewest > limit.tokens {
            return Err(Stop::Limit(fewest));
        }
        let Shared { inner, pipeline, frame, .. } = self.shared.as_ref();
        let frame = frame.as_ref().filter(|_| framed);
        // If the frame is unknown, only the tokenizers crate can add it.
        let frame_is_left = framed && frame.is_none();
        let ids = match pipeline.as_ref().filter(|_| !frame_is_left) {
            Some(pipeline) => pipeline.encode(inner.get_model(), text, limit)?,
            None => encode_whole(inner, text, frame_is_left)?,
        };
        Ok(match frame {
            Some((before, after)) => [before, &ids, after].map(Vec::as_slice).concat(),
            None => ids,
        })
    }

    /// Returns the special tokens of a pair of texts, as tokenizer.json specifies them.
    pub(super) fn pair_frame(&self) -> Result<&PairFrame> {
        let inner = &self.shared.inner;
        let find = || {
            let [first, second] = ["a", "b"].map(|text| inner.encode_fast(text, false));
            let (first, second, pair) =
                (first.ok()?, second.ok()?, inner.encode_fast(("a", "b"), true).ok()?);
            PairFrame::find(pair.get_ids(), pair.get_type_ids(), [first.get_ids(), second.get_ids()])
        };
        let unknown = "tokenizer.json changes the tokens of two texts that it joins, which is not supported";
        let found = self.shared.pair_frame.get_or_init(find).as_ref();
        found.ok_or_else(|| Error::Tokenizer(unknown.to_owned()))
    }

    /// Returns the side of a text that is cut if the text is too long.
    pub(super) fn truncation_side(&self) -> TruncationSide {
        self.shared.truncation_side
    }

    /// Returns a lower bound of the number of tokens of `text` without tokenizing it. 0 if unknown.
    pub fn min_tokens(&self, text: &str) -> usize {
        self.shared.size.map_or(0, |size| size.fewest(text))
    }

    /// Encodes a rendered chat. The template writes the special tokens itself. As in llama.cpp, only a missing BOS
    /// token is added.
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_chat_within(text, &EncodeLimit::NONE)?.whole()
    }

    /// Like [`Self::encode_chat`], with limits.
    pub fn encode_chat_within(&self, text: &str, limit: &EncodeLimit) -> Result<Encoded> {
        let mut ids = match self.encode_within(text, false, limit)? {
            Encoded::Whole(ids) => ids,
            too_many @ Encoded::AtLeast(_) => return Ok(too_many),
        };
        let missing = self.bos_id().filter(|first| ids.first() != Some(first));
        if let Some(first) = missing
            && self.encode("", true)?.first() == Some(&first)
        {
            ids.insert(0, first);
        }
        Ok(if ids.len() > limit.tokens { Encoded::AtLeast(ids.len()) } else { Encoded::Whole(ids) })
    }

    /// Returns the number of tokens, including added ones. A model may have more logits.
    pub fn vocab_size(&self) -> usize {
        self.shared.inner.get_vocab_size(true)
    }

    /// Returns the id of a token, given in the spelling of the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.shared.inner.token_to_id(token)
    }

    /// Returns a token in the spelling of the vocabulary.
    pub fn token(&self, id: u32) -> Option<String> {
        self.shared.inner.id_to_token(id)
    }

    /// Returns a token in the spelling that the decoder expects, which may differ for added tokens.
    pub(super) fn spelling(&self, id: u32) -> Option<String> {
        let Shared { inner, .. } = self.shared.as_ref();
        inner.get_added_vocabulary().simple_id_to_token(id).or_else(|| inner.id_to_token(id))
    }

    /// Returns the ordinary tokens that `text` may begin with, and the length of each in bytes, shorter ones first.
    pub fn prefix_tokens<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (u32, usize)> + 'a {
        self.index().prefix_tokens(text)
    }

    fn index(&self) -> &TokenIndex {
        let ids = || self.shared.inner.get_vocab(true).into_values().filter(|id| !self.is_special(*id));
        self.shared.index.get_or_init(|| TokenIndex::new(ids().map(|id| (id, self.token_bytes(id)))))
    }

    /// Returns the bytes of a token, independent of its neighbors. Empty if it is not in the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        let decoder = self.shared.inner.get_decoder();
        self.spelling(id).map(|token| token_bytes(decoder, &token)).unwrap_or_default()
    }

    /// Returns true if `id` is a special token.
    pub fn is_special(&self, id: u32) -> bool {
        let added = self.shared.inner.get_added_vocabulary();
        self.token(id).is_some_and(|token| added.is_special_token(&token))
    }

    /// Returns the matcher of control tokens, created with `make` on the first call.
    pub(super) fn control_tokens(&self, make: impl FnOnce() -> AhoCorasick) -> &AhoCorasick {
        self.shared.control.get_or_init(make)
    }

    /// Returns the tokens with parts of characters, found with `find` on the first call.
    pub(super) fn broken(&self, find: impl FnOnce() -> Vec<(u32, Vec<u8>)>) -> &[(u32, Vec<u8>)] {
        self.shared.broken.get_or_init(find)
    }

    pub(super) fn added_tokens(&self) -> Vec<AddedToken> {
        self.shared.inner.get_added_tokens_decoder().into_values().collect()
    }

    /// Returns the BOS token of `tokenizer_config.json`.
    pub fn bos_token(&self) -> Option<&str> {
        self.shared.special_tokens.get("bos_token").and_then(Value::as_str)
    }

    /// Returns the EOS token of `tokenizer_config.json`.
    pub fn eos_token(&self) -> Option<&str> {
        self.shared.special_tokens.get("eos_token").and_then(Value::as_str)
    }

    /// Returns the id of [`bos_token`](Self::bos_token).
    pub fn bos_id(&self) -> Option<u32> {
        self.id(self.bos_token()?)
    }

    /// Returns the id of [`eos_token`](Self::eos_token).
    pub fn eos_id(&self) -> Option<u32> {
        self.id(self.eos_token()?)
    }

    pub(super) fn chain(&self) -> &Chain {
        &self.shared.chain
    }
}

/// Encodes a text with the tokenizers crate.
fn encode_whole(inner: &Inner, text: &str, framed: bool) -> Result<Vec<u32>> {
    if text.len() > LONGEST_WHOLE {
        let message = format!(
            "the text has {} bytes; the limit of this model's tokenizer is {LONGEST_WHOLE}",
            text.len()
        );
        return Err(Error::Tokenizer(message));
    }
    let encoding = inner.encode_fast(text, framed).map_err(|error| Error::Tokenizer(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

/// Returns the error for a folder without tokenizer.json.
fn missing(folder: &Path) -> Error {
    let config = Fields::read_optional(&folder.join("config.json")).ok().flatten();
    if let Some(lender) = config.as_ref().and_then(mlx_files::tokenizer_lender) {
        return Error::file(
            folder.join("tokenizer.json"),
            format!("is missing; copy that of {lender} into the folder, or get the model with `mlx pull`"),
        );
    }
    let others = ["tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model"];
    match others.iter().find(|name| folder.join(name).exists()) {
        Some(name) => Error::file(
            folder.join("tokenizer.json"),
            format!("is missing; {name} is not supported: convert it with transformers' save_pretrained"),
        ),
        None => Error::file(folder.join("tokenizer.json"), "is missing"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a tokenizer whose ids are the indices in `tokens`. Tokens in `<|...|>` are special.
    pub(crate) fn tiny(decoder: &Value, tokens: &[&str], config: TokenizerConfig) -> Tokenizer {
        let vocabulary: Map<_, _> =
            tokens.iter().enumerate().map(|(id, token)| ((*token).to_string(), id.into())).collect();
        let special = tokens.iter().enumerate().filter(|(_, token)| token.starts_with("<|"));
        let added: Vec<_> = special
            .map(|(id, token)| {
                json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true})
            })
            .collect();
        let file = json!({"version": "1.0", "added_tokens": added, "decoder": decoder, "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "padding": null,
            "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": true}});
        let inner = Inner::from_bytes(file.to_string()).expect("the file is well formed");
        Tokenizer::new(inner, config).expect("the file is consistent")
    }

    /// The reference: the decoding of the tokenizers crate.
    pub(crate) fn decode_all(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
        let in_vocabulary =
            |id: &u32| tokenizer.token(*id).is_some_and(|_| !skip_special || !tokenizer.is_special(*id));
        let ids: Vec<_> = ids.iter().copied().filter(in_vocabulary).collect();
        // One of its decoders fails on an empty list.
        if ids.is_empty() {
            String::new()
        } else {
            tokenizer.shared.inner.decode(&ids, false).expect("decodes")
        }
    }

    #[test]
    fn tokenizer_config_decides_which_special_tokens_are_added() {
        let tokens = ["a", "b", "<|bos|>", "<|eos|>"];
        let encode = |add_bos, add_eos, special| {
            let names = json!({"bos_token": "<|bos|>", "eos_token": "<|eos|>"});
            let special_tokens = names.as_object().cloned().unwrap_or_default();
            let config = TokenizerConfig { special_tokens, add_bos, add_eos, ..TokenizerConfig::default() };
            tiny(&Value::Null, &tokens, config).encode("ab<|eos|>a", special).expect("encodes")
        };
        assert_eq!(encode(None, None, true), [0, 1, 3, 0]);
        assert_eq!(encode(Some(true), None, true), [2, 0, 1, 3, 0]);
        assert_eq!(encode(Some(true), Some(true), true), [2, 0, 1, 3, 0, 3]);
        assert_eq!(encode(Some(true), Some(true), false), [0, 1, 3, 0]);
    }

    #[test]
    fn a_folder_without_a_valid_tokenizer_is_refused_by_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let message = || Tokenizer::load(folder.path()).expect_err("cannot be loaded").to_string();
        assert!(message().ends_with("tokenizer.json: is missing"));
        std::fs::write(folder.path().join("tokenizer.model"), "").expect("writes");
        assert!(message().contains("tokenizer.model is not supported"));
        std::fs::write(folder.path().join("tokenizer.json"), "{\"model\": 1").expect("writes");
        assert!(message().contains("tokenizer.json: is not valid JSON: "));
        std::fs::write(folder.path().join("tokenizer.json"), "{}").expect("writes");
        assert!(message().contains("tokenizer.json: is not a valid tokenizer: "));
    }
}
