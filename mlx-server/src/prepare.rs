//! Turns parsed requests into running generations: renders templates, tokenizes, and checks requests against the model. Functions that are not
//! async use much CPU time, so they belong on a blocking thread.

use chat_format::text::{EncodeLimit, Encoded};
use chat_format::{ConstraintSpec, Grammar, OutputParser, Role, TemplateInput, Thinking, ToolSupport};
use mlx_core::Error;
use mlx_core::chat::{
    AnswerRequest, AnswerStart, ChatPrompt, ContextPolicy, chat_prompt, chat_prompt_within,
};
use mlx_core::engine::{Exactness, GenerationRequest};
use mlx_core::sampling::choice_seed;

use crate::answer::{AnswerMeta, Prepared, PromptPart};
use crate::chat_request::{ChatRequest, Conversation, GenerationSpec, ThinkingRequest, ToolRequest};
use crate::error::ApiError;
use crate::generation::{Choice, Origin};
use crate::models::{Lease, Loaded, Purpose};
use crate::protocol::openai::completion::{CompletionRequest, Prompt};
use crate::request_guard::RequestGuard;
use crate::state::AppState;
use crate::work::CancelFlag;

/// Starts the generations of a chat, for all protocols.
pub(crate) async fn start_chat(
    state: &AppState,
    mut request: ChatRequest,
    guard: RequestGuard,
) -> Result<Prepared, ApiError> {
    request.spec.set_origin(&guard.origin);
    check_amount(state, 1, request.spec.choices)?;
    let lease = state.models.lease_for(Purpose::Generate, request.spec.model.as_deref()).await?;
    let shared = state.clone();
    guard.run(move |cancel| chat(&shared, &lease, request, cancel)).await
}

fn chat(
    state: &AppState,
    lease: &Lease,
    mut request: ChatRequest,
    cancel: &CancelFlag,
) -> Result<Prepared, ApiError> {
    let profile = request.spec.profile.take().or_else(|| lease.profile().cloned());
    if let Some(profile) = &profile {
        request.add_profile(profile);
    }
    let ChatRequest { mut spec, conversation, limit_name, policy, .. } = request;
    let with_chat_fields = |error: ApiError| error.with_chat_fields(limit_name);
    let tools = conversation.tools.clone();
    check_constraint(&tools, &spec)?;
    spec.options.think_budget = conversation.thinking.budget;
    let input = chat_input(lease, conversation)?;
    let request = AnswerRequest { input: &input, tools: tools.answer_tools(), policy, options: spec.options };
    let start =
        request.start(&lease.engine, &|| cancel.check()).map_err(|error| with_chat_fields(error.into()))?;
    let AnswerStart { prompt, options, tools_constrain, parser } = start;
    spec.options = options;
    if tools_constrain {
        spec.constraint_field = Some("tools");
    }
    let part = PromptPart { ids: prompt.tokens, echo: String::new() };
    let mut prepared = submit(state, lease, &spec, vec![part], &parser).map_err(with_chat_fields)?;
    prepared.meta.profile = profile;
    prepared.meta.dropped = Some(prompt.dropped.len()).filter(|_| policy != ContextPolicy::Stop);
    Ok(prepared)
}

/// Starts the generations of completions.
pub(crate) fn completion(
    state: &AppState,
    lease: &Lease,
    request: &CompletionRequest,
    cancel: &CancelFlag,
) -> Result<Prepared, ApiError> {
    let part = |prompt: &Prompt| -> Result<PromptPart, ApiError> {
        let ids = ids(lease, prompt, cancel)?;
        let echo = match prompt {
            _ if !request.echo => String::new(),
            Prompt::Text(text) => text.clone(),
            Prompt::Ids(ids) => lease.engine.folder().tokenizer.decode(ids, false),
        };
        Ok(PromptPart { ids, echo })
    };
    let mut spec = request.spec.clone();
    if let Some(profile) = lease.profile() {
        spec.add_profile(profile);
    }
    let prompts = request.prompts.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    submit(state, lease, &spec, prompts, &OutputParser::plain())
}

/// Returns the tokens of a text, including the special tokens that the model expects around it. Rejects texts that exceed the context.
pub(crate) fn ids(lease: &Lease, prompt: &Prompt, cancel: &CancelFlag) -> Result<Vec<u32>, ApiError> {
    let context = lease.engine.spec().context_length;
    let too_long = |qualifier: &str, count: usize| {
        let message = format!("has {qualifier}{count} tokens; the model's context holds {context}");
        ApiError::from(Error::context_length("prompt", count, context, message))
    };
    match prompt {
        Prompt::Text(text) => {
            let limit = EncodeLimit { tokens: context, pause: &|| cancel.check() };
            match lease.engine.folder().tokenizer.encode_within(text, true, &limit)? {
                Encoded::Whole(ids) => Ok(ids),
                Encoded::AtLeast(min_count) => Err(too_long("at least ", min_count)),
            }
        }
        Prompt::Ids(ids) if ids.len() > context => Err(too_long("", ids.len())),
        Prompt::Ids(ids) => Ok(ids.clone()),
    }
}

/// Returns the prompt of a chat. It may exceed the context unless the request's policy makes it fit. Without `answer` the prompt ends after the
/// messages.
pub(crate) fn render(
    lease: &Lease,
    mut request: ChatRequest,
    answer: bool,
    cancel: &CancelFlag,
) -> Result<ChatPrompt, ApiError> {
    if let Some(profile) = lease.profile() {
        request.add_profile(profile);
    }
    let ChatRequest { spec, conversation, policy, .. } = request;
    let input =
        if answer { chat_input(lease, conversation)? } else { template_input(lease, conversation, false)? };
    let pause = || cancel.check();
    let prompt = match policy {
        ContextPolicy::Stop => chat_prompt(&lease.engine, &input, &pause),
        policy => chat_prompt_within(&lease.engine, &input, spec.options.max_tokens, policy, &pause),
    };
    prompt.map_err(|error| ApiError::from(error).rename_field("prompt", "messages"))
}

/// Returns the number of prompt tokens of a chat.
pub(crate) fn prompt_tokens(
    lease: &Lease,
    mut conversation: Conversation,
    cancel: &CancelFlag,
) -> Result<usize, ApiError> {
    if let Some(profile) = lease.profile() {
        conversation.add_profile(profile);
    }
    let prompt = chat_prompt(&lease.engine, &chat_input(lease, conversation)?, &|| cancel.check());
    prompt
        .map(|prompt| prompt.tokens.len())
        .map_err(|error| ApiError::from(error).rename_field("prompt", "messages"))
}

/// Returns the input of the chat template. If the last message is the assistant's, the model continues it.
fn chat_input(model: &Loaded, conversation: Conversation) -> Result<TemplateInput, ApiError> {
    let continues = conversation.messages.last().is_some_and(|last| last.role == Role::Assistant);
    let input = template_input(model, conversation, true)?;
    Ok(TemplateInput { continue_final_message: continues, ..input })
}

fn template_input(
    model: &Loaded,
    conversation: Conversation,
    answer: bool,
) -> Result<TemplateInput, ApiError> {
    let Some(template) = &model.engine.folder().template else {
        let message = format!("{} has no chat template; give a text to /v1/completions", model.name);
        return Err(ApiError::field("model", message));
    };
    let Conversation { messages, mut variables, tools, thinking } = conversation;
    if tools.is_used() {
        tool_support(model)?;
    }
    let format = &model.engine.folder().format;
    let requested = |it: Thinking| it.variables_within(thinking.budget, template, format);
    let mut thinking_variables = match (thinking.thinking.obstacle(template, format), thinking.field) {
        (None, _) => requested(thinking.thinking)?,
        (Some(cause), Some(field)) => {
            return Err(ThinkingRequest::unsupported_error(cause, field, template, format));
        }
        (Some(_), None) => requested(thinking.default_thinking).unwrap_or_default(),
    };
    if !thinking.is_given {
        // They follow from a profile, or only from the budget, which is enforced anyway.
        thinking_variables.retain(|name, _| !variables.contains_key(name));
    }
    if let Some(name) = thinking_variables.keys().find(|name| variables.contains_key(*name)) {
        let message = format!("sets {name}, which chat_template_kwargs sets too; give only one of them");
        return Err(ApiError::field(thinking.field.unwrap_or("chat_template_kwargs"), message));
    }
    variables.extend(thinking_variables);
    Ok(TemplateInput {
        messages,
        tools: tools.for_template(),
        add_generation_prompt: answer,
        extra: variables,
        ..TemplateInput::default()
    })
}

/// Returns the model's format of tool calls, or an error with the reason that it has none.
fn tool_support(model: &Loaded) -> Result<&ToolSupport, ApiError> {
    let support = model.engine.folder().tools.as_ref();
    support.map_err(|reason| ApiError::unsupported("tools", format!("cannot be used: {reason}")))
}

/// Rejects a constraint that cannot be combined with tools.
fn check_constraint(tools: &ToolRequest, spec: &GenerationSpec) -> Result<(), ApiError> {
    match &spec.options.constraint {
        Some(ConstraintSpec { grammar, .. })
            if tools.is_used() && !matches!(grammar, Grammar::JsonSchema(_)) =>
        {
            let field = spec.constraint_field.unwrap_or("structured_outputs");
            Err(ApiError::unsupported(field, "cannot be combined with tools unless it is a JSON schema"))
        }
        _ => Ok(()),
    }
}

fn submit(
    state: &AppState,
    lease: &Lease,
    spec: &GenerationSpec,
    prompts: Vec<PromptPart>,
    parser: &OutputParser,
) -> Result<Prepared, ApiError> {
    let mut options = spec.options.clone();
    let mut requests: Vec<GenerationRequest> = Vec::new();
    for prompt in &prompts {
        // Each prompt is answered as if it had been sent in a separate request.
        let first = lease.engine.request(prompt.ids.clone(), &options);
        let first = first.map_err(|error| spec.rename_constraint_field(error.into()))?;
        // Without a seed, the first request draws one, and the seeds of all answers derive from it.
        let seed = *options.sampling.seed.get_or_insert(first.seed());
        requests.extend((0..spec.choices as u64).map(|choice| first.with_seed(choice_seed(seed, choice))));
    }
    let seed = requests.first().map_or(0, GenerationRequest::seed);
    let exactness = requests.first().map_or(Exactness::Sampling, GenerationRequest::exactness);
    let origin = Origin { client: options.client, id: spec.request_id.clone() };
    let choices = Choice::submit_all(requests, parser, state, lease, (&origin, spec.choices))?;
    let meta = AnswerMeta {
        model: lease.model_name().to_owned(),
        seed,
        created: crate::time::now(),
        exactness: exactness.as_str(),
        profile: None,
        dropped: None,
        max_tokens: options.max_tokens,
        prompts,
        choices: spec.choices,
        tokenizer: lease.engine.folder().tokenizer.clone(),
    };
    Ok(Prepared { choices, is_streamed: spec.is_streamed, meta })
}

/// Rejects a request for too many answers, before any prompt is processed.
pub(crate) fn check_amount(state: &AppState, prompts: usize, choices: usize) -> Result<(), ApiError> {
    let max_choices = state.config.limits.max_choices;
    if prompts.saturating_mul(choices) <= max_choices {
        return Ok(());
    }
    let field = if choices > 1 { "n" } else { "prompt" };
    let message = format!(
        "asks for {} answers (n is {choices}, number of prompts is {prompts}); --max-choices allows {max_choices} per request",
        prompts.saturating_mul(choices)
    );
    Err(ApiError::field(field, message))
}
