//! The deltas of an answer, in no protocol's form.

use mlx_core::engine::{Timings, Usage};
use mlx_core::sampling::TokenLogprob;

/// The next part of one of a request's answers. The reasoning comes before the content, and the content before the calls.
#[derive(Debug, Default)]
pub(crate) struct Delta {
    /// The index of the answer.
    pub(crate) choice: usize,
    /// More text.
    pub(crate) content: String,
    /// More reasoning.
    pub(crate) reasoning: String,
    /// More of the calls.
    pub(crate) calls: Vec<CallDelta>,
    /// Tokens of the prompt that were scored.
    pub(crate) prompt: Vec<Token>,
    /// Tokens that were drawn.
    pub(crate) tokens: Vec<Token>,
    /// Set when the answer has ended.
    pub(crate) end: Option<End>,
}

/// More of a call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallDelta {
    /// The index of the call in its answer.
    pub(crate) index: usize,
    /// Id and name, in the first delta of a call. The id is 24 letters and digits, before which each protocol writes a word of its own.
    pub(crate) head: Option<(String, String)>,
    /// More of the arguments.
    pub(crate) arguments: String,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The model ended it.
    EndToken,
    /// This stop string came.
    StopString(String),
    /// The limit of tokens was reached, or the end of the context.
    Length,
    /// It ends with calls.
    ToolCalls,
}

/// How an answer ended.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// Why.
    pub(crate) reason: EndReason,
    /// Tokens in and out.
    pub(crate) usage: Usage,
    /// Where the time went.
    pub(crate) timings: Timings,
    /// Tokens of thoughts.
    pub(crate) reasoning_tokens: usize,
}

impl Delta {
    /// Returns true without text, reasoning and calls.
    pub(crate) fn is_silent(&self) -> bool {
        self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty()
    }

    /// Returns true if `next` can be appended to this delta without changing the order of the answer.
    pub(crate) fn continues_with(&self, next: &Self) -> bool {
        let has_calls = !self.calls.is_empty();
        let is_text_late = has_calls && !next.content.is_empty();
        let is_thought_late = (has_calls || !self.content.is_empty()) && !next.reasoning.is_empty();
        !is_text_late && !is_thought_late
    }

    /// Appends the next delta.
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

/// A reported token of the prompt or of the answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Token {
    /// Its id.
    pub(crate) id: u32,
    /// Its log-probability and alternatives, if asked for.
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
