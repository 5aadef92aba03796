//! Converts messages to token ids and back, without MLX: chat templates, tokenizers, and the output formats of model
//! families (thoughts, answers and tool calls).
//!
//! - A [`Message`] is the type that front ends, sessions and templates share. [`Tools`] are the tools that a model may
//!   call.
//! - A [`ChatTemplate`] renders a conversation. [`renderer::Renderer`] finds a layout that the template accepts.
//! - [`text::Tokenizer`] converts text to ids, and [`text::Detokenizer`] converts ids to text.
//! - [`OutputFormat`] and [`ToolSupport`] are detected from a model's template and tokenizer. An [`OutputParser`]
//!   splits the model's output into thoughts, answer and calls, token by token.
//!
//! ```no_run
//! use chat_format::text::Tokenizer;
//! use chat_format::{ChatTemplate, Message, OutputFormat, OutputParser, TemplateInput};
//!
//! # fn main() -> chat_format::Result<()> {
//! let folder = "model".as_ref();
//! let (tokenizer, template) = (Tokenizer::load(folder)?, ChatTemplate::load(folder)?);
//! let messages = vec![Message::user("Hello")];
//! let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
//! let prompt = template.as_ref().expect("a chat model").render(&input)?;
//! let ids = tokenizer.encode(&prompt, false)?;
//! // A model answers `ids` with the token 17.
//! let mut parser = OutputParser::new(&OutputFormat::detect(template.as_ref(), &tokenizer), &prompt);
//! let text = tokenizer.decode(&[17], true);
//! println!("{} tokens, then {:?}", ids.len(), parser.push(17, &text, &text));
//! # Ok(())
//! # }
//! ```

mod audio;
mod call_constraint;
mod constraint;
mod error;
mod format;
mod history;
mod image;
mod json_type;
mod layout;
mod message;
mod parser;
mod part;
pub mod renderer;
mod template;
pub mod text;
mod thought_tracker;
mod tool;
mod tool_support;

pub use audio::Audio;
pub use chat_template::RenderLimits;
pub use constraint::{ConstraintSpec, Grammar, Marker, MarkerPiece, Preamble, Scope, Thoughts};
pub use error::{Error, Result};
pub use format::{CallFormat, Effort, OutputFormat, Thinking};
pub use history::{ToolCallError, check_calls};
pub use image::{Image, Pixels};
pub use message::{Message, Role, ToolCall};
pub use parser::{ChatEvent, OutputParser};
pub use part::Part;
pub use template::{ChatTemplate, TemplateInput};
pub use thought_tracker::ThoughtTracker;
pub use tool::{Tool, ToolChoice, Tools, random_id};
pub use tool_support::{ToolSupport, calls_of_template};
