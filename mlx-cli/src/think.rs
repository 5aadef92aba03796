//! `--think` and `--no-think`.

use chat_format::Thinking;
use clap::Args;
use mlx_core::{Error, ModelFolder};
use mlx_json::Map;

/// Whether the model thinks before it answers.
#[derive(Debug, Args)]
pub(crate) struct ThinkArgs {
    /// Ask the model to think before it answers; gpt-oss and a few others also take --think=low, medium or high. A
    /// terminal shows thoughts dimmed on one line, a pipe gets the answer alone [default: as the chat template does]
    #[arg(
        long,
        value_name = "LEVEL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        conflicts_with = "no_think"
    )]
    think: Option<Thinking>,

    /// Ask the model not to think; gpt-oss, which always does, thinks little
    #[arg(long)]
    no_think: bool,
}

impl ThinkArgs {
    /// What the flags ask for.
    pub(crate) fn thinking(&self) -> Thinking {
        if self.no_think { Thinking::Off } else { self.think.unwrap_or_default() }
    }

    /// The same as variables for a template. A prompt that is not rendered has none.
    pub(crate) fn variables(&self, rendered: Option<&ModelFolder>) -> Result<Map, Error> {
        let folder = rendered.and_then(|folder| Some((folder.template.as_ref()?, &folder.format)));
        let variables = match (self.thinking(), folder) {
            (Thinking::Auto, _) => Ok(Map::new()),
            (thinking, Some((template, format))) => thinking.variables(template, format).map_err(Error::from),
            (_, None) => Err(Error::request("think", "has a meaning only with the model's chat template")),
        };
        variables.map_err(|error| self.in_own_words(error))
    }

    /// Names the flag that was given.
    pub(crate) fn in_own_words(&self, error: Error) -> Error {
        match error {
            Error::Request { field: "think", message } if self.no_think => {
                Error::request("no_think", message)
            }
            other => other,
        }
    }
}
