//! Computes embeddings for a parsed request.

use chat_format::OutputParser;
use futures_util::future::try_join_all;
use mlx_core::embeddings::{EmbedInput, EmbedOptions, EmbedRequest, Embedder, VectorForm};
use mlx_core::engine::{Client, RequestOptions};

use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::models::Lease;
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
    form: VectorForm,
    choices: Vec<Choice>,
    /// The number of texts that were cut.
    pub(crate) truncated: usize,
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
    let options = EmbedOptions {
        prompt: request.prompt.clone(),
        pooling: request.pooling,
        dimensions: request.dimensions,
        normalize: request.normalize,
        rejects_long: !request.truncate,
    };
    let embedder = Embedder::new(&lease.engine, &options)?;
    let shared = RequestOptions { priority: request.priority, ..origin.options() };
    let (mut requests, mut truncated) = (Vec::with_capacity(request.inputs.len()), 0);
    for (index, input) in request.inputs.iter().enumerate() {
        let named = |error: ApiError| match request.inputs.len() {
            1 => error,
            _ => error.rename_field("input", &format!("input[{index}]")),
        };
        let input = match input {
            Prompt::Text(text) => EmbedInput::Text(text),
            Prompt::Ids(ids) => EmbedInput::Ids(ids),
        };
        let EmbedRequest { request, is_cut } =
            embedder.request(input, &shared, &|| cancel.check()).map_err(|error| named(error.into()))?;
        truncated += usize::from(is_cut);
        requests.push(request);
    }
    let choices = Choice::submit_all(requests, &OutputParser::plain(), state, lease, (origin, 1))?;
    let exactness = lease.engine.exactness().as_str();
    let (state, form, lease) = (state.clone(), embedder.form(), lease.clone());
    Ok(Embeddings { state, client: origin.client, lease, form, choices, truncated, exactness })
}

impl Embeddings {
    /// Waits for all vectors.
    pub(crate) async fn list(self, encoding: Encoding) -> Result<EmbeddingList, ApiError> {
        let Self { state, client, lease, form, choices, truncated, .. } = self;
        let pooled = try_join_all(choices.into_iter().map(Choice::values)).await?;
        let model = lease.model_name().to_owned();
        let bytes = pooled.iter().map(|(vector, _)| size_of_val(vector.as_slice())).sum();
        let finish = move |cancel: &CancelFlag| {
            let embedding = lease.engine.folder().embedding()?;
            let (mut tokens, mut data) = (0, Vec::with_capacity(pooled.len()));
            for (index, (pooled, usage)) in pooled.into_iter().enumerate() {
                cancel.check()?;
                let embedding = Vector::new(form.finish(embedding, pooled)?, encoding);
                tokens += usage.prompt_tokens;
                data.push(EmbeddingObject { object: "embedding", index, embedding });
            }
            let usage =
                EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens, truncated_inputs: truncated };
            Ok((data, usage))
        };
        let (data, usage) = state.cpu_slots.run(client, bytes, finish).await?;
        Ok(EmbeddingList { object: "list", data, model, usage })
    }
}
