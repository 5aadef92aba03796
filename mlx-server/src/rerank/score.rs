//! The requests and the scores of a ranking, for both kinds of rerankers.

use mlx_core::engine::GenerationRequest;

/// The requests for the documents.
#[derive(Default)]
pub(super) struct Prompts {
    pub(super) requests: Vec<GenerationRequest>,
    /// The number of documents that were cut.
    pub(super) truncated: usize,
    /// True if the query was cut.
    pub(super) query_truncated: bool,
}

/// The score of a document, and the number of tokens of its prompt.
pub(super) struct Score {
    pub(super) value: f64,
    pub(super) tokens: usize,
}
