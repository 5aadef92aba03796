//! Scores the relevance of documents to a query, with a model trained to answer that question with yes or no.

use std::fmt::Display;
use std::path::Path;

use chat_format::OutputParser;
use chat_format::text::{EncodeLimit, Encoded, PromptText};
use futures_util::future::try_join_all;
use mlx_core::Error;
use mlx_core::engine::{GenerationRequest, RequestOptions};
use mlx_core::sampling::SamplingOptions;
use serde::Deserialize;

use crate::delta::Delta;
use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::models::Lease;
use crate::protocol::rerank::{RerankDocument, RerankList, RerankRequest, RerankResult, RerankUsage};
use crate::state::AppState;
use crate::work::CancelFlag;

/// A logit bias that makes a token certain, whatever the model's logits are.
const VERDICT_BIAS: f32 = 100.0;

/// The default task, from Qwen3-Reranker's model card.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// Sentences of Qwen3-Reranker's prompt.
const TASK: &str =
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided";
const ANSWER_RULE: &str = "Note that the answer can only be \"yes\" or \"no\".";

/// The running generations: for each document, one that answers yes, then one that answers no.
pub(crate) struct Ranking {
    model: String,
    choices: Vec<Choice>,
}

/// Rejects a request with too many documents, before any of them is processed.
pub(crate) fn check_amount(state: &AppState, request: &RerankRequest) -> Result<(), ApiError> {
    let (max_inputs, count) = (state.config.limits.max_inputs, request.documents.len());
    if count <= max_inputs {
        return Ok(());
    }
    Err(ApiError::field(
        "documents",
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
    let words = verdict_ids(lease)?;
    let mut requests: Vec<GenerationRequest> = Vec::new();
    for index in 0..request.documents.len() {
        let prompt = tokens(lease, request, index, cancel)?;
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
                client: origin.client,
                ..RequestOptions::default()
            };
            let one = lease.engine.request(prompt.clone(), &options).map_err(ApiError::from);
            requests.push(one.map_err(|error| error.rename_field("prompt", "documents"))?);
        }
    }
    let choices = Choice::submit_all(requests, &OutputParser::plain(), state, lease, &origin.id)?;
    Ok(Ranking { model: lease.name.clone(), choices })
}

impl Ranking {
    /// Waits for all scores. The most relevant document comes first.
    pub(crate) async fn list(self, request: RerankRequest) -> Result<RerankList, ApiError> {
        let Self { model, choices } = self;
        let deltas = try_join_all(choices.into_iter().map(Choice::collect)).await?;
        let mut usage = RerankUsage::default();
        let mut results = Vec::new();
        for (index, (answers, text)) in deltas.chunks_exact(2).zip(request.documents).enumerate() {
            let (yes, no) = (logprob(&answers[0])?, logprob(&answers[1])?);
            let read = answers[0].iter().find_map(|delta| delta.end.as_ref());
            usage.prompt_tokens += read.map_or(0, |end| end.usage.prompt_tokens);
            let document = request.return_documents.then_some(RerankDocument { text });
            results.push(RerankResult { index, relevance_score: 1.0 / (1.0 + (no - yes).exp()), document });
        }
        usage.total_tokens = usage.prompt_tokens;
        // The sort is stable: documents with equal scores keep their order.
        results.sort_by(|one, other| other.relevance_score.total_cmp(&one.relevance_score));
        results.truncate(request.top_n.unwrap_or(usize::MAX));
        Ok(RerankList { object: "list", model, results, usage })
    }
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
        let is_qwen = folder.template.as_ref().is_none_or(|template| template.mentions(TASK));
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

/// The sentence-transformers module that computes a score from the logits of two tokens.
#[derive(Debug, Deserialize)]
struct LogitScore {
    true_token_id: u32,
    false_token_id: Option<u32>,
}

impl LogitScore {
    /// Reads the module that a folder's `modules.json` names. `None` if it names no such module.
    fn read(folder: &Path) -> Result<Option<Self>, ApiError> {
        #[derive(Deserialize)]
        struct Module {
            path: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let failed = |file: &str, reason: &dyn Display| {
            ApiError::unsupported("model", format!("has a {file} that cannot be used: {reason}"))
        };
        let Ok(modules) = std::fs::read(folder.join("modules.json")) else { return Ok(None) };
        let modules: Vec<Module> =
            serde_json::from_slice(&modules).map_err(|error| failed("modules.json", &error))?;
        let Some(head) = modules.iter().find(|module| module.kind.ends_with(".LogitScore")) else {
            return Ok(None);
        };
        // The file may be untrusted: the module's folder must be inside the model's folder.
        if Path::new(&head.path).file_name() != Some(head.path.as_ref()) {
            return Err(failed("modules.json", &"the path of LogitScore must be a folder in the model's"));
        }
        let file = format!("{}/config.json", head.path);
        let bytes = std::fs::read(folder.join(&file)).map_err(|error| failed(&file, &error))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(&file, &error))
    }
}

/// Returns the tokens of Qwen3-Reranker's prompt for a document. Text of the request never becomes a control token.
fn tokens(
    lease: &Lease,
    request: &RerankRequest,
    index: usize,
    cancel: &CancelFlag,
) -> Result<Vec<u32>, ApiError> {
    use PromptText::{Own, Quoted};
    let system =
        format!("<|im_start|>system\n{TASK}. {ANSWER_RULE}<|im_end|>\n<|im_start|>user\n<Instruct>: ");
    let prompt = [
        Own(&system),
        Quoted(request.instruction.as_deref().unwrap_or(INSTRUCTION)),
        Own("\n<Query>: "),
        Quoted(&request.query),
        Own("\n<Document>: "),
        Quoted(&request.documents[index]),
        Own("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ];
    let context = lease.engine.spec().context_length;
    let limit = EncodeLimit { tokens: context, pause: &|| cancel.check() };
    match lease.engine.folder().tokenizer.encode_parts(&prompt, &limit)? {
        Encoded::Whole(ids) => Ok(ids),
        Encoded::AtLeast(min_count) => {
            let message = format!(
                "document {index} makes a prompt of at least {min_count} tokens; the model's context holds {context}"
            );
            Err(ApiError::from(Error::context_length("documents", min_count, context, message)))
        }
    }
}
