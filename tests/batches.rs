//! Files and batches over HTTP: OpenAI's shapes, errors by line, and lines that are answered once, also after `kill -9`.

mod stored_files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use mlx_tests::server::{Reply, Server};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const CHAT: &str = "/v1/chat/completions";

fn with_files(folder: &Path, more: &[&str]) -> Server {
    let folder = folder.to_str().expect("text");
    Server::start(&SERVER, &[&["--files-dir", folder, "--exact"], more].concat())
}

fn chat(seed: usize) -> Value {
    json!({"messages": [{"role": "user", "content": format!("The waves {seed}")}], "seed": seed, "max_tokens": 8})
}

fn line(id: &str, url: &str, body: &Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": url, "body": body}).to_string() + "\n"
}

fn upload(server: &Server, text: &str) -> Value {
    let (status, reply) = server.form("/v1/files", Some(text.as_bytes()), &[("purpose", "batch")]);
    assert_eq!(status, 200, "{reply}");
    serde_json::from_str(&reply).expect("json")
}

fn create(server: &Server, file: &Value, url: &str) -> Reply {
    let request = json!({"input_file_id": file["id"], "endpoint": url, "completion_window": "24h",
        "metadata": {"topic": "tides"}});
    server.post("/v1/batches", &request)
}

/// Uploads lines and starts a batch. Returns its id.
fn start(server: &Server, text: &str, url: &str) -> String {
    let batch = create(server, &upload(server, text), url);
    assert_eq!(batch.status, 200, "{}", batch.body);
    batch.body["id"].as_str().expect("an id").to_owned()
}

fn batch(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/batches/{id}")).body
}

/// Waits until a batch satisfies a condition.
fn wait_for(server: &Server, id: &str, is_true: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let batch = batch(server, id);
        if is_true(&batch) {
            return batch;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{batch}\n{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ended(server: &Server, id: &str) -> Value {
    wait_for(server, id, |batch| {
        ["completed", "failed", "expired", "cancelled"].iter().any(|status| batch["status"] == *status)
    })
}

/// Returns the entries of a result file.
fn entries(server: &Server, file: &Value) -> Vec<Value> {
    let Some(id) = file.as_str() else { return Vec::new() };
    let text = server.text(&format!("/v1/files/{id}/content"));
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).expect("json")).collect()
}

/// Returns the answers of a batch by custom id, each of which must occur once.
fn answers(server: &Server, batch: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for entry in entries(server, &batch["output_file_id"]) {
        assert_eq!((&entry["response"]["status_code"], &entry["error"]), (&json!(200), &Value::Null));
        let id = entry["custom_id"].as_str().expect("an id").to_owned();
        assert_eq!(all.insert(id, entry["response"]["body"].clone()), None, "{entry}");
    }
    all
}

fn content(answer: &Value) -> Value {
    json!([answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"], answer["seed"]])
}

#[test]
fn every_line_is_answered_like_a_request_and_bad_lines_hurt_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_files(folder.path(), &["--max-body", "64KiB"]);
    let ok = |id: &str, seed| line(id, CHAT, &chat(seed));
    let large = "x".repeat(70_000);
    let text = [
        ok("a", 1),
        "{not json\n".into(),
        "\n".into(),
        line("b", CHAT, &json!({"messages": [], "model": "nobody"})),
        line("c", CHAT, &json!({"messages": [{"role": "user", "content": "a"}], "top_p": 2})),
        ok("a", 2),
        line("d", "/v1/completions", &json!({"prompt": "a"})),
        line("e", CHAT, &json!({"messages": [{"role": "user", "content": "a"}], "model": "nobody"})),
        line("f", CHAT, &json!({"messages": [{"role": "user", "content": large}]})),
        line("g", CHAT, &json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "mood": 1})),
        ok("z", 3).trim_end().to_owned(),
    ]
    .concat();
    let id = start(&server, &text, CHAT);
    let batch = ended(&server, &id);
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 10, "completed": 3, "failed": 7}));
    for field in ["created_at", "in_progress_at", "finalizing_at", "completed_at", "expires_at"] {
        assert!(batch[field].is_u64(), "{field}: {batch}");
    }
    assert_eq!((&batch["endpoint"], &batch["metadata"]), (&json!(CHAT), &json!({"topic": "tides"})));
    let answers = answers(&server, &batch);
    let (mut input, mut output) = (0, 0);
    for (id, seed) in [("a", 1), ("z", 3)] {
        let direct = server.post(CHAT, &chat(seed));
        assert_eq!(content(&answers[id]), content(&direct.body), "{id}");
    }
    for answer in answers.values() {
        input += answer["usage"]["prompt_tokens"].as_u64().expect("a number");
        output += answer["usage"]["completion_tokens"].as_u64().expect("a number");
    }
    let usage = &batch["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(input), &json!(output)));
    let output = entries(&server, &batch["output_file_id"]);
    let with_hint = output.iter().find(|entry| entry["custom_id"] == "g").expect("it is answered");
    assert_eq!(with_hint["response"]["ignored_fields"], "mood");
    let mut errors = entries(&server, &batch["error_file_id"]);
    errors.sort_by_key(|entry| entry["line"].as_u64());
    let told: Vec<(u64, Value, Value)> = errors
        .iter()
        .map(|it| {
            let response = &it["response"];
            let code =
                if response.is_null() { &it["error"]["code"] } else { &response["body"]["error"]["code"] };
            (
                it["line"].as_u64().expect("a number"),
                it["custom_id"].clone(),
                json!([code, response["status_code"]]),
            )
        })
        .collect();
    let expected = [
        (2, Value::Null, json!(["invalid_body", null])),
        (4, json!("b"), json!(["invalid_value", 400])),
        (5, json!("c"), json!(["invalid_value", 400])),
        (6, json!("a"), json!(["duplicate_custom_id", null])),
        (7, json!("d"), json!(["invalid_value", null])),
        (8, json!("e"), json!(["model_not_found", 404])),
        (9, Value::Null, json!(["body_too_large", null])),
    ];
    assert_eq!(told, expected);
    assert!(errors[3]["error"]["message"].as_str().expect("a text").starts_with("line 6: custom_id"));
    let log = server.log();
    let answered =
        log.lines().filter(|line| line.contains("batch_req_") && line.contains("\"answer\"")).count();
    assert_eq!(answered, 3, "each answer is logged with its id\n{log}");
}

#[test]
fn the_other_endpoints_take_lines_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_files(folder.path(), &[]);
    for (url, body) in [
        ("/v1/completions", json!({"prompt": "The waves", "seed": 5, "max_tokens": 4})),
        ("/v1/embeddings", json!({"input": "The waves"})),
        ("/v1/responses", json!({"input": "The waves", "seed": 5, "max_output_tokens": 4})),
    ] {
        let batch = ended(&server, &start(&server, &line("a", url, &body), url));
        let answers = answers(&server, &batch);
        let direct = server.post(url, &body).body;
        let part = |answer: &Value| match url {
            "/v1/completions" => answer["choices"].clone(),
            "/v1/embeddings" => answer["data"].clone(),
            _ => answer["output"][0]["content"].clone(),
        };
        assert_eq!(part(&answers["a"]), part(&direct), "{url}");
        assert!(
            batch["usage"]["total_tokens"].as_u64() > Some(0) && batch["error_file_id"].is_null(),
            "{batch}"
        );
        if url == "/v1/responses" {
            let path = format!("{url}/{}", answers["a"]["id"].as_str().expect("an id"));
            assert_eq!(server.get(&path).status, 404, "lines are not stored by default");
        }
    }
}

#[test]
fn mistakes_of_a_batch_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_files(folder.path(), &[]);
    let file = upload(&server, "\n \n");
    for (change, field) in [
        (json!({"input_file_id": "file-none"}), "input_file_id"),
        (json!({"endpoint": "/v1/models"}), "endpoint"),
        (json!({"completion_window": "7d"}), "completion_window"),
        (json!({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}), "output_expires_after"),
    ] {
        let mut request = json!({"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"});
        request.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        assert_eq!(server.post("/v1/batches", &request).body["error"]["param"], field, "{change}");
    }
    let id = create(&server, &file, CHAT).body["id"].as_str().expect("an id").to_owned();
    let batch = ended(&server, &id);
    assert_eq!((&batch["status"], &batch["output_file_id"]), (&json!("failed"), &Value::Null));
    assert!(
        batch["errors"]["data"][0]["message"].to_string().contains("input_file_id: has no line"),
        "{batch}"
    );
    let cancelled = server.post(&format!("/v1/batches/{id}/cancel"), &json!({}));
    assert_eq!((cancelled.status, &cancelled.body["error"]["code"]), (409, &json!("batch_ended")));
    let missing = server.get("/v1/batches/batch_none");
    assert_eq!((missing.status, &missing.body["error"]["code"]), (404, &json!("batch_not_found")));
    let list = server.get("/v1/batches?limit=1").body;
    assert_eq!((&list["first_id"], &list["has_more"]), (&json!(id), &json!(false)));
}

/// Returns many lines whose answers take a while.
fn lines(count: usize) -> String {
    (0..count).map(|seed| line(&format!("line-{seed}"), CHAT, &chat(seed))).collect()
}

#[test]
fn each_line_is_answered_once_although_the_server_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = with_files(folder.path(), &[]);
    let count = 40;
    let id = start(&server, &lines(count), CHAT);
    for answered in [5, 20] {
        wait_for(&server, &id, |batch| batch["request_counts"]["completed"].as_u64() >= Some(answered));
        server.signal("KILL");
        server.wait();
        // The last line of the answers was cut.
        let output = newest_data(folder.path());
        let bytes = std::fs::read(&output).expect("it exists");
        std::fs::write(&output, &bytes[..bytes.len() - 7]).expect("it can be written");
        server = with_files(folder.path(), &[]);
    }
    let batch = ended(&server, &id);
    assert_eq!(batch["request_counts"], json!({"total": count, "completed": count, "failed": 0}));
    let answers = answers(&server, &batch);
    assert_eq!(answers.len(), count);
    for seed in [0, 6, 21, count - 1] {
        let direct = server.post(CHAT, &chat(seed)).body;
        assert_eq!(content(&answers[&format!("line-{seed}")]), content(&direct), "{seed}");
    }
    assert!(server.log().contains("cut the torn end"), "{}", server.log());
}

/// Returns the answers of the running batch: the incomplete file with the most bytes.
fn newest_data(folder: &Path) -> std::path::PathBuf {
    let paths = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let incomplete = paths.filter(|path| {
        path.extension().is_some_and(|end| end == "data") && !path.with_extension("json").exists()
    });
    incomplete.max_by_key(|path| path.metadata().map_or(0, |it| it.len())).expect("a running batch")
}

#[test]
fn a_batch_is_cancelled_and_its_input_is_protected_until_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_files(folder.path(), &["--batch-lines", "1"]);
    let id = start(&server, &lines(500), CHAT);
    let begun = wait_for(&server, &id, |batch| batch["request_counts"]["completed"].as_u64() > Some(0));
    let input = format!("/v1/files/{}", begun["input_file_id"].as_str().expect("an id"));
    let refused = server.delete(&input);
    assert_eq!((refused.status, &refused.body["error"]["code"]), (409, &json!("file_in_use")));
    let cancelled = server.post(&format!("/v1/batches/{id}/cancel"), &json!({}));
    assert_eq!((cancelled.status, &cancelled.body["status"]), (200, &json!("cancelling")));
    let batch = ended(&server, &id);
    assert_eq!(batch["status"], "cancelled");
    let completed = batch["request_counts"]["completed"].as_u64().expect("a number");
    assert!((1..500).contains(&completed), "{batch}");
    assert_eq!(answers(&server, &batch).len() as u64, completed, "the results so far stay");
    assert_eq!(server.delete(&input).status, 200);
    server.wait_for("mlx_requests_running", 0);
}

#[test]
fn a_key_over_its_limit_delays_no_batch_of_another() {
    let (folder, keys) =
        (tempfile::tempdir().expect("a folder"), tempfile::NamedTempFile::new().expect("a file"));
    let (limited, other) = ("sk-0123456789-limited", "sk-0123456789-other");
    let text = format!(
        "[[key]]\nname = 'a'\nkey = '{limited}'\nrequests-per-minute = 3\n[[key]]\nname = 'b'\nkey = '{other}'\n"
    );
    std::fs::write(keys.path(), text).expect("it can be written");
    let keys = keys.path().display().to_string();
    let server = with_files(folder.path(), &["--batch-lines", "1", "--keys", &keys]);
    let send = |key: &str, method: &str, path: &str, body: &Value| {
        server.send(method, path, &[("authorization", &format!("Bearer {key}"))], body)
    };
    let start = |key: &str| {
        let form = format!(
            "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{}\r\n--b--\r\n",
            lines(3)
        );
        let form_type = ("content-type", "multipart/form-data; boundary=b");
        let file = server.send_text("POST", "/v1/files", &[("x-api-key", key), form_type], &form).body;
        let request = json!({"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"});
        send(key, "POST", "/v1/batches", &request).body["id"].as_str().expect("an id").to_owned()
    };
    let completed = |key: &str, id: &str, count: u64| {
        let begin = Instant::now();
        loop {
            let batch = send(key, "GET", &format!("/v1/batches/{id}"), &Value::Null).body;
            if batch["request_counts"]["completed"] == count {
                return batch;
            }
            assert!(begin.elapsed() < Duration::from_secs(30), "{batch}\n{}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    // The upload and the batch itself are requests, too.
    let first = start(limited);
    completed(limited, &first, 1);
    let second = start(other);
    assert_eq!(completed(other, &second, 3)["request_counts"]["failed"], 0);
    assert_eq!(completed(limited, &first, 1)["status"], "in_progress");
}

#[test]
fn a_batch_that_waits_for_others_is_cancelled_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_files(folder.path(), &["--batch-lines", "1"]);
    let file = upload(&server, &lines(500));
    let ids: Vec<_> = (0..33).map(|_| create(&server, &file, CHAT).body["id"].clone()).collect();
    let last = ids.last().and_then(Value::as_str).expect("an id");
    assert_eq!(batch(&server, last)["status"], "validating", "32 batches are in progress");
    assert_eq!(server.post(&format!("/v1/batches/{last}/cancel"), &json!({})).status, 200);
    assert_eq!(ended(&server, last)["status"], "cancelled");
    assert_eq!(batch(&server, ids[0].as_str().expect("an id"))["status"], "in_progress");
}

#[test]
fn lines_that_did_not_run_in_time_expire() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = with_files(folder.path(), &["--batch-lines", "1"]);
    let id = start(&server, &lines(300), CHAT);
    wait_for(&server, &id, |batch| batch["request_counts"]["completed"].as_u64() > Some(0));
    server.signal("KILL");
    server.wait();
    let path = folder.path().join(format!("{id}.json"));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).expect("it exists")).expect("json");
    record["expires"] = json!(1);
    std::fs::write(&path, record.to_string()).expect("it can be written");
    let server = with_files(folder.path(), &[]);
    let batch = ended(&server, &id);
    assert_eq!(batch["status"], "expired");
    let (completed, failed) = (&batch["request_counts"]["completed"], &batch["request_counts"]["failed"]);
    assert_eq!(completed.as_u64().expect("a number") + failed.as_u64().expect("a number"), 300);
    let errors = entries(&server, &batch["error_file_id"]);
    assert!(errors.iter().all(|entry| entry["error"]["code"] == "batch_expired"));
    let expired: BTreeSet<_> = errors.iter().map(|entry| entry["custom_id"].to_string()).collect();
    assert_eq!(expired.len() + answers(&server, &batch).len(), 300);
}

#[test]
fn chats_continue_beside_a_batch() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_files(folder.path(), &["--max-running", "2"]);
    let id = start(&server, &lines(200), CHAT);
    wait_for(&server, &id, |batch| batch["request_counts"]["completed"].as_u64() > Some(0));
    for seed in 0..5 {
        assert_eq!(server.post(CHAT, &chat(seed)).status, 200);
    }
    let counts = batch(&server, &id)["request_counts"].clone();
    assert!(counts["completed"].as_u64() < Some(200), "the chats wait for no line: {counts}");
    assert_eq!(counts["failed"], 0, "no line fails because the server is busy: {counts}");
}
