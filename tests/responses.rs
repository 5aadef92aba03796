//! The Responses API over HTTP: stored responses are continued, resumed, cancelled, and survive a crash.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use mlx_tests::server::Server;
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const PATH: &str = "/v1/responses";

fn request(more: &Value) -> Value {
    // The tokens that end an answer never come.
    let endless = json!({"2": -100, "4": -100});
    let mut request =
        json!({"input": "Go", "seed": 7, "max_output_tokens": 40, "exact": true, "logit_bias": endless});
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

/// What two computations of one request have in common: all but ids and times.
fn answer(response: &Value) -> Value {
    let parts = |item: &Value| (item["type"].clone(), item["content"].clone(), item["arguments"].clone());
    let output: Vec<_> = response["output"].as_array().expect("a list").iter().map(parts).collect();
    json!([output, response["status"], response["usage"]["output_tokens"], response["seed"]])
}

/// Sends a streamed request, reads this many events and leaves. Returns the text that was read.
fn leave_after(server: &Server, request: &Value, events: usize) -> String {
    let mut lines = BufReader::new(server.connect(PATH, request)).lines().map_while(Result::ok);
    assert!(lines.by_ref().find(String::is_empty).is_some(), "the head ends");
    let mut read = String::new();
    let mut left = events;
    while left > 0 {
        let line = lines.next().expect("more events");
        // Chunks of the transfer stand between the events.
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
    // The same conversation, sent whole. Instructions belong to one response.
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
    let whole = server.post(PATH, &request(&json!({})));
    assert_eq!(answer(&events.last().expect("an end")["response"]), answer(&whole.body));
    for count in [1, 3, 9, events.len() - 1] {
        let begun = leave_after(&server, &streamed, count);
        let id = first_id(&begun);
        let after = count - 1;
        let (rest, _) = server.get_events(&format!("{PATH}/{id}?stream=true&starting_after={after}"));
        let (all, resumed) = server.get_events(&format!("{PATH}/{id}?stream=true"));
        assert_eq!(begun + &rest, all, "exactly the missing part");
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
            // Nothing runs before it has begun, either.
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
        assert!(begin.elapsed() < Duration::from_mins(1), "it does not end: {}", response.body);
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
    // The last one was computed again here: its stream goes on where it broke, with the same ids.
    let last = ids.last().expect("three");
    let (all, _) = server.get_events(&format!("{PATH}/{last}?stream=true"));
    assert!(all.starts_with(&begun), "{begun}\n{all}");
    assert_eq!(server.delete(&format!("{PATH}/{last}")).status, 200);
    drop(server);
    let server = with_journal(folder.path());
    assert_eq!(server.get(&format!("{PATH}/{last}")).status, 404, "it was deleted");
    assert_eq!(answer(&fetched(&server, &ids[0])), answer(&reference.body));
}
