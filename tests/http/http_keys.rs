//! Named API keys: limits of one key affect no other, usage is counted, and the file is read again when it changes.

use std::path::Path;
use std::process::Command;

use mlx_tests::model_folder;
use mlx_tests::server::{Reply, Server};
use serde_json::{Value, json};

use super::{SERVER, wait_until};

const FEW: &str = "few-requests-0001";
const SHORT: &str = "few-tokens-000002";
const FREE: &str = "no-limits-0000003";

fn write(path: &Path, more: &str) {
    let text = format!(
        "[[key]]\nname = 'few'\nkey = '{FEW}'\nrequests-per-minute = 2\n\n\
         [[key]]\nname = 'short'\nkey = '{SHORT}'\ntokens-per-minute = 20\n\n\
         [[key]]\nname = 'free'\nkey = '{FREE}'\n{more}"
    );
    std::fs::write(path, text).expect("it can be written");
}

fn complete(server: &Server, key: &str, tokens: u64) -> Reply {
    server.post_as(key, "/v1/completions", &json!({"prompt": "a", "max_tokens": tokens, "ignore_eos": true}))
}

fn usage(server: &Server, key: &str) -> Vec<Value> {
    let header = format!("Bearer {key}");
    let reply = server.send("GET", "/v1/usage", &[("Authorization", &header)], &Value::Null);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body["data"].as_array().expect("a list").clone()
}

#[test]
fn a_key_over_its_limit_waits_and_others_do_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("keys.toml");
    write(&path, "");
    let file = path.display().to_string();
    let server = Server::start(&SERVER, &["--keys", &file, "--api-key", "operator"]);
    assert_eq!(complete(&server, "nobody-knows-me-0", 1).status, 401);
    assert_eq!([1, 1].map(|tokens| complete(&server, FEW, tokens).status), [200, 200]);
    let limited = complete(&server, FEW, 1);
    assert_eq!((limited.status, &limited.body["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    let wait: u64 = limited.header("retry-after").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    // The answer that exceeds the limit is whole; the next request waits.
    assert_eq!(complete(&server, SHORT, 30).body["usage"]["completion_tokens"], 30);
    assert_eq!(complete(&server, SHORT, 1).status, 429);
    for _ in 0..4 {
        assert_eq!(complete(&server, FREE, 1).status, 200);
        assert_eq!(complete(&server, "operator", 1).status, 200);
    }
    // Reading does not count, so it is not limited.
    let header = format!("Bearer {FEW}");
    for path in ["/v1/models", "/v1/usage", "/metrics"] {
        let status = server.send("GET", path, &[("Authorization", &header)], &Value::Null).status;
        assert_eq!(status, 200, "{path}");
    }
    let own = usage(&server, SHORT);
    assert_eq!((own.len(), &own[0]["name"], &own[0]["completion_tokens"]), (1, &json!("short"), &json!(30)));
    assert_eq!((&own[0]["requests"], &own[0]["rejected"]), (&json!(1), &json!(1)));
    assert_eq!(own[0]["tokens_per_minute"], 20);
    let all: Vec<Value> = usage(&server, "operator").iter().map(|it| it["name"].clone()).collect();
    assert_eq!(all, ["few", "free", "short"]);

    // A file with a mistake keeps the old keys, and the log says why.
    write(&path, "mood = 1\n");
    wait_until("the log names the mistake", || server.log().contains("mood"));
    assert!(server.log().contains(": line ") && !server.log().contains(FREE), "{}", server.log());
    assert_eq!(complete(&server, FREE, 1).status, 200);
    let fourth = "a-new-key-00000004";
    write(&path, &format!("[[key]]\nname = 'new'\nkey = '{fourth}'\n"));
    wait_until("the new key is accepted", || complete(&server, fourth, 1).status == 200);
    assert_eq!(complete(&server, FEW, 1).status, 429, "its use is remembered");
    // A new key of the same name continues its use.
    let fifth = "another-key-000005";
    std::fs::write(&path, format!("[[key]]\nname = 'short'\nkey = '{fifth}'\n")).expect("it can be written");
    wait_until("the replaced key is accepted", || complete(&server, fifth, 1).status == 200);
    let all = usage(&server, "operator");
    assert_eq!((all.len(), &all[0]["name"]), (1, &json!("short")), "{all:?}");
    assert!(all[0]["completion_tokens"].as_u64().expect("a number") > 30, "{all:?}");
}

#[test]
fn tokens_count_while_answers_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("keys.toml");
    write(&path, "");
    let server = Server::start(&SERVER, &["--keys", &path.display().to_string()]);
    let request = json!({"prompt": "a", "max_tokens": 400, "ignore_eos": true});
    std::thread::scope(|scope| {
        let long = scope.spawn(|| server.post_as(SHORT, "/v1/completions", &request));
        wait_until("the running answer has reached the limit", || complete(&server, SHORT, 1).status == 429);
        assert_eq!(long.join().expect("no panic").status, 200, "the running answer is not cut");
    });
}

#[test]
fn a_key_has_limits_or_none() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("keys.toml");
    write(&path, "");
    let model = model_folder("llama-f32");
    let mut command = Command::new(SERVER[0]);
    command.arg("-m").arg(model).arg("--keys").arg(&path).args(["--port", "0", "--api-key", FREE]);
    let output = command.output().expect("it runs");
    let refused = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && refused.contains("also one of --api-key") && !refused.contains(FREE),
        "{refused}"
    );
}
