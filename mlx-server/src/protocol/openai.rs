//! OpenAI's API, and this server's own endpoints in its style: reads requests, and defines the objects of responses.

pub(crate) mod answer;
pub(crate) mod audio;
pub(crate) mod batch;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod constraint;
pub(crate) mod embedding;
pub(crate) mod file;
pub(crate) mod logprobs;
pub(crate) mod message;
pub(crate) mod models;
pub(crate) mod offsets;
pub(crate) mod options;
pub(crate) mod page;
pub(crate) mod sampling;
pub(crate) mod schema;
pub(crate) mod text;
pub(crate) mod thinking;
pub(crate) mod tools;
pub(crate) mod writer;

use mlx_json::Value;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::field_value::FieldValue;

/// One string or a list of strings.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    /// One string.
    One(String),
    /// A list of strings.
    Many(Vec<String>),
}

impl FieldValue for OneOrMany {
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::String(one) => Ok(Self::One(one)),
            list @ Value::Array(_) => Vec::read(list).map(Self::Many),
            other => {
                String::read(other).map(Self::One).map_err(|reason| format!("{reason} or a list of strings"))
            }
        }
    }
}

impl OneOrMany {
    /// Returns the strings as a list.
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}
