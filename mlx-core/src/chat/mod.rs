//! Conversations: typed messages, the prompts that they make, and the answers, split into thoughts and text.

mod format;
mod message;
mod parser;
mod prompt;
mod session;
mod stream;
mod turns;

pub use format::{Effort, OutputFormat, Thinking};
pub use message::{Message, Part, Role, ToolCall};
pub use parser::{ChatEvent, OutputParser, ToolCallDelta};
pub use prompt::{ChatPrompt, ContextPolicy, chat_prompt, chat_prompt_within};
pub use session::{Answer, ChatSession, ContextFill};
pub use stream::{ChatStream, StreamEvent};
