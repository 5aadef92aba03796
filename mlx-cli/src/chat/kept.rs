//! The chats of terminals, kept so that `--continue` finds the latest: one private file each, below `$XDG_STATE_HOME/mlx/chats`. The oldest are
//! removed beyond a number and a size, but never the latest. A chat is locked while a program uses it.

use std::fs::{OpenOptions, TryLockError, read_dir, remove_file};
use std::os::unix::fs::OpenOptionsExt;
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
    /// The lock, if the program chose the file. Such a file holds one conversation.
    lock: Option<Lock>,
}

impl ChatFile {
    /// Returns the file of `--continue`, if the flag is given.
    pub(super) fn continued(args: &ChatArgs) -> Result<Option<Self>, Failure> {
        if !args.continue_latest {
            return Ok(None);
        }
        let found = state_folder().map(|folder| files(&folder.join("chats"))).unwrap_or_default();
        let reason = if found.is_empty() {
            "finds no chat; chats of a terminal are kept unless --no-history is given"
        } else {
            "finds only chats that other terminals use; close one of them"
        };
        let (path, lock, skipped) = latest(found).ok_or_else(|| Failure::usage("--continue", reason))?;
        if skipped > 0 {
            terminal::note("the latest chat is open in another terminal; this is an earlier one");
        }
        Ok(Some(Self { path: Some(path), lock: Some(lock) }))
    }

    /// Returns the file of `--session`, or a new one for a chat of a terminal.
    pub(super) fn of(args: &ChatArgs) -> Self {
        if let Some(file) = &args.session {
            return Self { path: Some(expanded(&file.to_string_lossy())), lock: None };
        }
        let is_kept = terminal::is_interactive() && !args.no_history;
        let (path, lock) = is_kept.then(new_file).flatten().unzip();
        Self { path, lock }
    }

    /// Begins a file for a new conversation, so that the old one is kept too.
    pub(super) fn begin_new(&mut self) {
        if self.lock.is_some() {
            (self.path, self.lock) = new_file().unzip();
        }
    }

    /// Writes a conversation. One without a message is not kept.
    pub(super) fn save(&self, session: &ChatSession) -> Result<(), Failure> {
        let Some(path) = &self.path else { return Ok(()) };
        let has_message = session.messages().iter().any(|message| message.role == Role::User);
        if self.lock.is_some() && !has_message {
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

/// Returns the locked file for a new chat and removes old ones. `None` if there is no folder for it.
fn new_file() -> Option<(PathBuf, Lock)> {
    let folder = state_folder()?.join("chats");
    mlx_files::create_private_folder(&folder).ok()?;
    prune(&folder, MAX_FILES, MAX_BYTES);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis();
    let path = folder.join(format!("{time:015}-{}.json", std::process::id()));
    let lock = Lock::take(&path)?;
    Some((path, lock))
}

/// Locks and returns the latest chat that no other program uses. Also returns the number of later chats.
fn latest(files: Vec<File>) -> Option<(PathBuf, Lock, usize)> {
    let mut files = files.into_iter().enumerate();
    files.find_map(|(later, file)| Lock::take(&file.path).map(|lock| (file.path, lock, later)))
}

/// A lock on a chat. It is a separate file, because each save replaces the file of the chat.
struct Lock {
    chat: PathBuf,
    /// `None` if the file system has no locks.
    _file: Option<std::fs::File>,
}

impl Lock {
    /// Locks a chat. Returns `None` if another program uses it.
    fn take(chat: &Path) -> Option<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(chat.with_extension("lock")).ok();
        let file = match file.map(|file| (file.try_lock(), file)) {
            Some((Err(TryLockError::WouldBlock), _)) => return None,
            Some((Ok(()), file)) => Some(file),
            _ => None,
        };
        Some(Self { chat: chat.to_owned(), _file: file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.chat.exists() {
            remove_file(self.chat.with_extension("lock")).ok();
        }
    }
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

/// Removes the oldest files beyond a number and a size. The latest file does not count and stays, and so does a file in use.
fn prune(folder: &Path, max_files: usize, max_bytes: u64) {
    let mut total = 0;
    for (index, file) in files(folder).into_iter().enumerate().skip(1) {
        total += file.size;
        if index >= max_files || total > max_bytes {
            let lock = Lock::take(&file.path);
            if lock.is_some() {
                remove_file(file.path).ok();
            }
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
        assert_eq!(names(), ["5", "4", "3"]);
        let path = |name: &str| folder.path().join(name);
        let used = Lock::take(&path("4.json")).expect("nobody uses it");
        prune(folder.path(), 4, 5);
        assert_eq!(names(), ["5", "4"], "the latest and a file in use stay");
        drop(used);
        prune(folder.path(), 4, 5);
        assert_eq!(names(), ["5"]);
        assert!(path("other.txt").exists() && !path("4.lock").exists());
    }

    #[test]
    fn a_chat_in_use_is_not_continued() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["1.json", "2.json"] {
            std::fs::write(folder.path().join(name), "[]").expect("it can be written");
        }
        let latest = || latest(files(folder.path()));
        let (path, newest, skipped) = latest().expect("a chat");
        assert_eq!((path, skipped), (folder.path().join("2.json"), 0));
        let (path, _older, skipped) = latest().expect("a chat");
        assert_eq!((path, skipped), (folder.path().join("1.json"), 1));
        assert!(latest().is_none());
        drop(newest);
        assert!(latest().is_some_and(|(path, ..)| path.ends_with("2.json")));
    }
}
