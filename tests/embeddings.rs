//! Embeddings over HTTP equal sentence-transformers' embeddings, with its modules, prompts and limits.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use mlx_core::ModelFolder;
use mlx_core::convert::{ConvertOptions, EmbeddingBits, convert};
use mlx_tests::server::Server;
use mlx_tests::{golden_folder, model_copy, tensors};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("it can be written");
}

/// Writes a file of a model and creates its folder.
fn write(folder: &Path, file: &str, content: &Value) {
    let path = folder.join(file);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
    std::fs::write(path, content.to_string()).expect("it can be written");
}

/// Returns the numbers that tests/golden/embeddings.py generates.
fn numbers(count: usize, seed: usize) -> Vec<u8> {
    let number = |at: usize| (((at * 37 + seed * 11) % 29) as f32 - 14.0) / 32.0;
    (0..count).flat_map(|at| number(at).to_le_bytes()).collect()
}

/// Returns the model of a case of tests/golden/embeddings.py, saved without its head.
fn model(files: &Value) -> TempDir {
    let copy = model_copy("llama-f32");
    let file = copy.path().join("model.safetensors");
    let base = tensors::read(&file).into_iter().filter(|(name, _)| name != "lm_head.weight");
    let base = base.map(|(name, tensor)| (name.trim_start_matches("model.").to_owned(), tensor));
    tensors::write(&file, &base.collect());
    for (file, content) in files.as_object().expect("files") {
        write(copy.path(), file, content);
        let [Some(inputs), Some(outputs)] = ["in_features", "out_features"].map(|key| content[key].as_u64())
        else {
            continue;
        };
        let (inputs, outputs) = (inputs as usize, outputs as usize);
        let weight = (Dtype::F32, vec![outputs, inputs], numbers(outputs * inputs, inputs));
        let mut tensors = BTreeMap::from([("linear.weight".to_owned(), weight)]);
        if content["bias"] == true {
            tensors.insert("linear.bias".to_owned(), (Dtype::F32, vec![outputs], numbers(outputs, outputs)));
        }
        tensors::write(&copy.path().join(file).with_file_name("model.safetensors"), &tensors);
    }
    copy
}

fn vectors(server: &Server, request: &Value) -> Vec<Vec<f64>> {
    let answer = server.post("/v1/embeddings", request);
    let data = answer.body["data"].as_array().unwrap_or_else(|| panic!("{request}: {}", answer.body));
    data.iter().map(|it| serde_json::from_value(it["embedding"].clone()).expect("numbers")).collect()
}

/// Covers both forms of pooling, dense layers, normalization, prompts, the longest text and lower case, before and after a conversion.
#[test]
fn vectors_are_those_of_sentence_transformers() {
    let text = std::fs::read_to_string(golden_folder().join("expected/embeddings.json")).expect("a fixture");
    let golden: Value = serde_json::from_str(&text).expect("json");
    for (number, case) in golden["cases"].as_array().expect("a list").iter().enumerate() {
        let folder = model(&case["files"]);
        let server = Server::start_on(&SERVER, folder.path(), &["--exact"]);
        let mut found = Vec::new();
        for (prompt, expected) in case["prompts"]
            .as_array()
            .expect("a list")
            .iter()
            .zip(case["vectors"].as_array().expect("a list"))
        {
            let request = json!({"input": golden["texts"], "prompt_name": prompt, "truncate": true});
            let ours = vectors(&server, &request);
            let theirs: Vec<Vec<f64>> = serde_json::from_value(expected.clone()).expect("vectors");
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let scale = theirs.iter().fold(1.0_f64, |most, it| most.max(it.abs()));
                let worst = ours
                    .iter()
                    .zip(theirs)
                    .map(|(one, other)| (one - other).abs() / scale)
                    .fold(0.0, f64::max);
                assert!(ours.len() == theirs.len() && worst < 1e-4, "case {number}, {prompt}: {worst:e}");
            }
            found.push(ours);
        }
        drop(server);
        let target = folder.path().join("converted");
        let options = ConvertOptions {
            scheme: None,
            rules: Vec::new(),
            embedding_bits: EmbeddingBits::Same,
            adapter: None,
            dtype: None,
            shard_bytes: 1 << 30,
            force: false,
        };
        convert(folder.path(), &target, &options, &mut |_, _| ControlFlow::Continue(()))
            .expect("it converts");
        if number < 3 {
            let server = Server::start_on(&SERVER, &target, &["--exact"]);
            for (prompt, before) in case["prompts"].as_array().expect("a list").iter().zip(&found) {
                let request = json!({"input": golden["texts"], "prompt_name": prompt, "truncate": true});
                assert_eq!(&vectors(&server, &request), before, "case {number}, {prompt}");
            }
        }
    }
}

/// Request fields that OpenAI's API does not have.
#[test]
fn a_request_chooses_prompt_length_and_limit() {
    let modules = |kinds: &[&str]| {
        let module = |(index, kind): (usize, &&str)| {
            let path = if index == 0 { String::new() } else { format!("{index}_{kind}") };
            json!({"idx": index, "name": index.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}")})
        };
        json!(kinds.iter().enumerate().map(module).collect::<Vec<_>>())
    };
    let folder = model(&json!({
        "modules.json": modules(&["Transformer", "Pooling"]),
        "1_Pooling/config.json": {"pooling_mode": "mean"},
        "sentence_bert_config.json": {"max_seq_length": 24},
        "config_sentence_transformers.json": {"prompts": {"query": "Find: ", "passage": "Text: "}, "default_prompt_name": "query"},
    }));
    let server = Server::start_on(&SERVER, folder.path(), &["--exact"]);
    let of = |request: Value| vectors(&server, &request).remove(0);
    let query = of(json!({"input": "Bread"}));
    for same in ["prompt_name", "input_type"] {
        assert_eq!(query, of(json!({"input": "Bread", same: "query"})), "{same}");
    }
    assert_eq!(query, of(json!({"input": "Bread", "input_type": "search_query"})));
    assert_eq!(query, of(json!({"input": "Bread", "prompt": "Find: "})));
    assert_eq!(query, of(json!({"input": "Find: Bread", "prompt": ""})));
    let passage = of(json!({"input": "Bread", "input_type": "document"}));
    assert!(passage == of(json!({"input": "Bread", "prompt_name": "passage"})) && passage != query);
    assert_eq!(passage, of(json!({"input": "Bread", "input_type": "search_document"})));
    let length = |vector: &[f64]| vector.iter().map(|it| it * it).sum::<f64>().sqrt();
    assert!((length(&query) - 1.0).abs() > 0.1, "modules.json has no Normalize");
    let unit = of(json!({"input": "Bread", "normalize": true}));
    assert!((length(&unit) - 1.0).abs() < 1e-6 && (unit[0] * length(&query) - query[0]).abs() < 1e-5);
    let long = "The keeper counts the waves ".repeat(9);
    for (request, param, words) in [
        (json!({"input": "a", "prompt_name": "other"}), "prompt_name", "passage, query"),
        (json!({"input": "a", "prompt_name": "query", "input_type": "query"}), "input_type", "prompt_name"),
        (json!({"input": "a", "prompt": "b", "input_type": "query"}), "input_type", "only one of them"),
        (json!({"input": "a", "prompt": "b", "prompt_name": "query"}), "prompt", "only one of them"),
        (json!({"input": "a", "input_type": "question"}), "input_type", "query, document"),
        (
            json!({"input": long, "truncate": false}),
            "input",
            "sentence_bert_config.json: max_seq_length allows 24",
        ),
    ] {
        let refused = server.post("/v1/embeddings", &request);
        let error = &refused.body["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{}", refused.body);
        assert!(error["message"].as_str().expect("a text").contains(words), "{error}");
    }
    // As in sentence-transformers, a text that is too long is cut. The answer reports it.
    let cut = server.post("/v1/embeddings", &json!({"input": [long, "a", long]}));
    assert_eq!((cut.header("x-truncated"), &cut.body["usage"]["truncated_inputs"]), ("2", &json!(2)));
    assert!(cut.body["usage"]["prompt_tokens"].as_u64().is_some_and(|tokens| (49..60).contains(&tokens)));
    let explicit = server.post("/v1/embeddings", &json!({"input": long, "truncate": true})).body;
    assert_eq!(explicit["usage"]["prompt_tokens"], 24);
    assert_eq!(explicit["data"][0]["embedding"], cut.body["data"][2]["embedding"]);
    let whole = server.post("/v1/embeddings", &json!({"input": "a"}));
    assert_eq!((whole.find("x-truncated"), &whole.body["usage"]["truncated_inputs"]), (None, &Value::Null));
    let ollama = server.post("/api/embed", &json!({"input": "Bread"})).body;
    assert_eq!(ollama["embeddings"][0], json!(unit), "Ollama's vectors have length 1");
}

/// Unsupported modules and settings are rejected with file and key, and never ignored.
#[test]
fn what_cannot_be_applied_is_refused_by_name() {
    let first = json!([{"type": "sentence_transformers.models.Transformer", "path": ""}]);
    let with = |kind: &str, path: &str| {
        let pooling = json!({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"});
        json!([first[0], pooling, {"type": kind, "path": path}])
    };
    let dense = with("sentence_transformers.models.Dense", "2_Dense");
    let of_dense = |key: &str, value: Value| {
        let mut config = json!({"in_features": 32, "out_features": 8, "bias": false, "activation_function": "torch.nn.modules.linear.Identity"});
        config[key] = value;
        config
    };
    let pooling = json!({"pooling_mode": "mean"});
    for (files, words) in [
        (
            json!({"modules.json": with("sentence_transformers.models.CNN", "2_CNN")}),
            &["modules.json", "CNN"][..],
        ),
        (json!({"modules.json": with("custom.Dense", "2_Dense")}), &["modules.json", "custom.Dense"]),
        (
            json!({"modules.json": with("sentence_transformers.models.Dense", "../x")}),
            &["modules.json", "../x"],
        ),
        (json!({"modules.json": first}), &["modules.json", "Pooling"]),
        (json!({"modules.json": {}}), &["modules.json", "list"]),
        (
            json!({"modules.json": dense, "2_Dense/config.json": of_dense("activation_function", json!("torch.nn.modules.activation.Mish"))}),
            &["2_Dense", "activation_function", "Mish"],
        ),
        (
            json!({"modules.json": dense, "2_Dense/config.json": of_dense("module_input_name", json!("token_embeddings"))}),
            &["2_Dense", "module_input_name"],
        ),
        (
            json!({"modules.json": dense, "2_Dense/config.json": of_dense("use_residual", json!(true))}),
            &["2_Dense", "use_residual"],
        ),
        (
            json!({"1_Pooling/config.json": {"pooling_mode": "median"}}),
            &["1_Pooling", "pooling_mode", "median"],
        ),
        (
            json!({"modules.json": dense, "2_Dense/config.json": of_dense("bias", json!(false)), "sentence_bert_config.json": {"query_length": 32}}),
            &["sentence_bert_config.json", "query_length"],
        ),
        (
            json!({"config_sentence_transformers.json": {"default_prompt_name": "query"}}),
            &["config_sentence_transformers.json", "default_prompt_name"],
        ),
        (
            json!({"config_sentence_transformers.json": {"model_type": "SparseEncoder"}}),
            &["model_type", "SparseEncoder"],
        ),
    ] {
        let mut all = json!({"1_Pooling/config.json": pooling});
        all.as_object_mut().expect("a map").extend(files.as_object().expect("a map").clone());
        let folder = model(&all);
        let opened = ModelFolder::open(folder.path()).expect("texts can be read");
        let refused = opened.embedding().map(drop).expect_err("it is refused").to_string();
        assert!(words.iter().all(|word| refused.contains(word)), "{files}: {refused}");
        let warned = opened.warnings.texts().concat();
        assert!(words.iter().all(|word| warned.contains(word)), "{files}: {warned}");
    }
    // The family has no two-way form.
    let folder = model_copy("gemma-f32");
    edit(&folder.path().join("config.json"), |config| config["is_causal"] = json!(false));
    let refused = mlx_core::inspect::inspect(folder.path(), &mlx_core::EngineOptions::single());
    let refused = refused.map(drop).expect_err("it is an encoder").to_string();
    assert!(refused.contains("config.json: is_causal is false"), "{refused}");
}

/// The model's own pooling applies if the request names none.
#[test]
fn the_pooling_of_a_model_is_its_own() {
    let set = |mean: bool, last: bool| {
        json!({"pooling_mode_mean_tokens": mean, "pooling_mode_lasttoken": last}).to_string()
    };
    // An embedding model's tokenizer ends each text with a special token.
    let ends = json!({
        "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [2], "tokens": ["<|endoftext|>"]}},
    });
    for (ending, file, pooling) in [
        (false, None, "mean"),
        (true, None, "last"),
        (true, Some(set(true, false)), "mean"),
        (false, Some(set(false, true)), "last"),
    ] {
        let folder = model_copy("llama-f32");
        if ending {
            edit(&folder.path().join("tokenizer.json"), |tokenizer| {
                tokenizer["post_processor"] = ends.clone();
            });
        }
        if let Some(text) = &file {
            std::fs::create_dir(folder.path().join("1_Pooling")).expect("a folder");
            std::fs::write(folder.path().join("1_Pooling/config.json"), text).expect("it can be written");
        }
        let server = Server::start_on(&SERVER, folder.path(), &["--exact"]);
        let vector =
            |request: Value| server.post("/v1/embeddings", &request).body["data"][0]["embedding"].clone();
        let own = vector(json!({"input": "The keeper"}));
        let other = if pooling == "mean" { "last" } else { "mean" };
        assert!(own.is_array());
        assert_eq!(own, vector(json!({"input": "The keeper", "pooling": pooling})), "{ending} {file:?}");
        assert_ne!(own, vector(json!({"input": "The keeper", "pooling": other})), "{ending} {file:?}");
        let ollama = server.post("/api/embed", &json!({"input": "The keeper"})).body;
        assert_eq!(ollama["embeddings"][0], own, "{ending} {file:?}");
        let timed = server.post("/api/embed", &json!({"input": ["The keeper", "a"], "dimensions": 5})).body;
        assert!(timed["embeddings"].as_array().is_some_and(|all| all.len() == 2), "{timed}");
        assert_eq!(timed["embeddings"][0].as_array().map(Vec::len), Some(5));
        let time = |name: &str| timed[name].as_u64().unwrap_or_else(|| panic!("{name}: {timed}"));
        assert!(time("total_duration") >= time("load_duration") && time("prompt_eval_count") > 0);
        let older =
            server.post("/api/embeddings", &json!({"prompt": "The keeper", "options": {"num_ctx": 9}}));
        assert_eq!((older.status, &older.body["embedding"]), (200, &own), "{ending} {file:?}");
        assert_eq!(older.header("x-ignored-fields"), "options");
        // A text that is too long is truncated, as in Ollama, unless the request forbids it.
        let long = "The keeper of the light. ".repeat(80);
        let cut = server.post("/api/embed", &json!({"input": long, "truncate": true}));
        assert_eq!((cut.status, &cut.body["prompt_eval_count"]), (200, &json!(256)), "{}", cut.body);
        assert_eq!(cut.header("x-truncated"), "1");
        let longer = server.post("/api/embed", &json!({"input": long + "More."})).body;
        assert_eq!(cut.body["embeddings"], longer["embeddings"]);
        let whole = json!({"input": "The keeper of the light. ".repeat(80), "truncate": false});
        assert_eq!(server.post("/api/embed", &whole).status, 400);
    }
}
