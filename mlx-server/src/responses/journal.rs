//! The journal: a file for each stored response, written before its first token and again at its end. After a crash the responses
//! that had not ended are computed again from their seeds. Invariants: a file appears as a whole; the folder stays within its size.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use mlx_options::ByteSize;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What computes a response again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The id of the response.
    pub(crate) id: String,
    /// When the request came, in seconds since 1970.
    pub(crate) created: u64,
    /// The seed.
    pub(crate) seed: u64,
    /// Who asked.
    pub(crate) client: u64,
    /// The request.
    pub(crate) request: Value,
    /// The conversation.
    pub(crate) items: Vec<Value>,
    /// How many items of it came with the request.
    pub(crate) own: usize,
}

#[derive(Serialize, Deserialize)]
struct Entry<R> {
    record: R,
    response: Option<Value>,
}

/// What a journal holds when the server starts.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Responses that have ended, the oldest first.
    pub(crate) ended: Vec<(Record, Value)>,
    /// Responses that have not, the oldest first.
    pub(crate) begun: Vec<Record>,
}

/// The journal.
pub(crate) struct Journal {
    folder: PathBuf,
    limit: ByteSize,
    /// Records whose responses have not ended, and the sizes of ended ones in order.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    begun: HashMap<String, Record>,
    ended: Vec<(String, u64)>,
}

impl Journal {
    /// The journal in a folder, which is made if it is not there.
    pub(crate) fn at(folder: &Path, limit: ByteSize) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned(), limit, state: Mutex::default() })
    }

    /// Reads what a server before this one has left. Files that cannot be read are logged and left alone.
    pub(crate) fn open(&self) -> Found {
        let mut entries: Vec<(Entry<Record>, u64)> = Vec::new();
        for path in fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.extension().is_none_or(|kind| kind != "json") {
                continue;
            }
            match read(&path) {
                Ok(entry) => entries.push(entry),
                Err(error) => {
                    tracing::error!(file = %path.display(), %error, "a file of the journal cannot be read");
                }
            }
        }
        entries.sort_by_key(|(entry, _)| entry.record.created);
        let (mut found, mut state) =
            (Found::default(), self.state.lock().unwrap_or_else(PoisonError::into_inner));
        for (Entry { record, response }, bytes) in entries {
            if let Some(response) = response {
                state.ended.push((record.id.clone(), bytes));
                found.ended.push((record, response));
            } else {
                state.begun.insert(record.id.clone(), record.clone());
                found.begun.push(record);
            }
        }
        found
    }

    /// Writes a response that is about to be computed. Its bytes are on the disk when this returns.
    pub(crate) fn begin(&self, record: &Record) -> io::Result<()> {
        self.write(&record.id, &Entry { record, response: None })?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.begun.insert(record.id.clone(), record.clone());
        Ok(())
    }

    /// Writes a response that has ended. The oldest ended ones give way to it.
    pub(crate) fn end(&self, id: &str, response: &Value) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // It was deleted meanwhile.
        let Some(record) = state.begun.remove(id) else { return Ok(()) };
        let bytes = self.write(id, &Entry { record: &record, response: Some(response.clone()) })?;
        state.ended.push((id.to_owned(), bytes));
        let mut total: u64 = state.ended.iter().map(|(_, bytes)| bytes).sum();
        let mut gone = 0;
        while total > self.limit.0 && gone + 1 < state.ended.len() {
            let (oldest, bytes) = &state.ended[gone];
            fs::remove_file(self.path(oldest))?;
            total -= bytes;
            gone += 1;
        }
        state.ended.drain(..gone);
        Ok(())
    }

    /// Forgets a response.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let was_begun = state.begun.remove(id).is_some();
        let place = state.ended.iter().position(|(other, _)| other == id);
        if let Some(place) = place {
            state.ended.remove(place);
        }
        if was_begun || place.is_some() { fs::remove_file(self.path(id)) } else { Ok(()) }
    }

    /// The ids are the server's own: letters and digits.
    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    fn write<R: Serialize>(&self, id: &str, entry: &Entry<R>) -> io::Result<u64> {
        let bytes = serde_json::to_vec(entry)?;
        let trial = self.folder.join(format!("{id}.part"));
        let mut file = File::create(&trial)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&trial, self.path(id))?;
        // The name is on the disk with its folder.
        File::open(&self.folder)?.sync_all()?;
        Ok(bytes.len() as u64)
    }
}

fn read(path: &Path) -> io::Result<(Entry<Record>, u64)> {
    let bytes = fs::read(path)?;
    Ok((serde_json::from_slice(&bytes)?, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(id: &str, created: u64) -> Record {
        let request = json!({"input": "a"});
        Record {
            id: id.into(),
            created,
            seed: u64::MAX,
            client: 7,
            request,
            items: vec![json!({"id": "msg"})],
            own: 1,
        }
    }

    #[test]
    fn a_journal_tells_what_had_not_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::at(folder.path(), ByteSize(1 << 20)).expect("it can be written");
        journal.begin(&record("resp_a", 2)).expect("written");
        journal.begin(&record("resp_b", 1)).expect("written");
        journal.begin(&record("resp_c", 3)).expect("written");
        journal.end("resp_b", &json!({"output": []})).expect("written");
        journal.remove("resp_c").expect("removed");
        // A file that was being written when the machine stopped.
        fs::write(folder.path().join("resp_d.part"), "{").expect("written");
        let found = Journal::at(folder.path(), ByteSize(1 << 20)).expect("a folder").open();
        assert_eq!(found.begun, [record("resp_a", 2)]);
        assert_eq!(found.ended, [(record("resp_b", 1), json!({"output": []}))]);
    }

    #[test]
    fn the_oldest_ended_responses_give_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::at(folder.path(), ByteSize(600)).expect("it can be written");
        for (created, id) in ["resp_a", "resp_b", "resp_c", "resp_d"].into_iter().enumerate() {
            journal.begin(&record(id, created as u64)).expect("written");
            journal.end(id, &json!({"output": ["x".repeat(100)]})).expect("written");
        }
        let found = Journal::at(folder.path(), ByteSize(600)).expect("a folder").open();
        let ids: Vec<&str> = found.ended.iter().map(|(record, _)| record.id.as_str()).collect();
        assert_eq!(ids, ["resp_c", "resp_d"]);
    }
}
