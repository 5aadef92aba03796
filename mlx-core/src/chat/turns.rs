//! Chooses the messages to drop when a conversation outgrows the context. Invariant: pure. Whole turns are dropped, the oldest first. A turn is
//! a user message with its answers, tool calls and results. Leading system messages and the latest turn are never dropped.

use std::fmt;
use std::ops::Range;

use chat_format::{Message, Pixels, Role};

use crate::error::{Error, Result};
use crate::processor::AudioClip;

/// Turns are dropped in strides of 1/`STRIDE` of the limit. Within a stride all prompts start at the same message, so that their prefix can
/// be reused.
const STRIDE: usize = 4;
/// Approximate bytes of text per token. Only its consistency from turn to turn matters.
const BYTES_PER_TOKEN: usize = 3;
/// Approximate bytes of text that take as many tokens as a picture or half a minute of audio.
const BYTES_OF_MEDIUM: usize = 1000 * BYTES_PER_TOKEN;
/// Approximate bytes that a template writes around a message.
const BYTES_AROUND: usize = 32;

/// Tokens of a rejected prompt are counted up to this multiple of the limit, so that the error shows how much to shorten it.
pub(super) const COUNTED: usize = 4;

/// The prompt of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rendered {
    /// The output of the template.
    pub(super) text: String,
    /// Its tokens.
    pub(super) tokens: Vec<u32>,
    /// Its pictures.
    pub(super) images: Vec<Pixels>,
    /// Its audio.
    pub(super) audio: Vec<AudioClip>,
}

/// A conversation that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fitted {
    /// The prompt after dropping messages.
    pub(super) prompt: Rendered,
    /// The indices of the dropped messages.
    pub(super) dropped: Range<usize>,
}

/// The prompt of a conversation, or a lower bound of its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PromptOrLowerBound {
    /// The prompt.
    Tokens(Rendered),
    /// A lower bound of the tokens, if there are too many to tokenize them all.
    AtLeast(usize),
}

impl PromptOrLowerBound {
    /// The number of tokens counted.
    pub(super) fn tokens(&self) -> usize {
        match self {
            Self::Tokens(prompt) => prompt.tokens.len(),
            Self::AtLeast(count) => *count,
        }
    }

    /// Returns the prompt if it has at most `limit` tokens.
    pub(super) fn within(self, limit: usize) -> Result<Rendered, Self> {
        match self {
            Self::Tokens(prompt) if prompt.tokens.len() <= limit => Ok(prompt),
            other => Err(other),
        }
    }
}

impl fmt::Display for PromptOrLowerBound {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(prompt) => write!(out, "{} tokens", prompt.tokens.len()),
            Self::AtLeast(count) => write!(out, "at least {count} tokens"),
        }
    }
}

/// Splits a conversation into turns. A turn begins at each user message that does not follow another one; messages before the first of
/// these form a turn as well. Returns the number of leading system messages, and the ranges of the turns after them.
pub(super) fn turns(messages: &[Message]) -> (usize, Vec<Range<usize>>) {
    let is_user = |index: usize| messages[index].role == Role::User;
    let head = messages.iter().take_while(|message| message.role.is_instruction()).count();
    let begins = |&index: &usize| index == head || is_user(index) && !is_user(index - 1);
    let starts: Vec<usize> = (head..messages.len()).filter(begins).collect();
    let ends = starts.iter().skip(1).copied().chain([messages.len()]);
    (head, starts.iter().zip(ends).map(|(&start, end)| start..end).collect())
}

/// Drops as many of the oldest turns as necessary for a prompt of at most `limit` tokens. `tokens` returns the prompt of a conversation, and
/// counts at most the given number of tokens. Fewer messages must not give more tokens.
pub(super) fn fit_to_limit(
    messages: &[Message],
    limit: usize,
    tokens: impl Fn(&[Message], usize) -> Result<PromptOrLowerBound>,
) -> Result<Fitted> {
    let (head, turns) = turns(messages);
    if let Ok(prompt) = tokens(messages, limit)?.within(limit) {
        return Ok(Fitted { prompt, dropped: head..head });
    }
    let without = |first: usize, most: usize| tokens(&[&messages[..head], &messages[first..]].concat(), most);
    let cuts = cuts(messages, &turns, limit);
    // The first cut that is enough, by bisection.
    let (mut low, mut high, mut best) = (0, cuts.len(), None);
    while low < high {
        let middle = usize::midpoint(low, high);
        match without(cuts[middle], limit)?.within(limit) {
            Ok(prompt) => (high, best) = (middle, Some(Fitted { prompt, dropped: head..cuts[middle] })),
            Err(_) => low = middle + 1,
        }
    }
    if let Some(best) = best {
        return Ok(best);
    }
    let least = without(cuts.last().copied().unwrap_or(head), limit.saturating_mul(COUNTED))?;
    let message = format!(
        "have {least} with only the system prompt and the latest turn; at most {limit} leave space for an answer"
    );
    Err(Error::context_length("messages", least.tokens(), limit, message))
}

/// Returns the indices where the remaining conversation may begin, in ascending order. These are the turns that complete a stride, then all
/// turns after the last of those.
fn cuts(messages: &[Message], turns: &[Range<usize>], limit: usize) -> Vec<usize> {
    let stride = (limit * BYTES_PER_TOKEN / STRIDE).max(1);
    let size = |turn: &Range<usize>| size(&messages[turn.clone()]);
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

fn size(messages: &[Message]) -> usize {
    let media = |message: &Message| {
        message.parts.iter().filter(|part| part.text().is_none()).count() * BYTES_OF_MEDIUM
    };
    messages.iter().map(|message| message.text_bytes() + media(message) + BYTES_AROUND).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(role: Role, length: usize) -> Message {
        Message::new(role, "x".repeat(length))
    }

    /// Counts a token for each character, and three around each message.
    #[expect(clippy::unnecessary_wraps, reason = "templates can fail")]
    fn tokens(messages: &[Message], _: usize) -> Result<PromptOrLowerBound> {
        Ok(PromptOrLowerBound::Tokens(Rendered {
            text: String::new(),
            tokens: vec![0; count(messages)],
            images: Vec::new(),
            audio: Vec::new(),
        }))
    }

    fn count(messages: &[Message]) -> usize {
        messages.iter().map(|message| 3 + message.text().len()).sum()
    }

    #[test]
    fn turns_are_whole() {
        let roles = |roles: &str| -> Vec<Message> {
            let role = |symbol| match symbol {
                's' => Role::System,
                'u' => Role::User,
                'a' => Role::Assistant,
                _ => Role::Tool,
            };
            roles.chars().map(|symbol| message(role(symbol), 1)).collect()
        };
        for (given, head, expected) in [
            ("suaua", 1, &[1..3, 3..5][..]),
            // Calls and results belong to the user message before them.
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
        let messages = [
            message(Role::System, 30),
            message(Role::User, 10),
            message(Role::Assistant, 10),
            message(Role::User, 90),
        ];
        let error = fit_to_limit(&messages, 100, tokens).expect_err("the last turn alone is too long");
        let message = error.to_string();
        assert!(message.contains("126 tokens") && message.contains("at most 100"), "{message}");
        assert!(matches!(error, Error::ContextLength { tokens: 126, limit: 100, .. }), "{error:?}");
        // Counting ends soon after the limit.
        let rough = |messages: &[Message], most: usize| {
            Ok(PromptOrLowerBound::AtLeast(count(messages).min(most + 1)))
        };
        let error = fit_to_limit(&messages, 20, rough).expect_err("the same");
        assert!(matches!(error, Error::ContextLength { tokens: 81, limit: 20, .. }), "{error:?}");
    }

    proptest! {
        #[test]
        fn the_newest_turns_stay_and_the_cut_moves_in_strides(
            lengths in proptest::collection::vec((1..20usize, 0..20usize), 1..120),
            head in 0..30usize,
            limit in 120..400usize,
        ) {
            let mut messages = vec![message(Role::System, head)];
            let (mut before, mut moves) = (Vec::new(), 0);
            for (question, answer) in lengths {
                messages.push(message(Role::User, question));
                let fitted = fit_to_limit(&messages, limit, tokens).expect("a turn always fits");
                prop_assert!(fitted.prompt.tokens.len() <= limit);
                let all = count(&messages);
                prop_assert_eq!(fitted.dropped.is_empty(), all <= limit);
                prop_assert_eq!(fitted.dropped.start, 1);
                prop_assert_eq!(messages[fitted.dropped.end.min(messages.len() - 1)].role, Role::User);
                prop_assert!(fitted.dropped.end < messages.len(), "the latest turn stays");
                let visible: Vec<Message> = messages[fitted.dropped.end..].to_vec();
                moves += usize::from(!visible.starts_with(&before));
                before = visible;
                messages.push(message(Role::Assistant, answer));
            }
            messages.push(message(Role::User, 1));
            let rough = |messages: &[Message], most: usize| match count(messages) {
                many if many > most => Ok(PromptOrLowerBound::AtLeast(most + 1)),
                _ => tokens(messages, most),
            };
            let fit = |tokens: &dyn Fn(&[Message], usize) -> Result<PromptOrLowerBound>| fit_to_limit(&messages, limit, tokens);
            prop_assert_eq!(fit(&rough).expect("it fits"), fit(&tokens).expect("it fits"));
            // A cut drops a whole stride of text, so few of the prompts begin at a new message.
            prop_assert!(moves <= 1 + size(&messages) / (limit * BYTES_PER_TOKEN / STRIDE), "{moves} moves");
        }
    }
}
