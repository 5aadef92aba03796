//! `--think` and `--no-think`.

use chat_format::Thinking;
use clap::Args;
use mlx_core::{Error, ModelFolder};
use mlx_json::Map;

/// The flags for the model's reasoning.
#[derive(Debug, Args)]
pub(crate) struct ThinkArgs {
    /// Let the model think before it answers; gpt-oss and a few others also accept --think=low, medium or high. A
    /// terminal shows thoughts dimmed on one line, a pipe only gets the answer [default: the chat template decides]
    #[arg(
        long,
        value_name = "LEVEL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        conflicts_with = "no_think"
    )]
    think: Option<Thinking>,

    /// Let the model answer without thinking; gpt-oss cannot turn it off and thinks briefly
    #[arg(long)]
    no_think: bool,
}

impl ThinkArgs {
    /// Returns the requested reasoning, if a flag is given.
    pub(crate) fn given(&self) -> Option<Thinking> {
        if self.no_think { Some(Thinking::Off) } else { self.think }
    }

    /// Returns a reasoning, these flags or that of a profile, and the budget of thought tokens as template variables. A prompt without a template
    /// has none.
    pub(crate) fn variables(
        &self,
        thinking: Thinking,
        budget: Option<usize>,
        rendered: Option<&ModelFolder>,
    ) -> Result<Map, Error> {
        let folder = rendered.and_then(|folder| Some((folder.template.as_ref()?, &folder.format)));
        match (self.given().unwrap_or_default(), folder) {
            (_, Some((template, format))) => {
                thinking.variables_within(budget, template, format).map_err(Error::from)
            }
            (Thinking::Auto, None) => Ok(Map::new()),
            (_, None) => Err(Error::request("think", "only applies with the model's chat template")),
        }
    }

    /// Returns an error that names the given flag.
    pub(crate) fn with_given_flag(&self, error: Error) -> Error {
        match error {
            Error::Request { field: "think", message } if self.no_think => {
                Error::request("no_think", message)
            }
            other => other,
        }
    }
}
