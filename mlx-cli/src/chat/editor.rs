//! The line editor of a chat. Multi-line text is one edit and one history entry; Tab completes words; the history is saved after every
//! input.

use std::path::PathBuf;

use mlx_core::Error;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, CompletionType, Config, Context, Editor, Helper, KeyCode, KeyEvent, Modifiers};

use super::complete::candidates;
use super::fence::is_open;
use super::kept::state_folder;

/// The result of reading a line.
pub(super) enum EditorInput {
    Text(String),
    /// Ctrl-C was pressed.
    Interrupted,
    End,
}

/// A line editor with a history.
pub(super) struct LineEditor {
    editor: Editor<ChatHelper, DefaultHistory>,
    history: Option<PathBuf>,
}

impl LineEditor {
    /// Opens an editor for messages, with the stored history if `has_history` is set; `None` if the terminal does not support one.
    pub(super) fn open(has_history: bool) -> Option<Self> {
        let config = Config::builder().auto_add_history(true).completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(config).ok()?;
        editor.set_helper(Some(ChatHelper));
        editor.bind_sequence(KeyEvent(KeyCode::Enter, Modifiers::ALT), Cmd::Newline);
        let history = state_folder().filter(|_| has_history).map(|folder| folder.join("history"));
        if let Some(file) = &history {
            if let Some(folder) = file.parent() {
                mlx_files::create_private_folder(folder).ok();
            }
            // The file does not exist on the first run.
            editor.load_history(file).ok();
        }
        Some(Self { editor, history })
    }

    /// Reads text after a prompt and saves it to the history at once, since the terminal may be closed before the chat ends.
    pub(super) fn read(&mut self, prompt: &str, initial: &str) -> Result<EditorInput, Error> {
        let edited = editor_input(self.editor.readline_with_initial(prompt, (initial, "")));
        if let (Ok(EditorInput::Text(_)), Some(file)) = (&edited, &self.history)
            && let Err(error) = self.editor.append_history(file)
        {
            tracing::debug!(%error, "the chat history was not saved");
        }
        edited
    }
}

/// Reads the answer to a question of the program; it is not added to the history.
pub(super) fn ask(question: &str) -> Result<EditorInput, Error> {
    let mut editor = Editor::<(), DefaultHistory>::new().map_err(terminal_error)?;
    editor_input(editor.readline(question))
}

fn editor_input(outcome: Result<String, ReadlineError>) -> Result<EditorInput, Error> {
    match outcome {
        Ok(text) => Ok(EditorInput::Text(text)),
        Err(ReadlineError::Interrupted) => Ok(EditorInput::Interrupted),
        Err(ReadlineError::Eof) => Ok(EditorInput::End),
        Err(error) => Err(terminal_error(error)),
    }
}

fn terminal_error(error: ReadlineError) -> Error {
    Error::io("the terminal", std::io::Error::other(error))
}

/// The completion and multi-line hooks of the editor.
struct ChatHelper;

impl Helper for ChatHelper {}
impl Highlighter for ChatHelper {}

impl Hinter for ChatHelper {
    type Hint = String;
}

impl Validator for ChatHelper {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let open = is_open(context.input());
        Ok(if open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for ChatHelper {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(candidates(&line[..at]))
    }
}
