//! The objects of `GET /v1/models`.

use std::collections::BTreeMap;

use mlx_core::sampling::{SamplingDefaults, SamplingOptions, Source, settings};
use serde::Serialize;
use serde_json::Number;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::schema::merged;
use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::models::KeepAlive;

/// A served model.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct ModelObject {
    /// The name of the model.
    pub(crate) id: String,
    /// Always `model`.
    pub(crate) object: &'static str,
    /// The modification time of the model's folder, in seconds since 1970.
    pub(crate) created: u64,
    /// Always `local`.
    pub(crate) owned_by: &'static str,
    /// True if the model is in memory.
    pub(crate) loaded: bool,
    /// `unloaded`, `loading` or `loaded`.
    pub(crate) state: &'static str,
    /// True while requests use the model.
    pub(crate) in_use: bool,
    /// True if the model is only unloaded on request.
    pub(crate) pinned: bool,
    /// For a loaded model: the size of the weights in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
    /// Seconds until a loaded model is unloaded if no further request uses it. Absent if only another model's need for memory ends its stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_in: Option<f64>,
    /// Other names of the model.
    pub(crate) aliases: Vec<String>,
    /// For an adapter or a profile: the name of the model, with which it shares the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<String>,
    /// True for a profile: the model with settings of the server's file. Absent otherwise.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) profile: bool,
    /// Always `model`, for Anthropic's clients.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The name of the model.
    pub(crate) display_name: String,
    /// The time `created` in RFC 3339 format.
    pub(crate) created_at: String,
    /// The context length in tokens, by vLLM's name; null if the model's files are invalid.
    pub(crate) max_model_len: Option<usize>,
    /// The context length, by Anthropic's name.
    pub(crate) max_input_tokens: Option<usize>,
    /// The context length, which limits answers.
    pub(crate) max_tokens: Option<usize>,
    /// The tasks of the model: `completion`, `embedding`, `rerank`, `transcription`.
    pub(crate) capabilities: Vec<&'static str>,
    /// The sampling values of the page and of `mlx chat`, by parameter. Requests under `/v1` use OpenAI's defaults instead.
    pub(crate) chat_sampling: BTreeMap<&'static str, SamplingValue>,
    /// Sizes of the model, for llama.cpp's clients.
    pub(crate) meta: Option<ModelMeta>,
}

/// Sizes of a model, by llama.cpp's names.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ModelMeta {
    /// The context length in tokens.
    pub(crate) n_ctx_train: usize,
    /// The number of token ids.
    pub(crate) n_vocab: usize,
    /// The number of parameters.
    pub(crate) n_params: u64,
    /// The size of the weights in the files, in bytes.
    pub(crate) size: u64,
}

/// The value of a sampling parameter.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SamplingValue {
    /// The value.
    #[schema(value_type = f64)]
    value: Number,
    /// `profile` if the profile sets it, `checkpoint` if the model's `generation_config.json` does; otherwise `default`.
    source: &'static str,
}

/// Returns the sampling values of chats with a model, by the settings of a profile.
pub(crate) fn chat_sampling(
    profile: &SamplingOptions,
    checkpoint: &SamplingOptions,
) -> BTreeMap<&'static str, SamplingValue> {
    let all = settings(profile, checkpoint, SamplingDefaults::Chat);
    let value = |text: &str| text.parse().expect("settings have JSON numbers");
    let source = |it: Source| if it == Source::Request { "profile" } else { it.as_str() };
    let all = all.into_iter().flatten();
    all.map(|it| (it.name, SamplingValue { value: value(&it.value), source: source(it.source) })).collect()
}

/// All served models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The models.
    pub(crate) data: Vec<ModelObject>,
    /// Always false, since there is only one page.
    pub(crate) has_more: bool,
    /// The name of the first model.
    pub(crate) first_id: Option<String>,
    /// The name of the last model.
    pub(crate) last_id: Option<String>,
    /// True if clients may download models, by `POST /api/pull`.
    pub(crate) allows_pull: bool,
}

field_group! {
    /// The model.
    pub(crate) struct ModelFields {
        /// The model's name.
        #[schema(example = "some-model")]
        pub(crate) model: String,
    }
}

field_group! {
    /// The stay of a model in memory.
    pub(crate) struct StayFields {
        /// Time without a request after which the model is unloaded: seconds, or a duration such as 5m; -1 keeps it.
        #[schema(value_type = String, example = "5m")]
        pub(crate) keep_alive: KeepAlive,
        /// True to unload the model only on request, even if another model needs the memory.
        #[schema(example = true)]
        pub(crate) pin: bool,
    }
}

/// A parsed request to load a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LoadRequest {
    pub(crate) model: String,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) pin: Option<bool>,
}

/// A parsed request to unload a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct UnloadRequest(pub(crate) String);

impl LoadRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let StayFields { keep_alive, pin } = StayFields::read(fields)?;
        Ok(Self { model: model(fields)?, keep_alive, pin })
    }
}

impl UnloadRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        model(fields).map(Self)
    }
}

fn model(fields: &mut Fields) -> Result<String, ApiError> {
    let given = ModelFields::read(fields)?.model;
    given.ok_or_else(|| ApiError::field("model", "is missing; give the name of a model"))
}

impl PartialSchema for LoadRequest {
    fn schema() -> RefOr<Schema> {
        merged([ModelFields::schema(), StayFields::schema()], &[]).build(&["model"])
    }
}

impl ToSchema for LoadRequest {}

impl PartialSchema for UnloadRequest {
    fn schema() -> RefOr<Schema> {
        merged([ModelFields::schema()], &[]).build(&["model"])
    }
}

impl ToSchema for UnloadRequest {}
