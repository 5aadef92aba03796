//! What goes over the wire: the fields of requests and the objects of responses.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod constraint;
pub(crate) mod embedding;
pub(crate) mod logprobs;
pub(crate) mod message;
pub(crate) mod models;
pub(crate) mod offsets;
pub(crate) mod options;
pub(crate) mod sampling;
pub(crate) mod schema;
pub(crate) mod text;
pub(crate) mod tools;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::field_value::FieldValue;

/// A response whose body is JSON.
#[derive(Debug)]
pub(crate) struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(CONTENT_TYPE, json)], body).into_response(),
            Err(error) => {
                tracing::error!(%error, "a response could not be written as JSON");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// One value, or a list of them.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    /// A single one.
    One(String),
    /// Any number.
    Many(Vec<String>),
}

impl FieldValue for OneOrMany {
    fn read(value: Value) -> Result<Self, String> {
        match value {
            Value::String(one) => Ok(Self::One(one)),
            list @ Value::Array(_) => Vec::read(list).map(Self::Many),
            other => String::read(other).map(Self::One).map_err(|why| format!("{why} or a list of strings")),
        }
    }
}

impl OneOrMany {
    /// As a list.
    pub(crate) fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}
