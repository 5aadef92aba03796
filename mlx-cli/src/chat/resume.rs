//! The last turns of a conversation that is resumed on a terminal.

use chat_format::{Message, Role};

use super::{Chat, preview};
use crate::terminal;

/// The turns to show, and the lines of each text.
const TURNS: usize = 2;
const MAX_LINES: usize = 12;

impl Chat {
    /// Shows the last turns on a terminal.
    pub(super) fn show_last_turns(&self) {
        if self.lines.is_interactive() {
            let text = last_turns(self.session.messages(), terminal::columns());
            if !text.is_empty() {
                terminal::note(&text);
            }
        }
    }
}

/// Returns the last turns; long texts are shortened.
fn last_turns(messages: &[Message], columns: Option<usize>) -> String {
    let questions = messages.iter().enumerate().filter(|(_, message)| message.role == Role::User);
    let starts: Vec<usize> = questions.map(|(index, _)| index).collect();
    let Some(start) = starts.iter().rev().take(TURNS).next_back() else { return String::new() };
    let shown = |message: &Message| {
        let text = message.text();
        match message.role {
            Role::User => Some(format!("> {}", preview::text(&text, MAX_LINES, columns))),
            Role::Assistant if !text.trim().is_empty() => Some(preview::text(&text, MAX_LINES, columns)),
            _ => None,
        }
    };
    messages[*start..].iter().filter_map(shown).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_turns_are_shown() {
        let turn = |name: &str| {
            [Message::user(format!("{name}?")), Message::assistant(format!("{name}!\nand so on"))]
        };
        let talk: Vec<Message> = [[Message::system("s"), Message::assistant("hi")]]
            .into_iter()
            .chain(["a", "b", "c"].map(turn))
            .flatten()
            .collect();
        assert_eq!(last_turns(&talk, None), "> b?\nb!\nand so on\n> c?\nc!\nand so on");
        assert_eq!(last_turns(&talk[..4], None), "> a?\na!\nand so on");
        assert_eq!(last_turns(&talk[..1], None), "");
        let long = [Message::user("x\n".repeat(200))];
        assert!(last_turns(&long, None).ends_with("188 more lines"));
    }
}
