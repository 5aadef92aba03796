//! The objects of `GET /v1/models`.

use serde::Serialize;
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
}

/// All models that the server offers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// Always `list`.
    pub(crate) object: &'static str,
    /// The models.
    pub(crate) data: Vec<ModelObject>,
}
