//! Rankings by a model that generates text and was trained to answer yes or no about a query and a document: Qwen3-Reranker.

use chat_format::text::{EncodeLimit, Encoded, Pause, PromptText, Tokenizer, TruncationSide};
use futures_util::future::try_join_all;
use mlx_core::engine::RequestOptions;
use mlx_core::sampling::SamplingOptions;
use mlx_core::{Error, RANKING_TASK};

use super::logit_score::LogitScore;
use super::score::{Prompts, Score};
use crate::delta::Delta;
use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::models::Lease;
use crate::protocol::rerank::RerankRequest;
use crate::work::CancelFlag;

/// A logit bias that makes a token certain, whatever the model's logits are.
const VERDICT_BIAS: f32 = 100.0;

/// The default task, from Qwen3-Reranker's model card.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// A sentence of Qwen3-Reranker's prompt, after [`RANKING_TASK`].
const ANSWER_RULE: &str = "Note that the answer can only be \"yes\" or \"no\".";

/// The text after a document. It begins with a control token, so its tokens do not depend on the document.
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// A token rarely has more bytes.
const TOKEN_BYTES: usize = 16;

/// Returns the requests for each document: one that answers yes, then one that answers no.
pub(super) fn requests(
    lease: &Lease,
    request: &RerankRequest,
    origin: &Origin,
    cancel: &CancelFlag,
) -> Result<Prompts, ApiError> {
    if request.truncation_side == Some(TruncationSide::Left) {
        let message = "is left; a model that answers yes or no needs the start of a document: use right";
        return Err(ApiError::field("truncation_direction", message));
    }
    let words = verdict_ids(lease)?;
    let mut prompts = Prompts::default();
    for index in 0..request.documents.len() {
        let (prompt, is_cut) = tokens(lease, request, index, cancel)?;
        prompts.truncated += usize::from(is_cut);
        for word in words {
            let options = RequestOptions {
                sampling: SamplingOptions {
                    temperature: Some(0.0),
                    logit_bias: vec![(word, VERDICT_BIAS)],
                    ..SamplingOptions::default()
                },
                max_tokens: Some(1),
                ignore_eos: true,
                logprobs: Some(0),
                priority: request.priority,
                ..origin.options()
            };
            prompts.requests.push(lease.engine.request(prompt.clone(), &options)?);
        }
    }
    Ok(prompts)
}

/// Waits for the scores: the difference of the logits of yes and no, or its sigmoid.
pub(super) async fn scores(choices: Vec<Choice>, is_raw: bool) -> Result<Vec<Score>, ApiError> {
    let deltas = try_join_all(choices.into_iter().map(Choice::collect)).await?;
    let one = |answers: &[Vec<Delta>]| {
        let margin = logprob(&answers[0])? - logprob(&answers[1])?;
        let end = answers[0].iter().find_map(|delta| delta.end.as_ref());
        let value = if is_raw { margin } else { 1.0 / (1.0 + (-margin).exp()) };
        Ok(Score { value, tokens: end.map_or(0, |end| end.usage.prompt_tokens) })
    };
    deltas.chunks_exact(2).map(one).collect()
}

/// Returns the log-probability of an answer's only token.
fn logprob(answer: &[Delta]) -> Result<f64, ApiError> {
    let token = answer.iter().flat_map(|delta| &delta.tokens).next();
    let logprob = token.and_then(|token| token.logprob.as_ref());
    logprob
        .map(|it| f64::from(it.logprob))
        .ok_or_else(|| ApiError::failed("the model returned no probability of yes and no"))
}

/// Returns the tokens of yes and no. The model's files, not its name, decide whether it can rank documents.
fn verdict_ids(lease: &Lease) -> Result<[u32; 2], ApiError> {
    let folder = lease.engine.folder();
    let no_reranker = |reason: &str| ApiError::unsupported("model", format!("{} {reason}", lease.name));
    if let Some(head) = LogitScore::read(&folder.path)? {
        let is_qwen = folder.template.as_ref().is_none_or(|template| template.mentions(RANKING_TASK));
        return match head.false_token_id {
            Some(no) if is_qwen => Ok([head.true_token_id, no]),
            _ => Err(no_reranker(
                "ranks with a custom prompt, which is not supported; use a Qwen3-Reranker model",
            )),
        };
    }
    let token = |word: &str| match folder.tokenizer.encode(word, false).as_deref() {
        Ok([token]) => Some(*token),
        _ => None,
    };
    match (token("yes"), token("no")) {
        (Some(yes), Some(no)) if lease.engine.spec().family == "qwen3" => Ok([yes, no]),
        _ => Err(no_reranker("is not a reranker; use a Qwen3-Reranker model")),
    }
}

/// Returns the tokens of the prompt for a document. Text of the request never becomes a control token. Returns true if the document was cut.
fn tokens(
    lease: &Lease,
    request: &RerankRequest,
    index: usize,
    cancel: &CancelFlag,
) -> Result<(Vec<u32>, bool), ApiError> {
    use PromptText::{Own, Quoted};
    let system = format!(
        "<|im_start|>system\n{RANKING_TASK}. {ANSWER_RULE}<|im_end|>\n<|im_start|>user\n<Instruct>: "
    );
    let before = [
        Own(&system),
        Quoted(request.instruction.as_deref().unwrap_or(INSTRUCTION)),
        Own("\n<Query>: "),
        Quoted(&request.query),
        Own("\n<Document>: "),
    ];
    let (tokenizer, pause) = (&lease.engine.folder().tokenizer, || cancel.check());
    let after = tokenizer.encode(AFTER, false)?;
    // One position is for the answer.
    let context = lease.engine.spec().context_length.saturating_sub(1);
    let room = context.saturating_sub(after.len());
    let (mut ids, is_cut) = start(tokenizer, &before, &request.documents[index], room, &pause)?;
    let too_long = |field, what: &str| {
        let message =
            format!("{what} more than {context} tokens, which is all that the model's context holds");
        ApiError::from(Error::context_length(field, context + 1, context, message))
    };
    if is_cut && !request.truncate {
        let what = format!("document {index} makes a prompt of");
        return Err(too_long(request.documents_field, &what));
    }
    if is_cut && start(tokenizer, &before, "", room, &pause)?.1 {
        return Err(too_long("query", "makes a prompt of"));
    }
    ids.extend(after);
    Ok((ids, is_cut))
}

/// Returns at most `room` tokens of the parts and a document. Returns true if the document was cut.
fn start(
    tokenizer: &Tokenizer,
    before: &[PromptText],
    document: &str,
    room: usize,
    pause: Pause,
) -> Result<(Vec<u32>, bool), ApiError> {
    let mut length = document.len().min(TOKEN_BYTES.saturating_mul(room.saturating_add(1)));
    loop {
        length = document.ceil_char_boundary(length);
        let parts = [before, &[PromptText::Quoted(&document[..length])]].concat();
        let limit = EncodeLimit { tokens: usize::MAX, pause };
        let Encoded::Whole(mut ids) = tokenizer.encode_parts(&parts, &limit)? else {
            return Err(ApiError::failed("a prompt without a limit has too many tokens"));
        };
        let is_cut = ids.len() > room;
        if is_cut || length == document.len() {
            ids.truncate(room);
            return Ok((ids, is_cut));
        }
        length = document.len().min(2 * length);
    }
}
