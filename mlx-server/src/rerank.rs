//! How relevant documents are to a query, by a model that was trained to answer that with yes or no.

use futures_util::future::try_join_all;
use mlx_core::Error;
use mlx_core::chat::OutputParser;
use mlx_core::engine::{Client, GenerationRequest, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use mlx_core::text::{EncodeLimit, Encoded};

use crate::error::ApiError;
use crate::generation::Choice;
use crate::models::Lease;
use crate::piece::Piece;
use crate::protocol::rerank::{RerankDocument, RerankList, RerankRequest, RerankResult, RerankUsage};
use crate::state::AppState;
use crate::work::Turn;

/// Makes one token certain, whatever the model's logits are.
const CERTAIN: f32 = 100.0;

/// The task that Qwen3-Reranker's model card gives where the request has none.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// Running generations: for each document one that says yes, then one that says no.
pub(crate) struct Ranking {
    model: String,
    choices: Vec<Choice>,
}

/// Refuses more documents than are taken at once, before any of them is looked at.
pub(crate) fn check_amount(state: &AppState, request: &RerankRequest) -> Result<(), ApiError> {
    let (most, count) = (state.config.limits.max_inputs, request.documents.len());
    if count <= most {
        return Ok(());
    }
    Err(ApiError::field("documents", format!("has {count} documents; at most {most} are taken at once")))
}

/// Submits the documents of a request to the engine. It computes for a while, so it belongs on a blocking thread.
pub(crate) fn start(
    state: &AppState,
    lease: &Lease,
    request: &RerankRequest,
    client: Client,
    turn: &Turn,
) -> Result<Ranking, ApiError> {
    let words = verdicts(lease)?;
    let mut requests: Vec<GenerationRequest> = Vec::new();
    for (index, document) in request.documents.iter().enumerate() {
        let prompt = tokens(lease, &prompt(request, document), index, turn)?;
        for word in words {
            let options = RequestOptions {
                sampling: SamplingOptions {
                    temperature: Some(0.0),
                    logit_bias: vec![(word, CERTAIN)],
                    ..SamplingOptions::default()
                },
                max_tokens: Some(1),
                ignore_eos: true,
                logprobs: Some(0),
                priority: request.priority,
                client,
                ..RequestOptions::default()
            };
            let one = lease.engine.request(prompt.clone(), &options).map_err(ApiError::from);
            requests.push(one.map_err(|error| error.renamed("prompt", "documents"))?);
        }
    }
    let choices = Choice::submit_all(requests, &OutputParser::plain(), state, lease)?;
    Ok(Ranking { model: lease.name.clone(), choices })
}

impl Ranking {
    /// Waits for all of them. The most relevant document comes first.
    pub(crate) async fn list(self, request: RerankRequest) -> Result<RerankList, ApiError> {
        let Self { model, choices } = self;
        let pieces = try_join_all(choices.into_iter().map(Choice::whole)).await?;
        let mut usage = RerankUsage::default();
        let mut results = Vec::new();
        for (index, (answers, text)) in pieces.chunks_exact(2).zip(request.documents).enumerate() {
            let (yes, no) = (logprob(&answers[0])?, logprob(&answers[1])?);
            let read = answers[0].iter().find_map(|piece| piece.end.as_ref());
            usage.prompt_tokens += read.map_or(0, |end| end.usage.prompt_tokens);
            let document = request.return_documents.then_some(RerankDocument { text });
            results.push(RerankResult { index, relevance_score: 1.0 / (1.0 + (no - yes).exp()), document });
        }
        usage.total_tokens = usage.prompt_tokens;
        // Documents of one score stay in their order.
        results.sort_by(|one, other| other.relevance_score.total_cmp(&one.relevance_score));
        results.truncate(request.top_n.unwrap_or(usize::MAX));
        Ok(RerankList { object: "list", model, results, usage })
    }
}

/// The log-probability of the only token of an answer.
fn logprob(answer: &[Piece]) -> Result<f64, ApiError> {
    let token = answer.iter().flat_map(|piece| &piece.tokens).next();
    let logprob = token.and_then(|token| token.logprob.as_ref());
    logprob
        .map(|it| f64::from(it.logprob))
        .ok_or_else(|| ApiError::failed("the model gave no probability of yes and no"))
}

/// The tokens of yes and no, of a model that is known to rank by them.
fn verdicts(lease: &Lease) -> Result<[u32; 2], ApiError> {
    let is_known = lease.name.to_lowercase().contains("reranker");
    let tokenizer = &lease.engine.folder().tokenizer;
    let token = |word: &str| match tokenizer.encode(word, false).as_deref() {
        Ok([token]) => Some(*token),
        _ => None,
    };
    if let (true, Some(yes), Some(no)) = (is_known, token("yes"), token("no")) {
        return Ok([yes, no]);
    }
    let message = format!(
        "{} is not known to rank documents; the Qwen3-Reranker models are, under a name with \"reranker\"",
        lease.name
    );
    Err(ApiError::unsupported("model", message))
}

/// The text that Qwen3-Reranker was trained to answer.
fn prompt(request: &RerankRequest, document: &str) -> String {
    let instruction = request.instruction.as_deref().unwrap_or(INSTRUCTION);
    format!(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
         Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n\
         <Query>: {}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        request.query
    )
}

fn tokens(lease: &Lease, prompt: &str, index: usize, turn: &Turn) -> Result<Vec<u32>, ApiError> {
    let context = lease.engine.spec().context_length;
    let limit = EncodeLimit { tokens: context, pause: &|| turn.pause() };
    match lease.engine.folder().tokenizer.encode_within(prompt, false, &limit)? {
        Encoded::Whole(ids) => Ok(ids),
        Encoded::AtLeast(fewest) => {
            let message = format!(
                "document {index} makes a prompt of at least {fewest} tokens; the model's context holds {context}"
            );
            Err(ApiError::from(Error::context_length("documents", fewest, context, message)))
        }
    }
}
