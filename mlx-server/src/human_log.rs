//! The log for terminals: a greeting with the addresses of the server, then one short line per request and answer. A failure of the server is
//! red.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Zoned;
use mlx_options::{printable, visible};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// True if the log of this process is for humans.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);

/// Returns true if the log is for humans, so that lines about requests have the path and the reason of an error.
pub(crate) fn is_active() -> bool {
    IS_ACTIVE.load(Ordering::Relaxed)
}

/// Formats events for humans.
pub(crate) struct HumanLog {
    has_colors: bool,
}

impl HumanLog {
    /// Starts the log for humans.
    pub(crate) fn start(has_colors: bool) -> Self {
        IS_ACTIVE.store(true, Ordering::Relaxed);
        Self { has_colors }
    }
}

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
        let text = printable(&text);
        if self.has_colors && fields.number("status") >= 500.0 {
            return writeln!(out, "\x1b[31m{text}\x1b[0m");
        }
        writeln!(out, "{text}")
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
        let scheme = if self.text("https") == "true" { "https" } else { "http" };
        format!(
            "mlx {version} serves {model} on {scheme}://{address} ({who})\n\
             \x20 chat in a browser  {scheme}://{address}\n\
             \x20 OpenAI base URL    {scheme}://{address}/v1   {key}\n\
             \x20 try it             curl {scheme}://{address}/v1/chat/completions{header} \\\n\
             \x20   --json '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'\n\
             \x20 Ctrl-C stops; a second Ctrl-C does not wait for running answers"
        )
    }

    fn line(&self) -> String {
        match self.text("message") {
            "request" => {
                let (method, path, status) =
                    (self.text("method"), visible(self.text("path")), self.text("status"));
                let mut line = format!("{method} {path}  {status}  {:.0} ms", self.number("milliseconds"));
                for name in ["reason", "user", "ignored"] {
                    let label = if name == "reason" { "" } else { &format!("{name}: ") };
                    if !self.text(name).is_empty() {
                        // Writing to a string does not fail.
                        let _ = write!(line, "  {label}{}", visible(self.text(name)));
                    }
                }
                line
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
    use std::sync::Arc;

    use super::*;

    fn fields(given: &[(&'static str, &str)]) -> Fields {
        Fields(given.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
    }

    #[test]
    fn lines_have_what_people_look_for() {
        let request = [("message", "request"), ("method", "POST"), ("path", "/v1/chat/completions")];
        let line = |more: &[(&'static str, &str)]| fields(&[&request[..], more].concat()).line();
        assert_eq!(
            line(&[("status", "200"), ("milliseconds", "90.4")]),
            "POST /v1/chat/completions  200  90 ms"
        );
        let reason = ("reason", "top_p: is 2\n12:00:00  a forged line");
        assert_eq!(
            line(&[("status", "400"), ("milliseconds", "3"), reason, ("ignored", "mood")]),
            "POST /v1/chat/completions  400  3 ms  top_p: is 2\\u{a}12:00:00  a forged line  ignored: mood"
        );
        let answer =
            [("message", "answer"), ("model", "qwen3"), ("prompt_tokens", "43"), ("seconds", "3.52")];
        let speed = [("completion_tokens", "210"), ("tokens_per_second", "61"), ("first_token_ms", "90.4")];
        let answer = fields(&[&answer[..], &speed].concat());
        assert_eq!(answer.line(), "qwen3  43 → 210 tokens  61.0 tok/s  first 90 ms  3.5 s");
        assert_eq!(fields(&[("message", "ending"), ("connections", "2")]).line(), "ending  connections: 2");
    }

    #[test]
    fn failures_of_the_server_are_red() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let writer = Arc::new(file.reopen().expect("it can be opened"));
        let log = tracing_subscriber::fmt().event_format(HumanLog { has_colors: true }).with_writer(writer);
        tracing::subscriber::with_default(log.finish(), || {
            for status in [200, 404, 500] {
                tracing::info!(status, path = "/\u{1b}[31m", "request");
            }
        });
        let text = std::fs::read_to_string(file.path()).expect("text");
        let reds: Vec<bool> = text.lines().map(|line| line.contains("\x1b[31m")).collect();
        assert_eq!(reds, [false, false, true], "{text}");
    }

    #[test]
    fn the_greeting_says_how_to_connect() {
        let listening = [("message", "listening"), ("address", "127.0.0.1:8080"), ("model", "m")];
        let text = fields(&listening).greeting();
        assert!(text.contains("http://127.0.0.1:8080/v1   any key") && text.contains("curl"), "{text}");
        let guarded = fields(&[&listening[..], &[("key", "true"), ("https", "true")]].concat()).greeting();
        assert!(guarded.contains("Bearer KEY") && !guarded.contains("http://"), "{guarded}");
    }
}
