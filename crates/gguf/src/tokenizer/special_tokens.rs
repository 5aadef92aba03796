//! The special tokens of a GGUF file: named ones, and the end tokens of answers.

use serde_json::{Map, Value, json};

use super::known_tokens::{END_OR_TAG, END_TOKENS, REPOSITORY_TOKENS};
use super::model::Model;
use super::vocabulary::{Kind, Vocabulary};
use crate::error::Result;
use crate::metadata::Metadata;

/// The special tokens.
#[derive(Debug)]
pub(crate) struct SpecialTokens {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) padding: Option<u32>,
    /// True if encoding adds BOS.
    pub(crate) add_bos: bool,
    /// True if encoding adds EOS.
    pub(crate) add_eos: bool,
    /// The tokens that end an answer, in order of their ids.
    pub(crate) ends: Vec<u32>,
}

impl SpecialTokens {
    /// Reads the special tokens. Absent keys have llama.cpp's defaults.
    pub(crate) fn read(metadata: &Metadata, vocabulary: &Vocabulary, model: &Model) -> Result<Self> {
        let (defaults, bos_by_default) = match model {
            Model::SentencePiece => ([Some(1), Some(2), Some(0)], true),
            Model::BytePair(steps) => ([None; 3], steps.add_bos),
        };
        let required = |name: &str| -> Result<Option<u32>> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match metadata.size(&key)? {
                Some(id) if id >= vocabulary.len() => Err(metadata
                    .error(&key, format_args!("is {id}; the vocabulary has {} tokens", vocabulary.len()))),
                id => Ok(id.map(|id| id as u32)),
            }
        };
        // Some converters write -1 or the size of the vocabulary for an absent token.
        let optional = |name: &str| required(name).ok().flatten();
        let default = |id: Option<u32>| id.filter(|id| (*id as usize) < vocabulary.len());
        let bos = required("bos")?.or(default(defaults[0]));
        let eos = required("eos")?.or(default(defaults[1]));
        let unknown = optional("unknown").or(default(defaults[2]));
        let others = ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"].map(optional);
        let forces_bos = matches!(model, Model::BytePair(steps) if steps.forces_bos());
        Ok(Self {
            add_bos: forces_bos && bos.is_some() || adds(metadata, "bos", bos_by_default, bos)?,
            add_eos: adds(metadata, "eos", false, eos)?,
            ends: ends(vocabulary, others.into_iter().chain([eos]).flatten()),
            padding: optional("padding"),
            bos,
            eos,
            unknown,
        })
    }

    /// Returns the `post_processor`, which adds BOS and EOS.
    pub(super) fn post_processor(&self, vocabulary: &Vocabulary) -> Value {
        let (mut tokens, mut single, mut pair) = (Map::new(), Vec::new(), Vec::new());
        let mut place = |id: Option<u32>, single: &mut Vec<Value>, kind: usize| {
            let Some(id) = id else { return };
            let text = vocabulary.text(id);
            tokens.insert(text.to_string(), json!({"id": text, "ids": [id], "tokens": [text]}));
            single.push(json!({"SpecialToken": {"id": text, "type_id": kind}}));
        };
        let (bos, eos) = (self.bos.filter(|_| self.add_bos), self.eos.filter(|_| self.add_eos));
        for (kind, name) in ["A", "B"].into_iter().enumerate() {
            place(bos, &mut pair, kind);
            pair.push(json!({"Sequence": {"id": name, "type_id": kind}}));
            place(eos, &mut pair, kind);
            if kind == 0 {
                single.clone_from(&pair);
            }
        }
        if tokens.is_empty() {
            return Value::Null;
        }
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
    }
}

/// Returns true if encoding adds the token `name`.
fn adds(metadata: &Metadata, name: &str, default: bool, id: Option<u32>) -> Result<bool> {
    let key = format!("tokenizer.ggml.add_{name}_token");
    match metadata.flag(&key)? {
        Some(true) if id.is_none() => {
            let message = format!("is true, but tokenizer.ggml.{name}_token_id is missing");
            Err(metadata.error(&key, message))
        }
        Some(flag) => Ok(flag),
        None => Ok(default && id.is_some()),
    }
}

/// Returns the tokens that end an answer: `named`, and tokens with a known text.
fn ends(vocabulary: &Vocabulary, named: impl Iterator<Item = u32>) -> Vec<u32> {
    let has = |text: &str| vocabulary.id(text).is_some();
    let is_control = |id: &u32| vocabulary.kind(*id) == Kind::Control;
    // With separate tokens for the end of an answer and for a call, this one only ends a part of an answer.
    let is_part = |text: &&str| {
        *text == "<|end|>"
            && (has("<|return|>") && has("<|call|>")
                || has("<|flush|>") && (has("<|call|>") || has("<|calls|>")))
    };
    let known = END_TOKENS.iter().filter(|text| !is_part(text)).filter_map(|text| vocabulary.id(text));
    let repository =
        REPOSITORY_TOKENS.iter().find_map(|text| vocabulary.id(text)).filter(|_| !has("<|fim_repo|>"));
    let tag = vocabulary.id(END_OR_TAG).filter(|id| is_control(id) && !has("<|tool_response>"));
    let mut ends: Vec<u32> = named.chain(known).chain(repository).chain(tag).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
