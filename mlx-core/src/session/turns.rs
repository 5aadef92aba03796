//! Which messages of a conversation go when it outgrows the context. Invariant: pure; turns go whole, the oldest first: a message of the
//! person with the answers to it, calls of tools with their results. System messages at the beginning and the latest turn stay.

use std::fmt;
use std::ops::Range;

use serde_json::Value;

use crate::error::{Error, Result};

/// How much of the limit the dropped turns grow by at a time. In between, each prompt begins like the one before it, so that what was
/// computed for it can be taken over.
const STRIDE: usize = 4;
/// Bytes of text that a token stands for, roughly; it need only be the same from turn to turn.
const BYTES_PER_TOKEN: usize = 3;

/// A conversation that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fitted {
    /// The tokens of what the model sees.
    pub prompt: Vec<u32>,
    /// The messages it does not see, by their places.
    pub dropped: Range<usize>,
}

/// What a conversation becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    /// Its tokens.
    Tokens(Vec<u32>),
    /// So many tokens or more, which is too much to write them down.
    AtLeast(usize),
}

impl Counted {
    /// The tokens, if they are at most `limit`.
    fn within(self, limit: usize) -> Result<Vec<u32>, Self> {
        match self {
            Self::Tokens(tokens) if tokens.len() <= limit => Ok(tokens),
            other => Err(other),
        }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => write!(out, "{} tokens", tokens.len()),
            Self::AtLeast(count) => write!(out, "at least {count} tokens"),
        }
    }
}

/// Where the turns begin: at each message of the person that does not follow another one of theirs, and at what was said before the
/// first of these. Gives the number of leading system messages, and the ranges of the turns behind them.
pub fn turns(messages: &[Value]) -> (usize, Vec<Range<usize>>) {
    let role = |index: usize| messages[index].get("role").and_then(Value::as_str).unwrap_or_default();
    let head = (0..messages.len()).take_while(|&index| matches!(role(index), "system" | "developer")).count();
    let begins = |&index: &usize| index == head || role(index) == "user" && role(index - 1) != "user";
    let starts: Vec<usize> = (head..messages.len()).filter(begins).collect();
    let ends = starts.iter().skip(1).copied().chain([messages.len()]);
    (head, starts.iter().zip(ends).map(|(&start, end)| start..end).collect())
}

/// Leaves out as many of the oldest turns as it takes for the prompt to have at most `limit` tokens. `tokens` gives the prompt of a
/// conversation; fewer messages must not give more tokens.
pub fn fit(messages: &[Value], limit: usize, tokens: impl Fn(&[Value]) -> Result<Counted>) -> Result<Fitted> {
    let (head, turns) = turns(messages);
    let all = match tokens(messages)?.within(limit) {
        Ok(prompt) => return Ok(Fitted { prompt, dropped: head..head }),
        Err(all) => all,
    };
    let without = |first: usize| tokens(&[&messages[..head], &messages[first..]].concat());
    let cuts = cuts(messages, &turns, limit);
    // The first cut that is enough, by halving what is left.
    let (mut low, mut high, mut best) = (0, cuts.len(), None);
    while low < high {
        let middle = usize::midpoint(low, high);
        match without(cuts[middle])?.within(limit) {
            Ok(prompt) => (high, best) = (middle, Some(Fitted { prompt, dropped: head..cuts[middle] })),
            Err(_) => low = middle + 1,
        }
    }
    best.map_or_else(|| Err(too_long(&without, &cuts, all, limit)), Ok)
}

fn too_long(
    without: &impl Fn(usize) -> Result<Counted>,
    cuts: &[usize],
    all: Counted,
    limit: usize,
) -> Error {
    let least = match cuts.last().map(|last| without(*last)) {
        Some(Ok(least)) => least,
        Some(Err(error)) => return error,
        None => all,
    };
    let message = format!(
        "have {least} with nothing but the system prompt and the latest turn; {limit} fit beside an answer"
    );
    Error::request("messages", message)
}

/// The places that the rest may begin at, rising: the turns where another stride of text lies behind, and, beyond the last of those, all.
fn cuts(messages: &[Value], turns: &[Range<usize>], limit: usize) -> Vec<usize> {
    let stride = (limit * BYTES_PER_TOKEN / STRIDE).max(1);
    let size = |turn: &Range<usize>| -> usize {
        messages[turn.clone()].iter().map(|message| message.to_string().len()).sum()
    };
    let (mut behind, mut cuts, mut last) = (0, Vec::new(), 0);
    let mut all = Vec::new();
    for pair in turns.windows(2) {
        let before = behind;
        behind += size(&pair[0]);
        all.push(pair[1].start);
        if behind / stride > before / stride {
            cuts.push(pair[1].start);
            last = all.len();
        }
    }
    cuts.extend(&all[last..]);
    cuts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn said(role: &str, length: usize) -> Value {
        json!({"role": role, "content": "x".repeat(length)})
    }

    /// A token for each character, and three around each message.
    #[expect(clippy::unnecessary_wraps, reason = "templates can fail")]
    fn tokens(messages: &[Value]) -> Result<Counted> {
        Ok(Counted::Tokens(vec![0; count(messages)]))
    }

    fn count(messages: &[Value]) -> usize {
        messages.iter().map(|message| 3 + message["content"].as_str().map_or(0, str::len)).sum()
    }

    #[test]
    fn turns_are_whole() {
        let roles = |roles: &str| -> Vec<Value> {
            let name = |symbol| match symbol {
                's' => "system",
                'u' => "user",
                'a' => "assistant",
                _ => "tool",
            };
            roles.chars().map(|symbol| said(name(symbol), 1)).collect()
        };
        for (given, head, expected) in [
            ("suaua", 1, &[1..3, 3..5][..]),
            // Calls and results belong to the message that asked for them.
            ("suatatauau", 1, &[1..7, 7..9, 9..10]),
            // A greeting before the first message, two messages in a row, a late instruction.
            ("auuausua", 0, &[0..1, 1..4, 4..6, 6..8]),
            ("ss", 2, &[]),
            ("", 0, &[]),
        ] {
            assert_eq!(turns(&roles(given)), (head, expected.to_vec()), "{given}");
        }
    }

    #[test]
    fn what_can_never_fit_is_refused_with_both_numbers() {
        let messages = [said("system", 30), said("user", 10), said("assistant", 10), said("user", 90)];
        let message = fit(&messages, 100, tokens).expect_err("the last turn alone is too long").to_string();
        assert!(message.contains("126 tokens") && message.contains("100 fit"), "{message}");
    }

    proptest! {
        #[test]
        fn the_newest_turns_stay_and_the_cut_moves_in_strides(
            lengths in proptest::collection::vec((1..20usize, 0..20usize), 1..120),
            head in 0..30usize,
            limit in 120..400usize,
        ) {
            let mut messages = vec![said("system", head)];
            let (mut before, mut moves) = (Vec::new(), 0);
            for (question, answer) in lengths {
                messages.push(said("user", question));
                let fitted = fit(&messages, limit, tokens).expect("a turn always fits");
                prop_assert!(fitted.prompt.len() <= limit);
                let all = count(&messages);
                prop_assert_eq!(fitted.dropped.is_empty(), all <= limit);
                prop_assert_eq!(fitted.dropped.start, 1);
                prop_assert_eq!(messages[fitted.dropped.end.min(messages.len() - 1)]["role"].as_str(), Some("user"));
                prop_assert!(fitted.dropped.end < messages.len(), "the latest turn stays");
                let visible: Vec<Value> = messages[fitted.dropped.end..].to_vec();
                moves += usize::from(!visible.starts_with(&before));
                before = visible;
                messages.push(said("assistant", answer));
            }
            messages.push(said("user", 1));
            let rough = |messages: &[Value]| match count(messages) {
                many if many > limit => Ok(Counted::AtLeast(many / 2)),
                _ => tokens(messages),
            };
            let fit = |tokens: &dyn Fn(&[Value]) -> Result<Counted>| fit(&messages, limit, tokens);
            prop_assert_eq!(fit(&rough).expect("it fits"), fit(&tokens).expect("it fits"));
            // A cut takes a stride of text with it, so few of the prompts begin in a new place.
            let text: usize = messages.iter().map(|message| message.to_string().len()).sum();
            prop_assert!(moves <= 1 + text / (limit * BYTES_PER_TOKEN / STRIDE), "{moves} moves");
        }
    }
}
