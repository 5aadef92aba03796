//! Writes answers as the objects of OpenAI's API, as one object or in chunks. Invariant: every stream ends with `[DONE]`, and an error is a
//! separate event before it.

mod chat;
mod completion;

use bytes::Bytes;
use mlx_core::engine::Usage;
use serde::Serialize;

use super::answer::{Answer, DraftTimings, PromptTokensDetails, UsageObject};
use super::offsets::TextOffsets;
use crate::answer::{AnswerMeta, AnswerWriter, PromptPart, event};
use crate::delta::{Delta, EndReason, Progress, Token};
use crate::error::ApiError;
use crate::ids::random_id;

/// The last event of every stream.
const DONE: &str = "[DONE]";

/// The endpoint, which determines the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completion,
}

/// The optional parts of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutputOptions {
    /// True to report log-probabilities.
    pub(crate) logprobs: bool,
    /// True to report token ids.
    pub(crate) token_ids: bool,
    /// True to report token counts in a last chunk of a stream.
    pub(crate) usage: bool,
}

/// Writes one answer.
pub(crate) struct Writer {
    endpoint: Endpoint,
    output_options: OutputOptions,
    id: String,
    meta: AnswerMeta,
    /// The counts of each choice.
    tallies: Vec<Tally>,
}

#[derive(Debug, Clone, Default)]
struct Tally {
    usage: Usage,
    reasoning_tokens: usize,
    /// The start of each token in the text, if it is reported.
    offsets: Option<TextOffsets>,
}

impl Writer {
    /// Creates a writer for one answer.
    pub(crate) fn new(endpoint: Endpoint, output_options: OutputOptions, meta: AnswerMeta) -> Self {
        let tally = |prompt: &PromptPart| {
            let is_reported = output_options.logprobs && endpoint == Endpoint::Completion;
            let offsets = is_reported.then(|| TextOffsets::new(&meta.tokenizer, &prompt.ids, &prompt.echo));
            vec![Tally { offsets, ..Tally::default() }; meta.choices]
        };
        let tallies = meta.prompts.iter().flat_map(tally).collect();
        let kind = match endpoint {
            Endpoint::Chat => "chatcmpl",
            Endpoint::Completion => "cmpl",
        };
        Self { endpoint, output_options, id: format!("{kind}-{}", random_id()), meta, tallies }
    }

    /// Returns the chunk for a delta. `None` if the delta has nothing that the client asked for.
    fn chunk(&mut self, delta: Delta) -> Option<String> {
        self.record(&delta);
        let has_text = !delta.has_no_output() || delta.end.is_some();
        let has_tokens =
            !delta.tokens.is_empty() && (self.output_options.logprobs || self.output_options.token_ids);
        if !(has_text || has_tokens || !delta.prompt.is_empty()) {
            return None;
        }
        Some(match self.endpoint {
            Endpoint::Chat => self.chat_chunk(delta),
            Endpoint::Completion => self.completion_chunk(delta),
        })
    }

    /// Returns the chunk with the token counts.
    fn usage_chunk(&self) -> String {
        let (usage, timings) = (Some(self.usage()), self.timings());
        match self.endpoint {
            Endpoint::Chat => {
                json(&Answer::<()> { usage, timings, ..self.answer("chat.completion.chunk", Vec::new()) })
            }
            Endpoint::Completion => {
                json(&Answer::<()> { usage, timings, ..self.answer("text_completion", Vec::new()) })
            }
        }
    }

    fn record(&mut self, delta: &Delta) {
        if let Some(end) = &delta.end {
            let tally = &mut self.tallies[delta.choice];
            (tally.usage, tally.reasoning_tokens) = (end.usage, end.reasoning_tokens);
        }
    }

    /// Returns the prompt of a choice, and true if it is the first choice of that prompt.
    fn prompt_of(&self, choice: usize) -> (&PromptPart, bool) {
        let each = self.meta.choices;
        (&self.meta.prompts[choice / each], choice.is_multiple_of(each))
    }

    /// Returns the token counts of all choices. Each prompt counts once, regardless of its number of answers.
    fn usage(&self) -> UsageObject {
        let mut usage = UsageObject::default();
        for (choice, Tally { usage: one, reasoning_tokens, .. }) in self.tallies.iter().enumerate() {
            if self.prompt_of(choice).1 {
                usage.prompt_tokens += one.prompt_tokens;
                let details = &mut usage.prompt_tokens_details;
                let PromptTokensDetails { cached_tokens, audio_tokens, prefix_miss } = details;
                *cached_tokens += one.cached_tokens;
                *audio_tokens += one.audio_tokens;
                *prefix_miss = prefix_miss.or(one.miss.map(Into::into));
            }
            usage.completion_tokens += one.completion_tokens;
            usage.completion_tokens_details.reasoning_tokens += reasoning_tokens;
            usage.completion_tokens_details.repeated_tokens += one.repeated_tokens;
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }

    /// Returns the counts of draft tokens of all choices. `None` if none were verified.
    fn timings(&self) -> Option<DraftTimings> {
        let mut timings = DraftTimings::default();
        for Tally { usage, .. } in &self.tallies {
            timings.draft_n += usage.drafts.drafted;
            timings.draft_n_accepted += usage.drafts.accepted;
        }
        (timings.draft_n > 0).then_some(timings)
    }

    fn answer<C>(&self, object: &'static str, choices: Vec<C>) -> Answer<C> {
        let AnswerMeta { model, seed, created, dropped: dropped_messages, .. } = &self.meta;
        let (id, model) = (self.id.clone(), model.clone());
        let (seed, created, dropped_messages) = (*seed, *created, *dropped_messages);
        let (usage, timings, prompt_progress, prompt_token_ids) = (None, None, None, None);
        Answer {
            id,
            object,
            created,
            model,
            choices,
            seed,
            usage,
            timings,
            prompt_progress,
            prompt_token_ids,
            dropped_messages,
        }
    }

    fn ids(&self, tokens: &[Token]) -> Option<Vec<u32>> {
        self.output_options.token_ids.then(|| tokens.iter().map(|token| token.id).collect())
    }
}

impl AnswerWriter for Writer {
    fn opening(&mut self) -> Vec<Bytes> {
        let choices = 0..self.tallies.len();
        let chunks: Vec<String> = match self.endpoint {
            Endpoint::Chat => choices.map(|choice| self.chat_opening(choice)).collect(),
            Endpoint::Completion => choices.filter_map(|choice| self.completion_opening(choice)).collect(),
        };
        chunks.iter().map(|chunk| event(chunk)).collect()
    }

    fn delta(&mut self, delta: Delta) -> Vec<Bytes> {
        self.chunk(delta).iter().map(|chunk| event(chunk)).collect()
    }

    fn progress(&mut self, choice: usize, progress: Progress) -> Option<Bytes> {
        let chunk = match self.endpoint {
            Endpoint::Chat => self.chat_progress(choice, progress),
            Endpoint::Completion => self.completion_progress(choice, progress),
        };
        Some(event(&chunk))
    }

    fn failure(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![event(&json(&error.response())), event(DONE)]
    }

    fn closing(&mut self) -> Vec<Bytes> {
        let usage = self.output_options.usage.then(|| event(&self.usage_chunk()));
        usage.into_iter().chain([event(DONE)]).collect()
    }

    fn into_json(mut self, choices: Vec<Vec<Delta>>) -> Vec<u8> {
        let deltas: Vec<Delta> = choices.into_iter().filter_map(joined).collect();
        for delta in &deltas {
            self.record(delta);
        }
        let answer = match self.endpoint {
            Endpoint::Chat => self.chat_json(deltas),
            Endpoint::Completion => self.completion_json(deltas),
        };
        answer.into_bytes()
    }
}

/// Returns the API's name of a reason.
fn finish_reason(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::EndToken | EndReason::StopString(_) => "stop",
        EndReason::Length => "length",
        EndReason::ToolCalls => "tool_calls",
    }
}

/// Merges the deltas of a choice, since the format of a message does not order its text and calls.
fn joined(deltas: Vec<Delta>) -> Option<Delta> {
    deltas.into_iter().reduce(|mut one, next| {
        one.extend(next);
        one
    })
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("answers can be serialized as JSON")
}
