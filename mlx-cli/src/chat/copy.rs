//! `/copy`: the last answer or its last block of code, in the clipboard.

use chat_format::{Message, Role};

use super::Chat;
use crate::clipboard;
use crate::exit_code::Failure;
use crate::terminal;

impl Chat {
    /// Copies the last answer, or its last block of code.
    pub(super) fn copy(&mut self, code: bool) -> Result<(), Failure> {
        let is_answer = |message: &&Message| message.role == Role::Assistant && !message.text().is_empty();
        let answer = self.session.messages().iter().rev().find(is_answer).map(Message::text);
        let text = match (answer, code) {
            (None, _) => Err("there is no answer to copy"),
            (Some(answer), false) => Ok(answer),
            (Some(answer), true) => last_block(&answer).ok_or("the last answer has no block of code"),
        };
        match text {
            Err(message) => self.report_error(message),
            Ok(text) if clipboard::copy(&text)? => {
                terminal::note(&format!("copied {} characters", text.chars().count()));
            }
            Ok(_) => {
                self.report_error("there is no clipboard here; /save FILE writes the conversation to a file");
            }
        }
        Ok(())
    }
}

/// Returns the text of the last fenced block, which may be unfinished.
fn last_block(text: &str) -> Option<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut open: Option<&str> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let fence = &trimmed[..trimmed.len() - trimmed.trim_start_matches(['`', '~']).len()];
        match open {
            Some(begin) if fence.starts_with(begin) && trimmed.trim_end() == fence => open = None,
            Some(_) => {
                if let Some(block) = blocks.last_mut() {
                    block.push_str(line);
                    block.push('\n');
                }
            }
            None if fence.len() >= 3 => {
                open = Some(fence);
                blocks.push(String::new());
            }
            None => {}
        }
    }
    blocks.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_is_found() {
        assert_eq!(last_block("text"), None);
        assert_eq!(last_block("```\na\n```\nb\n~~~rust\nc\n```\n~~~").as_deref(), Some("c\n```\n"));
        assert_eq!(last_block("1. x\n   ````md\n```\nd\n```\n   ````\n").as_deref(), Some("```\nd\n```\n"));
        assert_eq!(last_block("```\nunfinished").as_deref(), Some("unfinished\n"));
    }
}
