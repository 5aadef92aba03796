//! Scores the relevance of documents to a query.

mod logit_score;
mod pairs;
mod score;
mod verdicts;

use chat_format::OutputParser;

use score::{Prompts, Score};

use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::models::Lease;
use crate::protocol::rerank::{RerankDocument, RerankList, RerankRequest, RerankResult, RerankUsage};
use crate::state::AppState;
use crate::work::CancelFlag;

/// The running generations of a request.
pub(crate) struct Ranking {
    lease: Lease,
    kind: Kind,
    choices: Vec<Choice>,
    /// The number of texts that were cut: documents, and the query.
    pub(crate) truncated: usize,
    /// The exactness level of the scores.
    pub(crate) exactness: &'static str,
}

/// The kind of a reranker.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A cross-encoder.
    Pairs,
    /// A model that answers yes or no.
    Verdicts,
}

/// Rejects a request with too many documents, before any of them is processed.
pub(crate) fn check_amount(state: &AppState, request: &RerankRequest) -> Result<(), ApiError> {
    let (max_inputs, count) = (state.config.limits.max_inputs, request.documents.len());
    if count <= max_inputs {
        return Ok(());
    }
    Err(ApiError::field(
        request.documents_field,
        format!("has {count} documents; --max-inputs allows {max_inputs} per request"),
    ))
}

/// Submits the documents of a request to the engine. Tokenizing takes CPU time, so this belongs on a blocking thread.
pub(crate) fn start(
    state: &AppState,
    lease: &Lease,
    request: &RerankRequest,
    origin: &Origin,
    cancel: &CancelFlag,
) -> Result<Ranking, ApiError> {
    let (kind, prompts) = match lease.engine.folder().cross_encoder() {
        Ok(encoder) => (Kind::Pairs, pairs::requests(lease, encoder, request, origin, cancel)),
        Err(error) if lease.engine.spec().encoder.is_some() => return Err(error.into()),
        Err(_) => (Kind::Verdicts, verdicts::requests(lease, request, origin, cancel)),
    };
    let rename = |error: ApiError| error.rename_field("prompt", request.documents_field);
    let Prompts { requests, truncated, query_truncated } = prompts.map_err(rename)?;
    let truncated = truncated + usize::from(query_truncated);
    let choices = Choice::submit_all(requests, &OutputParser::plain(), state, lease, (origin, 1))?;
    let exactness = lease.engine.exactness().as_str();
    Ok(Ranking { lease: lease.clone(), kind, choices, truncated, exactness })
}

impl Ranking {
    /// Waits for all scores. The most relevant document comes first.
    pub(crate) async fn list(self, request: RerankRequest) -> Result<RerankList, ApiError> {
        let Self { lease, kind, choices, truncated, .. } = self;
        let scores = match kind {
            Kind::Pairs => pairs::scores(&lease, choices, request.raw_scores).await?,
            Kind::Verdicts => verdicts::scores(choices, request.raw_scores).await?,
        };
        let tokens = scores.iter().map(|score| score.tokens).sum();
        let usage = RerankUsage { prompt_tokens: tokens, total_tokens: tokens, truncated_inputs: truncated };
        let result = |(index, (score, text)): (usize, (Score, String))| {
            let document = request.return_documents.then_some(RerankDocument { text });
            RerankResult { index, relevance_score: score.value, document }
        };
        let mut results: Vec<RerankResult> =
            scores.into_iter().zip(request.documents).enumerate().map(result).collect();
        // The sort is stable: documents with equal scores keep their order.
        results.sort_by(|one, other| other.relevance_score.total_cmp(&one.relevance_score));
        results.truncate(request.top_n.unwrap_or(usize::MAX));
        Ok(RerankList { object: "list", model: lease.model_name().to_owned(), results, usage })
    }
}
