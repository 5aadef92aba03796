//! The log for terminals: a greeting with the addresses of the server, then one short line per request and answer.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};

use jiff::Zoned;
use mlx_options::printable;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats events for humans.
pub(crate) struct HumanLog;

impl<S, N> FormatEvent<S, N> for HumanLog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level();
        let text = if fields.text("message") == "listening" {
            fields.greeting()
        } else {
            let time = Zoned::now().strftime("%H:%M:%S").to_string();
            let mark =
                if *level <= Level::WARN { format!("{level}: ").to_lowercase() } else { String::new() };
            format!("{time}  {mark}{}", fields.line())
        };
        writeln!(out, "{}", printable(&text))
    }
}

/// The fields of an event, by name.
#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Fields {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or_default()
    }

    /// Returns the message with the addresses of the server.
    fn greeting(&self) -> String {
        let (address, model) = (self.text("address"), self.text("model"));
        let has_key = self.text("key") == "true";
        let (who, key) =
            if has_key { ("an API key is required", "your key") } else { ("no API key", "any key") };
        let header = if has_key { " -H 'Authorization: Bearer KEY'" } else { "" };
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "mlx {version} serves {model} on http://{address} ({who})\n\
             \x20 chat in a browser  http://{address}\n\
             \x20 OpenAI base URL    http://{address}/v1   {key}\n\
             \x20 try it             curl http://{address}/v1/chat/completions{header} \\\n\
             \x20   --json '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'\n\
             \x20 Ctrl-C stops; a second Ctrl-C does not wait for running answers"
        )
    }

    fn line(&self) -> String {
        match self.text("message") {
            "request" => {
                let (method, route, status) = (self.text("method"), self.text("route"), self.text("status"));
                format!("{method} {route}  {status}  {:.0} ms", self.number("milliseconds"))
            }
            "answer" => format!(
                "{}  {} → {} tokens  {:.1} tok/s  first {:.0} ms  {:.1} s",
                self.text("model"),
                self.text("prompt_tokens"),
                self.text("completion_tokens"),
                self.number("tokens_per_second"),
                self.number("first_token_ms"),
                self.number("seconds"),
            ),
            message => {
                let mut line = message.to_owned();
                for (name, value) in self.0.iter().filter(|(name, _)| **name != "message") {
                    // Writing to a string does not fail.
                    let _ = write!(line, "  {name}: {value}");
                }
                line
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(given: &[(&'static str, &str)]) -> Fields {
        Fields(given.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
    }

    #[test]
    fn lines_have_what_people_look_for() {
        let request = [("message", "request"), ("method", "POST"), ("route", "/v1/chat/completions")];
        let request = fields(&[&request[..], &[("status", "200"), ("milliseconds", "90.4")]].concat());
        assert_eq!(request.line(), "POST /v1/chat/completions  200  90 ms");
        let answer =
            [("message", "answer"), ("model", "qwen3"), ("prompt_tokens", "43"), ("seconds", "3.52")];
        let speed = [("completion_tokens", "210"), ("tokens_per_second", "61"), ("first_token_ms", "90.4")];
        let answer = fields(&[&answer[..], &speed].concat());
        assert_eq!(answer.line(), "qwen3  43 → 210 tokens  61.0 tok/s  first 90 ms  3.5 s");
        assert_eq!(fields(&[("message", "ending"), ("connections", "2")]).line(), "ending  connections: 2");
    }

    #[test]
    fn the_greeting_says_how_to_connect() {
        let listening = [("message", "listening"), ("address", "127.0.0.1:8080"), ("model", "m")];
        let text = fields(&listening).greeting();
        assert!(text.contains("http://127.0.0.1:8080/v1   any key") && text.contains("curl"), "{text}");
        let guarded = fields(&[&listening[..], &[("key", "true")]].concat()).greeting();
        assert!(guarded.contains("Bearer KEY"), "{guarded}");
    }
}
