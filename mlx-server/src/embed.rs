//! From a request for vectors that was read to the vectors.

use futures_util::future::try_join_all;
use mlx_core::chat::OutputParser;
use mlx_core::engine::{Client, Pooling, RequestOptions, Task};

use crate::error::ApiError;
use crate::generation::Choice;
use crate::models::Lease;
use crate::prepare;
use crate::protocol::openai::embedding::{
    EmbeddingList, EmbeddingObject, EmbeddingRequest, EmbeddingUsage, Encoding, Vector,
};
use crate::state::AppState;
use crate::work::Turn;

/// Running generations that give vectors.
pub(crate) struct Embeddings {
    model: String,
    /// How many numbers of each vector are kept.
    dimensions: usize,
    choices: Vec<Choice>,
    /// How far they can be repeated.
    pub(crate) exactness: &'static str,
}

/// Refuses more texts than are taken at once, before any of them is looked at.
pub(crate) fn check_amount(state: &AppState, request: &EmbeddingRequest) -> Result<(), ApiError> {
    let (most, count) = (state.config.limits.max_inputs, request.inputs.len());
    if count <= most {
        return Ok(());
    }
    Err(ApiError::field("input", format!("has {count} texts; at most {most} are taken at once")))
}

/// Submits the texts of a request to the engine. It computes for a while, so it belongs on a blocking thread.
pub(crate) fn start(
    state: &AppState,
    lease: &Lease,
    request: &EmbeddingRequest,
    client: Client,
    turn: &Turn,
) -> Result<Embeddings, ApiError> {
    let hidden = lease.engine.spec().hidden_size;
    let dimensions = request.dimensions.unwrap_or(hidden);
    if dimensions > hidden {
        let message = format!("is {dimensions}; the model's vectors have {hidden} numbers");
        return Err(ApiError::field("dimensions", message));
    }
    let options = RequestOptions {
        task: Task::Embed(match request.pooling {
            Some(pooling) => pooling,
            None => Pooling::of(lease.engine.folder())?,
        }),
        priority: request.priority,
        client,
        ..RequestOptions::default()
    };
    let one = |input| {
        let read = if request.truncate { prepare::first_ids } else { prepare::ids };
        let ids = read(lease, input, turn);
        lease.engine.request(ids?, &options).map_err(ApiError::from)
    };
    let blame = |error: ApiError| error.renamed("prompt", "input");
    let requests = request.inputs.iter().map(one).collect::<Result<_, _>>().map_err(blame)?;
    let choices = Choice::submit_all(requests, &OutputParser::plain(), state, lease)?;
    let exactness = lease.engine.exactness().as_str();
    Ok(Embeddings { model: lease.name.clone(), dimensions, choices, exactness })
}

impl Embeddings {
    /// Waits for all of them.
    pub(crate) async fn list(self, encoding: Encoding) -> Result<EmbeddingList, ApiError> {
        let Self { model, dimensions, choices, .. } = self;
        let mut usage = EmbeddingUsage::default();
        let mut data = Vec::new();
        for (index, (raw, tokens)) in
            try_join_all(choices.into_iter().map(Choice::vector)).await?.into_iter().enumerate()
        {
            let embedding = Vector::new(&raw, dimensions, encoding).ok_or_else(|| {
                ApiError::failed(format!("the vector of text {index} is zero, which has no direction"))
            })?;
            usage.prompt_tokens += tokens.prompt_tokens;
            usage.total_tokens += tokens.prompt_tokens;
            data.push(EmbeddingObject { object: "embedding", index, embedding });
        }
        Ok(EmbeddingList { object: "list", data, model, usage })
    }
}
