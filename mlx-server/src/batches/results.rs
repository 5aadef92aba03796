//! The result files of a batch: answers in one, errors in the other. A line is appended as soon as it is known. After a crash, the files are
//! read again, and a torn line is cut off.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

use mlx_core::engine::Client;
use serde::Deserialize;
use serde_json::Value;

use super::line::Entry;
use super::record::BatchRecord;
use super::totals::{Counts, Usage};
use crate::files::{Draft, FileError, FileStore, OUTPUT};

/// The results of a batch so far.
pub(super) struct Results {
    /// The files of answers and of errors.
    files: [Draft; 2],
    /// The numbers of the lines with a result.
    pub(super) done: HashSet<u64>,
    pub(super) counts: Counts,
    pub(super) usage: Usage,
}

impl Results {
    /// Opens or creates the files of a batch, and cuts off a torn line.
    pub(super) fn open(store: &Arc<FileStore>, record: &BatchRecord) -> Result<Self, FileError> {
        let [answers, errors] = &record.results;
        let files = [Draft::resume(store, answers)?, Draft::resume(store, errors)?];
        let (done, counts, usage) = (HashSet::new(), Counts::default(), Usage::default());
        let mut results = Self { files, done, counts, usage };
        for index in 0..results.files.len() {
            let whole = results.read(index).map_err(|error| results.files[index].failed(error))?;
            let torn = results.files[index].bytes() - whole;
            if torn > 0 {
                tracing::warn!(batch = record.id, bytes = torn, "cut the torn end of the results of a batch");
                results.files[index].cut(whole)?;
            }
        }
        Ok(results)
    }

    /// Counts the entries of a file. Returns the length of its valid lines.
    fn read(&mut self, index: usize) -> std::io::Result<u64> {
        let mut reader = BufReader::new(self.files[index].file().try_clone()?);
        let (mut whole, mut text) = (0, Vec::new());
        loop {
            text.clear();
            reader.read_until(b'\n', &mut text)?;
            // An unreadable line can only be the torn last one, or follow a power failure. Later lines are computed again.
            let entry = text.strip_suffix(b"\n").and_then(|text| serde_json::from_slice::<Entry>(text).ok());
            let Some(entry) = entry else { return Ok(whole) };
            whole += text.len() as u64;
            self.count(&entry);
        }
    }

    /// Appends the result of a line.
    pub(super) fn add(&mut self, entry: &Entry) -> Result<(), FileError> {
        // Serializing cannot fail for these types.
        let mut text = serde_json::to_vec(entry).unwrap_or_default();
        text.push(b'\n');
        self.files[usize::from(!entry.is_answer())].write(&text)?;
        self.count(entry);
        Ok(())
    }

    fn count(&mut self, entry: &Entry) {
        self.done.insert(entry.line);
        if !entry.is_answer() {
            self.counts.failed += 1;
            return;
        }
        self.counts.completed += 1;
        let body = entry.response.as_ref().map(|response| response.body.get());
        let body: Option<WithUsage> = body.and_then(|body| serde_json::from_str(body).ok());
        self.usage.add(&body.unwrap_or_default().usage);
    }

    /// Completes the files. Returns true for each that has lines; the others are removed.
    pub(super) fn finish(self, batch: &str, client: Client) -> Result<[bool; 2], FileError> {
        let mut has_lines = [false; 2];
        for ((file, kind), has_lines) in self.files.into_iter().zip(["output", "error"]).zip(&mut has_lines) {
            *has_lines = file.bytes() > 0;
            if *has_lines {
                file.finish(&format!("{batch}_{kind}.jsonl"), OUTPUT, client)?;
            } else {
                file.remove();
            }
        }
        Ok(has_lines)
    }
}

#[derive(Default, Deserialize)]
struct WithUsage {
    #[serde(default)]
    usage: Value,
}

#[cfg(test)]
mod tests {
    use mlx_options::ByteSize;
    use serde_json::value::RawValue;

    use super::*;
    use crate::batches::line::{LineError, LineResponse};

    fn answer(line: u64) -> Entry {
        let body = r#"{"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}"#;
        let body = RawValue::from_string(body.into()).expect("json");
        let response = LineResponse { status_code: 200, request_id: "r".into(), ignored_fields: None, body };
        Entry { id: "r".into(), line, custom_id: Some("a".into()), response: Some(response), error: None }
    }

    fn error(line: u64) -> Entry {
        Entry { response: None, error: Some(LineError::new(line, "x", "y")), ..answer(line) }
    }

    #[test]
    fn results_continue_after_any_torn_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Arc::new(FileStore::open(folder.path(), ByteSize(1 << 20)).expect("it can be opened"));
        let record = BatchRecord::new(Client(1), "/v1/embeddings".into(), "file-i".into(), None);
        let open = || Results::open(&store, &record).expect("it can be opened");
        let mut results = open();
        for line in [1, 4] {
            results.add(&answer(line)).expect("it fits");
        }
        results.add(&error(2)).expect("it fits");
        let (counts, usage) = (results.counts, results.usage);
        assert_eq!((counts, usage.total_tokens), (Counts { completed: 2, failed: 1 }, 10));
        assert_eq!(usage.input_tokens_details.cached_tokens, 2);
        drop(results);
        let path = folder.path().join(&record.results[0]).with_extension("data");
        let whole = std::fs::read(&path).expect("it exists");
        let first = 1 + whole.iter().position(|byte| *byte == b'\n').expect("two lines");
        for cut in first..whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("it can be written");
            assert_eq!(open().done, HashSet::from([1, 2]), "after {cut} bytes");
            assert_eq!(std::fs::metadata(&path).expect("it exists").len(), first as u64);
        }
        let mut results = open();
        results.add(&answer(4)).expect("it fits");
        assert_eq!((results.counts, results.usage), (counts, usage));
        assert_eq!(std::fs::read(&path).expect("it exists"), whole);
        assert_eq!(results.finish(&record.id, Client(1)).expect("no fault"), [true, true]);
        assert_eq!(store.get(&record.results[0], Client(1)).expect("complete").bytes, whole.len() as u64);
    }
}
