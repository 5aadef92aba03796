//! Models as Ollama's clients see them.

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::PartialSchema;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::error::ApiError;
use crate::fields::{Fields, field_group};
use crate::models::Entry;
use crate::protocol::openai::schema::{Fixed, merged};
use crate::time::rfc3339;

/// A model in a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct OllamaModel {
    /// Its name.
    name: String,
    /// Its name again.
    model: String,
    /// When its folder was written.
    modified_at: String,
    /// Bytes of its weights in the files; of a loaded model in memory.
    size: u64,
    /// A hash of its files' names and sizes and of its configuration, in hexadecimal digits.
    digest: String,
    /// What it is.
    details: ModelDetails,
    /// Of a loaded model: when it leaves memory if there is no request; the server's flag says that.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    /// Of a loaded model: bytes that a GPU can reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_vram: Option<u64>,
    /// Of a loaded model: the tokens of its context.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
}

/// What a model is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ModelDetails {
    /// Always empty.
    parent_model: String,
    /// Always `safetensors`.
    format: &'static str,
    /// The architecture.
    family: String,
    /// The same in a list.
    families: Vec<String>,
    /// Its parameters, rounded.
    parameter_size: String,
    /// The type that it computes in.
    quantization_level: String,
}

/// A list of models.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaModels {
    /// All of them.
    pub(crate) models: Vec<OllamaModel>,
}

impl OllamaModel {
    /// A model in the list of all.
    pub(crate) fn of(entry: &Entry) -> Self {
        let name = entry.name().to_owned();
        Self {
            model: name.clone(),
            name,
            modified_at: rfc3339(entry.created()),
            size: entry.spec().map_or(0, |spec| spec.file_bytes),
            digest: entry.digest().to_owned(),
            details: details(entry),
            expires_at: None,
            size_vram: None,
            context_length: None,
        }
    }

    /// A model in memory.
    pub(crate) fn loaded(entry: &Entry) -> Self {
        let size = entry.weight_bytes();
        let context_length = entry.spec().map(|spec| spec.context_length);
        // It stays until the server needs the memory, or for the server's --idle-timeout after its last request.
        let expires_at = Some("9999-12-31T23:59:59Z".to_owned());
        Self { size, size_vram: Some(size), context_length, expires_at, ..Self::of(entry) }
    }
}

fn details(entry: &Entry) -> ModelDetails {
    let family = entry.spec().map_or(String::new(), |spec| spec.family.clone());
    ModelDetails {
        parent_model: String::new(),
        format: "safetensors",
        families: vec![family.clone()],
        family,
        parameter_size: entry.spec().map_or(String::new(), |spec| rounded(spec.parameters)),
        quantization_level: entry.spec().map_or(String::new(), |spec| spec.dtype.to_uppercase()),
    }
}

fn rounded(count: u64) -> String {
    let count = count as f64;
    if count >= 1e9 { format!("{:.1}B", count / 1e9) } else { format!("{:.1}M", count / 1e6) }
}

field_group! {
    /// Which model is described.
    pub(crate) struct ShowFields {
        /// The model's name.
        #[schema(example = "some-model")]
        pub(crate) model: String,
        /// An older name of `model`.
        #[schema(example = "some-model")]
        pub(crate) name: String,
    }
}

/// A request to describe a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ShowRequest(pub(crate) String);

fn fixed() -> [Fixed; 1] {
    [("verbose", vec![json!(false), json!(true)], "must be a boolean")]
}

impl ShowRequest {
    /// Reads a request.
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let given = ShowFields::read(fields)?;
        for (field, allowed, why) in fixed() {
            fields.only(field, &allowed, why)?;
        }
        let name = given.model.or(given.name);
        let name = name.ok_or_else(|| ApiError::field("model", "is missing; give the name of a model"))?;
        Ok(Self(name.strip_suffix(":latest").map_or(name.clone(), str::to_owned)))
    }
}

impl PartialSchema for ShowRequest {
    fn schema() -> RefOr<Schema> {
        merged([ShowFields::schema()], &fixed()).build(&[])
    }
}

impl ToSchema for ShowRequest {}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Description {
    /// What it is.
    details: ModelDetails,
    /// Sizes, by names that begin with its architecture.
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    /// Its capabilities: `completion`, or `embedding` for an embedding model; `tools`, `thinking`, `vision`.
    capabilities: Vec<&'static str>,
    /// When its folder was written.
    modified_at: String,
    /// There is none: empty.
    modelfile: String,
    /// The server's settings are none of the model: empty.
    parameters: String,
    /// Its templates are not in Ollama's language: empty.
    template: String,
}

impl Description {
    /// Describes a model. This may read its tokenizer.
    pub(crate) fn of(entry: &Entry) -> Self {
        let abilities = entry.abilities();
        let known = [
            ("completion", !abilities.embeds),
            ("embedding", abilities.embeds),
            ("tools", abilities.calls_tools),
            ("thinking", abilities.thinks),
            ("vision", abilities.sees),
        ];
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
            capabilities: known.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect(),
            modified_at: rfc3339(entry.created()),
            modelfile: String::new(),
            parameters: String::new(),
            template: String::new(),
        }
    }
}
