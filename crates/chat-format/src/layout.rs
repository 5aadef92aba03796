//! Other layouts of a conversation, for templates that refuse the one that was given or lose a part of it: instructions behind the first
//! message, neighbours of one role, instructions at all. Invariant: pure, and a step changes nothing before the place that needs it, so
//! that the prompt of a longer conversation begins with that of a shorter one.

use super::message::{Message, Part, Role};

/// Changes of a conversation. Each is for something that a template may not take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Layout(u8);

impl Layout {
    /// Leading instructions become one message.
    pub(super) const ONE_HEAD: Self = Self(1);
    /// Later instructions become marked text of a user's turn, or of the result of a tool that they follow.
    pub(super) const REMINDERS: Self = Self(2);
    /// The user's and the assistant's turns alternate: neighbours of one role become one message.
    pub(super) const ALTERNATING: Self = Self(4);
    /// Leading instructions become a paragraph of the first message of the user, and so one message, too.
    pub(super) const NO_HEAD: Self = Self(8 | 1);

    /// All of them, in the order of attempts. What comes last changes most. The first one that a template takes has no needless steps,
    /// since one with more of them comes later; so a conversation keeps its layout as it grows, but for steps that the new messages need.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..16).map(Self).filter(|layout| layout.0 & 8 == 0 || layout.has(Self::NO_HEAD))
    }

    /// These steps and those.
    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether it has these steps.
    pub(super) fn has(self, steps: Self) -> bool {
        self.0 & steps.0 == steps.0
    }

    /// The conversation in this layout; none if one of the steps has nothing to do.
    pub(super) fn of(self, messages: &[Message]) -> Option<Vec<Message>> {
        let mut messages = messages.to_vec();
        if self.has(Self::NO_HEAD) {
            messages = no_head(&messages)?;
        } else if self.has(Self::ONE_HEAD) {
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

/// The leading instructions, and what follows.
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
    // A greeting of the assistant may come before the user's first message; those templates want the user to begin, too.
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
            // With another turn of the user in the middle of its work, a model would not see its thoughts on that work again.
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

/// Whether a message can be a part of the one before it. What the user says behind the result of a tool counts as a second turn of the
/// user: no answer stands in between.
fn joins(last: &Message, next: &Message) -> bool {
    match next.role {
        Role::User => matches!(last.role, Role::User | Role::Tool),
        // Many templates show no text beside calls.
        Role::Assistant => {
            last.role == Role::Assistant && last.tool_calls.is_empty() && next.tool_calls.is_empty()
        }
        _ => false,
    }
}

/// Adds a message's text as a paragraph. A hostile conversation may merge many messages, so what is there already is not copied.
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

/// The texts of messages, a paragraph each.
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

    /// A letter for each role, in front of the text.
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
            (Layout::ONE_HEAD, "dsus", Some(vec!["d 0\n\n1".into(), "u 2".into(), "s 3".into()])),
            (Layout::ONE_HEAD, "sus", None),
            (Layout::NO_HEAD, "ssua", Some(vec!["u 0\n\n1\n\n2".into(), "a 3".into()])),
            (Layout::NO_HEAD, "sau", Some(vec!["u 0".into(), "a 1".into(), "u 2".into()])),
            (Layout::NO_HEAD, "us", None),
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

    /// If each merge copied the text so far, this would take hours.
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
            all.iter().skip_while(|layout| !layout.has(Layout::NO_HEAD)).all(|it| it.has(Layout::NO_HEAD))
        );
        for (index, layout) in all.iter().enumerate() {
            assert!(
                all[..index].iter().all(|earlier| !earlier.has(*layout)),
                "{layout:?} has a needless step"
            );
        }
    }
}
