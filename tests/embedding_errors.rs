//! Requests for embeddings that cannot be served, and requests to embedding models for other things.

use mlx_tests::server::Server;
use mlx_tests::{model_copy, tensors};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];

fn vectors(server: &Server, request: &Value) -> usize {
    let answer = server.post("/v1/embeddings", request);
    answer.body["data"].as_array().unwrap_or_else(|| panic!("{request}: {}", answer.body)).len()
}

/// A model that is made for embeddings generates no text, and the error says where its vectors are. It lists its task everywhere.
#[test]
fn an_embedding_model_refuses_to_chat_and_lists_its_task() {
    let folder = model_copy("llama-f32");
    std::fs::create_dir(folder.path().join("1_Pooling")).expect("a folder");
    std::fs::write(folder.path().join("1_Pooling/config.json"), r#"{"pooling_mode": "mean"}"#)
        .expect("it can be written");
    let embeds = format!("embeds={}", folder.path().display());
    let server = Server::start(&SERVER, &["-m", &embeds]);
    let user = json!([{"role": "user", "content": "a"}]);
    for (path, request) in [
        ("/v1/chat/completions", json!({"messages": user})),
        ("/v1/chat/render", json!({"messages": user})),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/messages", json!({"messages": user, "max_tokens": 1})),
        ("/api/chat", json!({"messages": user})),
        ("/api/generate", json!({"prompt": "a"})),
        ("/v1/rerank", json!({"query": "a", "documents": ["b"]})),
    ] {
        let mut request = request;
        request["model"] = json!("embeds");
        let refused = server.post(path, &request);
        assert!(refused.status == 400, "{path}: {}", refused.body);
        let message = refused.body["error"]["message"].as_str().or(refused.body["error"].as_str());
        let names_it = message
            .is_some_and(|it| it.contains("embeds computes embeddings") && it.contains("/v1/embeddings"));
        assert!(names_it, "{path}: {}", refused.body);
    }
    let models = server.get("/v1/models").body["data"].clone();
    assert!(models[1]["loaded"] == false && models[1]["capabilities"] == json!(["embedding"]), "{models}");
    assert_eq!(models[0]["capabilities"], json!(["completion"]));
    let tags = server.get("/api/tags").body["models"].clone();
    assert_eq!([&tags[0], &tags[1]].map(|it| &it["capabilities"][0]), ["completion", "embedding"]);
    let shown = server.post("/api/show", &json!({"model": "embeds"})).body;
    assert_eq!(shown["capabilities"][0], "embedding");
    // Ollama's clients load a model with a request without texts.
    for (path, request, field) in [
        ("/api/embed", json!({"model": "embeds"}), "embeddings"),
        ("/api/embed", json!({"model": "embeds", "input": ""}), "embeddings"),
        ("/api/embed", json!({"model": "embeds", "input": []}), "embeddings"),
        ("/api/embeddings", json!({"model": "embeds", "prompt": ""}), "embedding"),
    ] {
        let loaded = server.post(path, &request);
        assert_eq!((loaded.status, &loaded.body[field]), (200, &json!([])), "{path}: {}", loaded.body);
    }
    assert_eq!(server.get("/v1/models/embeds").body["loaded"], true);
    // A model that chats embeds, too.
    assert_eq!(vectors(&server, &json!({"model": "tiny", "input": "a"})), 1);
}

/// A request that cannot be served is refused by its field, a broken model by its numbers, and the next request is served.
#[test]
fn bad_texts_and_broken_weights_fail_by_name() {
    let broken = model_copy("llama-f32");
    let file = broken.path().join("model.safetensors");
    let mut all = tensors::read(&file);
    let (_, shape, bytes) = all.get_mut("model.norm.weight").expect("the fixture has it");
    bytes.copy_from_slice(&vec![f32::NAN.to_le_bytes(); shape[0]].concat());
    tensors::write(&file, &all);
    let broken = format!("broken={}", broken.path().display());
    let server = Server::start(&SERVER, &["-m", &broken]);
    let long = "waves ".repeat(400);
    for (path, request, param) in [
        ("/v1/embeddings", json!({"input": ""}), "input"),
        ("/v1/embeddings", json!({"input": []}), "input"),
        ("/v1/embeddings", json!({}), "input"),
        ("/v1/embeddings", json!({"input": ["a", ""]}), "input[1]"),
        ("/v1/embeddings", json!({"input": [[5], []]}), "input[1]"),
        ("/v1/embeddings", json!({"input": [5, 99_999]}), "input"),
        ("/v1/embeddings", json!({"input": {"text": "a"}}), "input"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 0}), "dimensions"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 33}), "dimensions"),
        ("/v1/embeddings", json!({"input": long, "truncate": false}), "input"),
        ("/v1/embeddings", json!({"input": vec!["a"; 2049]}), "input"),
        ("/api/embed", json!({"input": ["a", ""]}), "input[1]"),
        ("/api/embed", json!({"input": "a", "dimensions": 33}), "dimensions"),
        ("/api/embed", json!({"input": long, "truncate": false}), "input"),
        ("/api/embed", json!({"input": vec!["a"; 2049]}), "input"),
    ] {
        let refused = server.post(path, &request);
        let error = &refused.body["error"];
        let named = error["param"] == param
            || error.as_str().is_some_and(|message| message.starts_with(&format!("{param}:")));
        assert!(refused.status == 400 && named, "{path} {param}: {}", refused.body);
    }
    for path in ["/v1/embeddings", "/api/embed"] {
        let failed = server.post(path, &json!({"model": "broken", "input": "a"}));
        assert!(failed.status == 500 && failed.body.to_string().contains("NaN"), "{}", failed.body);
    }
    assert_eq!(vectors(&server, &json!({"input": "a"})), 1);
    assert_eq!(server.post("/v1/embeddings", &json!({"input": vec!["a"; 2048]})).status, 200);
}
