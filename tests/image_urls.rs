//! Pictures given by URL over HTTP: every API answers as if the bytes had been sent.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Method, Request};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use mlx_server::config::Config;
use mlx_server::{AppState, app};
use mlx_tests::golden_folder;
use mlx_tests::server::Server;
use serde_json::{Value, json};
use tower::ServiceExt;

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];

fn picture() -> Vec<u8> {
    std::fs::read(golden_folder().join("pictures/mistral3-f32/48x32.png")).expect("the fixture is there")
}

/// Starts a host that answers every request with the picture, and returns its URL.
fn start_host() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let picture = picture();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", picture.len());
            stream.write_all(&[head.as_bytes(), &picture].concat()).ok();
        }
    });
    format!("http://127.0.0.1:{port}/picture.png")
}

fn config() -> Config {
    let mut config = Config::default();
    config.models.model = vec![format!("tiny={}", golden_folder().join("pictures/mistral3-f32").display())];
    config.network.allow_image_urls = vec!["127.0.0.1".into()];
    config
}

async fn send(state: &AppState, request: Request<Body>) -> (u16, Value) {
    let response = app(state.clone()).oneshot(request).await.expect("an answer");
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&bytes).expect("JSON"))
}

async fn post(state: &AppState, path: &str, body: &Value) -> (u16, Value) {
    send(state, from_here(state, path, body)).await
}

/// Returns a request as the server's connections pass it on, so that the client can fetch its stored responses over HTTP.
fn from_here(state: &AppState, path: &str, body: &Value) -> Request<Body> {
    let client = state.client_at(Ipv4Addr::LOCALHOST.into());
    let request = Request::post(path).header("host", "localhost").extension(client);
    request.body(Body::from(body.to_string())).expect("a request")
}

/// Returns the requests of all APIs that accept URLs, and the part of their answers that must be equal.
fn requests(url: &str) -> Vec<(&'static str, Value, &'static str)> {
    let text = |kind: &str| json!({"type": kind, "text": "What is this?"});
    let user = |content: Value| json!([{"role": "user", "content": content}]);
    let chat = user(json!([{"type": "image_url", "image_url": {"url": url}}, text("text")]));
    let items = user(json!([{"type": "input_image", "image_url": url}, text("input_text")]));
    let blocks = json!([{"type": "image", "source": {"type": "url", "url": url}}, text("text")]);
    let result = json!({"type": "tool_result", "tool_use_id": "1", "content": blocks});
    let call = json!({"type": "tool_use", "id": "1", "name": "look", "input": {}});
    let results = json!([
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [text("text"), call]},
        {"role": "user", "content": [result]},
    ]);
    vec![
        (
            "/v1/chat/completions",
            json!({"messages": chat, "temperature": 0, "max_tokens": 8}),
            "/choices/0/message",
        ),
        ("/v1/chat/render", json!({"messages": chat}), ""),
        (
            "/v1/responses",
            json!({"input": items, "temperature": 0, "max_output_tokens": 8}),
            "/output/0/content",
        ),
        ("/v1/messages", json!({"messages": user(blocks), "temperature": 0, "max_tokens": 8}), "/content"),
        ("/v1/messages/count_tokens", json!({"messages": results}), ""),
    ]
}

/// Reads the only file of a journal after its response has ended.
async fn journal(folder: &Path) -> Value {
    loop {
        let files = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
        let files: Vec<PathBuf> =
            files.filter(|path| path.extension().is_some_and(|kind| kind == "json")).collect();
        assert!(files.len() < 2, "{files:?}");
        let texts = files.iter().map(|path| std::fs::read_to_string(path).expect("a file"));
        let mut entries = texts.map(|text| serde_json::from_str::<Value>(&text).expect("JSON"));
        match entries.next_back() {
            Some(entry) if !entry["response"].is_null() => return entry,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// A journal stores the pictures and not their URLs, so another server can continue a response without fetching.
#[test]
fn a_response_is_computed_again_without_the_host_of_its_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_url = format!("data:image/png;base64,{}", STANDARD.encode(picture()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (ended, mut entry) = runtime.block_on(async {
        let mut config = config();
        config.responses.journal = Some(folder.path().to_owned());
        let state =
            AppState::with_address_rule(config, |it| it == IpAddr::from([127, 0, 0, 1])).expect("valid");
        let (path, request, _) = requests(&start_host()).swap_remove(2);
        let (status, ended) = post(&state, path, &request).await;
        assert_eq!(status, 200, "{ended}");
        (ended, journal(folder.path()).await)
    });
    let text = entry.to_string();
    assert!(text.contains(&data_url) && !text.contains("http://"), "{text}");
    // An entry of a response that has not ended.
    (entry["response"], entry["record"]["id"]) = (Value::Null, json!("resp_begun"));
    std::fs::write(folder.path().join("resp_begun.json"), entry.to_string()).expect("it can be written");
    let flags = ["--journal", folder.path().to_str().expect("text")];
    let server = Server::start_on(&SERVER, &golden_folder().join("pictures/mistral3-f32"), &flags);
    let id = ended["id"].as_str().expect("an id");
    assert_eq!(server.get(&format!("/v1/responses/{id}")).body, ended);
    let again = || server.get("/v1/responses/resp_begun").body;
    let deadline = Instant::now() + Duration::from_mins(1);
    while again()["status"] == "in_progress" && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = |response: &Value| response["output"][0]["content"][0]["text"].clone();
    assert!(text(&ended).as_str().is_some_and(|text| !text.is_empty()), "{ended}");
    assert_eq!(text(&again()), text(&ended), "{}", again());
    let asked = json!({"previous_response_id": id, "input": "And now?", "max_output_tokens": 4});
    let next = server.post("/v1/responses", &asked);
    assert_eq!(next.status, 200, "{}", next.body);
}

#[test]
fn every_api_answers_as_if_the_picture_had_been_sent() {
    let url = start_host();
    let data_url = format!("data:image/png;base64,{}", STANDARD.encode(picture()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let fetching =
            AppState::with_address_rule(config(), |it| it == IpAddr::from([127, 0, 0, 1])).expect("valid");
        let public = AppState::new(config()).expect("valid");
        for ((path, by_url, part), (_, sent, _)) in requests(&url).into_iter().zip(requests(&data_url)) {
            let (status, answer) = post(&fetching, path, &by_url).await;
            assert_eq!(status, 200, "{path}: {answer}");
            let (_, expected) = post(&fetching, path, &sent).await;
            assert!(answer.pointer(part).is_some(), "{answer}");
            assert_eq!(answer.pointer(part), expected.pointer(part), "{path}");
            let (status, refused) = post(&public, path, &by_url).await;
            let text = refused.to_string();
            assert!(status == 400 && text.contains("127.0.0.1 has no public address"), "{path}: {text}");
        }
        // The stored response contains the picture, so that the conversation can continue unchanged.
        let (_, request, _) = requests(&url).swap_remove(2);
        let (_, response) = post(&fetching, "/v1/responses", &request).await;
        let id = response["id"].as_str().expect("it is stored");
        let mut items = from_here(&fetching, &format!("/v1/responses/{id}/input_items"), &Value::Null);
        *items.method_mut() = Method::GET;
        let (_, items) = send(&fetching, items).await;
        assert_eq!(items["data"][0]["content"][0]["image_url"], data_url, "{items}");
    });
}
