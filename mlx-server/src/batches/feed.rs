//! The lines of an input file that have no result yet.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read};

use mlx_options::ByteSize;

use super::line::{self, LineError, LineRequest};

/// Reads lines of a limited length.
pub(super) struct LineReader {
    file: BufReader<File>,
    max_len: ByteSize,
    /// The number of lines that were read.
    line: u64,
}

/// A line that is not blank: its text, or `None` if it is too long.
type Text = Option<Vec<u8>>;

impl LineReader {
    /// Returns a reader of a file.
    pub(super) fn new(file: File, max_len: ByteSize) -> Self {
        Self { file: BufReader::new(file), max_len, line: 0 }
    }

    /// Returns the number and the text of the next line that is not blank.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Text)>> {
        loop {
            let mut text = Vec::new();
            let limit = self.max_len.0.saturating_add(1);
            if (&mut self.file).take(limit).read_until(b'\n', &mut text)? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if text.last() == Some(&b'\n') {
                text.pop();
            } else if text.len() as u64 == limit {
                self.file.skip_until(b'\n')?;
                return Ok(Some((self.line, None)));
            }
            if !text.trim_ascii().is_empty() {
                return Ok(Some((self.line, Some(text))));
            }
        }
    }
}

/// The lines without a result.
pub(super) struct Feed {
    lines: LineReader,
    endpoint: String,
    done: HashSet<u64>,
    /// Hashes of the custom ids so far. Two of 50 000 ids share one with a probability of one in ten billion.
    ids: HashSet<u64>,
    hasher: RandomState,
}

/// A line without a result.
pub(super) struct Next {
    pub(super) line: u64,
    pub(super) custom_id: Option<String>,
    /// The request, or the mistake in the line.
    pub(super) request: Result<LineRequest, LineError>,
}

impl Feed {
    /// Returns the lines of a reader that are not `done`.
    pub(super) fn new(lines: LineReader, endpoint: &str, done: HashSet<u64>) -> Self {
        let (endpoint, ids, hasher) = (endpoint.to_owned(), HashSet::new(), RandomState::new());
        Self { lines, endpoint, done, ids, hasher }
    }

    /// Returns the next line without a result.
    pub(super) fn next(&mut self) -> io::Result<Option<Next>> {
        while let Some((line, text)) = self.lines.next()? {
            let Some(text) = text else {
                if self.done.contains(&line) {
                    continue;
                }
                let message =
                    format!("the line is larger than the {} that --max-body allows", self.lines.max_len);
                let error = LineError::new(line, "body_too_large", &message);
                return Ok(Some(Next { line, custom_id: None, request: Err(error) }));
            };
            let (custom_id, request) = line::read(&text, &self.endpoint);
            // Lines with a result count, so that the same line is the first with an id after a restart.
            let is_new = custom_id.as_ref().is_none_or(|id| self.ids.insert(self.hasher.hash_one(id)));
            if self.done.contains(&line) {
                continue;
            }
            let mut request = request.map_err(|error| LineError::new(line, error.code(), &error.message()));
            if !is_new {
                let message = "custom_id: an earlier line has the same; give each line its own";
                request = Err(LineError::new(line, "duplicate_custom_id", message));
            }
            return Ok(Some(Next { line, custom_id, request }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn reader(text: &[u8], max_len: u64) -> LineReader {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text).expect("it can be written");
        LineReader::new(file.reopen().expect("it exists"), ByteSize(max_len))
    }

    #[test]
    fn lines_are_numbered_and_bounded() {
        let mut lines = reader(b"one\n\r\n  \n12345678\n123456789\n\xff\nlast", 8);
        let mut read = Vec::new();
        while let Some(line) = lines.next().expect("no fault") {
            read.push(line);
        }
        let text = |line: u64, text: &[u8]| (line, Some(text.to_vec()));
        assert_eq!(
            read,
            [text(1, b"one"), text(4, b"12345678"), (5, None), text(6, b"\xff"), text(7, b"last")]
        );
    }

    #[test]
    fn the_first_line_with_an_id_counts_also_after_a_restart() {
        let line = |id: &str| {
            format!(r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/embeddings", "body": {{}}}}"#)
                + "\n"
        };
        let text = [line("a"), line("b"), line("a"), "x\n".repeat(2)].concat();
        for (done, expected) in [
            (
                vec![],
                vec![(1, ""), (2, ""), (3, "duplicate_custom_id"), (4, "invalid_body"), (5, "invalid_body")],
            ),
            (vec![1, 4], vec![(2, ""), (3, "duplicate_custom_id"), (5, "invalid_body")]),
        ] {
            let done = done.into_iter().collect();
            let mut feed = Feed::new(reader(text.as_bytes(), 1000), "/v1/embeddings", done);
            let mut read = Vec::new();
            while let Some(next) = feed.next().expect("no fault") {
                let error = next.request.err();
                let named =
                    error.as_ref().is_none_or(|it| it.message.starts_with(&format!("line {}: ", next.line)));
                assert!(named, "{error:?}");
                read.push((next.line, error.map_or(String::new(), |error| error.code)));
            }
            let read: Vec<_> = read.iter().map(|(line, code)| (*line, code.as_str())).collect();
            assert_eq!(read, expected);
        }
    }
}
