//! Renders chat templates like transformers: Jinja with Python's values. Templates come from the network and are
//! untrusted programs. A rendering has limits on time, memory and depth, runs on its own thread, and can be paused and
//! stopped.
//!
//! ```
//! use chat_template::{NO_PAUSE, RenderLimits, Template};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = "{% for message in messages %}<{{ message.role }}> {{ message.content }}\n{% endfor %}";
//! let variables = mlx_json::parse(br#"{"messages": [{"role": "user", "content": "Hello"}]}"#)?;
//! let variables = variables.as_object().ok_or("not an object")?;
//! let template = Template::parse("chat_template.jinja", source)?;
//! let text = template.render(variables, None, &RenderLimits::default(), NO_PAUSE)??;
//! assert_eq!(text, "<user> Hello\n");
//! # Ok(())
//! # }
//! ```

mod access;
mod arguments;
mod checks;
mod clock;
mod error;
mod fault;
mod filters;
mod format;
mod guarded;
mod input;
mod interpreter;
mod json;
mod markup;
mod meter;
mod method_names;
mod methods;
mod numbers;
mod operators;
mod python;
mod scope;
mod syntax;
mod template;
mod thread;
mod value;

pub use error::Error;
pub use guarded::{GUARDED_THREAD, guarded};
pub use meter::RenderLimits;
pub use template::Template;
pub use thread::{NO_PAUSE, Pause};
