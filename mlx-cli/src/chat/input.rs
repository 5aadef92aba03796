//! The input of a chat: a line editor with a history on a terminal, or a pipe.

use std::io::{BufRead, stdin};

use mlx_core::Error;

use super::editor::{self, EditorInput, LineEditor};
use super::fence::{Text, is_open, unwrap};
use crate::exit_code::Failure;
use crate::{keyboard, terminal};

/// One input.
pub(super) enum Input {
    Text(Text),
    /// Unusable input, with the reason.
    Invalid(String),
    /// Ctrl-C on an empty prompt: start over.
    Interrupted,
    End,
}

/// A source of lines.
pub(super) enum LineReader {
    Editor(Box<LineEditor>),
    Pipe,
}

impl LineReader {
    /// Opens an editor on a terminal, else the pipe.
    pub(super) fn open(has_history: bool) -> Self {
        let editor = terminal::is_interactive().then(|| LineEditor::open(has_history)).flatten();
        editor.map_or(Self::Pipe, |editor| Self::Editor(Box::new(editor)))
    }

    /// Returns true if input comes from a terminal.
    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Self::Editor(..))
    }

    /// Reads one input, which may have several lines.
    pub(super) fn read(&mut self) -> Result<Input, Failure> {
        match self {
            Self::Editor(editor) => Ok(match editor.read("> ", "")? {
                EditorInput::Text(text) => Input::Text(unwrap(&text)),
                EditorInput::Interrupted => Input::Interrupted,
                EditorInput::End => Input::End,
            }),
            Self::Pipe => read_piped(),
        }
    }

    /// Opens `text` in the editor; `None` if the user cancels or input is a pipe.
    pub(super) fn edit(&mut self, text: &str) -> Option<String> {
        let Self::Editor(editor) = self else { return None };
        match editor.read("> ", text) {
            Ok(EditorInput::Text(text)) if !text.trim().is_empty() => Some(text),
            _ => None,
        }
    }

    /// Asks the user a question; `None` if the user cancels or input is a pipe.
    pub(super) fn confirm(&mut self, question: &str) -> Result<Option<String>, Failure> {
        if !self.is_interactive() {
            return Ok(None);
        }
        keyboard::discard_typed();
        Ok(match editor::ask(question)? {
            EditorInput::Text(text) => Some(text),
            EditorInput::Interrupted | EditorInput::End => None,
        })
    }
}

/// Reads one input from a pipe.
fn read_piped() -> Result<Input, Failure> {
    let mut text = String::new();
    loop {
        let mut line = Vec::new();
        let read = stdin().lock().read_until(b'\n', &mut line);
        if read.map_err(|source| Error::io("standard input", source))? == 0 {
            let unfinished = || Input::Invalid("unterminated multi-line input; not sent".into());
            return Ok(if text.is_empty() { Input::End } else { unfinished() });
        }
        match String::from_utf8(line) {
            Ok(line) => text.push_str(line.trim_end_matches(['\n', '\r'])),
            Err(_) => return Ok(Input::Invalid("a line is not valid utf-8".into())),
        }
        if !is_open(&text) {
            return Ok(Input::Text(unwrap(&text)));
        }
        text.push('\n');
    }
}
