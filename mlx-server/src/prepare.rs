//! From an understood request to generations that run: templates, tokens, checks against the model. It computes for a
//! while, so it belongs on a blocking thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use mlx_core::engine::GenerationRequest;
use mlx_core::sampling::choice_seed;
use mlx_core::text::TemplateInput;

use crate::error::ApiError;
use crate::generation::Choice;
use crate::models::{Lease, Loaded};
use crate::reasoning::Splitter;
use crate::state::AppState;
use crate::wire::chat::{ChatRequest, Conversation};
use crate::wire::completion::{CompletionRequest, Prompt};
use crate::wire::options::{Job, StreamOptions};
use crate::writer::{Form, Head, PromptPart, Wishes, Writer};

/// Generations that run, and who writes down what they give.
pub(crate) struct Prepared {
    /// The generations.
    pub(crate) choices: Vec<Choice>,
    /// The writer.
    pub(crate) writer: Writer,
    /// Set if the answer is to be streamed.
    pub(crate) stream: Option<StreamOptions>,
    /// How far the answer can be repeated.
    pub(crate) exactness: &'static str,
}

/// Starts the generations of a chat.
pub(crate) fn chat(state: &AppState, lease: &Lease, request: &ChatRequest) -> Result<Prepared, ApiError> {
    let text = render(lease, &request.conversation, true)?;
    check_size(lease, &text)?;
    let ids = lease.engine.folder().tokenizer.encode_chat(&text)?;
    let splitter = lease.thinks.then(|| Splitter::new(&text));
    let prompt = PromptPart { ids, echo: String::new() };
    start(state, lease, &request.job, Form::Chat, vec![prompt], splitter.as_ref())
        // The prompt was made of the messages.
        .map_err(|error| error.blaming("prompt", "messages").blaming("logprobs", "top_logprobs"))
        .map_err(|error| error.blaming("max_tokens", request.limit_name))
}

/// Starts the generations of completions.
pub(crate) fn completion(
    state: &AppState,
    lease: &Lease,
    request: &CompletionRequest,
) -> Result<Prepared, ApiError> {
    let part = |prompt: &Prompt| -> Result<PromptPart, ApiError> {
        let echo = match prompt {
            _ if !request.echo => String::new(),
            Prompt::Text(text) => text.clone(),
            Prompt::Ids(ids) => lease.engine.folder().tokenizer.decode(ids, false),
        };
        Ok(PromptPart { ids: ids(lease, prompt)?, echo })
    };
    let prompts = request.prompts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    start(state, lease, &request.job, Form::Completion, prompts, None)
}

/// The tokens of a text, with what the model expects around it.
pub(crate) fn ids(lease: &Lease, prompt: &Prompt) -> Result<Vec<u32>, ApiError> {
    match prompt {
        Prompt::Text(text) => {
            check_size(lease, text)?;
            Ok(lease.engine.folder().tokenizer.encode(text, true)?)
        }
        Prompt::Ids(ids) => Ok(ids.clone()),
    }
}

/// A text that is far too long is refused before it is tokenised, which would take a while.
fn check_size(lease: &Lease, text: &str) -> Result<(), ApiError> {
    let (fewest, context) =
        (lease.engine.folder().tokenizer.fewest_tokens(text), lease.engine.spec().context);
    if fewest <= context {
        return Ok(());
    }
    let message = format!("has at least {fewest} tokens; the model's context holds {context}");
    Err(ApiError::field("prompt", message))
}

/// What the model's chat template makes of a conversation.
pub(crate) fn render(model: &Loaded, conversation: &Conversation, answer: bool) -> Result<String, ApiError> {
    let Some(template) = &model.engine.folder().template else {
        let message = format!("{} has no chat template; give a text to /v1/completions", model.name);
        return Err(ApiError::field("model", message));
    };
    let input = TemplateInput {
        messages: conversation.messages.clone(),
        add_generation_prompt: answer,
        extra: conversation.variables.clone(),
        ..TemplateInput::default()
    };
    Ok(template.render(&input)?)
}

fn start(
    state: &AppState,
    lease: &Lease,
    job: &Job,
    form: Form,
    prompts: Vec<PromptPart>,
    splitter: Option<&Splitter>,
) -> Result<Prepared, ApiError> {
    check_amount(state, prompts.len(), job.choices)?;
    check_bias(lease, job)?;
    let mut options = job.options.clone();
    let mut requests: Vec<GenerationRequest> = Vec::new();
    for prompt in &prompts {
        for choice in 0..job.choices {
            // Each prompt is answered as if it had been sent alone.
            let mut one = options.clone();
            one.sampling.seed = options.sampling.seed.map(|seed| choice_seed(seed, choice as u64));
            let request = lease.engine.request(prompt.ids.clone(), &one)?;
            // Without a seed the first request has drawn one, and the others follow it.
            options.sampling.seed.get_or_insert(request.seed());
            requests.push(request);
        }
    }
    let seed = requests.first().map_or(0, GenerationRequest::seed);
    let choices = Choice::submit_all(requests, splitter, state, lease)?;
    let wishes = Wishes { logprobs: options.logprobs.is_some(), token_ids: job.token_ids };
    let head = head(form, &lease.name, seed);
    let tokenizer = lease.engine.folder().tokenizer.clone();
    let writer = Writer::new(form, wishes, head, tokenizer, prompts, job.choices);
    let exactness = lease.engine.exactness().as_str();
    Ok(Prepared { choices, writer, stream: job.stream, exactness })
}

fn check_amount(state: &AppState, prompts: usize, choices: usize) -> Result<(), ApiError> {
    let most = state.config.limits.max_choices;
    if prompts.saturating_mul(choices) <= most {
        return Ok(());
    }
    let field = if choices > 1 { "n" } else { "prompt" };
    let message =
        format!("asks for {choices} answers to {prompts} prompts; at most {most} are given at once");
    Err(ApiError::field(field, message))
}

/// A bias on a token that does not exist would change nothing.
fn check_bias(lease: &Lease, job: &Job) -> Result<(), ApiError> {
    let vocabulary = lease.engine.spec().vocabulary;
    match job.options.sampling.logit_bias.iter().find(|(id, _)| *id as usize >= vocabulary) {
        None => Ok(()),
        Some((id, _)) => {
            let message = format!("names token {id}; the model's ids end at {}", vocabulary - 1);
            Err(ApiError::field("logit_bias", message))
        }
    }
}

/// Ids differ within a run of the server by a counter, and between runs by the clock.
fn head(form: Form, model: &str, seed: u64) -> Head {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let kind = match form {
        Form::Chat => "chatcmpl",
        Form::Completion => "cmpl",
    };
    let id = format!("{kind}-{:x}-{count:x}", time.as_millis());
    Head { id, model: model.to_owned(), seed, created: time.as_secs() }
}
