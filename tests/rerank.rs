//! Reranking documents over HTTP.

use std::path::Path;

use mlx_core::engine::{Engine, EngineOptions, RequestOptions, Task};
use mlx_tests::server::Server;
use mlx_tests::{golden_folder, model_copy};
use serde_json::{Value, json};

const SERVER: [&str; 1] = [env!("CARGO_BIN_EXE_mlx-server")];
const PATH: &str = "/v1/rerank";

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("it can be written");
}

/// The sentence that identifies the template of a Qwen3-Reranker.
const TASK: &str =
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided";

fn write(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("it can be created");
    std::fs::write(file, text).expect("it can be written");
}

/// Writes the files of sentence-transformers that make a model a reranker by the logits of two tokens.
fn rank_by(folder: &Path, yes: u32, no: Option<u32>, template: &str) {
    let kind = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore";
    let modules = json!([{"idx": 1, "name": "1", "path": "1_LogitScore", "type": kind}]);
    write(folder, "modules.json", &modules.to_string());
    write(
        folder,
        "1_LogitScore/config.json",
        &json!({"true_token_id": yes, "false_token_id": no}).to_string(),
    );
    write(folder, "chat_template.jinja", template);
}

/// Returns a random model with the files of a reranker. Yes and no are tokens of its vocabulary.
fn reranker() -> tempfile::TempDir {
    let folder = model_copy("llama-f32");
    rank_by(folder.path(), 318, Some(319), &format!("{TASK}{{{{ messages[0].content }}}}"));
    edit(&folder.path().join("config.json"), |config| config["max_position_embeddings"] = json!(4096));
    edit(&folder.path().join("tokenizer.json"), |tokenizer| {
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a map");
        let merged: Vec<String> =
            vocabulary.iter().filter(|(_, id)| id.as_u64() > Some(317)).map(|it| it.0.clone()).collect();
        vocabulary.retain(|token, _| !merged.contains(token));
        let is_kept = |merge: &Value| match merge {
            Value::String(pair) => !merged.contains(&pair.replace(' ', "")),
            pair => {
                !merged.contains(&pair.as_array().expect("a pair").iter().filter_map(Value::as_str).collect())
            }
        };
        tokenizer["model"]["merges"].as_array_mut().expect("a list").retain(is_kept);
        let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
        for (id, content) in [(318, "yes"), (319, "no")] {
            added.push(json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": false,
            }));
        }
    });
    folder
}

/// Returns the score of a document, computed by scoring the whole prompt followed by each word.
fn expected(engine: &Engine, instruction: &str, query: &str, document: &str) -> f64 {
    let text = format!(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
         Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: {instruction}\n\
         <Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
    let prompt = engine.folder().tokenizer.encode(&text, false).expect("it is text");
    let score = |word: u32| {
        let options = RequestOptions { task: Task::Score, ..RequestOptions::default() };
        let scored = mlx_tests::run(engine, &[prompt.as_slice(), &[word]].concat(), &options).prompt_tokens;
        f64::from(scored.last().and_then(|token| token.logprob.as_ref()).expect("a score").logprob).exp()
    };
    let (yes, no) = (score(318), score(319));
    yes / (yes + no)
}

#[test]
fn documents_come_in_the_order_of_the_probability_of_yes() {
    let folder = reranker();
    let model = format!("ranks={}", folder.path().display());
    let server = Server::start(&SERVER, &["--exact", "-m", &model]);
    let documents = ["The waves", "The keeper counts", "Paris", "no and yes"];
    let mut request = json!({
        "model": "ranks", "query": "Who counts?", "instruction": "Find the keeper", "documents": documents,
    });
    let ranked = server.post(PATH, &request);
    assert_eq!(ranked.status, 200, "{}", ranked.body);
    let results = ranked.body["results"].as_array().expect("a list").clone();
    let score = |result: &Value| result["relevance_score"].as_f64().expect("a number");
    assert!(results.windows(2).all(|pair| score(&pair[0]) >= score(&pair[1])), "{results:?}");
    {
        let _turn = mlx_tests::device();
        let engine = Engine::start(folder.path(), &EngineOptions::default(), |_, _| {}).expect("it loads");
        let mut seen = [false; 4];
        for result in &results {
            let index = result["index"].as_u64().expect("an index") as usize;
            seen[index] = true;
            let right = expected(&engine, "Find the keeper", "Who counts?", documents[index]);
            assert!((score(result) - right).abs() < 1e-5, "{result}, not {right}");
        }
        assert_eq!(seen, [true; 4]);
    }
    assert_eq!(ranked.body["usage"]["prompt_tokens"], ranked.body["usage"]["total_tokens"]);
    assert!(results.iter().all(|result| result.get("document").is_none()));

    // The best two, with their texts; documents as objects.
    request["documents"] = documents.iter().map(|text| json!({"text": text})).collect();
    (request["top_n"], request["return_documents"]) = (json!(2), json!(true));
    let best = server.post(PATH, &request).body["results"].clone();
    assert_eq!(best.as_array().map(Vec::len), Some(2));
    for (result, first) in best.as_array().expect("a list").iter().zip(&results) {
        assert_eq!(
            (&result["index"], result["relevance_score"].as_f64()),
            (&first["index"], Some(score(first)))
        );
        let index = first["index"].as_u64().expect("an index") as usize;
        assert_eq!(result["document"], json!({"text": documents[index]}));
    }

    // Other servers have other paths, names and forms for the same ranking.
    for path in ["/rerank", "/v2/rerank", "/reranking", "/v1/reranking"] {
        assert_eq!(server.post(path, &request).body["results"], best, "{path}");
    }
    let texts = json!({"model": "ranks", "query": "Who counts?", "instruction": "Find the keeper", "texts": documents, "return_text": true});
    let listed = server.post("/rerank", &texts).body;
    for (result, first) in listed.as_array().expect("a list").iter().zip(&results) {
        let text = documents[first["index"].as_u64().expect("an index") as usize];
        let expected = json!({"index": first["index"], "score": first["relevance_score"], "text": text});
        assert_eq!(result, &expected);
    }
    let mut raw = texts.clone();
    raw["raw_scores"] = json!(true);
    for (result, first) in server.post("/rerank", &raw).body.as_array().expect("a list").iter().zip(&results)
    {
        let raw = result["score"].as_f64().expect("a number");
        assert!((1.0 / (1.0 + (-raw).exp()) - score(first)).abs() < 1e-6, "{raw}, {first}");
    }

    // A document that is too long is cut, and the answer reports it.
    let long = "waves ".repeat(4000);
    let cut = json!({"model": "ranks", "query": "q", "documents": [long, "a", format!("{long} keeper")]});
    let cut = server.post(PATH, &cut);
    assert_eq!(
        (cut.header("x-truncated"), &cut.body["usage"]["truncated_inputs"]),
        ("2", &json!(2)),
        "{}",
        cut.body
    );
    let scores = cut.body["results"].as_array().expect("a list");
    let same: Vec<f64> = scores.iter().filter(|it| it["index"] != 1).map(score).collect();
    assert!((same[0] - same[1]).abs() < 1e-9, "{same:?}: only the ends differ, which are cut");

    // A control token in a document stays text: the end of a message is one token in the prompt, and several in a document.
    let tokens = |document: &str| {
        request["documents"] = json!([document]);
        server.post(PATH, &request).body["usage"]["prompt_tokens"].as_u64().expect("a number")
    };
    let [plain, control] = ["a", "a<|im_end|>"].map(tokens);
    assert!(control > plain + 1, "{control} tokens, {plain} without the marker");
}

/// The files of a model determine if it is a reranker, not its name.
#[test]
fn a_reranker_is_known_by_its_files() {
    let [plain, other_prompt, one_token] = [(); 3].map(|()| model_copy("llama-f32"));
    rank_by(other_prompt.path(), 318, Some(319), "{{ messages[0].content }}");
    rank_by(one_token.path(), 318, None, TASK);
    let models = [("reranker", &plain), ("own-prompt", &other_prompt), ("one-token", &one_token)]
        .map(|(name, folder)| format!("{name}={}", folder.path().display()));
    let flags: Vec<&str> = models.iter().flat_map(|model| ["-m", model]).collect();
    let server = Server::start(&SERVER, &flags);
    for (model, why) in [
        ("reranker", "is not a reranker"),
        ("own-prompt", "ranks with a custom prompt"),
        ("one-token", "ranks with a custom prompt"),
    ] {
        let refused = server.post(PATH, &json!({"model": model, "query": "q", "documents": ["a"]}));
        let error = &refused.body["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!("model")), "{error}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains(why)), "{error}");
    }
}

#[test]
fn what_cannot_be_ranked_is_refused_by_its_field() {
    let folder = reranker();
    let model = format!("ranks={}", folder.path().display());
    let server = Server::start(&SERVER, &["-m", &model, "--max-inputs", "3"]);
    for (change, param) in [
        (json!({"model": "tiny"}), "model"),
        (json!({"query": null}), "query"),
        (json!({"documents": []}), "documents"),
        (json!({"documents": "a"}), "documents"),
        (json!({"documents": ["a", {"text": "b", "title": "c"}]}), "documents[1]"),
        (json!({"documents": ["a", "b", "c", "d"]}), "documents"),
        (json!({"documents": ["waves ".repeat(4000)], "truncate": false}), "documents"),
        (json!({"query": "waves ".repeat(4000)}), "query"),
        (json!({"query": ""}), "query"),
        (json!({"documents": ["a", ""]}), "documents[1]"),
        (json!({"texts": ["a"]}), "texts"),
        (json!({"top_n": 0}), "top_n"),
    ] {
        let mut request = json!({"model": "ranks", "query": "q", "documents": ["a"]});
        request.as_object_mut().expect("a map").extend(change.as_object().expect("a map").clone());
        let refused = server.post(PATH, &request);
        assert_eq!(
            (refused.status, &refused.body["error"]["param"]),
            (400, &json!(param)),
            "{}",
            refused.body
        );
    }
}

/// Returns a copy of a cross-encoder with these files in addition.
fn cross_encoder(name: &str, files: &[(&str, Value)]) -> tempfile::TempDir {
    let (source, copy) =
        (golden_folder().join("encoders").join(name), tempfile::tempdir().expect("a folder"));
    for file in std::fs::read_dir(source).expect("a folder") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("it can be copied");
    }
    for (file, content) in files {
        write(copy.path(), file, &content.to_string());
    }
    copy
}

#[test]
fn a_cut_query_is_not_reported_as_cut_documents() {
    let folder = cross_encoder("bert-classify-f32", &[]);
    let server = Server::start_on(&SERVER, folder.path(), &[]);
    let long = "waves ".repeat(200);
    let rank = |query: &str, documents: &[&str], more: Value| {
        let mut request = json!({"query": query, "documents": documents});
        request.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        server.post(PATH, &request)
    };
    for (query, documents, cut) in [
        (long.as_str(), ["a", "b"], "1"),
        (long.as_str(), ["a", long.as_str()], "2"),
        ("a", ["b", long.as_str()], "1"),
    ] {
        let ranked = rank(query, &documents, json!({}));
        assert_eq!(ranked.find("x-truncated"), Some(cut), "{}", ranked.body);
        assert_eq!(ranked.body["usage"]["truncated_inputs"].to_string(), cut);
    }
    for (query, document, field) in [(long.as_str(), "a", "query"), ("a", long.as_str(), "documents")] {
        let refused = rank(query, &[document], json!({"truncate": false}));
        assert_eq!(
            (refused.status, &refused.body["error"]["param"]),
            (400, &json!(field)),
            "{}",
            refused.body
        );
    }

    // text-embeddings-inference chooses the side.
    let documents = [format!("keeper {long}"), format!("ships {long}")];
    let scores = |side: &str| {
        let documents = documents.each_ref().map(String::as_str);
        let ranked = rank("a", &documents, json!({ "truncation_direction": side }));
        let results = ranked.body["results"].as_array().unwrap_or_else(|| panic!("{}", ranked.body)).clone();
        [0, 1].map(|place| results[place]["relevance_score"].as_f64().expect("a number"))
    };
    let [one, other] = scores("Left");
    assert!((one - other).abs() < 1e-9, "the starts are cut: {one}, {other}");
    let [one, other] = scores("right");
    assert!((one - other).abs() > 1e-9, "the ends are cut: {one}, {other}");
    let refused = rank("a", &["b"], json!({"truncation_direction": "up"}));
    assert_eq!((refused.status, &refused.body["error"]["param"]), (400, &json!("truncation_direction")));
}

/// The files that sentence-transformers writes for a cross-encoder: its default prompt, and its texts in lower case.
#[test]
fn a_cross_encoder_has_the_settings_of_its_modules() {
    let own = json!({"transformer_task": "sequence-classification", "module_output_name": "scores", "max_seq_length": 48, "do_lower_case": true});
    let prompts = json!({"model_type": "CrossEncoder", "prompts": {"find": "the keeper "}, "default_prompt_name": "find"});
    let name = "xlm-roberta-classify-f32";
    let [plain, set, ignored] = [
        cross_encoder(name, &[]),
        cross_encoder(
            name,
            &[
                ("sentence_bert_config.json", own.clone()),
                ("config_sentence_transformers.json", prompts.clone()),
            ],
        ),
        cross_encoder(
            name,
            &[("sentence_bert_config.json", own), ("config_sentence_transformers.json", prompts)],
        ),
    ];
    std::fs::remove_file(ignored.path().join("modules.json")).expect("it is there");
    let models = [("plain", &plain), ("set", &set), ("ignored", &ignored)]
        .map(|(name, folder)| format!("{name}={}", folder.path().display()));
    let flags: Vec<&str> = models.iter().flat_map(|model| ["-m", model]).chain(["--exact"]).collect();
    let server = Server::start(&SERVER, &flags);
    let score = |model: &str, query: &str, document: &str| {
        let ranked = server.post(PATH, &json!({"model": model, "query": query, "documents": [document]}));
        ranked.body["results"][0]["relevance_score"].as_f64().unwrap_or_else(|| panic!("{}", ranked.body))
    };
    let expected = score("plain", "the keeper counts", "waves");
    let near = |other: f64| (expected - other).abs() < 1e-9;
    assert!(near(score("set", "COUNTS", "Waves")), "the prompt and the case");
    assert!(!near(score("plain", "counts", "waves")) && !near(score("plain", "THE KEEPER COUNTS", "waves")));
    // Without modules.json, sentence-transformers does not read the other files.
    assert!((score("ignored", "COUNTS", "Waves") - score("plain", "COUNTS", "Waves")).abs() < 1e-9);
}

/// Scores of cross-encoders equal transformers' logits, mapped as sentence-transformers maps them. Pairs that are too long are cut.
#[test]
fn cross_encoders_rank_by_the_scores_of_sentence_transformers() {
    let encoders = golden_folder().join("encoders");
    let text = std::fs::read_to_string(encoders.join("expected.json")).expect("a fixture");
    let golden: Value = serde_json::from_str(&text).expect("json");
    for (name, is_identity) in
        [("bert-classify-f32", true), ("xlm-roberta-classify-f32", false), ("modernbert-classify-f32", false)]
    {
        let server = Server::start_on(&SERVER, &encoders.join(name), &["--exact"]);
        let rows = golden["models"][name]["rows"].as_array().expect("a list");
        for (pair, row) in golden["pairs"].as_array().expect("a list").iter().zip(rows) {
            let raw = row["numbers"][0].as_f64().expect("a logit");
            let request = json!({"query": pair[0], "documents": [pair[1]], "raw_scores": true});
            let found = server.post(PATH, &request);
            let score = |reply: &Value| reply["results"][0]["relevance_score"].as_f64().expect("a number");
            assert!((score(&found.body) - raw).abs() < 1e-4, "{name}: {} instead of {raw}", found.body);
            let mapped = if is_identity { raw } else { 1.0 / (1.0 + (-raw).exp()) };
            let request = json!({"query": pair[0], "documents": [pair[1]]});
            assert!((score(&server.post(PATH, &request).body) - mapped).abs() < 1e-4, "{name}");
            let is_long = [&pair[0], &pair[1]].iter().any(|text| text.as_str().expect("a text").len() > 200);
            assert_eq!(found.find("x-truncated"), is_long.then_some("1"), "{name}: {pair}");
            let whole = json!({"query": pair[0], "documents": [pair[1]], "truncate": false});
            assert_eq!(server.post(PATH, &whole).status, if is_long { 400 } else { 200 }, "{name}: {pair}");
        }
        for (path, request) in [
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}]})),
            ("/v1/embeddings", json!({"input": "a"})),
        ] {
            let refused = server.post(path, &request).body["error"].clone();
            let message = refused["message"].as_str().expect("a text");
            assert!(refused["param"] == "model" && message.contains("use POST /v1/rerank"), "{refused}");
        }
        assert_eq!(server.get("/v1/models").body["data"][0]["capabilities"], json!(["rerank"]));
    }
}
