//! The config of the first module: the maximum length of a text, and its preprocessing.

use std::path::Path;

use super::modules;
use crate::config::Fields;
use crate::error::Result;

/// The possible file names, one per architecture.
const FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// Keys that change vectors and are not supported, unless they are absent or empty.
const UNSUPPORTED: [&str; 4] = ["processing_kwargs", "query_expansion", "query_length", "document_length"];

/// The settings of the first module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transformer {
    /// The maximum number of tokens of a text, with the file and key that set it.
    pub(super) limit: Option<(usize, String)>,
}

/// The values of `transformer_task` and `module_output_name` for a kind of model.
type Task = [(&'static str, &'static str); 2];

/// The values of embedding models.
pub(super) const EMBEDS: Task =
    [("transformer_task", "feature-extraction"), ("module_output_name", "token_embeddings")];

/// The values of cross-encoders.
pub(super) const RANKS: Task =
    [("transformer_task", "sequence-classification"), ("module_output_name", "scores")];

/// Returns `do_lower_case` of the module's file in `folder`.
pub(super) fn lowercases(folder: &Path) -> Result<bool> {
    let flag = own(folder)?.map(|fields| fields.optional_flag("do_lower_case")).transpose()?;
    Ok(flag.flatten().unwrap_or(false))
}

/// Reads the module's file in `folder`. As in sentence-transformers, it has no effect without modules.json.
fn own(folder: &Path) -> Result<Option<Fields>> {
    let path = FILES.iter().map(|file| folder.join(file)).find(|path| path.exists());
    path.filter(|_| folder.join(modules::FILE).exists()).map(|path| Fields::read(&path)).transpose()
}

impl Transformer {
    /// Reads the module's file in `folder`. Without a limit in that file, uses the tokenizer's.
    pub(super) fn read(folder: &Path, task: Task) -> Result<Self> {
        let mut limit = None;
        lowercases(folder)?;
        if let Some(fields) = &own(folder)? {
            expect_supported(fields, task)?;
            limit = limit_of(fields, "max_seq_length")?;
            for key in ["processor_kwargs", "tokenizer_args"] {
                if let Some(section) = fields.section(key)? {
                    limit = limit_of(&section, "model_max_length")?.or(limit);
                }
            }
        }
        if limit.is_none()
            && let Some(fields) = Fields::read_optional(&folder.join("tokenizer_config.json"))?
        {
            // transformers writes 10^30 for no limit.
            limit = limit_of(&fields, "model_max_length").unwrap_or_default();
        }
        Ok(Self { limit })
    }
}

fn limit_of(fields: &Fields, key: &str) -> Result<Option<(usize, String)>> {
    Ok(fields.optional_size(key)?.map(|tokens| (tokens, fields.location(key))))
}

/// Rejects settings that would change a vector and are not supported.
fn expect_supported(fields: &Fields, task: Task) -> Result<()> {
    let is_empty =
        |key: &str| fields.section(key).is_ok_and(|it| it.is_none_or(|it| it.keys().next().is_none()));
    if let Some(key) = UNSUPPORTED.into_iter().find(|key| fields.has(key) && !is_empty(key)) {
        return Err(fields.error(key, "is set, which is not supported"));
    }
    for (key, usual) in task {
        if let Some(other) = fields.optional_text(key)?.filter(|value| *value != usual) {
            return Err(fields.error(key, format!("is {other:?}; supported is {usual}")));
        }
    }
    match fields.section("modality_config")? {
        Some(modalities) if !modalities.has("text") => {
            Err(fields.error("modality_config", "has no text; only plain texts are supported"))
        }
        _ => Ok(()),
    }
}
