//! The prompt of a conversation, and the policies for a conversation that outgrows the model's context. Every front end renders its chats
//! here.

use std::ops::Range;
use std::str::FromStr;

use chat_format::renderer::Renderer;
use chat_format::text::{EncodeLimit, Encoded, Pause, Tokenizer};
use chat_format::{ChatTemplate, Message, Pixels, RenderLimits, TemplateInput};

use super::media::{ExpandedPrompt, Media};
use super::turns::{COUNTED, PromptOrLowerBound, Rendered, fit_to_limit, turns};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::processor::AudioClip;

/// The policy for a conversation that outgrows the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContextPolicy {
    /// Drops the oldest turns, each as a whole. The answer to the remaining conversation is exact.
    #[default]
    EvictTurns,
    /// Like [`Self::EvictTurns`], but an answer may exceed the context; then the system prompt and the latest tokens stay.
    Slide,
    /// Rejects a conversation that does not fit, and ends an answer at the end of the context.
    Stop,
}

impl ContextPolicy {
    /// All policies, the default first.
    const ALL: [Self; 3] = [Self::EvictTurns, Self::Slide, Self::Stop];

    /// The name in flags and requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EvictTurns => "evict-turns",
            Self::Slide => "slide",
            Self::Stop => "stop",
        }
    }
}

impl FromStr for ContextPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not a policy; there are evict-turns, slide and stop"))
    }
}

/// The prompt of a conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The output of the template.
    pub text: String,
    /// The tokens of the text, with one per row of a picture or of audio.
    pub tokens: Vec<u32>,
    /// The value for [`crate::engine::RequestOptions::images`].
    pub images: Vec<Pixels>,
    /// The value for [`crate::engine::RequestOptions::audio`].
    pub audio: Vec<AudioClip>,
    /// The indices of the messages that were dropped.
    pub dropped: Range<usize>,
    /// The value for [`crate::engine::RequestOptions::n_keep`].
    pub n_keep: Option<usize>,
}

impl ChatPrompt {
    fn whole(Rendered { text, tokens, images, audio }: Rendered) -> Self {
        Self { text, tokens, images, audio, dropped: 0..0, n_keep: None }
    }
}

/// Returns the prompt of a conversation under a policy, with space for an answer of `max_tokens`. Calls `pause` during the work.
pub fn chat_prompt_within(
    engine: &Engine,
    input: &TemplateInput,
    max_tokens: Option<usize>,
    policy: ContextPolicy,
    pause: Pause,
) -> Result<ChatPrompt> {
    let context = engine.spec().context_length;
    let prompts = Prompts::new(engine, input, pause)?;
    if policy == ContextPolicy::Stop {
        let counted = prompts.within(input, context.saturating_mul(COUNTED))?;
        return counted.within(context).map(ChatPrompt::whole).map_err(|counted| {
            let message = format!("has {counted}; the model's context holds {context}");
            Error::context_length("prompt", counted.tokens(), context, message)
        });
    }
    let of = |messages: &[Message]| TemplateInput { messages: messages.to_vec(), ..input.clone() };
    let limit = context - reserved_for_answer(context, max_tokens);
    let fitted = fit_to_limit(&input.messages, limit, |messages, most| prompts.within(&of(messages), most))?;
    let Rendered { text, tokens, images, audio } = fitted.prompt;
    let n_keep = match policy {
        ContextPolicy::Slide => {
            let all = |messages: &[Message]| Ok(prompts.whole(&of(messages))?.tokens);
            Some(head_tokens(&input.messages, &tokens, all)?)
        }
        _ => None,
    };
    Ok(ChatPrompt { text, tokens, images, audio, dropped: fitted.dropped, n_keep })
}

/// Returns the prompt of a conversation, even if it does not fit. Calls `pause` during the work.
pub fn chat_prompt(engine: &Engine, input: &TemplateInput, pause: Pause) -> Result<ChatPrompt> {
    Prompts::new(engine, input, pause)?.whole(input).map(ChatPrompt::whole)
}

/// Returns the tokens of a conversation with one placeholder for each of its pictures and clips, which are not decoded. The answer begins with
/// `begun`. Calls `pause` during the work.
pub(crate) fn unexpanded_prompt(
    engine: &Engine,
    input: &TemplateInput,
    begun: &str,
    pause: Pause,
) -> Result<Vec<u32>> {
    let prompts = Prompts::of(engine, input, None, pause)?;
    let text = prompts.renderer.text(input)? + begun;
    let limit = EncodeLimit { pause, ..EncodeLimit::NONE };
    Ok(prompts.tokenizer.encode_chat_within(&text, &limit)?.whole()?)
}

/// Returns the tokens reserved for an answer: `max_tokens` or a quarter of the context, but at most half of the context.
fn reserved_for_answer(context: usize, max_tokens: Option<usize>) -> usize {
    max_tokens.unwrap_or(context / 4).clamp(1, (context / 2).max(1))
}

/// Renders and tokenizes conversations, all of them within the limits of one request.
struct Prompts<'a> {
    renderer: Renderer<'a>,
    tokenizer: &'a Tokenizer,
    media: Option<Media<'a>>,
    context: usize,
}

impl<'a> Prompts<'a> {
    fn new(engine: &'a Engine, input: &TemplateInput, pause: Pause<'a>) -> Result<Self> {
        Self::of(engine, input, Media::of(engine, &input.messages, pause)?, pause)
    }

    fn of(
        engine: &'a Engine,
        input: &TemplateInput,
        media: Option<Media<'a>>,
        pause: Pause<'a>,
    ) -> Result<Self> {
        let folder = engine.folder();
        let template = match &folder.template {
            Some(template) => template,
            None if input.continue_text => ChatTemplate::plain()?,
            None => return Err(Error::NoChatTemplate { folder: folder.path.clone() }),
        };
        let tools = folder.tools.as_ref().ok();
        let renderer = Renderer { template, tools, limits: RenderLimits::default(), pause };
        Ok(Self { renderer, tokenizer: &folder.tokenizer, media, context: engine.spec().context_length })
    }

    /// Returns the whole prompt, even if it does not fit. Fails only if pictures and audio exceed the context.
    fn whole(&self, input: &TemplateInput) -> Result<Rendered> {
        let text = self.renderer.text(input)?;
        let limit = EncodeLimit { pause: self.renderer.pause, ..EncodeLimit::NONE };
        let tokens = self.tokenizer.encode_chat_within(&text, &limit)?.whole()?;
        let context = self.context;
        self.placed(text, tokens, input)?.within(usize::MAX).map_err(|counted| {
            let message = format!("has images or audio of {counted}; the model's context holds {context}");
            Error::context_length("prompt", counted.tokens(), context, message)
        })
    }

    fn placed(&self, text: String, tokens: Vec<u32>, input: &TemplateInput) -> Result<PromptOrLowerBound> {
        let placed = match &self.media {
            Some(media) => media.placed(tokens, &input.messages)?,
            None => ExpandedPrompt::Whole(tokens, Vec::new(), Vec::new()),
        };
        Ok(match placed {
            ExpandedPrompt::Whole(tokens, images, audio) => {
                PromptOrLowerBound::Tokens(Rendered { text, tokens, images, audio })
            }
            ExpandedPrompt::AtLeast(fewest) => PromptOrLowerBound::AtLeast(fewest),
        })
    }

    /// Like [`whole`](Self::whole), but stops tokenizing after this many tokens.
    fn within(&self, input: &TemplateInput, tokens: usize) -> Result<PromptOrLowerBound> {
        let text = self.renderer.text(input)?;
        let limit = EncodeLimit { tokens, pause: self.renderer.pause };
        Ok(match self.tokenizer.encode_chat_within(&text, &limit)? {
            Encoded::Whole(tokens) => self.placed(text, tokens, input)?,
            Encoded::AtLeast(fewest) => PromptOrLowerBound::AtLeast(fewest),
        })
    }
}

/// Returns the number of leading tokens that do not depend on the messages after the system prompt.
fn head_tokens(
    messages: &[Message],
    prompt: &[u32],
    tokens: impl Fn(&[Message]) -> Result<Vec<u32>>,
) -> Result<usize> {
    let (head, _) = turns(messages);
    let other = tokens(&[&messages[..head], &[Message::user("\u{1f9ed} 0")]].concat())?;
    Ok(prompt.iter().zip(&other).take_while(|(one, other)| one == other).count())
}
