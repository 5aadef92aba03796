//! The journal: one file per stored response, written before its first token and again at its end. After a crash, unfinished responses are
//! recomputed from their seeds. Invariants: files are written atomically; the folder stays within its size limit.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use mlx_core::Error;
use mlx_core::engine::Client;
use mlx_files::{create_private_folder, sync_folder, warn_of_readers, write_privately};
use mlx_json::Value;
use mlx_options::{ByteSize, Profile};
use serde::{Deserialize, Serialize};

use crate::client;

/// The data to recompute a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The id of the response.
    pub(crate) id: String,
    /// The time of the request, in seconds since 1970.
    pub(crate) created: u64,
    /// The seed.
    pub(crate) seed: u64,
    /// The client, an HMAC with the secret of this folder. `None` if an earlier version wrote it in another format.
    #[serde(with = "client::stored")]
    pub(crate) client: Option<Client>,
    /// The profile that the request named, since its file may change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<Profile>,
    /// The request.
    pub(crate) request: Value,
    /// The conversation.
    pub(crate) items: Vec<Value>,
    /// The number of items of the request. They are the last ones.
    #[serde(alias = "own")]
    pub(crate) input_len: usize,
}

#[derive(Serialize, Deserialize)]
struct Entry<R> {
    record: R,
    response: Option<Value>,
}

/// The contents of a journal at startup.
#[derive(Debug, Default)]
pub(crate) struct JournalContents {
    /// Finished responses, oldest first.
    pub(crate) finished: Vec<(Record, Value)>,
    /// Unfinished responses, oldest first.
    pub(crate) unfinished: Vec<Record>,
}

/// The journal.
pub(crate) struct Journal {
    folder: PathBuf,
    limit: ByteSize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The records of unfinished responses.
    unfinished: HashMap<String, Record>,
    /// The finished responses, oldest first.
    finished: VecDeque<FinishedFile>,
}

/// The file of a finished response.
struct FinishedFile {
    file: String,
    client: Option<Client>,
    bytes: u64,
}

impl Journal {
    /// Opens the journal in a folder. Creates the folder if it does not exist.
    pub(crate) fn open(folder: &Path, limit: ByteSize) -> mlx_core::Result<Self> {
        create_private_folder(folder)?;
        warn_of_readers(folder);
        Ok(Self { folder: folder.to_owned(), limit, state: Mutex::default() })
    }

    /// Reads the responses that earlier runs of the server wrote. Unreadable files are logged and skipped. Responses without a readable client are
    /// not served, but count toward the size of the journal until they are removed.
    pub(crate) fn load(&self) -> JournalContents {
        let mut entries: Vec<(Entry<Record>, String, u64)> = Vec::new();
        for path in fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let kind = path.extension().and_then(|kind| kind.to_str());
            if name.starts_with("resp_") && matches!(kind, Some("tmp" | "part")) {
                // The machine stopped before the file was renamed.
                fs::remove_file(&path).ok();
            }
            if kind != Some("json") {
                continue;
            }
            match read(&path) {
                Ok((entry, bytes)) => entries.push((entry, name.to_owned(), bytes)),
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "a journal file cannot be read");
                }
            }
        }
        entries.sort_by_key(|(entry, ..)| entry.record.created);
        let (mut contents, mut state, mut orphans) = (JournalContents::default(), self.state(), 0);
        for (Entry { record, response }, file, bytes) in entries {
            let client = record.client;
            if client.is_some() && response.is_none() {
                state.unfinished.insert(record.id.clone(), record.clone());
                contents.unfinished.push(record);
                continue;
            }
            state.finished.push_back(FinishedFile { file, client, bytes });
            match response {
                Some(response) if client.is_some() => contents.finished.push((record, response)),
                _ => orphans += 1,
            }
        }
        if orphans > 0 {
            tracing::warn!(
                responses = orphans,
                folder = %self.folder.display(),
                "responses of an earlier version identify their clients in a format that is no longer supported; \
                 no client can fetch them, and they are removed when the journal is full"
            );
        }
        contents
    }

    /// Writes a response before it is computed. The data is on disk when this returns.
    pub(crate) fn begin(&self, record: &Record) -> mlx_core::Result<()> {
        self.write(&record.id, &Entry { record, response: None })?;
        self.state().unfinished.insert(record.id.clone(), record.clone());
        Ok(())
    }

    /// Writes a finished response, unless it was deleted. Removes the oldest finished responses if the journal is full.
    pub(crate) fn end(&self, id: &str, response: &Value) -> mlx_core::Result<()> {
        let mut state = self.state();
        let Some(record) = state.unfinished.get(id) else { return Ok(()) };
        let bytes = self.write(id, &Entry { record, response: Some(response.clone()) })?;
        let client = state.unfinished.remove(id).and_then(|record| record.client);
        state.finished.push_back(FinishedFile { file: file_of(id), client, bytes });
        let mut total: u64 = state.finished.iter().map(|file| file.bytes).sum();
        while total > self.limit.0
            && state.finished.len() > 1
            && let Some(oldest) = state.finished.pop_front()
        {
            total -= oldest.bytes;
            // Continue with the other files, so that one file cannot make the folder grow.
            if let Err(error) = remove_file(&self.folder.join(&oldest.file)) {
                tracing::error!(%error, "a journal file cannot be removed");
            }
        }
        Ok(())
    }

    /// Removes a response of this client. Returns false if the client has no such response. After an error, the response stays.
    pub(crate) fn remove(&self, id: &str, client: Client) -> mlx_core::Result<bool> {
        let mut state = self.state();
        let file = file_of(id);
        let index = state
            .finished
            .iter()
            .position(|finished| finished.file == file && finished.client == Some(client));
        let is_unfinished = state.unfinished.get(id).is_some_and(|record| record.client == Some(client));
        if index.is_none() && !is_unfinished {
            return Ok(false);
        }
        remove_file(&self.folder.join(file))?;
        sync_folder(&self.folder);
        if let Some(index) = index {
            state.finished.remove(index);
        }
        state.unfinished.remove(id);
        Ok(true)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<R: Serialize>(&self, id: &str, entry: &Entry<R>) -> mlx_core::Result<u64> {
        let path = self.folder.join(file_of(id));
        let bytes = serde_json::to_vec(entry).map_err(|error| Error::io(&path, error.into()))?;
        write_privately(&path, &bytes)?;
        Ok(bytes.len() as u64)
    }
}

/// Returns the file name of a response. The server creates the ids: letters and digits.
fn file_of(id: &str) -> String {
    format!("{id}.json")
}

/// Removes a file. A missing file is not an error.
fn remove_file(path: &Path) -> mlx_core::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

fn read(path: &Path) -> io::Result<(Entry<Record>, u64)> {
    let bytes = fs::read(path)?;
    Ok((serde_json::from_slice(&bytes)?, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::value as json;

    fn record(id: &str, created: u64) -> Record {
        let request = json!({"input": "a"});
        Record {
            id: id.into(),
            created,
            seed: u64::MAX,
            client: Some(Client(7)),
            profile: None,
            request,
            items: vec![json!({"id": "msg"})],
            input_len: 1,
        }
    }

    #[test]
    fn a_journal_tells_what_had_not_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path(), ByteSize(1 << 20)).expect("it can be written");
        journal.begin(&record("resp_a", 2)).expect("written");
        journal.begin(&record("resp_b", 1)).expect("written");
        journal.begin(&record("resp_c", 3)).expect("written");
        journal.end("resp_b", &json!({"output": []})).expect("written");
        assert!(!journal.remove("resp_c", Client(8)).expect("no fault"), "it is another client's");
        assert!(journal.remove("resp_c", Client(7)).expect("removed"));
        // A partially written file, as left behind when the machine stops.
        fs::write(folder.path().join("resp_d.part"), "{").expect("written");
        let contents = Journal::open(folder.path(), ByteSize(1 << 20)).expect("a folder").load();
        assert_eq!(contents.unfinished, [record("resp_a", 2)]);
        assert_eq!(contents.finished, [(record("resp_b", 1), json!({"output": []}))]);
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let written = serde_json::to_string(&record("resp_a", 1)).expect("it has a form in JSON");
        let earlier = written.replace("input_len", "own");
        assert_ne!(written, earlier);
        assert_eq!(serde_json::from_str::<Record>(&earlier).expect("it is read"), record("resp_a", 1));
    }

    #[test]
    fn the_oldest_ended_responses_give_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path(), ByteSize(600)).expect("it can be written");
        for (created, id) in ["resp_a", "resp_b", "resp_c", "resp_d"].into_iter().enumerate() {
            journal.begin(&record(id, created as u64)).expect("written");
            journal.end(id, &json!({"output": ["x".repeat(100)]})).expect("written");
        }
        let contents = Journal::open(folder.path(), ByteSize(600)).expect("a folder").load();
        let ids: Vec<&str> = contents.finished.iter().map(|(record, _)| record.id.as_str()).collect();
        assert_eq!(ids, ["resp_c", "resp_d"]);
    }

    #[test]
    fn a_file_that_was_removed_or_locked_does_not_stop_pruning() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path(), ByteSize(600)).expect("it can be written");
        let end = |created: u64| {
            let id = format!("resp_{created}");
            journal.begin(&record(&id, created)).expect("written");
            journal.end(&id, &json!({"output": ["x".repeat(100)]})).expect("written");
        };
        let files = || {
            let files = fs::read_dir(folder.path()).expect("a folder").flatten();
            let mut names: Vec<String> = files.map(|it| it.file_name().to_string_lossy().into()).collect();
            names.sort();
            names
        };
        (0..2).for_each(end);
        fs::remove_file(folder.path().join("resp_0.json")).expect("it was written");
        // A folder, which cannot be removed as a file.
        fs::remove_file(folder.path().join("resp_1.json")).expect("it was written");
        fs::create_dir(folder.path().join("resp_1.json")).expect("it can be created");
        (2..6).for_each(end);
        assert_eq!(files(), ["resp_1.json", "resp_4.json", "resp_5.json"]);
    }

    #[test]
    fn responses_of_an_older_identity_are_closed_and_are_pruned_first() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path(), ByteSize(600)).expect("it can be written");
        for id in ["resp_a", "resp_b"] {
            journal.begin(&record(id, 1)).expect("written");
        }
        journal.end("resp_a", &json!({"output": []})).expect("written");
        for id in ["resp_a", "resp_b"] {
            let path = folder.path().join(format!("{id}.json"));
            let mut entry: serde_json::Value =
                serde_json::from_slice(&fs::read(&path).expect("a file")).expect("json");
            // The client as a number, as an earlier version wrote it.
            entry["record"]["client"] = serde_json::json!(7);
            fs::write(&path, entry.to_string()).expect("written");
        }
        let journal = Journal::open(folder.path(), ByteSize(600)).expect("a folder");
        let contents = journal.load();
        assert!(contents.finished.is_empty() && contents.unfinished.is_empty(), "{contents:?}");
        assert!(!journal.remove("resp_a", Client(7)).expect("no fault"));
        for id in ["resp_c", "resp_d", "resp_e"] {
            journal.begin(&record(id, 2)).expect("written");
            journal.end(id, &json!({"output": ["x".repeat(100)]})).expect("written");
        }
        assert!(!folder.path().join("resp_a.json").exists() && !folder.path().join("resp_b.json").exists());
    }

    #[test]
    fn a_response_that_was_deleted_before_its_end_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::open(folder.path(), ByteSize(1 << 20)).expect("it can be written");
        journal.begin(&record("resp_a", 1)).expect("written");
        assert!(journal.remove("resp_a", Client(7)).expect("removed"));
        journal.end("resp_a", &json!({"output": []})).expect("nothing is written");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        assert!(!journal.remove("resp_a", Client(7)).expect("no fault"));
    }
}
