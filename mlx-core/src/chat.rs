//! Conversations with an engine: their prompts, their streamed answers, and sessions that store them.

mod media;
mod prompt;
mod session;
mod start;
mod stream;
mod turns;

pub(crate) use prompt::unexpanded_prompt;
pub use prompt::{ChatPrompt, ContextPolicy, chat_prompt, chat_prompt_within};
pub use session::{Answer, ChatSession, ContextFill};
pub use start::{AnswerRequest, AnswerStart, AnswerTools};
pub use stream::{AnswerReader, ChatStream, StreamEvent};
