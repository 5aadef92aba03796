//! The chats of terminals, kept so that `--continue` finds the latest: one private file each, below `$XDG_STATE_HOME/mlx/chats`. The oldest are
//! removed beyond a number and a size.

use std::fs::{read_dir, remove_file};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use chat_format::Role;
use mlx_core::chat::ChatSession;
use mlx_hub::path_in;

use super::args::ChatArgs;
use crate::exit_code::Failure;
use crate::input::expanded;
use crate::terminal;

/// The maximum number of files, and their maximum size in bytes.
const MAX_FILES: usize = 100;
const MAX_BYTES: u64 = 64 << 20;

/// The file of a conversation.
pub(super) struct ChatFile {
    /// The file; `None` if the conversation is not stored.
    pub(super) path: Option<PathBuf>,
    /// True if the program chose it, so that it holds one conversation.
    is_kept: bool,
}

impl ChatFile {
    /// Returns the file that the flags name, or a new one for a chat of a terminal.
    pub(super) fn of(args: &ChatArgs) -> Result<Self, Failure> {
        if let Some(file) = &args.session {
            return Ok(Self { path: Some(expanded(&file.to_string_lossy())), is_kept: false });
        }
        if args.continue_latest {
            let missing = || {
                Failure::usage(
                    "--continue",
                    "finds no chat; chats of a terminal are kept unless --no-history is given",
                )
            };
            return Ok(Self { path: Some(latest().ok_or_else(missing)?), is_kept: true });
        }
        let is_kept = terminal::is_interactive() && !args.no_history;
        Ok(Self { path: is_kept.then(new_file).flatten(), is_kept })
    }

    /// Begins a file for a new conversation, so that the old one is kept too.
    pub(super) fn begin_new(&mut self) {
        if self.is_kept {
            self.path = new_file();
        }
    }

    /// Writes a conversation. One without a message is not kept.
    pub(super) fn save(&self, session: &ChatSession) -> Result<(), Failure> {
        let Some(path) = &self.path else { return Ok(()) };
        let has_message = session.messages().iter().any(|message| message.role == Role::User);
        if self.is_kept && !has_message {
            remove_file(path).ok();
            return Ok(());
        }
        Ok(session.save(path)?)
    }
}

/// Returns the folder of this program's state; `None` without a home folder.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let state = path_in("XDG_STATE_HOME").filter(|path| path.is_absolute());
    let folder = state.or_else(|| Some(std::env::home_dir()?.join(".local/state")))?;
    Some(folder.join("mlx"))
}

/// Returns the file for a new chat and removes old ones. `None` if there is no folder for it.
pub(super) fn new_file() -> Option<PathBuf> {
    let folder = state_folder()?.join("chats");
    mlx_files::create_private_folder(&folder).ok()?;
    prune(&folder, MAX_FILES, MAX_BYTES);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis();
    Some(folder.join(format!("{time:015}-{}.json", std::process::id())))
}

/// Returns the file of the latest chat.
pub(super) fn latest() -> Option<PathBuf> {
    files(&state_folder()?.join("chats")).into_iter().next().map(|file| file.path)
}

struct File {
    path: PathBuf,
    modified: SystemTime,
    size: u64,
}

/// Returns the files of a folder, the latest first.
fn files(folder: &Path) -> Vec<File> {
    let file = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let metadata = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let is_chat = path.extension().is_some_and(|extension| extension == "json");
        is_chat.then_some(File { path, modified: metadata.modified().ok()?, size: metadata.len() })
    };
    let mut files: Vec<File> = read_dir(folder).into_iter().flatten().flatten().filter_map(file).collect();
    files.sort_by(|one, other| (other.modified, &other.path).cmp(&(one.modified, &one.path)));
    files
}

/// Removes the oldest files beyond a number and a size.
fn prune(folder: &Path, max_files: usize, max_bytes: u64) {
    let mut total = 0;
    for (index, file) in files(folder).into_iter().enumerate() {
        total += file.size;
        if index >= max_files || total > max_bytes {
            remove_file(file.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_chats_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for number in 0..6 {
            std::fs::write(folder.path().join(format!("{number}.json")), "x".repeat(10))
                .expect("it can be written");
        }
        std::fs::write(folder.path().join("other.txt"), "x").expect("it can be written");
        let names = || -> Vec<String> {
            let name = |file: File| file.path.file_stem().expect("a name").to_string_lossy().into_owned();
            files(folder.path()).into_iter().map(name).collect()
        };
        prune(folder.path(), 4, 1000);
        assert_eq!(names(), ["5", "4", "3", "2"]);
        prune(folder.path(), 4, 25);
        assert_eq!(names(), ["5", "4"]);
        assert!(folder.path().join("other.txt").exists());
    }
}
