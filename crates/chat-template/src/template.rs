//! A compiled template.

use std::sync::Arc;

use jiff::civil::DateTime;
use mlx_json::Map;

use crate::error::Error;
use crate::fault::Outcome;
use crate::guarded::guarded;
use crate::meter::{Meter, RenderLimits};
use crate::syntax::ast::Body;
use crate::thread::{Control, Pause, on_thread};
use crate::{input, interpreter, syntax};

/// The maximum size of a template in bytes. Real templates are far smaller.
const MAX_BYTES: usize = 512 << 10;

/// A template and its syntax tree.
#[derive(Debug)]
pub struct Template {
    file: String,
    source: String,
    body: Body,
}

impl Template {
    /// Compiles a template. Errors contain `file`, which may be empty.
    pub fn parse(file: &str, source: &str) -> Result<Self, Error> {
        let length = source.len();
        if length > MAX_BYTES {
            return Err(Error::other(format!("the template has {length} bytes; the limit is {MAX_BYTES}")));
        }
        // The parser recurses, within limits, more deeply than the caller's stack may allow.
        let parsed = guarded(|| syntax::parse(source).map_err(|fault| Error::of(file, fault)));
        let body = parsed.unwrap_or_else(|| Err(Error::other("it cannot be compiled")))?;
        Ok(Self { file: file.to_owned(), source: source.to_owned(), body })
    }

    /// Returns the source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the template with exactly these variables. `strftime_now` uses `now`, or the system clock if it is
    /// `None`. Earlier renderings may have used some of `limits`.
    ///
    /// # Errors
    /// The inner error is the template's. The outer error comes from `pause`, which stops the rendering within
    /// milliseconds.
    pub fn render<E: Send>(
        &self,
        variables: &Map,
        now: Option<DateTime>,
        limits: &RenderLimits,
        pause: Pause<E>,
    ) -> Result<Result<String, Error>, E> {
        on_thread(pause, |control| {
            self.run(variables, now, limits, control).map_err(|fault| Error::of(&self.file, fault))
        })
    }

    fn run(
        &self,
        variables: &Map,
        now: Option<DateTime>,
        limits: &RenderLimits,
        control: &Arc<Control>,
    ) -> Outcome<String> {
        let meter = Meter::new(limits, control);
        let values = input::values(variables, &meter);
        let rendered = values.and_then(|values| interpreter::render(&self.body, values, now, &meter));
        meter.end(limits);
        rendered
    }
}

#[cfg(test)]
mod tests;
