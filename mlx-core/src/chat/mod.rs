//! Conversations: typed messages, the prompts that they make, and the answers, split into thoughts, text and calls of tools.

mod call_constraint;
mod format;
mod history;
mod json_type;
mod layout;
mod message;
mod parser;
mod pictures;
mod prompt;
mod renderer;
mod session;
mod stream;
mod tool;
mod tool_support;
mod turns;

pub use format::{CallFormat, Effort, OutputFormat, Thinking};
pub use history::{CallMistake, check_calls};
pub use message::{Message, Part, Role, ToolCall};
pub use parser::{ChatEvent, OutputParser};
pub use prompt::{ChatPrompt, ContextPolicy, chat_prompt, chat_prompt_within};
pub use session::{Answer, ChatSession, ContextFill};
pub use stream::{ChatStream, StreamEvent};
pub use tool::{Tool, ToolChoice, Tools, random_id};
pub use tool_support::{ToolSupport, calls_of_template};
