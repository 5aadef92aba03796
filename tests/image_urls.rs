//! Pictures named by URL over HTTP: every API answers as if they had been sent.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener};

use axum::body::Body;
use axum::http::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use mlx_server::config::Config;
use mlx_server::{AppState, app};
use mlx_tests::golden_folder;
use serde_json::{Value, json};
use tower::ServiceExt;

fn picture() -> Vec<u8> {
    std::fs::read(golden_folder().join("pictures/mistral3-f32/48x32.png")).expect("the fixture is there")
}

/// Starts a host that answers every request with the picture; its URL.
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
    let request = Request::post(path).header("host", "localhost").body(Body::from(body.to_string()));
    send(state, request.expect("a request")).await
}

/// The requests of all APIs that take URLs, with what is equal in their answers.
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

#[test]
fn every_api_answers_as_if_the_picture_had_been_sent() {
    let url = start_host();
    let data_url = format!("data:image/png;base64,{}", STANDARD.encode(picture()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let fetching =
            AppState::connecting(config(), |it| it == IpAddr::from([127, 0, 0, 1])).expect("valid");
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
        // What is stored has the picture, so that the conversation goes on as it began.
        let (_, request, _) = requests(&url).swap_remove(2);
        let (_, response) = post(&fetching, "/v1/responses", &request).await;
        let id = response["id"].as_str().expect("it is stored");
        let items = Request::get(format!("/v1/responses/{id}/input_items")).header("host", "localhost");
        let (_, items) = send(&fetching, items.body(Body::empty()).expect("a request")).await;
        assert_eq!(items["data"][0]["content"][0]["image_url"], data_url, "{items}");
    });
}
