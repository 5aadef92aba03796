//! Tests of the complete app without a port or a device: access control, and requests that are rejected before a model is loaded.

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use mlx_tests::model_folder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tower::ServiceExt;

use crate::config::Config;
use crate::{AppState, app};
use mlx_options::ByteSize;

fn config() -> Config {
    let mut config = Config::default();
    config.models.model = vec![format!("tiny={}", model_folder("llama-f32").display())];
    config.models.alias = vec!["small=tiny".into()];
    config.models.all_models = Some(false);
    config
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    text: String,
    body: Value,
}

fn ask_with(config: Config, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut request = Request::builder().method(method).uri(path);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "localhost:8080");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_vec())).expect("a request");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let response = app(AppState::new(config).expect("valid")).oneshot(request).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Reply { status: parts.status.as_u16(), headers: parts.headers, text, body }
    })
}

fn ask(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    ask_with(config(), method, path, headers, body)
}

fn post(path: &str, body: &Value) -> Reply {
    ask("POST", path, &[], body.to_string().as_bytes())
}

#[test]
fn errors_have_openais_shape_and_name_the_field() {
    let user = json!([{"role": "user", "content": "hi"}]);
    for (path, body, status, param) in [
        ("/v1/chat/completions", json!({"messages": user, "temperature": "hot"}), 400, "temperature"),
        ("/v1/chat/completions", json!({"messages": user, "n": 0}), 400, "n"),
        ("/v1/chat/completions", json!({"messages": user, "stop": [5]}), 400, "stop"),
        ("/v1/chat/completions", json!({"messages": user, "seed": 1.5}), 400, "seed"),
        ("/v1/chat/completions", json!({"messages": user, "top_logprobs": 2}), 400, "top_logprobs"),
        ("/v1/chat/completions", json!({"messages": user, "logit_bias": {"x": 1}}), 400, "logit_bias"),
        ("/v1/chat/completions", json!({"messages": user, "priority": "urgent"}), 400, "priority"),
        (
            "/v1/chat/completions",
            json!({"messages": user, "max_tokens": 1, "max_completion_tokens": 2}),
            400,
            "max_completion_tokens",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": user, "stream": true, "stream_options": {"x": 1}}),
            400,
            "stream_options.x",
        ),
        ("/v1/chat/completions", json!({"messages": user, "stream_options": {}}), 400, "stream_options"),
        ("/v1/chat/completions", json!({"messages": user, "model": "none"}), 404, "model"),
        ("/v1/completions", json!({"prompt": "a", "best_of": 3}), 400, "best_of"),
        ("/v1/completions", json!({"prompt": "a", "suffix": "b"}), 400, "suffix"),
        ("/v1/completions", json!({"prompt": "a", "logprobs": 21}), 400, "logprobs"),
        ("/v1/completions", json!({}), 400, "prompt"),
        ("/tokenize", json!({"content": 5}), 400, "content"),
        ("/detokenize", json!({"tokens": ["a"]}), 400, "tokens"),
        (
            "/v1/chat/render",
            json!({"messages": user, "chat_template_kwargs": {"tools": []}}),
            400,
            "chat_template_kwargs",
        ),
    ] {
        let reply = post(path, &body);
        assert_eq!(reply.status, status, "{body}: {}", reply.body);
        let error = &reply.body["error"];
        assert_eq!(error["param"], json!(param), "{error}");
        assert_eq!(error["type"], json!("invalid_request_error"));
        assert!(error["message"].is_string() && error["code"].is_string(), "{error}");
    }
}

/// Tests one rule for all protocols: an unused field is reported, even if the request fails later; a strict server rejects it.
#[test]
fn fields_that_are_not_used_are_named_or_refused() {
    let user = json!([{"role": "user", "content": "hi"}]);
    for (path, body, ignored) in [
        ("/v1/chat/completions", json!({"messages": user, "metadata": {"a": "b"}}), "metadata, frobnicate"),
        ("/v1/chat/render", json!({"messages": user}), "frobnicate"),
        ("/v1/completions", json!({"prompt": "a"}), "frobnicate"),
        ("/v1/embeddings", json!({"input": "a"}), "frobnicate"),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"]}), "frobnicate"),
        ("/v1/responses", json!({"input": "a", "text": {"verbosity": "low"}}), "text.verbosity, frobnicate"),
        ("/v1/messages", json!({"messages": user, "max_tokens": 1, "speed": "fast"}), "speed, frobnicate"),
        ("/v1/messages/count_tokens", json!({"messages": user}), "frobnicate"),
        (
            "/api/chat",
            json!({"messages": user, "keep_alive": "5m", "options": {"num_ctx": 9}}),
            "options.num_ctx, frobnicate",
        ),
        ("/api/generate", json!({"prompt": "a", "keep_alive": 0}), "frobnicate"),
        ("/api/embed", json!({"input": "a", "options": {"num_ctx": 9}}), "options, frobnicate"),
        ("/api/embeddings", json!({"prompt": "a"}), "frobnicate"),
        ("/api/show", json!({}), "frobnicate"),
        ("/tokenize", json!({"content": "a"}), "frobnicate"),
        ("/detokenize", json!({"tokens": [1]}), "frobnicate"),
    ] {
        let mut body = body;
        body["model"] = json!("none");
        let known = post(path, &body);
        body["frobnicate"] = json!(1);
        let reply = post(path, &body);
        assert_eq!((known.status, reply.status), (404, 404), "{path}: {}", reply.body);
        assert_eq!(reply.headers["x-ignored-fields"], ignored, "{path}");
        let mut strict = config();
        strict.network.strict = true;
        let reply = ask_with(strict, "POST", path, &[], body.to_string().as_bytes());
        let first = ignored.split(',').next().expect("a name");
        assert!(reply.status == 400 && reply.text.contains(first), "{path}: {}", reply.text);
    }
    // An unknown field inside a message is always an error.
    let reply =
        post("/v1/chat/completions", &json!({"messages": [{"role": "user", "content": "hi", "mood": 1}]}));
    assert_eq!((reply.status, &reply.body["error"]["param"]), (400, &json!("messages[0].mood")));
}

#[test]
fn invalid_bodies_paths_and_methods_are_refused() {
    let status = |method, path, body: &[u8]| {
        let reply = ask(method, path, &[], body);
        assert!(reply.body["error"]["message"].is_string(), "{path}");
        reply.status
    };
    for body in [&b""[..], b"[]", b"{", b"null", b"{\"prompt\": \"\xff\"}", b"{\"prompt\": 1e999}"] {
        assert_eq!(status("POST", "/v1/completions", body), 400);
    }
    assert_eq!(status("GET", "/v1/completions", b""), 405);
    assert_eq!(status("DELETE", "/health", b""), 405);
    assert_eq!(status("GET", "/nothing", b""), 404);
    assert_eq!(status("GET", "/v1/models/none", b""), 404);
    let mut small = config();
    small.limits.max_body = ByteSize(100);
    assert_eq!(ask_with(small, "POST", "/v1/completions", &[], &[b' '; 101]).status, 413);
}

#[test]
fn models_are_listed_and_found_by_every_name() {
    let list = ask("GET", "/v1/models", &[], b"").body;
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("tiny")));
    for name in ["tiny", "small"] {
        let one = ask("GET", &format!("/v1/models/{name}"), &[], b"").body;
        assert_eq!((&one["id"], &one["loaded"]), (&json!("tiny"), &json!(false)));
    }
}

#[test]
fn a_request_without_the_key_is_refused() {
    let status = |path, headers: &[(&str, &str)]| {
        let mut config = config();
        config.network.api_key = vec!["secret".into()];
        ask_with(config, "GET", path, headers, b"").status
    };
    assert_eq!(status("/v1/models", &[]), 401);
    assert_eq!(status("/v1/models", &[("authorization", "Bearer wrong")]), 401);
    assert_eq!(status("/v1/models", &[("authorization", "Bearer secret")]), 200);
    assert_eq!(status("/metrics", &[]), 401);
    assert_eq!((status("/health", &[]), status("/ready", &[])), (200, 200));
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let reply = |headers: &[(&str, &str)]| {
        let mut config = config();
        config.network.allowed_host = vec!["box.example".into()];
        config.network.cors_origin = vec!["https://chat.example".into()];
        ask_with(config, "GET", "/v1/models", headers, b"")
    };
    let status = |headers: &[(&str, &str)]| reply(headers).status;
    for host in
        ["localhost", "127.0.0.1:8080", "[::1]:8080", "192.168.1.5:8080", "box.example:1", "BOX.example"]
    {
        assert_eq!(status(&[("host", host)]), 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", ""] {
        assert_eq!(status(&[("host", host)]), 403, "{host}");
    }
    let host_header = ("host", "localhost:8080");
    assert_eq!(status(&[host_header, ("origin", "http://localhost:8080")]), 200);
    for origin in ["http://localhost:9", "https://evil.example", "null"] {
        assert_eq!(status(&[host_header, ("origin", origin)]), 403, "{origin}");
    }
    let listed = reply(&[host_header, ("origin", "https://chat.example")]);
    assert_eq!(listed.headers["access-control-allow-origin"], "https://chat.example");
    let readable = listed.headers["access-control-expose-headers"].to_str().expect("text");
    for name in ["x-seed", "x-exactness", "x-dropped-messages", "x-request-id", "retry-after"] {
        assert!(readable.contains(name), "{readable}");
    }
}

#[test]
fn a_cors_preflight_needs_no_key() {
    let mut config = config();
    config.network.api_key = vec!["secret".into()];
    config.network.cors_origin = vec!["https://chat.example".into()];
    let headers = [
        ("origin", "https://chat.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let reply = ask_with(config, "OPTIONS", "/v1/chat/completions", &headers, b"");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["access-control-allow-headers"], "authorization");
}

#[test]
fn every_response_has_an_id() {
    let id = |given: &[(&str, &str)]| ask("GET", "/health", given, b"").headers["x-request-id"].clone();
    assert_eq!(id(&[("x-request-id", "mine-1")]), "mine-1");
    assert_ne!(id(&[]), id(&[]));
    assert_ne!(id(&[("x-request-id", "with space")]), "with space");
    // Anthropic's clients read another header, of errors as well.
    for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/nothing"] {
        let reply = ask("POST", path, &[("x-request-id", "mine-2")], b"{}");
        assert!(reply.status >= 400 && reply.headers["request-id"] == "mine-2", "{path}");
        assert_eq!(reply.body["request_id"], "mine-2", "{path}");
    }
    assert!(!ask("POST", "/v1/completions", &[], b"{}").headers.contains_key("request-id"));
}

#[test]
fn a_server_that_shuts_down_is_not_ready() {
    let state = AppState::new(config()).expect("valid");
    assert!(state.is_ready());
    state.shutdown.draining.cancel();
    assert!(!state.is_ready());
}

#[test]
fn browsers_get_the_page_without_a_key_and_under_its_policy() {
    let locked = || {
        let mut config = config();
        config.network.api_key = vec!["k".into()];
        config
    };
    let browser = [("accept", "text/html,*/*;q=0.8")];
    let reply = ask_with(locked(), "GET", "/", &browser, b"");
    assert_eq!(
        (reply.status, &reply.headers["content-type"]),
        (200, &"text/html; charset=utf-8".parse().expect("a value"))
    );
    let policy = reply.headers["content-security-policy"].to_str().expect("a text");
    for part in [
        "default-src 'none'",
        "connect-src 'self'",
        "frame-src 'self'",
        "frame-ancestors 'none'",
        "form-action 'none'",
        "trusted-types 'none'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(policy.matches("sha256-").count() == 2 && !policy.contains("unsafe"), "{policy}");
    assert_eq!(reply.headers["x-content-type-options"], "nosniff");
    assert_eq!(reply.headers["referrer-policy"], "no-referrer");
    let status = |config, method: &str, path: &str, headers: &[(&str, &str)]| {
        ask_with(config, method, path, headers, b"").status
    };
    assert_eq!(status(locked(), "POST", "/", &browser), 401);
    assert_eq!(status(locked(), "GET", "/v1/models", &browser), 401);
    let foreign = [browser[0], ("host", "evil.example")];
    assert_eq!(status(config(), "GET", "/", &foreign), 403);
}

/// A PDF file may be hostile. Its reader has no origin, and may neither send requests nor load anything.
#[test]
fn the_reader_of_pdf_files_is_sandboxed_and_needs_no_key() {
    let mut config = config();
    config.network.api_key = vec!["k".into()];
    let mut off = config.clone();
    off.network.no_page = true;
    let reply = ask_with(config, "GET", "/pdf-reader", &[], b"");
    let policy = reply.headers["content-security-policy"].to_str().expect("a text");
    let script = reply.text.split_once("<script>").and_then(|(_, rest)| rest.split_once("</script>"));
    let hash = STANDARD.encode(Sha256::digest(script.expect("it has a script").0));
    assert_eq!(
        policy,
        format!(
            "default-src 'none'; script-src 'sha256-{hash}'; base-uri 'none'; frame-ancestors 'self'; \
             form-action 'none'; sandbox allow-scripts"
        )
    );
    assert_eq!(ask_with(off, "GET", "/pdf-reader", &[], b"").status, 404);
}

/// The `ollama` command shows 12 characters of a digest, and clients select models by their capabilities.
#[test]
fn clients_of_ollama_get_digests_and_capabilities() {
    let copy = mlx_tests::model_copy("llama-f32");
    let listed = |folder: &std::path::Path| {
        let mut config = config();
        config.models.model.push(format!("other={}", folder.display()));
        let models = ask_with(config.clone(), "GET", "/api/tags", &[], b"").body["models"].clone();
        let show = ask_with(config, "POST", "/api/show", &[], br#"{"model": "other"}"#).body;
        assert_eq!(show["chat"], true);
        (models[0]["digest"].clone(), models[1]["digest"].clone(), show["capabilities"].clone())
    };
    let (original, copied, capabilities) = listed(copy.path());
    let digest = original.as_str().expect("a text");
    assert!(digest.len() == 64 && digest.bytes().all(|it| it.is_ascii_hexdigit()), "{digest}");
    assert_eq!(copied, original, "a copy is the same model");
    assert!(capabilities[0] == "completion", "{capabilities}");
    std::fs::create_dir(copy.path().join("1_Pooling")).expect("a folder");
    std::fs::write(copy.path().join("1_Pooling/config.json"), r#"{"pooling_mode_mean_tokens": true}"#)
        .expect("it can be written");
    std::fs::write(copy.path().join("notes.txt"), "a").expect("it can be written");
    let (unchanged, changed, capabilities) = listed(copy.path());
    assert!(unchanged == original && changed != original);
    assert!(capabilities[0] == "embedding", "{capabilities}");
}

/// The `ollama` command sends HEAD without a key, and other clients look for the text.
#[test]
fn clients_of_ollama_see_that_the_server_runs() {
    let mut config = config();
    config.network.api_key = vec!["k".into()];
    let mut off = config.clone();
    off.network.no_page = true;
    let browser = [("accept", "text/html,*/*;q=0.8")];
    for (config, headers) in [(config.clone(), &[][..]), (config, &[("accept", "*/*")]), (off, &browser)] {
        let reply = ask_with(config.clone(), "GET", "/", headers, b"");
        assert_eq!((reply.status, reply.text.as_str()), (200, "Ollama is running"));
        assert_eq!(ask_with(config, "HEAD", "/", headers, b"").status, 200);
    }
}
