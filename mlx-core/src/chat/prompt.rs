//! The prompt of a conversation, and what happens to one that outgrows the model's context. Every front end renders its
//! chats here.

use std::ops::Range;
use std::str::FromStr;

use super::message::Message;
use super::turns::{Counted, Rendered, fit, turns};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::text::TemplateInput;

/// What happens to a conversation that outgrows the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContextPolicy {
    /// Drop the oldest turns, each as a whole; the rest is answered exactly.
    #[default]
    EvictTurns,
    /// The same, and an answer may be longer than the context: then the system prompt and the latest tokens stay.
    Slide,
    /// Refuse a conversation that does not fit; an answer ends at the end of the context.
    Stop,
}

impl ContextPolicy {
    /// All of them, the default first.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The text that the template gives.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The messages that the model does not see, by index.
    pub dropped: Range<usize>,
    /// The value for [`crate::engine::RequestOptions::slide`].
    pub slide: Option<usize>,
}

impl ChatPrompt {
    fn whole(Rendered { text, tokens }: Rendered) -> Self {
        Self { text, tokens, dropped: 0..0, slide: None }
    }
}

/// The prompt of a conversation under a policy; an answer may have `max_tokens`.
pub fn chat_prompt_within(
    engine: &Engine,
    input: &TemplateInput,
    max_tokens: Option<usize>,
    policy: ContextPolicy,
) -> Result<ChatPrompt> {
    let context = engine.spec().context_length;
    if policy == ContextPolicy::Stop {
        return match render_within(engine, input, context)? {
            Counted::Tokens(prompt) => Ok(ChatPrompt::whole(prompt)),
            Counted::AtLeast(fewest) => {
                let message = format!("has at least {fewest} tokens; the model's context holds {context}");
                Err(Error::request("prompt", message))
            }
        };
    }
    let of = |messages: &[Message]| TemplateInput { messages: messages.to_vec(), ..input.clone() };
    let limit = context - reserved_for_answer(context, max_tokens);
    let fitted = fit(&input.messages, limit, |messages| render_within(engine, &of(messages), limit))?;
    let Rendered { text, tokens } = fitted.prompt;
    let slide = match policy {
        ContextPolicy::Slide => {
            Some(head_tokens(&input.messages, &tokens, |messages| Ok(render(engine, &of(messages))?.tokens))?)
        }
        _ => None,
    };
    Ok(ChatPrompt { text, tokens, dropped: fitted.dropped, slide })
}

/// The prompt of a conversation, whether it fits or not.
pub fn chat_prompt(engine: &Engine, input: &TemplateInput) -> Result<ChatPrompt> {
    render(engine, input).map(ChatPrompt::whole)
}

/// The tokens that stay free for an answer: `max_tokens`, by default a quarter of the context, and never more than half of it.
fn reserved_for_answer(context: usize, max_tokens: Option<usize>) -> usize {
    max_tokens.unwrap_or(context / 4).clamp(1, (context / 2).max(1))
}

fn render(engine: &Engine, input: &TemplateInput) -> Result<Rendered> {
    let text = render_text(engine, input)?;
    let tokens = engine.folder().tokenizer.encode_chat(&text)?;
    Ok(Rendered { text, tokens })
}

/// The same, but a text that certainly has more than `limit` tokens is not tokenized, which would take a while.
fn render_within(engine: &Engine, input: &TemplateInput, limit: usize) -> Result<Counted> {
    let (text, tokenizer) = (render_text(engine, input)?, &engine.folder().tokenizer);
    let fewest = tokenizer.fewest_tokens(&text);
    if fewest > limit {
        return Ok(Counted::AtLeast(fewest));
    }
    let tokens = tokenizer.encode_chat(&text)?;
    Ok(Counted::Tokens(Rendered { text, tokens }))
}

fn render_text(engine: &Engine, input: &TemplateInput) -> Result<String> {
    let folder = engine.folder();
    let template =
        folder.template.as_ref().ok_or_else(|| Error::NoChatTemplate { folder: folder.path.clone() })?;
    template.render(input)
}

/// The number of first tokens that stay the same whatever follows the system prompt.
fn head_tokens(
    messages: &[Message],
    prompt: &[u32],
    tokens: impl Fn(&[Message]) -> Result<Vec<u32>>,
) -> Result<usize> {
    let (head, _) = turns(messages);
    let other = tokens(&[&messages[..head], &[Message::user("\u{1f9ed} 0")]].concat())?;
    Ok(prompt.iter().zip(&other).take_while(|(one, other)| one == other).count())
}
