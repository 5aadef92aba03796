//! The deltas of an answer, independent of the protocol.

use chat_format::Part;
use mlx_core::engine::{Miss, Timings, Usage};
use mlx_core::sampling::TokenLogprob;
use serde::Serialize;
use utoipa::ToSchema;

/// The next delta of one of a request's answers. Reasoning comes before content, and content before calls.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// The index of the answer.
    pub(crate) choice: usize,
    /// New text.
    pub(crate) content: String,
    /// New reasoning text.
    pub(crate) reasoning: String,
    /// New parts of tool calls.
    pub(crate) calls: Vec<CallDelta>,
    /// The progress of the prompt. Such a delta has nothing else.
    pub(crate) progress: Option<Progress>,
    /// Scored tokens of the prompt.
    pub(crate) prompt: Vec<Token>,
    /// Generated tokens.
    pub(crate) tokens: Vec<Token>,
    /// Work of the server on the calls of an answer. Such a delta has nothing else. Only responses have them.
    pub(crate) mcp: Option<McpEvent>,
    /// Set when the answer has ended.
    pub(crate) end: Option<End>,
}

/// Work of the server with tools of MCP servers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum McpEvent {
    /// A server has listed its tools, or cannot.
    Listed { label: String, tools: Result<Vec<mlx_mcp::Tool>, String> },
    /// A call that the client approved has run.
    Approved { request: String, call: McpCall, result: CallResult },
    /// A generation has ended, and the calls of servers in it begin to run.
    Calling,
    /// The next of these calls has a result.
    Called(CallResult),
}

/// A call of a tool of an MCP server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct McpCall {
    /// The name of the server.
    pub(crate) label: String,
    /// The name of the tool on the server.
    pub(crate) name: String,
    /// The arguments as JSON text, as the model generated them.
    pub(crate) arguments: String,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CallResult {
    /// The tool's output: texts and pictures.
    Output(Vec<Part>),
    /// The text of the tool's failure.
    ToolError(String),
    /// The reason that the call failed.
    Failure(String),
}

impl CallResult {
    /// Returns the parts for the model.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let text = match self {
            Self::Output(parts) => return parts.clone(),
            Self::ToolError(text) => format!("The tool reported an error:\n{text}"),
            Self::Failure(reason) => format!("The call failed: {}.", reason.trim_end_matches('.')),
        };
        vec![Part::Text(text)]
    }

    /// Returns true if the model gets pictures.
    pub(crate) fn has_pictures(&self) -> bool {
        matches!(self, Self::Output(parts) if parts.iter().any(|part| part.image().is_some()))
    }

    /// Replaces pictures, which the model cannot read, with a line of text.
    #[must_use]
    pub(crate) fn without_pictures(self) -> Self {
        match self {
            Self::Output(parts) => Self::Output(vec![Part::Text(output_text(&parts, UNREADABLE))]),
            other => other,
        }
    }
}

/// The text instead of a picture that the model cannot read.
const UNREADABLE: &str = "[a picture was left out, because this model cannot read it here]";

/// Returns the texts of an output, with this line for each picture.
pub(crate) fn output_text(parts: &[Part], picture: &str) -> String {
    parts.iter().map(|part| part.text().unwrap_or(picture)).collect::<Vec<_>>().join("\n")
}

/// The progress of a prompt, by llama-server's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Progress {
    /// Tokens of the prompt.
    pub(crate) total: usize,
    /// Tokens reused from the prefix cache.
    pub(crate) cache: usize,
    /// Tokens read so far, including the cached ones.
    pub(crate) processed: usize,
    /// Milliseconds since the prompt was begun.
    pub(crate) time_ms: u64,
}

/// The first difference between a prompt and a longer cached text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PrefixMiss {
    /// The first token of the prompt that differs.
    pub(crate) at: usize,
    /// The length of the cached text.
    pub(crate) cached: usize,
}

impl From<Miss> for PrefixMiss {
    fn from(Miss { at, cached }: Miss) -> Self {
        Self { at, cached }
    }
}

/// A delta of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// The index of the call in its answer.
    pub(crate) index: usize,
    /// The id and the name, in the first delta of a call. The id is 24 letters and digits; each protocol adds its own prefix.
    pub(crate) head: Option<(String, String)>,
    /// New text of the arguments.
    pub(crate) arguments: String,
}

/// The reason that an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The model generated an end token.
    EndToken,
    /// This stop string was generated.
    StopString(String),
    /// The token limit or the end of the context was reached.
    Length,
    /// The answer ends with tool calls.
    ToolCalls,
}

/// The end of an answer, with its usage and timings.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// The reason.
    pub(crate) reason: EndReason,
    /// The token counts.
    pub(crate) usage: Usage,
    /// The time spent in each phase.
    pub(crate) timings: Timings,
    /// The number of reasoning tokens.
    pub(crate) reasoning_tokens: usize,
}

impl Delta {
    /// Returns true if the delta has no text, reasoning or calls.
    pub(crate) fn has_no_output(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Returns true if `next` can be appended to this delta without changing the order of the answer.
    pub(crate) fn continues_with(&self, next: &Self) -> bool {
        let has_calls = !self.calls.is_empty();
        let is_text_late = has_calls && !next.content.is_empty();
        let is_thought_late = (has_calls || !self.content.is_empty()) && !next.reasoning.is_empty();
        let is_work = self.mcp.is_some() || next.mcp.is_some();
        !is_text_late && !is_thought_late && !is_work
    }

    pub(crate) fn extend(&mut self, next: Self) {
        self.content.push_str(&next.content);
        self.reasoning.push_str(&next.reasoning);
        for call in next.calls {
            match self.calls.last_mut().filter(|last| last.index == call.index) {
                Some(last) => last.arguments.push_str(&call.arguments),
                None => self.calls.push(call),
            }
        }
        self.prompt.extend(next.prompt);
        self.tokens.extend(next.tokens);
        self.end = next.end.or(self.end.take());
    }
}

/// A token of the prompt or of the answer, with its probabilities.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    /// The log-probability and the alternatives, if requested.
    pub(crate) logprob: Option<TokenLogprob>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_continue_in_their_order() {
        let text = || Delta { content: "a".into(), ..Delta::default() };
        let thought = || Delta { reasoning: "a".into(), ..Delta::default() };
        let call = || Delta {
            calls: vec![CallDelta { index: 0, head: None, arguments: String::new() }],
            ..Delta::default()
        };
        for (one, next, continues) in [
            (thought(), text(), true),
            (text(), call(), true),
            (call(), call(), true),
            (text(), thought(), false),
            (call(), text(), false),
            (call(), thought(), false),
            (call(), Delta::default(), true),
        ] {
            assert_eq!(one.continues_with(&next), continues, "{one:?} {next:?}");
        }
    }
}
