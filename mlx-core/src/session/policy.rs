//! What becomes of a conversation that outgrows the model's context: its policies, and the prompts they make.

use std::ops::Range;
use std::str::FromStr;

use serde_json::{Value, json};

use super::turns::{Counted, fit, turns};
use crate::engine::EngineHandle;
use crate::error::{Error, Result};
use crate::text::TemplateInput;

/// What becomes of a conversation that outgrows the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContextPolicy {
    /// The oldest turns go, each as a whole; what is left is answered exactly.
    #[default]
    EvictTurns,
    /// The same, and an answer may be longer than the context: then the system prompt and the latest tokens stay.
    Slide,
    /// Nothing goes: a conversation that does not fit is refused, and an answer ends where the context does.
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

/// A conversation as a prompt that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatPrompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The messages that the model does not see, by their places.
    pub dropped: Range<usize>,
    /// What [`crate::engine::RequestOptions::slide`] is to be.
    pub slide: Option<usize>,
}

/// The prompt of a conversation under a policy; an answer may have `max_tokens`.
pub fn chat_prompt_within(
    engine: &EngineHandle,
    input: &TemplateInput,
    max_tokens: Option<usize>,
    policy: ContextPolicy,
) -> Result<ChatPrompt> {
    let of = |messages: &[Value]| TemplateInput { messages: messages.to_vec(), ..input.clone() };
    let tokens = |messages: &[Value]| render(engine, &of(messages));
    if policy == ContextPolicy::Stop {
        return Ok(ChatPrompt { tokens: tokens(&input.messages)?, dropped: 0..0, slide: None });
    }
    let context = engine.spec().context_length;
    let limit = context - room_for_answer(context, max_tokens);
    // What is far too long is not tokenized, which would take a while, and several times so.
    let counted = |messages: &[Value]| {
        let (text, tokenizer) = (render_text(engine, &of(messages))?, &engine.folder().tokenizer);
        let fewest = tokenizer.fewest_tokens(&text);
        Ok(if fewest > limit {
            Counted::AtLeast(fewest)
        } else {
            Counted::Tokens(tokenizer.encode_chat(&text)?)
        })
    };
    let fitted = fit(&input.messages, limit, counted)?;
    let slide = match policy {
        ContextPolicy::Slide => Some(head_tokens(&input.messages, &fitted.prompt, tokens)?),
        _ => None,
    };
    Ok(ChatPrompt { tokens: fitted.prompt, dropped: fitted.dropped, slide })
}

/// The tokens that are left free for an answer: all that were asked for, a quarter of the context if nobody said how many, and
/// never more than half of it.
pub fn room_for_answer(context: usize, max_tokens: Option<usize>) -> usize {
    max_tokens.unwrap_or(context / 4).clamp(1, (context / 2).max(1))
}

/// The tokens of a conversation that waits for an answer.
pub(super) fn render(engine: &EngineHandle, input: &TemplateInput) -> Result<Vec<u32>> {
    engine.folder().tokenizer.encode_chat(&render_text(engine, input)?)
}

fn render_text(engine: &EngineHandle, input: &TemplateInput) -> Result<String> {
    let folder = engine.folder();
    let template =
        folder.template.as_ref().ok_or_else(|| Error::NoChatTemplate { folder: folder.path.clone() })?;
    template.render(input)
}

/// How many tokens of a prompt are the system prompt with what surrounds it: those that stay the same whatever is said behind it.
fn head_tokens(
    messages: &[Value],
    prompt: &[u32],
    tokens: impl Fn(&[Value]) -> Result<Vec<u32>>,
) -> Result<usize> {
    let (head, _) = turns(messages);
    let other = json!({"role": "user", "content": "\u{1f9ed} 0"});
    let other = tokens(&[&messages[..head], &[other]].concat())?;
    Ok(prompt.iter().zip(&other).take_while(|(one, other)| one == other).count())
}
