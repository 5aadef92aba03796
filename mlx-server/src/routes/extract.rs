//! Parts of a request besides its body. An invalid part is rejected in the form of the API's errors.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use mlx_core::engine::Client;
use serde::de::DeserializeOwned;

use crate::client;
use crate::error::ApiError;

/// The id in the path.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let id = Path::from_request_parts(parts, state).await;
        id.map(|Path(id)| Self(id)).map_err(|error| ApiError::field("id", error.body_text()))
    }
}

/// The fields of the query.
pub(crate) struct QueryFields<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryFields<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(fields)| Self(fields)).map_err(|error| ApiError::field("query", error.body_text()))
    }
}

/// The client that sent the request.
pub(crate) struct Sender(pub(crate) Client);

impl<S: Send + Sync> FromRequestParts<S> for Sender {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(client::of(&parts.extensions)))
    }
}
