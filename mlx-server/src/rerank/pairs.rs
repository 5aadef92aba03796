//! Rankings by a cross-encoder: a model with a head that scores a query and a document.

use chat_format::text::EncodeLimit;
use futures_util::future::try_join_all;
use mlx_core::Error;
use mlx_core::cross_encoder::CrossEncoder;
use mlx_core::engine::{RequestOptions, Task};

use super::score::{Prompts, Score};
use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::models::Lease;
use crate::protocol::rerank::RerankRequest;
use crate::work::CancelFlag;

/// Returns a request for each document.
pub(super) fn requests(
    lease: &Lease,
    encoder: &CrossEncoder,
    request: &RerankRequest,
    origin: &Origin,
    cancel: &CancelFlag,
) -> Result<Prompts, ApiError> {
    if encoder.labels != 1 {
        let message =
            format!("{} returns {} scores for a pair; a reranker returns one", lease.name, encoder.labels);
        return Err(ApiError::unsupported("model", message));
    }
    let context = lease.engine.spec().context_length;
    let (tokens, source) = match encoder.limit() {
        Some((tokens, source)) if tokens < context => (tokens, source),
        _ => (context, "the model's context"),
    };
    let limit = EncodeLimit { tokens, pause: &|| cancel.check() };
    let mut prompts = Prompts::default();
    for (index, document) in request.documents.iter().enumerate() {
        let tokenizer = &lease.engine.folder().tokenizer;
        let pair = encoder.encode(tokenizer, &request.query, document, &limit, request.truncation_side)?;
        if (pair.truncated || pair.first_truncated) && !request.truncate {
            let message = format!(
                "document {index} and the query have more than {tokens} tokens, which is all that {source} allows"
            );
            // The longer text is cut first.
            let field = if pair.truncated { request.documents_field } else { "query" };
            return Err(Error::context_length(field, tokens + 1, tokens, message).into());
        }
        prompts.truncated += usize::from(pair.truncated);
        prompts.query_truncated |= pair.first_truncated;
        let options = RequestOptions {
            task: Task::Classify,
            second: pair.second,
            priority: request.priority,
            ..origin.options()
        };
        prompts.requests.push(lease.engine.request(pair.ids, &options)?);
    }
    Ok(prompts)
}

/// Waits for the scores: the logits, or the relevance that the model's config derives from them.
pub(super) async fn scores(
    lease: &Lease,
    choices: Vec<Choice>,
    is_raw: bool,
) -> Result<Vec<Score>, ApiError> {
    let encoder = lease.engine.folder().cross_encoder()?;
    let results = try_join_all(choices.into_iter().map(Choice::values)).await?;
    let one = |(logits, usage): (Vec<f32>, mlx_core::engine::Usage)| {
        let raw = logits.first().copied().filter(|logit| logit.is_finite());
        let raw = raw.ok_or(Error::NotFinite("a score"))?;
        let value = if is_raw { raw } else { encoder.score(&logits)? };
        Ok(Score { value: f64::from(value), tokens: usage.prompt_tokens })
    };
    results.into_iter().map(one).collect()
}
