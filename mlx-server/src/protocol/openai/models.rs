//! The objects of `GET /v1/models`.

use std::collections::BTreeMap;

use mlx_core::sampling::{SamplingDefaults, SamplingOptions, settings};
use serde::Serialize;
use serde_json::Number;
use utoipa::ToSchema;

/// A model that the server offers.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ModelObject {
    /// Its name.
    pub(crate) id: String,
    /// Always `model`.
    pub(crate) object: &'static str,
    /// When its folder was written, in seconds since 1970.
    pub(crate) created: u64,
    /// Always `local`.
    pub(crate) owned_by: &'static str,
    /// Whether it is in memory now.
    pub(crate) loaded: bool,
    /// Its other names.
    pub(crate) aliases: Vec<String>,
    /// The model that this one adapts and shares the weights of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    /// Always `model`, where Anthropic's clients look for it.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// Its name again.
    pub(crate) display_name: String,
    /// `created` in RFC 3339.
    pub(crate) created_at: String,
    /// The tokens of its context, as vLLM names them; null if its files are wrong.
    pub(crate) max_model_len: Option<usize>,
    /// The same, as Anthropic names it.
    pub(crate) max_input_tokens: Option<usize>,
    /// The longest answer: the same again.
    pub(crate) max_tokens: Option<usize>,
    /// The sampling values of the page and of `mlx chat`, by parameter. Requests under `/v1` have OpenAI's defaults instead.
    pub(crate) chat_sampling: BTreeMap<&'static str, SamplingValue>,
    /// What llama.cpp's clients read.
    pub(crate) meta: Option<ModelMeta>,
}

/// Sizes of a model, by llama.cpp's names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ModelMeta {
    /// The tokens of its context.
    pub(crate) n_ctx_train: usize,
    /// The number of token ids.
    pub(crate) n_vocab: usize,
    /// Its parameters.
    pub(crate) n_params: u64,
    /// Bytes of them in the files.
    pub(crate) size: u64,
}

/// The value of a sampling parameter.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SamplingValue {
    /// The value.
    #[schema(value_type = f64)]
    value: Number,
    /// `checkpoint` if the model's `generation_config.json` sets it, else `default`.
    source: &'static str,
}

/// Returns the sampling values of chats with a model.
pub(crate) fn chat_sampling(checkpoint: &SamplingOptions) -> BTreeMap<&'static str, SamplingValue> {
    let all = settings(&SamplingOptions::default(), checkpoint, SamplingDefaults::Chat);
    let value = |text: &str| text.parse().expect("settings have JSON numbers");
    let all = all.into_iter().flatten();
    all.map(|it| (it.name, SamplingValue { value: value(&it.value), source: it.source.as_str() })).collect()
}

/// All models that the server offers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The models.
    pub(crate) data: Vec<ModelObject>,
    /// Always false: there is one page.
    pub(crate) has_more: bool,
    /// The name of the first.
    pub(crate) first_id: Option<String>,
    /// The name of the last.
    pub(crate) last_id: Option<String>,
}
