//! Computes embeddings for a parsed request.

use std::borrow::Cow;

use chat_format::OutputParser;
use futures_util::future::try_join_all;
use mlx_core::engine::{Client, RequestOptions, Task};
use mlx_core::sentence_transformers::TextEmbedding;

use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::models::Lease;
use crate::prepare::{self, TokenLimit};
use crate::protocol::openai::completion::Prompt;
use crate::protocol::openai::embedding::{
    EmbeddingList, EmbeddingObject, EmbeddingRequest, EmbeddingUsage, Encoding, Vector,
};
use crate::state::AppState;
use crate::work::CancelFlag;

/// The running generations of an embedding request.
pub(crate) struct Embeddings {
    state: AppState,
    client: Client,
    lease: Lease,
    /// The number of dimensions in the response.
    dimensions: usize,
    normalize: bool,
    choices: Vec<Choice>,
    /// The exactness level of the vectors.
    pub(crate) exactness: &'static str,
}

/// Rejects a request with too many inputs, before any of them is processed.
pub(crate) fn check_amount(state: &AppState, request: &EmbeddingRequest) -> Result<(), ApiError> {
    let (max_inputs, count) = (state.config.limits.max_inputs, request.inputs.len());
    if count <= max_inputs {
        return Ok(());
    }
    Err(ApiError::field("input", format!("has {count} texts; --max-inputs allows {max_inputs} per request")))
}

/// Submits the inputs of a request to the engine. Tokenizing takes CPU time, so this belongs on a blocking thread.
pub(crate) fn start(
    state: &AppState,
    lease: &Lease,
    request: &EmbeddingRequest,
    origin: &Origin,
    cancel: &CancelFlag,
) -> Result<Embeddings, ApiError> {
    let folder = lease.engine.folder();
    let embedding = folder.embedding()?;
    let width = embedding.dimensions(lease.engine.spec().hidden_size);
    let dimensions = request.dimensions.unwrap_or(width);
    if dimensions > width {
        let message = format!("is {dimensions}; the model's vectors have {width} numbers");
        return Err(ApiError::field("dimensions", message));
    }
    let prompt = embedding.prompts.text(&request.prompt)?;
    let unpooled = embedding.unpooled(prompt, &folder.tokenizer)?;
    let limit = token_limit(lease, embedding, request.truncate);
    let one = |input: &Prompt| {
        let input = with_prompt(embedding, prompt, input);
        let options = RequestOptions {
            task: Task::Embed(request.pooling.map_or(embedding.pooling, Into::into)),
            unpooled: if matches!(*input, Prompt::Text(_)) { unpooled } else { 0 },
            priority: request.priority,
            client: origin.client,
            ..RequestOptions::default()
        };
        let ids = prepare::ids_within(lease, &input, &limit, cancel)?;
        lease.engine.request(ids, &options).map_err(ApiError::from)
    };
    let rename = |error: ApiError| error.rename_field("prompt", "input");
    let requests = request.inputs.iter().map(one).collect::<Result<_, _>>().map_err(rename)?;
    let choices = Choice::submit_all(requests, &OutputParser::plain(), state, lease, &origin.id)?;
    let normalize = request.normalize.unwrap_or(embedding.normalizes);
    let exactness = lease.engine.exactness().as_str();
    let (state, lease) = (state.clone(), lease.clone());
    Ok(Embeddings { state, client: origin.client, lease, dimensions, normalize, choices, exactness })
}

/// Returns the smaller of the context length and the limit of the model's sentence-transformers files.
fn token_limit(lease: &Lease, embedding: &TextEmbedding, truncates: bool) -> TokenLimit {
    let context = TokenLimit { truncates, ..TokenLimit::context(lease) };
    match embedding.limit() {
        Some((tokens, source)) if tokens < context.tokens => {
            TokenLimit { tokens, message: format!("{source} allows {tokens}"), ..context }
        }
        _ => context,
    }
}

/// Prepends the prompt to a text. Token ids are returned unchanged.
fn with_prompt<'a>(embedding: &TextEmbedding, prompt: &str, input: &'a Prompt) -> Cow<'a, Prompt> {
    match input {
        Prompt::Text(text) => Cow::Owned(Prompt::Text(embedding.prompted(prompt, text))),
        Prompt::Ids(_) => Cow::Borrowed(input),
    }
}

impl Embeddings {
    /// Waits for all vectors.
    pub(crate) async fn list(self, encoding: Encoding) -> Result<EmbeddingList, ApiError> {
        let Self { state, client, lease, dimensions, normalize, choices, .. } = self;
        let pooled = try_join_all(choices.into_iter().map(Choice::vector)).await?;
        let model = lease.name.clone();
        let bytes = pooled.iter().map(|(vector, _)| size_of_val(vector.as_slice())).sum();
        let finish = move |cancel: &CancelFlag| {
            let (mut usage, mut data) = (EmbeddingUsage::default(), Vec::new());
            for (index, (pooled, tokens)) in pooled.into_iter().enumerate() {
                cancel.check()?;
                let vector = lease.engine.folder().embedding()?.finish(pooled)?;
                let embedding = Vector::new(&vector, dimensions, normalize, encoding).ok_or_else(|| {
                    ApiError::failed(format!("the vector of text {index} is zero and cannot be normalized"))
                })?;
                usage.prompt_tokens += tokens.prompt_tokens;
                usage.total_tokens += tokens.prompt_tokens;
                data.push(EmbeddingObject { object: "embedding", index, embedding });
            }
            Ok((data, usage))
        };
        let (data, usage) = state.cpu_slots.run(client, bytes, finish).await?;
        Ok(EmbeddingList { object: "list", data, model, usage })
    }
}
