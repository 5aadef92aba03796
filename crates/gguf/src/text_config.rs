//! Builds `tokenizer_config.json` and `generation_config.json` from the metadata of a GGUF file.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::metadata::Metadata;
use crate::model::shortest;
use crate::tokenizer::{Model, SpecialTokens, Vocabulary};

/// The key of the default chat template, and the start of the keys of named ones.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Sampling values of `generation_config.json` and their keys in GGUF.
const SAMPLING: [(&str, &str); 5] = [
    ("temperature", "general.sampling.temp"),
    ("top_k", "general.sampling.top_k"),
    ("top_p", "general.sampling.top_p"),
    ("min_p", "general.sampling.min_p"),
    ("repetition_penalty", "general.sampling.penalty_repeat"),
];

/// Returns the content of `tokenizer_config.json`: the named special tokens and the chat templates.
pub(crate) fn tokenizer_config(metadata: &Metadata) -> Result<Value> {
    let (vocabulary, special) = special_tokens(metadata)?;
    let mut config = Map::new();
    let named = [
        ("bos_token", special.bos),
        ("eos_token", special.eos),
        ("unk_token", special.unknown),
        ("pad_token", special.padding),
    ];
    for (name, id) in named.into_iter().filter_map(|(name, id)| Some((name, id?))) {
        config.insert(name.into(), vocabulary.text(id).into());
    }
    config.insert("add_bos_token".into(), special.add_bos.into());
    config.insert("add_eos_token".into(), special.add_eos.into());
    config.insert("clean_up_tokenization_spaces".into(), false.into());
    if let Some(length) = metadata.size(&metadata.key("context_length")?)? {
        config.insert("model_max_length".into(), length.into());
    }
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    if let Some(templates) = chat_template(metadata)? {
        config.insert("chat_template".into(), templates);
    }
    Ok(config.into())
}

/// Returns the content of `generation_config.json`, or `None` if the file has nothing for it.
pub(crate) fn generation_config(metadata: &Metadata) -> Result<Option<Value>> {
    let (_, special) = special_tokens(metadata)?;
    let mut config = Map::new();
    if let Some(id) = special.bos {
        config.insert("bos_token_id".into(), id.into());
    }
    if !special.ends.is_empty() {
        config.insert("eos_token_id".into(), special.ends.into());
    }
    if let Some(id) = special.padding {
        config.insert("pad_token_id".into(), id.into());
    }
    let mut samples = None;
    for (name, key) in SAMPLING {
        let Some(number) = metadata.number(key)? else { continue };
        // A temperature of 0 means the most likely token.
        if name == "temperature" && number == 0.0 {
            samples = Some(false);
            continue;
        }
        samples = samples.or(Some(true));
        config.insert(name.into(), plain(number));
    }
    if let Some(samples) = samples {
        config.insert("do_sample".into(), samples.into());
    }
    Ok((!config.is_empty()).then(|| config.into()))
}

fn special_tokens(metadata: &Metadata) -> Result<(Vocabulary<'_>, SpecialTokens)> {
    let model = Model::of(metadata)?;
    let vocabulary = Vocabulary::read(metadata)?;
    let special = SpecialTokens::read(metadata, &vocabulary, &model)?;
    Ok((vocabulary, special))
}

/// Returns a number as a person writes it: 0.95, not 0.949999988, and 20, not 20.0.
fn plain(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e9 {
        return Value::from(number as i64);
    }
    Value::from(shortest(number))
}

/// Returns `chat_template`: a string, or a list of names and templates.
fn chat_template(metadata: &Metadata) -> Result<Option<Value>> {
    let default = metadata.text(CHAT_TEMPLATE)?;
    let mut named = Vec::new();
    for key in metadata.keys() {
        let name = key.strip_prefix(CHAT_TEMPLATE).and_then(|rest| rest.strip_prefix('.'));
        if let (Some(name), Some(template)) = (name, name.map(|_| metadata.text(key)).transpose()?.flatten())
        {
            named.push(json!({"name": name, "template": template}));
        }
    }
    if named.is_empty() {
        return Ok(default.map(Value::from));
    }
    let default = default.map(|template| json!({"name": "default", "template": template}));
    Ok(Some(default.into_iter().chain(named).collect::<Vec<_>>().into()))
}

#[cfg(test)]
mod tests;
