//! Files over HTTP, and their owners.

use std::collections::BTreeSet;

use mlx_tests::server::Server;
use serde_json::{Value, json};

use super::{CHAT, SERVER, upload, with_files};

#[test]
fn files_are_stored_listed_read_and_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = with_files(folder.path(), &["--files-size", "3MB"]);
    let text = "x".repeat(2_500_000);
    let file = upload(&server, &text);
    let id = file["id"].as_str().expect("an id");
    let shown = json!({"object": "file", "bytes": 2_500_000, "filename": "talk.wav", "purpose": "batch",
        "status": "processed"});
    for (field, value) in shown.as_object().expect("an object") {
        assert_eq!(file[field], *value, "{file}");
    }
    assert_eq!(server.get(&format!("/v1/files/{id}")).body, file);
    assert_eq!(server.text(&format!("/v1/files/{id}/content")), text);
    let (status, reply) = server.form("/v1/files", Some(text.as_bytes()), &[("purpose", "batch")]);
    assert!(status == 413 && reply.contains("--files-size"), "{status} {reply}");
    let other = upload(&server, "a\n");
    let list = |query: &str| server.get(&format!("/v1/files{query}")).body;
    let ids = |list: &Value| -> Vec<Value> {
        list["data"].as_array().expect("a list").iter().map(|file| file["id"].clone()).collect()
    };
    assert_eq!(ids(&list("")).iter().map(Value::to_string).collect::<BTreeSet<_>>().len(), 2);
    let first = list("?limit=1&order=asc");
    assert_eq!((ids(&first).len(), &first["has_more"]), (1, &json!(true)));
    let rest = list(&format!("?order=asc&after={}", ids(&first)[0].as_str().expect("an id")));
    assert_eq!((ids(&rest).len(), &rest["has_more"]), (1, &json!(false)));
    assert_eq!(ids(&list("?purpose=batch_output")), Vec::<Value>::new());
    for (query, field) in
        [("?limit=0", "limit"), ("?after=x", "after"), ("?mood=1", "query"), ("?order=up", "query")]
    {
        assert_eq!(list(query)["error"]["param"], field, "{query}");
    }
    assert_eq!(
        server.delete(&format!("/v1/files/{id}")).body,
        json!({"id": id, "object": "file", "deleted": true})
    );
    for path in
        [format!("/v1/files/{id}"), format!("/v1/files/{id}/content"), "/v1/files/..%2Fclient-secret".into()]
    {
        assert_eq!(server.get(&path).body["error"]["code"], "file_not_found", "{path}");
    }
    for (parts, field) in [
        (&[("purpose", "assistants")][..], "purpose"),
        (&[], "purpose"),
        (&[("purpose", "batch"), ("expires_after[anchor]", "created_at")], "expires_after[anchor]"),
    ] {
        let (status, reply) = server.form("/v1/files", Some(b"a"), parts);
        let reply: Value = serde_json::from_str(&reply).expect("json");
        assert_eq!((status, &reply["error"]["param"]), (400, &json!(field)));
    }
    let (status, reply) = server.form("/v1/files", None, &[("purpose", "batch")]);
    assert!(status == 400 && reply.contains("file"), "{reply}");
    drop(server);
    let server = with_files(folder.path(), &[]);
    assert!(ids(&server.get("/v1/files").body).contains(&other["id"]), "it survives a restart");
    let names = std::fs::read_dir(folder.path()).expect("a folder").flatten();
    let data = names.filter(|entry| entry.path().extension().is_some_and(|end| end == "data"));
    assert_eq!(data.count(), 1, "rejected uploads leave nothing");
}

#[test]
fn without_a_folder_the_endpoints_name_the_flag() {
    let server = Server::start(&SERVER, &[]);
    for reply in [server.get("/v1/files"), server.get("/v1/batches"), server.post("/v1/batches", &json!({}))]
    {
        assert_eq!((reply.status, &reply.body["error"]["code"]), (501, &json!("not_implemented")));
        assert!(reply.body["error"]["message"].to_string().contains("--files-dir"));
    }
}

#[test]
fn a_key_sees_only_its_own_files_and_batches() {
    let folder = tempfile::tempdir().expect("a folder");
    let (key, other) = ("sk-0123456789-keeper", "sk-0123456789-stranger");
    let server = with_files(folder.path(), &["--api-key", key, "--api-key", other]);
    let ask = |key: &str, method: &str, path: &str, body: &Value| {
        server.send(method, path, &[("authorization", &format!("Bearer {key}"))], body)
    };
    let form = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
        --b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"../../x\"\r\n\r\nx\r\n--b--\r\n";
    let form_type = ("content-type", "multipart/form-data; boundary=b");
    let file = server.send_text("POST", "/v1/files", &[("x-api-key", key), form_type], form);
    assert_eq!((file.status, &file.body["filename"]), (200, &json!("../../x")), "{}", file.body);
    let id = file.body["id"].as_str().expect("an id").to_owned();
    let request = json!({"input_file_id": id, "endpoint": CHAT, "completion_window": "24h"});
    assert_eq!(ask(other, "POST", "/v1/batches", &request).status, 404);
    let batch = ask(key, "POST", "/v1/batches", &request).body["id"].as_str().expect("an id").to_owned();
    for path in [format!("/v1/files/{id}"), format!("/v1/files/{id}/content"), format!("/v1/batches/{batch}")]
    {
        let status = |key| ask(key, "GET", &path, &Value::Null).status;
        assert_eq!((status(key), status(other)), (200, 404), "{path}");
    }
    assert_eq!(ask(other, "POST", &format!("/v1/batches/{batch}/cancel"), &Value::Null).status, 404);
    assert_eq!(ask(other, "DELETE", &format!("/v1/files/{id}"), &Value::Null).status, 404);
    for path in ["/v1/files", "/v1/batches"] {
        assert_eq!(ask(other, "GET", path, &Value::Null).body["data"], json!([]));
    }
}
