//! The input of a chat: a line editor with a history on a terminal, or a pipe.

use std::io::{BufRead, stdin};
use std::path::PathBuf;

use mlx_core::Error;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

use crate::exit_code::Failure;
use crate::terminal;

/// Begins and ends a text of several lines.
const FENCE: &str = "\"\"\"";

/// One input.
pub(super) enum Input {
    /// A line, or several joined by backslashes: a message or a command.
    Text(String),
    /// A text between fences: a message as it stands.
    Fenced(String),
    /// Input that cannot be used, and why.
    Mistake(String),
    /// Ctrl-C on an empty prompt: start over.
    Interrupted,
    End,
}

/// A source of lines.
pub(super) enum Lines {
    Editor(Box<DefaultEditor>, Option<PathBuf>),
    Pipe,
}

impl Lines {
    /// An editor on a terminal, else the pipe.
    pub(super) fn open() -> Self {
        if !terminal::is_interactive() {
            return Self::Pipe;
        }
        let config = Config::builder().auto_add_history(true).build();
        let Ok(mut editor) = DefaultEditor::with_config(config) else { return Self::Pipe };
        let history = history_file();
        if let Some(file) = &history {
            // The first time there is none.
            editor.load_history(file).ok();
        }
        Self::Editor(Box::new(editor), history)
    }

    /// Whether input comes from a terminal.
    pub(super) fn is_interactive(&self) -> bool {
        matches!(self, Self::Editor(..))
    }

    /// One input, which may have several lines.
    pub(super) fn read(&mut self) -> Result<Input, Failure> {
        let mut text = String::new();
        let mut prompt = "> ";
        loop {
            match self.line(prompt)? {
                Input::Text(line) => text.push_str(&line),
                Input::End if !text.is_empty() => {
                    return Ok(Input::Mistake(
                        "the text of several lines has no end, so it is not sent".into(),
                    ));
                }
                other => return Ok(other),
            }
            if !is_open(&text) {
                return Ok(unwrap(&text));
            }
            text.push('\n');
            prompt = "… ";
        }
    }

    /// Opens `text` in the editor; none if the person cancels, or if input is a pipe.
    pub(super) fn edit(&mut self, text: &str) -> Option<String> {
        let Self::Editor(editor, _) = self else { return None };
        editor.readline_with_initial("> ", (text, "")).ok().filter(|text| !text.trim().is_empty())
    }

    /// The answer to a question of this program; none if the person cancels, or if input is a pipe.
    pub(super) fn confirm(&mut self, question: &str) -> Result<Option<String>, Failure> {
        let Self::Editor(editor, _) = self else { return Ok(None) };
        // The history is for messages.
        editor.set_auto_add_history(false);
        let answer = self.line(question);
        if let Self::Editor(editor, _) = self {
            editor.set_auto_add_history(true);
        }
        Ok(match answer? {
            Input::Text(text) => Some(text),
            _ => None,
        })
    }

    fn line(&mut self, prompt: &str) -> Result<Input, Failure> {
        match self {
            Self::Editor(editor, _) => match editor.readline(prompt) {
                Ok(line) => Ok(Input::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
                Err(ReadlineError::Eof) => Ok(Input::End),
                Err(error) => Err(Error::io("the terminal", std::io::Error::other(error)).into()),
            },
            Self::Pipe => {
                let mut line = Vec::new();
                let read = stdin().lock().read_until(b'\n', &mut line);
                if read.map_err(|source| Error::io("standard input", source))? == 0 {
                    return Ok(Input::End);
                }
                Ok(match String::from_utf8(line) {
                    Ok(line) => Input::Text(line.trim_end_matches(['\n', '\r']).to_owned()),
                    Err(_) => Input::Mistake("a line is not valid utf-8".into()),
                })
            }
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Self::Editor(editor, Some(file)) = self {
            if let Some(folder) = file.parent() {
                std::fs::create_dir_all(folder).ok();
            }
            if let Err(error) = editor.save_history(file) {
                tracing::debug!(%error, "the history of this chat was not kept");
            }
        }
    }
}

/// `$XDG_STATE_HOME/mlx/history`, else below the home folder.
fn history_file() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = state.or_else(|| Some(std::env::home_dir()?.join(".local/state")))?;
    Some(folder.join("mlx/history"))
}

/// Whether more lines belong to this input.
fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => !rest.contains(FENCE),
        None => text.ends_with('\\'),
    }
}

/// The input without its marks of continuation.
fn unwrap(text: &str) -> Input {
    match text.trim_start().strip_prefix(FENCE).and_then(|rest| rest.split_once(FENCE)) {
        Some((inside, after)) => Input::Fenced(format!("{}{after}", inside.trim_matches('\n'))),
        None => Input::Text(text.replace("\\\n", "\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_are_one_input() {
        assert!(is_open("one \\"));
        assert!(is_open("\"\"\"one"));
        assert!(!is_open("\"\"\"one\ntwo\"\"\""));
        assert!(!is_open("plain"));
        assert!(matches!(unwrap("one \\\ntwo"), Input::Text(text) if text == "one \ntwo"));
        let fenced = unwrap("\"\"\"\n    one\ntwo\n\"\"\"");
        assert!(matches!(fenced, Input::Fenced(text) if text == "    one\ntwo"));
    }
}
