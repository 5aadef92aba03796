//! The tools of MCP servers over HTTP: only this server's page and programs with a key may run them, and a bad server never ends a chat.

use std::path::Path;

use mlx_tests::mcp::{assert_server_ends, folder};
use mlx_tests::server::{Reply, Server};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const KEY: (&str, &str) = ("x-api-key", "k");
const TOOLS: &str = "/v1/mcp/tools";
const CALL: &str = "/v1/mcp/call";

fn start(folder: &Path, more: &[&str]) -> Server {
    let file = folder.join("mcp.json").display().to_string();
    Server::start(&SERVER, &[&["--mcp", &file, "--api-key", KEY.1], more].concat())
}

fn tools(server: &Server) -> Value {
    let reply = server.send("GET", TOOLS, &[KEY], &Value::Null);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.body
}

fn call(server: &Server, tool: &str, arguments: &Value) -> Reply {
    call_of(server, "a", tool, arguments)
}

fn call_of(server: &Server, label: &str, tool: &str, arguments: &Value) -> Reply {
    server.post_as(KEY.1, CALL, &json!({"server": label, "tool": tool, "arguments": arguments}))
}

fn text(reply: &Reply) -> (&Value, &Value) {
    (&reply.body["content"][0]["text"], &reply.body["is_error"])
}

#[test]
fn tools_are_listed_and_called_and_bad_servers_are_explained() {
    let work = folder(&[
        ("a", &["--tools", "tide,sum,picture,fail,leave"]),
        ("b", &["--tools", "tide"]),
        ("lazy", &["--tools", "slow"]),
        ("dead", &["--start", "die"]),
        ("hung", &["--start", "hang"]),
    ]);
    let server = start(work.path(), &["--mcp-timeout", "5"]);
    let listed = tools(&server);
    let names: Vec<&str> =
        listed["data"].as_array().expect("a list").iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["a__tide", "sum", "picture", "fail", "leave", "b__tide", "slow"]);
    let tide = &listed["data"][0];
    assert_eq!((&tide["server"], &tide["tool"]), (&json!("a"), &json!("tide")));
    assert_eq!(tide["parameters"]["required"], json!(["place"]));
    let servers = &listed["servers"];
    assert_eq!((&servers[0]["tools"], &servers[0]["error"]), (&json!(5), &Value::Null));
    let reason = |index: usize| servers[index]["error"].as_str().unwrap_or_default();
    assert!(reason(3).contains("\"dead\" failed") && reason(3).contains("no such setting"), "{servers}");
    assert!(reason(4).contains("\"hung\" failed") && reason(4).contains("within 5 seconds"), "{servers}");

    std::thread::scope(|scope| {
        let slow = scope.spawn(|| call_of(&server, "lazy", "slow", &json!({"seconds": 60})));
        let found = call_of(&server, "b", "tide", &json!({"place": "a'b"}));
        assert_eq!(text(&found), (&json!("high tide at <a'b>"), &json!(false)));
        let large = 9_007_199_254_740_993_i64;
        let sum = call(&server, "sum", &json!({"a": large, "b": 0}));
        assert_eq!(text(&sum).0, &json!(format!("{{\"sum\":{large}}}")), "{}", sum.body);
        let picture = call(&server, "picture", &json!({})).body;
        let url = picture["content"][0]["image_url"]["url"].as_str().unwrap_or_default();
        assert!(url.starts_with("data:image/png;base64,iVBOR"), "{picture}");
        assert_eq!(picture["content"][1], json!({"type": "text", "text": "a dot"}));
        let failed = call(&server, "fail", &json!({}));
        assert_eq!(text(&failed), (&json!("it failed on purpose"), &json!(true)));
        let slow = slow.join().expect("no panic");
        assert_eq!((slow.status, &slow.body["error"]["code"]), (502, &json!("mcp_failed")));
        assert!(slow.body.to_string().contains("did not answer the call within 5 seconds"), "{}", slow.body);
    });
    let died = call(&server, "leave", &json!({}));
    assert!(died.status == 502 && died.body.to_string().contains("exit status: 3"), "{}", died.body);
    let again = call(&server, "tide", &json!({"place": "x"}));
    assert_eq!(text(&again).0, "high tide at <x>");
    for (request, status, param) in [
        (json!({"server": "a", "tool": "nothing"}), 404, "tool"),
        (json!({"server": "b", "tool": "sum"}), 404, "tool"),
        (json!({"tool": "tide"}), 400, "server"),
        (json!({"server": "a"}), 400, "tool"),
        (json!({"server": "a", "tool": "sum", "arguments": "{}"}), 400, "arguments"),
    ] {
        let refused = server.post_as(KEY.1, CALL, &request);
        assert_eq!((refused.status, &refused.body["error"]["param"]), (status, &json!(param)), "{request}");
    }
    let log = server.log();
    assert!(log.contains("tool call") && !log.contains("a'b"), "{log}");
}

#[test]
fn only_the_own_page_and_programs_with_a_key_run_tools() {
    let work = folder(&[("a", &["--tools", "tide", "--record", "calls"])]);
    let keys = work.path().join("keys.toml");
    let text = "[[key]]\nname = 'guest'\nkey = 'a-guest-of-the-server'\n\n[[key]]\nname = 'friend'\nkey = 'a-friend-of-the-server'\ntools = true\n";
    std::fs::write(&keys, text).expect("it can be written");
    let keys = keys.display().to_string();
    let server = start(work.path(), &["--keys", &keys, "--cors-origin", "https://app.example"]);
    let own = format!("http://{}", server.address());
    let request = json!({"server": "a", "tool": "tide", "arguments": {"place": "x"}});
    let with = |headers: &[(&str, &str)]| server.send("POST", CALL, headers, &request).status;
    let foreign = "http://127.0.0.1:1";
    for headers in [
        &[][..],
        &[("x-api-key", "wrong")],
        &[("origin", &own)],
        &[KEY, ("origin", foreign)],
        &[KEY, ("origin", "null")],
        &[KEY, ("origin", "https://app.example")],
        &[KEY, ("sec-fetch-site", "cross-site")],
        &[("x-api-key", "a-guest-of-the-server")],
    ] {
        let status = with(headers);
        assert!(status == 401 || status == 403, "{headers:?}: {status}");
    }
    // The page of another origin may chat, but not list tools either.
    let page = [KEY, ("origin", "https://app.example")];
    assert_eq!(server.send("GET", "/v1/models", &page, &Value::Null).status, 200);
    let refused = server.send("GET", TOOLS, &page, &Value::Null);
    assert_eq!((refused.status, &refused.body["error"]["code"]), (403, &json!("origin_not_allowed")));
    let calls = || std::fs::read_to_string(work.path().join("calls")).unwrap_or_default().lines().count();
    assert_eq!(calls(), 0);
    let allowed = [
        &[KEY][..],
        &[KEY, ("origin", &own), ("sec-fetch-site", "same-origin")],
        &[("x-api-key", "a-friend-of-the-server")],
    ];
    for headers in allowed {
        assert_eq!(with(headers), 200, "{headers:?}");
    }
    assert_eq!(calls(), allowed.len());
}

#[test]
fn servers_end_with_the_server_and_without_a_file_there_are_none() {
    let work = folder(&[("a", &["--tools", "tide", "--pid", "pid", "--stubborn"])]);
    let server = start(work.path(), &[]);
    assert_eq!(tools(&server)["data"].as_array().map(Vec::len), Some(1));
    // The test's server is killed.
    drop(server);
    assert_server_ends(work.path());

    let server = Server::start(&SERVER, &[]);
    assert_eq!(server.get(TOOLS).body, json!({"object": "list", "data": [], "servers": []}));
    assert_eq!(server.post(CALL, &json!({"server": "a", "tool": "tide"})).status, 404);
}
