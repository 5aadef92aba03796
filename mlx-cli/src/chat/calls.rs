//! Tool calls in a chat: shown, confirmed, executed and answered.

use chat_format::ToolCall;
use mlx_core::chat::ChatSession;
use mlx_options::visible;

use super::style::styled;
use super::tools::ToolResult;
use super::{Chat, preview};
use crate::exit_code::Failure;
use crate::terminal;

/// Results for the model of calls that were not executed.
const DECLINED_RESULT: &str = "The user declined this tool call.";
const STOPPED_RESULT: &str = "The user stopped the tool calls.";

/// The user's reply to a call.
#[derive(Debug, PartialEq, Eq)]
enum Consent {
    Yes,
    No,
    /// Yes, also to later calls of this tool.
    Always,
    /// No, also to the other calls of this answer.
    Stop,
}

impl Chat {
    /// Executes the calls of the latest answer and reads the follow-up answers, which may call tools again.
    pub(super) fn run_tool_calls(&mut self) -> Result<(), Failure> {
        for round in 1.. {
            let calls = self.session.open_calls();
            if calls.is_empty() {
                break;
            }
            let mut is_stopped = false;
            for call in &calls {
                let result = if is_stopped {
                    ToolResult::text_only(STOPPED_RESULT.to_owned(), true)
                } else {
                    self.run_call(call)?
                };
                is_stopped = result.is_stopped;
                if !self.session.add_result(call, result.parts)? {
                    terminal::note(
                        "the pictures of the result were left out, because this model cannot read them here",
                    );
                }
            }
            self.save_session()?;
            let may_call = round < self.rounds;
            if !may_call {
                terminal::note(&format!(
                    "limit of {round} rounds of tool calls reached; the model answers without tools"
                ));
            }
            self.read_answer(|session: &mut ChatSession| session.continue_after_calls(may_call))?;
        }
        Ok(())
    }

    fn run_call(&mut self, call: &ToolCall) -> Result<ToolResult, Failure> {
        let request = match self.tools.request(call) {
            Ok(request) => request,
            Err(reason) => {
                self.note_dimmed(&format!("{}: {reason}", call_text(call)));
                return Ok(ToolResult::text_only(reason, false));
            }
        };
        if self.tools.is_allowed(&call.name) {
            self.note_dimmed(&preview::text(&call_text(call), 1, terminal::columns()));
        } else {
            terminal::note(&request.question(&call_text(call)));
            match self.consent(&call.name)? {
                Consent::Yes => {}
                Consent::Always => self.tools.allow(&call.name),
                Consent::No => return Ok(ToolResult::text_only(DECLINED_RESULT.to_owned(), false)),
                Consent::Stop => return Ok(ToolResult::text_only(STOPPED_RESULT.to_owned(), true)),
            }
        }
        let done = self.tools.run(request, &self.interrupt);
        self.note_dimmed(&preview::text(&done.text(), preview::MAX_LINES, terminal::columns()));
        Ok(done)
    }

    fn consent(&mut self, name: &str) -> Result<Consent, Failure> {
        let Some(answer) = self.lines.confirm(&format!("run it? y, n, or a for always {name}: "))? else {
            if !self.lines.is_interactive() {
                terminal::note(&format!("not run: without a terminal {name} needs --allow-tool {name}"));
                return Ok(Consent::No);
            }
            return Ok(Consent::Stop);
        };
        Ok(consent(&answer))
    }

    /// Prints a dimmed note. Its text may come from a model or a command.
    fn note_dimmed(&self, text: &str) {
        let text = mlx_options::printable(text);
        terminal::note_styled(&if self.colors { styled("\x1b[2m", &text) } else { text.into_owned() });
    }
}

fn consent(answer: &str) -> Consent {
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Consent::Yes,
        "a" | "always" => Consent::Always,
        _ => Consent::No,
    }
}

/// Describes a call on one line.
fn call_text(call: &ToolCall) -> String {
    format!("call {} {}", visible(&call.name), visible(&call.arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_a_yes_is_a_yes() {
        for (answer, expected) in [
            ("y", Consent::Yes),
            (" YES ", Consent::Yes),
            ("a", Consent::Always),
            ("always", Consent::Always),
            ("", Consent::No),
            ("n", Consent::No),
            ("yes please", Consent::No),
            ("j", Consent::No),
        ] {
            assert_eq!(consent(answer), expected, "{answer}");
        }
    }

    #[test]
    fn a_call_hides_nothing() {
        let arguments = "{\"a\": \"x\u{202e}y\u{1b}[2J\\n\"}\r\u{7f}".to_owned();
        let call = ToolCall { id: None, name: "run\u{200b}".to_owned(), arguments };
        let shown = call_text(&call);
        assert_eq!(shown, "call run\\u{200b} {\"a\": \"x\\u{202e}y\\u{1b}[2J\\n\"}\\u{d}\\u{7f}");
    }
}
