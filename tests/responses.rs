//! The Responses API over HTTP: stored responses can be continued, resumed and cancelled, and survive a crash.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const PATH: &str = "/v1/responses";

fn request(more: &Value) -> Value {
    // The tokens that end an answer are never drawn.
    let endless = json!({"2": -100, "4": -100});
    let mut request =
        json!({"input": "Go", "seed": 7, "max_output_tokens": 40, "exact": true, "logit_bias": endless});
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

/// Removes ids and times, which differ between two computations of one request.
fn answer(response: &Value) -> Value {
    let parts = |item: &Value| (item["type"].clone(), item["content"].clone(), item["arguments"].clone());
    let output: Vec<_> = response["output"].as_array().expect("a list").iter().map(parts).collect();
    json!([output, response["status"], response["usage"]["output_tokens"], response["seed"]])
}

/// Sends a streamed request, reads this many events and disconnects. Returns the text that was read.
fn leave_after(server: &Server, request: &Value, events: usize) -> String {
    let mut lines = BufReader::new(server.connect(PATH, request)).lines().map_while(Result::ok);
    assert!(lines.by_ref().find(String::is_empty).is_some(), "the headers must end");
    let mut read = String::new();
    let mut left = events;
    while left > 0 {
        let line = lines.next().expect("more events");
        // Chunk headers of the transfer encoding separate the events.
        if line.starts_with("event: ") || line.starts_with("id: ") || line.starts_with("data: ") {
            read += &(line.clone() + "\n");
        }
        if line.starts_with("data: ") {
            read += "\n";
            left -= 1;
        }
    }
    read
}

fn first_id(text: &str) -> String {
    let data = text.lines().find_map(|line| line.strip_prefix("data: ")).expect("an event");
    let event: Value = serde_json::from_str(data).expect("json");
    event["response"]["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_stored_response_is_fetched_continued_and_deleted() {
    let server = Server::start(&SERVER, &[]);
    let first = server.post(PATH, &request(&json!({"instructions": "Be brief."})));
    assert_eq!((first.status, &first.body["object"]), (200, &json!("response")), "{}", first.body);
    let id = first.body["id"].as_str().expect("an id");
    assert_eq!(server.get(&format!("{PATH}/{id}")).body, first.body);

    let next = server.post(PATH, &request(&json!({"input": "On", "previous_response_id": id})));
    // Send the same conversation in full. Instructions belong to one response.
    let output = first.body["output"].as_array().expect("items").clone();
    let items = [
        vec![json!({"role": "user", "content": "Go"})],
        output.clone(),
        vec![json!({"role": "user", "content": "On"})],
    ]
    .concat();
    let whole = server.post(PATH, &request(&json!({"input": items, "store": false})));
    assert_eq!(answer(&next.body), answer(&whole.body), "{} {}", next.body, whole.body);
    let references: Vec<Value> =
        output.iter().map(|item| json!({"type": "item_reference", "id": item["id"]})).collect();
    let items = [
        vec![json!({"role": "user", "content": "Go"})],
        references,
        vec![json!({"role": "user", "content": "On"})],
    ]
    .concat();
    let referring = server.post(PATH, &request(&json!({"input": items})));
    assert_eq!(answer(&referring.body), answer(&whole.body));

    let next = next.body["id"].as_str().expect("an id");
    let items = server.get(&format!("{PATH}/{next}/input_items?order=asc"));
    assert_eq!(items.body["data"].as_array().map(Vec::len), Some(output.len() + 2), "{}", items.body);
    assert_eq!(server.delete(&format!("{PATH}/{id}")).body["deleted"], true);
    assert_eq!(server.get(&format!("{PATH}/{id}")).status, 404);
    let gone = server.post(PATH, &request(&json!({"previous_response_id": id})));
    assert_eq!((gone.status, &gone.body["error"]["param"]), (404, &json!("previous_response_id")));
    let passing = server.post(PATH, &request(&json!({"store": false})));
    let id = passing.body["id"].as_str().expect("an id");
    assert_eq!(server.get(&format!("{PATH}/{id}")).status, 404);
}

#[test]
fn a_stream_that_breaks_is_resumed_where_it_broke() {
    let server = Server::start(&SERVER, &[]);
    let streamed = request(&json!({"stream": true}));
    let (_, events) = server.named_events(PATH, &streamed);
    let last = &events.last().expect("an end")["response"];
    let id = last["id"].as_str().expect("an id");
    assert_eq!(
        &server.get(&format!("{PATH}/{id}")).body,
        last,
        "the response must be stored when its stream ends"
    );
    let whole = server.post(PATH, &request(&json!({})));
    assert_eq!(answer(&events.last().expect("an end")["response"]), answer(&whole.body));
    for count in [1, 3, 9, events.len() - 1] {
        let begun = leave_after(&server, &streamed, count);
        let id = first_id(&begun);
        let after = count - 1;
        let (rest, _) = server.get_events(&format!("{PATH}/{id}?stream=true&starting_after={after}"));
        let (all, resumed) = server.get_events(&format!("{PATH}/{id}?stream=true"));
        assert_eq!(begun + &rest, all, "the resumed stream must continue exactly");
        assert_eq!(resumed.len(), events.len());
        assert_eq!(answer(&resumed.last().expect("an end")["response"]), answer(&whole.body));
    }
}

#[test]
fn a_response_without_a_reader_ends_soon() {
    let server = Server::start_slow(&SERVER, &["--resume-window", "0.2"]);
    let long = json!({"stream": true, "max_output_tokens": 8000});
    for store in [true, false] {
        let mut request = request(&long);
        request["store"] = store.into();
        let begun = leave_after(&server, &request, 3);
        server.wait_for("mlx_requests_running", 0);
        if store {
            let status = || server.get(&format!("{PATH}/{}", first_id(&begun))).body["status"].clone();
            // No request runs before the response begins either, so wait for its status.
            let deadline = Instant::now() + Duration::from_secs(20);
            while status() == "in_progress" && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(status(), "cancelled");
        }
    }
    let begun = leave_after(&server, &request(&long), 3);
    let cancelled = server.post(&format!("{PATH}/{}/cancel", first_id(&begun)), &json!({}));
    assert_eq!(
        (cancelled.status, &cancelled.body["status"]),
        (200, &json!("cancelled")),
        "{}",
        cancelled.body
    );
}

fn fetched(server: &Server, id: &str) -> Value {
    let begin = Instant::now();
    loop {
        let response = server.get(&format!("{PATH}/{id}"));
        assert_eq!(response.status, 200, "{}", response.body);
        if response.body["status"] != "in_progress" {
            return response.body;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "the response does not end: {}", response.body);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn with_journal(folder: &Path) -> Server {
    Server::start_slow(&SERVER, &["--journal", folder.to_str().expect("text")])
}

#[test]
fn a_response_in_the_journal_survives_a_crash() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = request(&json!({"stream": true, "max_output_tokens": 300}));
    let (mut ids, mut begun) = (Vec::new(), String::new());
    for events in [2, 40, 200] {
        let mut server = with_journal(folder.path());
        begun = leave_after(&server, &long, events);
        ids.push(first_id(&begun));
        server.signal("KILL");
        server.wait();
    }
    let server = with_journal(folder.path());
    let reference = server.post(PATH, &request(&json!({"store": false, "max_output_tokens": 300})));
    for id in &ids {
        let response = fetched(&server, id);
        assert_eq!(answer(&response), answer(&reference.body), "{id}");
    }
    // This server recomputed the last one: its stream resumes at the same point with the same ids.
    let last = ids.last().expect("three");
    let (all, _) = server.get_events(&format!("{PATH}/{last}?stream=true"));
    assert!(all.starts_with(&begun), "{begun}\n{all}");
    assert_eq!(server.delete(&format!("{PATH}/{last}")).status, 200);
    drop(server);
    let server = with_journal(folder.path());
    assert_eq!(server.get(&format!("{PATH}/{last}")).status, 404, "the response was deleted");
    assert_eq!(answer(&fetched(&server, &ids[0])), answer(&reference.body));
}

/// Returns the response files in a journal.
fn stored(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).expect("a folder").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("resp_")).collect()
}

/// Reads a stream up to its first event, and returns that.
fn first_event(reader: &mut BufReader<TcpStream>) -> String {
    reader.get_mut().set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert_ne!(reader.read_line(&mut line).expect("an event"), 0, "the stream ended");
    }
    line
}

/// Begins a long response. Returns its id and the reader of its stream.
fn begin_long(server: &Server) -> (String, BufReader<TcpStream>) {
    let long = request(&json!({"stream": true, "max_output_tokens": 8000}));
    let mut reader = BufReader::new(server.connect(PATH, &long));
    (first_id(&first_event(&mut reader)), reader)
}

/// Opens a second client that follows a response.
fn follow(server: &Server, path: &str) -> BufReader<TcpStream> {
    let mut connection = server.connect_bare();
    write!(connection, "GET {path}?stream=true HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
    let mut reader = BufReader::new(connection);
    first_event(&mut reader);
    reader
}

/// Reads a stream up to the event that ends a cancelled response.
fn expect_cancelled(mut reader: BufReader<TcpStream>) {
    let mut rest = String::new();
    while !rest.contains("\"status\":\"cancelled\"") {
        assert_ne!(reader.read_line(&mut rest).expect("it ends"), 0, "{rest}");
    }
}

#[test]
fn a_response_that_is_deleted_while_it_runs_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut gone = Vec::new();
    for has_journal in [false, true] {
        let server = if has_journal { with_journal(folder.path()) } else { Server::start_slow(&SERVER, &[]) };
        for is_cancelled_first in [false, true] {
            let (id, reader) = begin_long(&server);
            let path = format!("{PATH}/{id}");
            let follower = follow(&server, &path);
            if is_cancelled_first {
                let cancelled = server.post(&format!("{path}/cancel"), &json!({}));
                assert_eq!(cancelled.body["status"], "cancelled");
            }
            assert_eq!(server.delete(&path).body["deleted"], true);
            [reader, follower].into_iter().for_each(expect_cancelled);
            server.wait_for("mlx_requests_running", 0);
            // It is not stored again after it ends.
            for _ in 0..20 {
                assert_eq!(server.get(&path).status, 404);
                std::thread::sleep(Duration::from_millis(10));
            }
            assert_eq!(server.delete(&path).status, 404, "a response can be deleted only once");
            assert_eq!(server.post(&format!("{path}/cancel"), &json!({})).status, 404);
            gone.push(path);
        }
        assert_eq!(stored(folder.path()), Vec::<String>::new());
    }
    let server = with_journal(folder.path());
    assert!(
        gone.iter().all(|path| server.get(path).status == 404),
        "a restart must not restore deleted responses"
    );
}

#[test]
fn a_response_that_is_deleted_before_it_is_computed_again_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = with_journal(folder.path());
    let ids: Vec<String> = (0..4).map(|_| begin_long(&server).0).collect();
    server.signal("KILL");
    server.wait();
    let journal = folder.path().to_str().expect("text");
    // The model is not loaded yet.
    let server = Server::start(&SERVER, &["--journal", journal, "--max-running", "1"]);
    for id in &ids {
        assert_eq!(server.delete(&format!("{PATH}/{id}")).status, 200, "{}", server.log());
    }
    // The model is loaded once this is answered; a deleted response would then be computed.
    assert_eq!(server.post(PATH, &request(&json!({"store": false}))).status, 200);
    server.wait_for("mlx_requests_running", 0);
    assert!(ids.iter().all(|id| server.get(&format!("{PATH}/{id}")).status == 404));
    assert_eq!(stored(folder.path()), Vec::<String>::new());
}

/// The client of a stored response is identified by an HMAC of its key with the journal's secret, so no file reveals the key.
#[test]
fn only_the_key_that_stored_a_response_opens_it() {
    let (home, other_home) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (folder, other_folder) = (home.path().join("a/journal"), other_home.path().join("journal"));
    let (key, other) = ("sk-0123456789-keeper", "sk-0123456789-stranger");
    let start = |folder: &Path| {
        let journal = folder.to_str().expect("text");
        Server::start(&SERVER, &["--journal", journal, "--api-key", key, "--api-key", other])
    };
    let ask = |server: &Server, method: &str, path: &str, key: &str| {
        let bearer = format!("Bearer {key}");
        server.send(method, path, &[("authorization", &bearer)], &Value::Null).status
    };
    let server = start(&folder);
    let created = server.send("POST", PATH, &[("x-api-key", key)], &request(&json!({})));
    assert_eq!(created.status, 200, "{}", created.body);
    let id = created.body["id"].as_str().expect("an id").to_owned();
    let path = format!("{PATH}/{id}");
    for method in ["GET", "DELETE"] {
        assert_eq!(ask(&server, method, &path, other), 404);
    }
    assert_eq!(ask(&server, "GET", &path, key), 200);
    let file = folder.join(format!("{id}.json"));
    let begin = Instant::now();
    while std::fs::read_to_string(&file).expect("it is stored").contains("\"response\":null") {
        assert!(begin.elapsed() < Duration::from_secs(20), "the journal was not written");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);

    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let mut hasher = DefaultHasher::new();
    key.as_bytes().hash(&mut hasher);
    let fast = hasher.finish();
    let digest = Sha256::digest(key);
    let digest = digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let telling = [key.to_owned(), digest[..16].to_owned(), format!("{fast}"), format!("{fast:016x}")];
    for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
        assert_eq!(mode(&entry.path()), 0o600, "{entry:?}");
        let text = std::fs::read_to_string(entry.path()).expect("a text");
        assert!(!telling.iter().any(|it| text.contains(it)), "{entry:?}: {text}");
    }

    let server = start(&folder);
    assert_eq!((ask(&server, "GET", &path, key), ask(&server, "GET", &path, other)), (200, 404));
    drop(server);
    // With another secret, the file belongs to another client.
    std::fs::create_dir(&other_folder).expect("a folder");
    std::fs::copy(&file, other_folder.join(format!("{id}.json"))).expect("a copy");
    let server = start(&other_folder);
    assert_eq!((ask(&server, "GET", &path, key), ask(&server, "DELETE", &path, key)), (404, 404));
}
