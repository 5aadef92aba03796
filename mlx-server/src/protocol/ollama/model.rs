//! Models in the format of Ollama's API.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::PartialSchema;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::models::{Entry, Served};
use crate::protocol::openai::schema::{Fixed, merged};
use crate::time::rfc3339;

/// A model of a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct OllamaModel {
    /// The name of the model.
    name: String,
    /// The name of the model.
    model: String,
    /// The modification time of the model's folder.
    modified_at: String,
    /// The size of the weights in bytes: in the files, or in memory for a loaded model.
    size: u64,
    /// A hexadecimal hash of the names and sizes of the files, and of the configuration.
    digest: String,
    /// Details of the model.
    details: ModelDetails,
    /// The tasks that the model is made for: `completion`, `embedding`, `rerank`, `transcription`.
    capabilities: Vec<&'static str>,
    /// For a loaded model: when it is unloaded if no further request uses it; far in the future if only memory for another model ends its stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// For a loaded model: the bytes in memory that a GPU can access.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_vram: Option<u64>,
    /// For a loaded model: the context length in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
}

/// Details of a model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ModelDetails {
    /// For a profile: the name of its model. Empty otherwise.
    parent_model: String,
    /// `safetensors` or `gguf`.
    format: &'static str,
    /// The architecture.
    family: String,
    /// A list with only the architecture.
    families: Vec<String>,
    /// The number of parameters, rounded.
    parameter_size: String,
    /// Of a GGUF file, its quantization, such as `Q4_K_M`. Of a folder, the data type of computations.
    quantization_level: String,
}

/// A list of models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaModels {
    /// The models.
    pub(crate) models: Vec<OllamaModel>,
}

impl OllamaModel {
    /// Returns the list entry of a model or a profile.
    pub(crate) fn from_served(Served { entry, profile }: &Served) -> Self {
        let mut model = Self::from_entry(entry);
        if let Some(profile) = profile {
            (model.name, model.model) = (profile.name.clone(), profile.name.clone());
            entry.base_name().clone_into(&mut model.details.parent_model);
        }
        model
    }

    fn from_entry(entry: &Entry) -> Self {
        let name = entry.name().to_owned();
        Self {
            model: name.clone(),
            name,
            modified_at: rfc3339(entry.created()),
            size: entry.spec().map_or(0, |spec| spec.file_bytes),
            digest: entry.digest().to_owned(),
            details: details(entry),
            capabilities: entry.tasks(),
            expires_at: None,
            size_vram: None,
            context_length: None,
        }
    }

    /// Returns the list entry of a loaded model.
    pub(crate) fn loaded(entry: &Entry, idle: Option<Duration>) -> Self {
        let size = entry.weight_bytes();
        let context_length = entry.spec().map(|spec| spec.context_length);
        let left = entry.end(idle).map(|end| end.saturating_duration_since(Instant::now()).as_secs());
        let end = left.map(|seconds| rfc3339(crate::time::now() + seconds));
        let expires_at = Some(end.unwrap_or_else(|| "9999-12-31T23:59:59Z".to_owned()));
        Self { size, size_vram: Some(size), context_length, expires_at, ..Self::from_entry(entry) }
    }
}

fn details(entry: &Entry) -> ModelDetails {
    let family = entry.spec().map_or(String::new(), |spec| spec.family.clone());
    let dtype = || entry.spec().map_or(String::new(), |spec| spec.dtype.to_uppercase());
    ModelDetails {
        parent_model: String::new(),
        format: if entry.quantization().is_some() { "gguf" } else { "safetensors" },
        families: vec![family.clone()],
        family,
        parameter_size: entry.spec().map_or(String::new(), |spec| rounded(spec.parameters)),
        quantization_level: entry.quantization().map_or_else(dtype, str::to_owned),
    }
}

fn rounded(count: u64) -> String {
    let count = count as f64;
    if count >= 1e9 { format!("{:.1}B", count / 1e9) } else { format!("{:.1}M", count / 1e6) }
}

field_group! {
    /// The model to describe.
    pub(crate) struct ShowFields {
        /// The model's name.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// Older name of `model`.
        #[schema(example = "some-model")]
        pub(crate) name: String,
    }
}

/// A request to describe a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ShowRequest(pub(crate) String);

fn fixed_fields() -> [Fixed; 1] {
    [("verbose", vec![json!(false), json!(true)], "must be a boolean")]
}

impl ShowRequest {
    /// Parses a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = ShowFields::read(fields)?;
        for (field, allowed, reason) in fixed_fields() {
            fields.expect_one_of(field, &allowed, reason)?;
        }
        let name = given.model.or(given.name);
        let name = name.ok_or_else(|| ApiError::field("model", "is missing; give the name of a model"))?;
        Ok(Self(name.strip_suffix(":latest").map_or(name.clone(), str::to_owned)))
    }
}

impl PartialSchema for ShowRequest {
    fn schema() -> RefOr<Schema> {
        merged([ShowFields::schema()], &fixed_fields()).build(&[])
    }
}

impl ToSchema for ShowRequest {}

/// The description of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Description {
    /// Details of the model.
    details: ModelDetails,
    /// Dimensions of the model. The names start with the architecture.
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    /// The tasks that the model is made for (`completion`, `embedding`, `rerank`, `transcription`), and `tools`, `thinking`, `vision` and `audio`.
    capabilities: Vec<&'static str>,
    /// True if the model has a chat template. A model without one only continues texts.
    chat: bool,
    /// The modification time of the model's folder.
    modified_at: String,
    /// Always empty.
    modelfile: String,
    /// Always empty: sampling settings belong to the server.
    parameters: String,
    /// Always empty: the model's template is not in Ollama's language.
    template: String,
}

impl Description {
    /// Describes a model. This may read the tokenizer.
    pub(crate) fn from_entry(entry: &Entry) -> Self {
        let capabilities = entry.capabilities();
        let known = [
            ("tools", capabilities.tools),
            ("thinking", capabilities.reasoning),
            ("vision", capabilities.vision),
            ("audio", capabilities.audio),
        ];
        let known = known.into_iter().filter(|(_, has)| *has).map(|(name, _)| name);
        let mut model_info = Map::new();
        if let Some(spec) = entry.spec() {
            let family = &spec.family;
            model_info.insert("general.architecture".into(), json!(family));
            model_info.insert("general.parameter_count".into(), json!(spec.parameters));
            model_info.insert(format!("{family}.context_length"), json!(spec.context_length));
            model_info.insert(format!("{family}.embedding_length"), json!(spec.hidden_size));
            model_info.insert(format!("{family}.block_count"), json!(spec.num_layers));
        }
        Self {
            details: details(entry),
            model_info,
            chat: capabilities.chat,
            capabilities: entry.tasks().into_iter().chain(known).collect(),
            modified_at: rfc3339(entry.created()),
            modelfile: String::new(),
            parameters: String::new(),
            template: String::new(),
        }
    }
}
