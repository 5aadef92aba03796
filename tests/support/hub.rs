//! A local Hub for tests. It implements the API that a download needs and can simulate faults. Every error panics.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use serde_json::{Value, json};

/// The commit of its only model, `org/tiny`.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The other model, which has only a tokenizer.
pub const LENDER: &str = "openai/whisper-base";
/// The commit of the other model.
const LENT_COMMIT: &str = "abcdef0123456789abcdef0123456789abcdef01";

/// The model of the Hub and the faults to simulate.
#[derive(Default)]
pub struct Behavior {
    /// The files of the model.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The number of weight responses to cut off, each after [`Behavior::cut_after`] bytes.
    pub cuts: usize,
    /// The number of bytes before a cut.
    pub cut_after: usize,
    /// The number of weight responses to corrupt in one byte.
    pub wrong: usize,
    /// The number of responses to replace with a status, and the status.
    pub refuse: (usize, u16),
    /// A status and `X-Error-Code` for every response.
    pub closed: Option<(u16, &'static str)>,
    /// True to ignore range requests for weights.
    pub ignores_ranges: bool,
    /// True to omit sizes and checksums from the list of files, as some mirrors do.
    pub hides_checksums: bool,
    /// The number of redirects within this host before each address, each in another form.
    pub hops: usize,
    /// True to report checksums and sizes only in the responses of files, and to redirect nothing to a storage server, as some mirrors do.
    pub is_mirror: bool,
    /// The endpoint of the storage server; by default another name of this host.
    pub storage: Option<String>,
    /// The size that the list reports for weights instead of the actual one.
    pub claimed_size: Option<u64>,
    /// A pause after every 4 KiB of weights.
    pub pause: Duration,
    /// The commit to report instead of [`COMMIT`].
    pub commit: Option<String>,
    /// The tokenizer of another model, [`LENDER`]. `None` if the Hub does not have that model.
    pub tokenizer: Option<Vec<u8>>,
    /// All requests received.
    pub requests: Vec<Request>,
    /// Bytes sent of each file.
    pub sent: BTreeMap<String, usize>,
}

/// A received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Method and path.
    pub line: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

/// A running Hub; it ends with the test process.
pub struct Hub {
    address: String,
    behavior: Arc<Mutex<Behavior>>,
}

impl Hub {
    /// Starts a Hub that serves the files of `folder`, and some files that are not needed, as `org/tiny`.
    ///
    /// # Panics
    /// If the server cannot be started.
    pub fn start(folder: &Path) -> Self {
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(folder).expect("the fixture is in the repository") {
            let path = entry.expect("the folder can be listed").path();
            let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
            files.insert(name, std::fs::read(&path).expect("the file can be read"));
        }
        for unneeded in
            ["README.md", "pytorch_model.bin", "original/config.json", "onnx/model.onnx", "tiny.gguf"]
        {
            files.insert(unneeded.to_owned(), b"not needed".to_vec());
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("127.0.0.1:{}", listener.local_addr().expect("an address").port());
        let hub = Self { address, behavior: Arc::new(Mutex::new(Behavior { files, ..Behavior::default() })) };
        let behavior = Arc::clone(&hub.behavior);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let behavior = Arc::clone(&behavior);
                // A client may disconnect at any time.
                std::thread::spawn(move || answer(&stream, &behavior).ok());
            }
        });
        hub
    }

    /// Returns the value for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the behavior, to inspect and change it.
    pub fn behave(&self) -> MutexGuard<'_, Behavior> {
        lock(&self.behavior)
    }

    /// Returns the bytes of a file that were sent so far.
    pub fn sent(&self, file: &str) -> usize {
        self.behave().sent.get(file).copied().unwrap_or_default()
    }
}

fn lock(behavior: &Mutex<Behavior>) -> MutexGuard<'_, Behavior> {
    behavior.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the checksum that names a file: SHA-256 for weights, git's SHA-1 for others.
pub fn etag(file: &str, bytes: &[u8]) -> String {
    let sum = if is_large(file) {
        digest(&SHA256, bytes)
    } else {
        let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        context.update(format!("blob {}\0", bytes.len()).as_bytes());
        context.update(bytes);
        context.finish()
    };
    let halves = sum.as_ref().iter().flat_map(|byte| [byte >> 4, byte & 15]);
    halves.filter_map(|half| char::from_digit(half.into(), 16)).collect()
}

fn is_large(file: &str) -> bool {
    Path::new(file).extension().is_some_and(|end| end == "safetensors" || end == "gguf")
}

fn answer(mut stream: &TcpStream, behavior: &Mutex<Behavior>) -> std::io::Result<()> {
    let request = read(stream)?;
    let mut words = request.line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
    let refusal = {
        let mut now = lock(behavior);
        now.requests.push(request.clone());
        let later = (now.refuse.0 > 0).then_some((now.refuse.1, ""));
        now.refuse.0 = now.refuse.0.saturating_sub(1);
        now.closed.or(later)
    };
    if let Some((status, code)) = refusal {
        let head = format!(
            "HTTP/1.1 {status} No\r\nx-error-code: {code}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        return stream.write_all(head.as_bytes());
    }
    let hops = lock(behavior).hops;
    if let Some(location) = hop(hops, &path, stream.local_addr()?.port()) {
        let head = format!(
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        return stream.write_all(head.as_bytes());
    }
    let path = path.split('?').next().unwrap_or_default();
    if let Some(rest) = path.strip_prefix("/api/models/org/tiny/revision/") {
        let revision = rest;
        let commit = lock(behavior).commit.clone().unwrap_or_else(|| COMMIT.to_owned());
        if revision == "main" || revision == "refs%2Fpr%2F1" || revision == commit {
            let body = listing(&lock(behavior), &commit).to_string();
            return ok(stream, body.as_bytes());
        }
        return stream.write_all(not_found("RevisionNotFound").as_bytes());
    }
    if let Some(lent) = lock(behavior).tokenizer.clone() {
        let lent = Behavior { files: [("tokenizer.json".to_owned(), lent)].into(), ..Behavior::default() };
        if path == format!("/api/models/{LENDER}/revision/main") {
            return ok(stream, listing(&lent, LENT_COMMIT).to_string().as_bytes());
        }
        if path == format!("/{LENDER}/resolve/{LENT_COMMIT}/tokenizer.json") {
            return ok(stream, &lent.files["tokenizer.json"]);
        }
    }
    let resolved = path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/"));
    let Some(file) = resolved.or_else(|| path.strip_prefix("/cdn/")) else {
        return stream.write_all(not_found("RepoNotFound").as_bytes());
    };
    let Some(bytes) = lock(behavior).files.get(file).cloned() else {
        return stream.write_all(not_found("EntryNotFound").as_bytes());
    };
    let (is_mirror, storage) = {
        let now = lock(behavior);
        (now.is_mirror, now.storage.clone())
    };
    if !is_mirror && (method == "HEAD" || (is_large(file) && resolved.is_some())) {
        // Like the real Hub, redirect to another host.
        let storage = storage.unwrap_or(format!("http://localhost:{}", stream.local_addr()?.port()));
        let location = format!("{storage}/cdn/{file}");
        let (etag, size) = (etag(file, &bytes), bytes.len());
        let head = format!(
            "HTTP/1.1 302 Found\r\nlocation: {location}\r\nx-linked-etag: \"{etag}\"\r\nx-linked-size: {size}\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        );
        return stream.write_all(head.as_bytes());
    }
    if method == "HEAD" {
        let (etag, size) = (etag(file, &bytes), bytes.len());
        let head = format!(
            "HTTP/1.1 200 OK\r\netag: W/\"{etag}\"\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n"
        );
        return stream.write_all(head.as_bytes());
    }
    send(stream, behavior, file, bytes, request.range.as_deref())
}

/// Returns the target of the next redirect until `hops` were followed. The query contains their number.
fn hop(hops: usize, path: &str, port: u16) -> Option<String> {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let next = query.strip_prefix("hop=").and_then(|number| number.parse().ok()).unwrap_or(0) + 1;
    let file = path.rsplit('/').next().unwrap_or_default();
    (next <= hops && !path.starts_with("/cdn/")).then(|| match next % 4 {
        1 => format!("{path}?hop={next}"),
        2 => format!("{file}?hop={next}"),
        3 => format!("//127.0.0.1:{port}{path}?hop={next}"),
        _ => format!("http://127.0.0.1:{port}{path}?hop={next}"),
    })
}

fn read(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream).lines();
    let line = lines.next().unwrap_or_else(|| Err(ErrorKind::UnexpectedEof.into()))?;
    let mut request = Request { line, range: None, authorization: None };
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("range") => {
                request.range = Some(value.to_owned());
            }
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                request.authorization = Some(value.to_owned());
            }
            _ if line.is_empty() => break,
            _ => {}
        }
    }
    Ok(request)
}

fn ok(mut stream: &TcpStream, body: &[u8]) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

fn not_found(code: &str) -> String {
    format!(
        "HTTP/1.1 404 Not Found\r\nx-error-code: {code}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
}

fn listing(behavior: &Behavior, commit: &str) -> Value {
    let sibling = |(file, bytes): (&String, &Vec<u8>)| {
        if behavior.hides_checksums {
            return json!({ "rfilename": file });
        }
        let mut sibling = json!({ "rfilename": file, "size": bytes.len(), "blobId": etag("pointer", bytes) });
        if is_large(file) {
            let size = behavior.claimed_size.unwrap_or(bytes.len() as u64);
            sibling["lfs"] = json!({ "sha256": etag(file, bytes), "size": size, "pointerSize": 134 });
        }
        sibling
    };
    let siblings: Vec<Value> = behavior.files.iter().map(sibling).collect();
    json!({ "id": "org/tiny", "sha": commit, "siblings": siblings })
}

fn send(
    mut stream: &TcpStream,
    behavior: &Mutex<Behavior>,
    file: &str,
    mut bytes: Vec<u8>,
    range: Option<&str>,
) -> std::io::Result<()> {
    let total = bytes.len();
    let mut now = lock(behavior);
    let start =
        range.and_then(|range| range.strip_prefix("bytes=")?.trim_end_matches('-').parse::<usize>().ok());
    let start = start.filter(|_| !(now.ignores_ranges && is_large(file)));
    let (mut end, pause) = (total, if is_large(file) { now.pause } else { Duration::ZERO });
    if is_large(file) && now.wrong > 0 {
        now.wrong -= 1;
        bytes[total - 1] ^= 1;
    }
    if is_large(file) && now.cuts > 0 {
        now.cuts -= 1;
        end = total.min(start.unwrap_or_default() + now.cut_after);
    }
    drop(now);
    let first = start.unwrap_or_default();
    let status = match start {
        Some(first) => format!("206 Partial Content\r\ncontent-range: bytes {first}-{}/{total}", total - 1),
        None => "200 OK".to_owned(),
    };
    let etag = etag(file, &bytes);
    let length = total - first;
    let head = format!(
        "HTTP/1.1 {status}\r\netag: \"{etag}\"\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    for block in bytes[first..end].chunks(4096) {
        stream.write_all(block)?;
        *lock(behavior).sent.entry(file.to_owned()).or_default() += block.len();
        std::thread::sleep(pause);
    }
    Ok(())
}
