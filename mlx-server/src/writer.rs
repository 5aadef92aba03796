//! Turns the pieces of generations into the objects of a response, whole or in chunks. Invariant: both come from the same
//! pieces, so a streamed answer and a whole one are equal.

mod chat;
mod completion;

use mlx_core::engine::Usage;
use mlx_core::text::Tokenizer;
use serde::Serialize;

use crate::generation::Piece;
use crate::wire::answer::{Answer, PromptTokensDetails, UsageObject};
use crate::wire::logprobs::Token;
use crate::wire::offsets::TextOffsets;

/// Which endpoint's objects are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completion,
}

/// What a response has besides text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputOptions {
    /// Log-probabilities.
    pub(crate) logprobs: bool,
    /// Token ids.
    pub(crate) token_ids: bool,
}

/// A prompt as a response may show it.
#[derive(Debug, Clone)]
pub(crate) struct PromptPart {
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
    /// The text that its answers begin with; empty unless echoed.
    pub(crate) echo: String,
}

/// Writes one answer.
pub(crate) struct Writer {
    form: Endpoint,
    output_options: OutputOptions,
    head: Head,
    tokenizer: Tokenizer,
    prompts: Vec<PromptPart>,
    /// The counts of each choice.
    tallies: Vec<Tally>,
}

/// The fields that all chunks of a response share.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    /// The answer's id.
    pub(crate) id: String,
    /// The model's name.
    pub(crate) model: String,
    /// The seed of the first choice.
    pub(crate) seed: u64,
    /// When the request came, in seconds since 1970.
    pub(crate) created: u64,
    /// How many messages of a chat the model does not see, unless the context policy is `stop`.
    pub(crate) dropped: Option<usize>,
}

#[derive(Debug, Clone, Default)]
struct Tally {
    usage: Usage,
    reasoning_tokens: usize,
    /// Where the tokens of a completion begin, if they are reported.
    offsets: Option<TextOffsets>,
}

impl Writer {
    /// A writer for `choices` answers to each of the prompts.
    pub(crate) fn new(
        form: Endpoint,
        output_options: OutputOptions,
        head: Head,
        tokenizer: Tokenizer,
        prompts: Vec<PromptPart>,
        choices: usize,
    ) -> Self {
        let tally = |prompt: &PromptPart| {
            let is_reported = output_options.logprobs && form == Endpoint::Completion;
            let offsets = is_reported.then(|| TextOffsets::new(&tokenizer, &prompt.ids, &prompt.echo));
            vec![Tally { offsets, ..Tally::default() }; choices]
        };
        let tallies = prompts.iter().flat_map(tally).collect();
        Self { form, output_options, head, tokenizer, prompts, tallies }
    }

    /// The seed of the first choice.
    pub(crate) fn seed(&self) -> u64 {
        self.head.seed
    }

    /// Sets how many messages the model does not see.
    pub(crate) fn note_dropped(&mut self, messages: Option<usize>) {
        self.head.dropped = messages;
    }

    /// The first chunks of a stream.
    pub(crate) fn opening(&self) -> Vec<String> {
        let choices = 0..self.tallies.len();
        match self.form {
            Endpoint::Chat => choices.map(|choice| self.chat_opening(choice)).collect(),
            Endpoint::Completion => choices.filter_map(|choice| self.completion_opening(choice)).collect(),
        }
    }

    /// The chunk for a piece; none if it has nothing for this client.
    pub(crate) fn chunk(&mut self, piece: Piece) -> Option<String> {
        self.note(&piece);
        let has_text = !piece.is_silent() || piece.end.is_some();
        let has_tokens =
            !piece.tokens.is_empty() && (self.output_options.logprobs || self.output_options.token_ids);
        if !(has_text || has_tokens || !piece.prompt.is_empty()) {
            return None;
        }
        Some(match self.form {
            Endpoint::Chat => self.chat_chunk(piece),
            Endpoint::Completion => self.completion_chunk(piece),
        })
    }

    /// The chunk that counts tokens.
    pub(crate) fn usage_chunk(&self) -> String {
        let usage = Some(self.usage());
        match self.form {
            Endpoint::Chat => {
                json(&Answer::<()> { usage, ..self.answer("chat.completion.chunk", Vec::new()) })
            }
            Endpoint::Completion => {
                json(&Answer::<()> { usage, ..self.answer("text_completion", Vec::new()) })
            }
        }
    }

    /// The whole answer, from a piece for each choice.
    pub(crate) fn whole(mut self, pieces: Vec<Piece>) -> String {
        for piece in &pieces {
            self.note(piece);
        }
        match self.form {
            Endpoint::Chat => self.chat_whole(pieces),
            Endpoint::Completion => self.completion_whole(pieces),
        }
    }

    fn note(&mut self, piece: &Piece) {
        if let Some(end) = &piece.end {
            let tally = &mut self.tallies[piece.choice];
            (tally.usage, tally.reasoning_tokens) = (end.usage, end.reasoning_tokens);
        }
    }

    /// The prompt of a choice, and whether it is the first choice of that prompt.
    fn prompt_of(&self, choice: usize) -> (&PromptPart, bool) {
        let each = self.tallies.len() / self.prompts.len();
        (&self.prompts[choice / each], choice.is_multiple_of(each))
    }

    /// Every prompt is counted once, however many answers it has.
    fn usage(&self) -> UsageObject {
        let mut usage = UsageObject::default();
        for (choice, Tally { usage: one, reasoning_tokens, .. }) in self.tallies.iter().enumerate() {
            if self.prompt_of(choice).1 {
                usage.prompt_tokens += one.prompt_tokens;
                let PromptTokensDetails { cached_tokens } = &mut usage.prompt_tokens_details;
                *cached_tokens += one.cached_tokens;
            }
            usage.completion_tokens += one.completion_tokens;
            usage.completion_tokens_details.reasoning_tokens += reasoning_tokens;
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }

    fn answer<C>(&self, object: &'static str, choices: Vec<C>) -> Answer<C> {
        let Head { id, model, seed, created, dropped: dropped_messages } = self.head.clone();
        let (usage, prompt_token_ids) = (None, None);
        Answer { id, object, created, model, choices, seed, usage, prompt_token_ids, dropped_messages }
    }

    fn ids(&self, tokens: &[Token]) -> Option<Vec<u32>> {
        self.output_options.token_ids.then(|| tokens.iter().map(|token| token.id).collect())
    }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("answers hold nothing that JSON has no form for")
}
