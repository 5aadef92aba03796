//! Alternative layouts of a conversation, for templates that reject the given one or drop part of it: instructions
//! after the first message, consecutive messages of one role, or any instructions. Invariant: layouts are pure
//! functions, and a change affects nothing before the message that needs it, so that the prompt of a longer
//! conversation begins with that of a shorter one.

use super::message::{Message, Role};
use super::part::Part;

/// A set of changes to a conversation. Each avoids something that a template may not support.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Layout(u8);

impl Layout {
    /// Merges leading instructions into one message.
    pub(super) const MERGE_SYSTEM: Self = Self(1);
    /// Converts later instructions to marked text of a user message, or of the tool result that they follow.
    pub(super) const REMINDERS: Self = Self(2);
    /// Makes user and assistant messages alternate by merging consecutive messages of one role.
    pub(super) const ALTERNATING: Self = Self(4);
    /// Converts leading instructions, also merged into one, to a paragraph of the first user message.
    pub(super) const SYSTEM_IN_USER: Self = Self(8 | 1);

    /// Returns all layouts in the order in which they are tried. Later ones change more. The first one that a template
    /// accepts has no unnecessary changes, since the same layout with further changes comes later. So a conversation
    /// keeps its layout as it grows, except for changes that new messages need.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..16).map(Self).filter(|layout| layout.0 & 8 == 0 || layout.has(Self::SYSTEM_IN_USER))
    }

    /// Returns the union of two sets.
    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if it contains these changes.
    pub(super) fn has(self, steps: Self) -> bool {
        self.0 & steps.0 == steps.0
    }

    /// Returns the conversation in this layout; `None` if one of the changes has no effect.
    pub(super) fn of(self, messages: &[Message]) -> Option<Vec<Message>> {
        let mut messages = messages.to_vec();
        if self.has(Self::SYSTEM_IN_USER) {
            messages = no_head(&messages)?;
        } else if self.has(Self::MERGE_SYSTEM) {
            messages = one_head(&messages)?;
        }
        if self.has(Self::REMINDERS) {
            messages = reminders(&messages)?;
        }
        if self.has(Self::ALTERNATING) {
            messages = alternating(&messages)?;
        }
        Some(messages)
    }
}

/// Returns the leading instructions, and the other messages.
pub(super) fn split_head(messages: &[Message]) -> (&[Message], &[Message]) {
    messages.split_at(messages.iter().take_while(|message| message.role.is_instruction()).count())
}

fn one_head(messages: &[Message]) -> Option<Vec<Message>> {
    let (head, rest) = split_head(messages);
    let [first, _, ..] = head else { return None };
    let merged = Message { parts: text(&paragraphs(head)), ..first.clone() };
    Some([&[merged], rest].concat())
}

fn no_head(messages: &[Message]) -> Option<Vec<Message>> {
    let (head, rest) = split_head(messages);
    if head.is_empty() {
        return None;
    }
    // If a greeting of the assistant comes first, the instructions become a user message before it, since these
    // templates require that a user message comes first.
    let with_user = usize::from(rest.first().is_some_and(|first| first.role == Role::User));
    let first = Message::user(paragraphs(&messages[..head.len() + with_user]));
    Some([&[first], &rest[with_user..]].concat())
}

fn reminders(messages: &[Message]) -> Option<Vec<Message>> {
    let (head, rest) = split_head(messages);
    let mut written = head.to_vec();
    for message in rest {
        if !message.role.is_instruction() {
            written.push(message.clone());
            continue;
        }
        let reminder =
            Message::user(format!("<system-reminder>\n{}\n</system-reminder>", message.text().trim()));
        match written.last_mut() {
            // Another user message in the middle of a task would hide the model's earlier thoughts on that task from
            // it.
            Some(result) if result.role == Role::Tool => append(result, &reminder),
            _ => written.push(reminder),
        }
    }
    rest.iter().any(|message| message.role.is_instruction()).then_some(written)
}

fn alternating(messages: &[Message]) -> Option<Vec<Message>> {
    let mut merged: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        match merged.last_mut() {
            Some(last) if joins(last, message) => append(last, message),
            _ => merged.push(message.clone()),
        }
    }
    (merged.len() < messages.len()).then_some(merged)
}

/// Returns true if a message can be merged into the one before it. A user message after a tool result counts as
/// consecutive user messages, since there is no answer between them.
fn joins(last: &Message, next: &Message) -> bool {
    match next.role {
        Role::User => matches!(last.role, Role::User | Role::Tool),
        // Many templates drop text next to tool calls.
        Role::Assistant => {
            last.role == Role::Assistant && last.tool_calls.is_empty() && next.tool_calls.is_empty()
        }
        _ => false,
    }
}

/// Appends a message's text as a paragraph. The existing text is not copied, since a hostile conversation may merge
/// many messages.
fn append(message: &mut Message, next: &Message) {
    let is_text = |part: &Part| part.text().is_some();
    match message.parts.last_mut() {
        Some(Part::Text(text)) if next.parts.iter().all(is_text) => {
            let more = next.text();
            if !text.is_empty() && !more.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&more);
        }
        _ => message.parts.extend(next.parts.iter().cloned()),
    }
    match (&mut message.reasoning, &next.reasoning) {
        (Some(thoughts), Some(more)) => {
            thoughts.push_str("\n\n");
            thoughts.push_str(more);
        }
        (None, Some(more)) => message.reasoning = Some(more.clone()),
        (_, None) => {}
    }
}

/// Returns the texts of messages, as paragraphs.
fn paragraphs(messages: &[Message]) -> String {
    let texts: Vec<String> = messages.iter().map(Message::text).filter(|text| !text.is_empty()).collect();
    texts.join("\n\n")
}

fn text(text: &str) -> Vec<Part> {
    vec![Part::Text(text.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of each message, preceded by a letter for its role.
    fn shape(messages: &[Message]) -> Vec<String> {
        let letter = |role| match role {
            Role::System => 's',
            Role::Developer => 'd',
            Role::User => 'u',
            Role::Assistant => 'a',
            Role::Tool => 't',
        };
        messages.iter().map(|message| format!("{} {}", letter(message.role), message.text())).collect()
    }

    fn messages(roles: &str) -> Vec<Message> {
        let message = |(index, letter): (usize, char)| {
            let role = match letter {
                's' => Role::System,
                'd' => Role::Developer,
                'u' => Role::User,
                'a' => Role::Assistant,
                _ => Role::Tool,
            };
            Message::new(role, index.to_string())
        };
        roles.chars().enumerate().map(message).collect()
    }

    #[test]
    fn each_step_changes_what_it_is_for() {
        let reminder = |text: &str| format!("<system-reminder>\n{text}\n</system-reminder>");
        for (layout, given, expected) in [
            (Layout::MERGE_SYSTEM, "dsus", Some(vec!["d 0\n\n1".into(), "u 2".into(), "s 3".into()])),
            (Layout::MERGE_SYSTEM, "sus", None),
            (Layout::SYSTEM_IN_USER, "ssua", Some(vec!["u 0\n\n1\n\n2".into(), "a 3".into()])),
            (Layout::SYSTEM_IN_USER, "sau", Some(vec!["u 0".into(), "a 1".into(), "u 2".into()])),
            (Layout::SYSTEM_IN_USER, "us", None),
            (
                Layout::REMINDERS,
                "suds",
                Some(vec![
                    "s 0".into(),
                    "u 1".into(),
                    format!("u {}", reminder("2")),
                    format!("u {}", reminder("3")),
                ]),
            ),
            (Layout::REMINDERS, "ts", Some(vec![format!("t 0\n\n{}", reminder("1"))])),
            (Layout::REMINDERS, "ssu", None),
            (
                Layout::ALTERNATING,
                "uuaatu",
                Some(vec!["u 0\n\n1".into(), "a 2\n\n3".into(), "t 4\n\n5".into()]),
            ),
            (Layout::ALTERNATING, "ssuatau", None),
            (
                Layout::REMINDERS.with(Layout::ALTERNATING),
                "usa",
                Some(vec![format!("u 0\n\n{}", reminder("1")), "a 2".into()]),
            ),
        ] {
            let laid_out = layout.of(&messages(given));
            assert_eq!(laid_out.as_deref().map(shape), expected, "{layout:?} of {given}");
        }
    }

    #[test]
    fn thoughts_stay_when_answers_are_merged() {
        let call = super::super::message::ToolCall { id: None, name: "add".into(), arguments: "{}".into() };
        let thinking = |text: &str| Message { reasoning: Some(text.into()), ..Message::assistant(text) };
        let calling = Message { tool_calls: vec![call], ..thinking("c") };
        let given = [thinking("a"), thinking("b"), calling.clone(), thinking("d")];
        let merged = alternating(&given).expect("two are merged");
        assert_eq!((merged[0].text().as_str(), merged[0].reasoning.as_deref()), ("a\n\nb", Some("a\n\nb")));
        assert_eq!(merged[1..], [calling, thinking("d")], "nothing is merged with calls");
    }

    /// Copying the merged text at each merge would take hours.
    #[test]
    fn many_neighbours_are_merged_in_linear_time() {
        let many = vec![Message::system("x".repeat(200)); 100_000];
        let given = [&[Message::user("begin")], &many[..]].concat();
        let merged =
            Layout::REMINDERS.with(Layout::ALTERNATING).of(&given).expect("all but the first change");
        let reminder = "\n\n<system-reminder>\n\n</system-reminder>".len() + 200;
        assert_eq!((merged.len(), merged[0].text().len()), (1, "begin".len() + 100_000 * reminder));
    }

    #[test]
    fn attempts_begin_with_what_was_given_and_end_without_a_head() {
        let all: Vec<Layout> = Layout::all().collect();
        assert_eq!(all[0], Layout::default());
        assert!(
            all.iter()
                .skip_while(|layout| !layout.has(Layout::SYSTEM_IN_USER))
                .all(|it| it.has(Layout::SYSTEM_IN_USER))
        );
        for (index, layout) in all.iter().enumerate() {
            assert!(
                all[..index].iter().all(|earlier| !earlier.has(*layout)),
                "{layout:?} has a needless step"
            );
        }
    }
}
