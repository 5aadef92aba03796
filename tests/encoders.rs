//! Vectors and scores of encoders equal transformers', for one text and for several in a pass.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use chat_format::text::{EncodeLimit, NO_PAUSE};
use mlx_core::convert::{ConvertOptions, EmbeddingBits, convert};
use mlx_core::embeddings::{EmbedOptions, Embedder};
use mlx_core::engine::{FinishReason, RequestOptions, Task};
use mlx_core::inspect::inspect;
use mlx_core::quantization::{Mode, QuantScheme};
use mlx_core::sentence_transformers::{Pooling, normalized};
use mlx_core::{Abilities, Engine, EngineOptions};
use mlx_tests::{collect, golden_folder, tensors};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The most tokens of the references.
const LIMIT: EncodeLimit = EncodeLimit { tokens: 48, pause: NO_PAUSE };

fn expected() -> Value {
    let path = golden_folder().join("encoders/expected.json");
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("json")
}

fn folder(name: &str) -> PathBuf {
    golden_folder().join("encoders").join(name)
}

fn start(folder: &Path) -> Engine {
    Engine::start(folder, &EngineOptions::default(), |_, _| {}).expect("it starts")
}

/// A text or pair of the references, its request, and the numbers of the reference.
struct Case {
    ids: Vec<u32>,
    options: RequestOptions,
    numbers: Vec<f32>,
}

/// Returns the cases of a model, and checks their tokens.
fn cases(engine: &Engine, expected: &Value, name: &str) -> Vec<Case> {
    let (folder, model) = (engine.folder(), &expected["models"][name]);
    let rows = model["rows"].as_array().expect("rows");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let case = |(place, row): (usize, &Value)| {
        let pair = &expected["pairs"][place];
        let (encoded, task) = if model["pooling"].is_null() {
            let scores = folder.cross_encoder().expect("it scores pairs");
            let encoded = scores.encode(&folder.tokenizer, &text(&pair[0]), &text(&pair[1]), &LIMIT, None);
            (encoded.expect("it is encoded"), Task::Classify)
        } else {
            let embedding = folder.embedding().expect("it embeds");
            let encoded = embedding.encode(&folder.tokenizer, "", &text(&expected["texts"][place]), &LIMIT);
            (encoded.expect("it is encoded"), Task::Embed(embedding.pooling))
        };
        let ids: Vec<u32> = serde_json::from_value(row["ids"].clone()).expect("ids");
        assert_eq!(encoded.ids, ids, "{name}: the tokens of text {place}");
        if let Some(types) = row["types"].as_array() {
            let second = types.iter().position(|kind| *kind == 1);
            assert_eq!(encoded.second, second, "{name}: the types of pair {place}");
        }
        let numbers = serde_json::from_value(row["numbers"].clone()).expect("numbers");
        let options = RequestOptions { task, second: encoded.second, ..RequestOptions::default() };
        Case { ids, options, numbers }
    };
    rows.iter().enumerate().map(case).collect()
}

/// Returns the results of requests that are submitted together: finished vectors, or logits.
fn results(engine: &Engine, cases: &[Case], exact: bool) -> Vec<Vec<f32>> {
    let request = |case: &Case| {
        let options = RequestOptions { exact: Some(exact), ..case.options.clone() };
        engine.request(case.ids.clone(), &options).expect("it can run")
    };
    let generations = engine.submit_all(cases.iter().map(request).collect()).expect("they are queued");
    let result = |generation| {
        let outcome = collect(generation);
        assert_eq!(outcome.finished.reason, FinishReason::Length, "{:?}", outcome.finished);
        match outcome.embedding {
            Some(pooled) => {
                let embedding = engine.folder().embedding().expect("it embeds");
                normalized(&embedding.finish(pooled, true).expect("it is finished")).expect("it is not zero")
            }
            None => outcome.scores.expect("a vector or scores"),
        }
    };
    generations.into_iter().map(result).collect()
}

fn expect_near(one: &[Vec<f32>], other: &[Vec<f32>], tolerance: f32, name: &str) {
    for (place, (one, other)) in one.iter().zip(other).enumerate() {
        assert_eq!(one.len(), other.len(), "{name}: text {place}");
        let worst = one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(worst < tolerance, "{name}: text {place} differs by {worst}");
    }
}

#[test]
fn vectors_and_scores_equal_those_of_transformers_alone_and_in_company() {
    let _turn = mlx_tests::device();
    let expected = expected();
    for name in expected["models"].as_object().expect("models").keys() {
        let engine = start(&folder(name));
        let cases = cases(&engine, &expected, name);
        let reference: Vec<Vec<f32>> = cases.iter().map(|case| case.numbers.clone()).collect();
        let is_half = engine.spec().dtype != "f32";
        let tolerance = if is_half { 0.05 } else { 1e-4 };
        let together = results(&engine, &cases, false);
        expect_near(&together, &reference, tolerance, name);
        let alone: Vec<_> =
            cases.iter().flat_map(|case| results(&engine, std::slice::from_ref(case), false)).collect();
        expect_near(&alone, &reference, tolerance, name);
        let exact = results(&engine, &cases, true);
        let alone: Vec<_> =
            cases.iter().flat_map(|case| results(&engine, std::slice::from_ref(case), true)).collect();
        assert_eq!(exact, alone, "{name}: an exact result depends on its company");
    }
}

/// Returns a copy of an encoder.
fn copy(name: &str) -> TempDir {
    let (source, copy) = (folder(name), tempfile::tempdir().expect("a folder"));
    for file in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(source.join(file), copy.path().join(file)).expect("a file");
    }
    copy
}

#[test]
fn a_damaged_encoder_is_an_error_by_name_and_the_next_text_is_served() {
    let _turn = mlx_tests::device();
    let copy = copy("bert-f32");
    let file = copy.path().join("model.safetensors");
    let whole = tensors::read(&file);
    let mut tensors = whole.clone();
    let (_, shape, bytes) = tensors.get_mut("embeddings.word_embeddings.weight").expect("a table");
    // One token has no finite embedding.
    let width = 4 * shape[1];
    bytes[7 * width..8 * width].copy_from_slice(&f32::NAN.to_le_bytes().repeat(shape[1]));
    tensors::write(&file, &tensors);
    let engine = start(copy.path());
    let options = RequestOptions { task: Task::Embed(Pooling::Mean.into()), ..RequestOptions::default() };
    let request = |ids: &[u32]| engine.request(ids.to_vec(), &options).expect("it can run");
    let generations = engine.submit_all(vec![request(&[2, 9, 3]), request(&[2, 7, 3]), request(&[2, 8, 3])]);
    let outcomes: Vec<_> = generations.expect("they are queued").into_iter().map(collect).collect();
    assert!(outcomes[0].embedding.is_some() && outcomes[2].embedding.is_some());
    let FinishReason::Error(message) = &outcomes[1].finished.reason else { panic!("{:?}", outcomes[1]) };
    assert!(message.contains("a hidden state that is NaN"), "{message}");
    assert!(collect(engine.submit(request(&[2, 9, 3])).expect("it is queued")).embedding.is_some());

    let mut missing = whole;
    missing.remove("encoder.layer.1.output.dense.bias").expect("a bias");
    tensors::write(&file, &missing);
    let error =
        Engine::start(copy.path(), &EngineOptions::default(), |_, _| {}).err().expect("it is refused");
    assert!(error.to_string().contains("encoder.layer.1.output.dense.bias"), "{error}");
}

#[test]
fn an_encoder_without_sentence_transformers_files_pools_the_mean() {
    let _turn = mlx_tests::device();
    let engine = start(copy("bert-f32").path());
    let embedding = engine.folder().embedding().expect("it embeds");
    assert_eq!(embedding.pooling, Pooling::Mean.into());
    // A pooling of the request sets the width.
    let options = EmbedOptions { pooling: Some(Pooling::Cls), ..EmbedOptions::default() };
    assert!(Embedder::new(&engine, &options).is_ok());
    let several = start(&folder("bert-q8-f16"));
    let dimensions = Some(65);
    let options = EmbedOptions { pooling: Some(Pooling::Mean), dimensions, ..EmbedOptions::default() };
    let error = Embedder::new(&several, &options).err().expect("the mean has 64 numbers").to_string();
    assert_eq!(error, "dimensions: is 65; the model's vectors have 64 numbers");
}

#[test]
fn a_request_can_skip_the_last_normalization() {
    let _turn = mlx_tests::device();
    let copy = copy("bert-f32");
    let modules = json!([
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]);
    std::fs::create_dir(copy.path().join("1_Pooling")).expect("a folder");
    std::fs::write(copy.path().join("1_Pooling/config.json"), r#"{"pooling_mode_mean_tokens": true}"#)
        .expect("it is written");
    std::fs::write(copy.path().join("modules.json"), modules.to_string()).expect("it is written");
    let engine = start(copy.path());
    let width = engine.spec().hidden_size;
    let length = |normalize| {
        let options = EmbedOptions { normalize, ..EmbedOptions::default() };
        let embedder = Embedder::new(&engine, &options).expect("it embeds");
        let finished =
            embedder.form().finish(engine.folder().embedding().expect("it embeds"), vec![3.0; width]);
        finished.expect("it is finite").iter().map(|value| value * value).sum::<f32>().sqrt()
    };
    assert!((length(None) - 1.0).abs() < 1e-6 && (length(Some(true)) - 1.0).abs() < 1e-6);
    assert!((length(Some(false)) - 3.0 * (width as f32).sqrt()).abs() < 1e-4, "its own length");
}

/// mlx-embeddings stores the Dense modules of EmbeddingGemma in the model's file, where they may be packed, and copies no configs of theirs.
#[test]
fn dense_modules_in_the_model_s_file_are_applied() {
    let _turn = mlx_tests::device();
    let (expected, name) = (expected(), "gemma3_text-f32");
    let reference: Vec<Vec<f32>> = {
        let rows = expected["models"][name]["rows"].as_array().expect("rows").iter();
        rows.map(|row| serde_json::from_value(row["numbers"].clone()).expect("numbers")).collect()
    };
    let tensors_of = |copy: &TempDir| {
        let mut tensors = tensors::read(&copy.path().join("model.safetensors"));
        for (index, module) in ["2_Dense", "3_Dense"].iter().enumerate() {
            let own = tensors::read(&folder(name).join(module).join("model.safetensors"));
            tensors.insert(format!("dense.{index}.weight"), own["linear.weight"].clone());
        }
        tensors
    };
    for (has_modules, is_packed) in [(true, false), (false, false), (true, true)] {
        let copy = copy(name);
        let mut tensors = tensors_of(&copy);
        if has_modules {
            std::fs::copy(folder(name).join("modules.json"), copy.path().join("modules.json"))
                .expect("a file");
        }
        if is_packed {
            let config = copy.path().join("config.json");
            let mut fields: Value =
                serde_json::from_slice(&std::fs::read(&config).expect("a file")).expect("json");
            fields["quantization"] = json!({"group_size": 32, "bits": 8});
            std::fs::write(&config, fields.to_string()).expect("it is written");
            pack(&mut tensors, "dense.0");
        }
        tensors::write(&copy.path().join("model.safetensors"), &tensors);
        let engine = start(copy.path());
        let cases = cases(&engine, &expected, name);
        let tolerance = if is_packed { 0.02 } else { 1e-4 };
        expect_near(&results(&engine, &cases, false), &reference, tolerance, name);
    }
}

/// Packs a matrix of f32 into 8 bits in groups of 32.
fn pack(tensors: &mut std::collections::BTreeMap<String, tensors::Tensor>, name: &str) {
    let (_, shape, bytes) = tensors.remove(&format!("{name}.weight")).expect("a matrix");
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for group in numbers.chunks(32) {
        let (low, high) =
            group.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        let scale = ((high - low) / 255.0).max(1e-9);
        codes.extend(group.iter().map(|x| ((x - low) / scale).round() as u8));
        scales.extend(scale.to_le_bytes());
        biases.extend(low.to_le_bytes());
    }
    let groups = vec![shape[0], shape[1] / 32];
    tensors.insert(format!("{name}.weight"), (Dtype::U32, vec![shape[0], shape[1] / 4], codes));
    tensors.insert(format!("{name}.scales"), (Dtype::F32, groups.clone(), scales));
    tensors.insert(format!("{name}.biases"), (Dtype::F32, groups, biases));
}

#[test]
fn norms_of_old_checkpoints_have_other_names() {
    let _turn = mlx_tests::device();
    let copy = copy("bert-f32");
    let file = copy.path().join("model.safetensors");
    let ids = vec![2, 9, 7, 3];
    let vector = || {
        let engine = start(copy.path());
        let options = RequestOptions { task: Task::Embed(Pooling::Mean.into()), ..RequestOptions::default() };
        let request = engine.request(ids.clone(), &options).expect("it can run");
        collect(engine.submit(request).expect("it is queued")).embedding.expect("a vector")
    };
    let today = vector();
    let renamed = tensors::read(&file).into_iter().map(|(name, tensor)| {
        let old =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        (old, tensor)
    });
    tensors::write(&file, &renamed.collect());
    assert_eq!(vector(), today);
}

#[test]
fn a_request_that_an_encoder_cannot_serve_is_refused_by_field() {
    let _turn = mlx_tests::device();
    let engine = start(&folder("bert-f32"));
    let refused = |task, ids: &[u32]| {
        let options = RequestOptions { task, ..RequestOptions::default() };
        engine.request(ids.to_vec(), &options).expect_err("it is refused").to_string()
    };
    assert_eq!(refused(Task::Generate, &[2, 3]), "model: is an encoder; it generates and scores no text");
    assert_eq!(refused(Task::Score, &[2, 3]), "model: is an encoder; it generates and scores no text");
    let message = refused(Task::Classify, &[2, 3]);
    assert_eq!(message, "model: has no classification head; it embeds texts and scores no pairs");
    let embed = Task::Embed(Pooling::Mean.into());
    assert!(refused(embed, &[]).contains("prompt: is empty"));
    assert!(refused(embed, &[2; 61]).contains("has 61 tokens; the model's context holds 60"));
    assert!(refused(embed, &[2, 1000]).contains("holds token id 1000"));
}

#[test]
fn a_converted_encoder_has_nearly_the_same_vectors() {
    let _turn = mlx_tests::device();
    let expected = expected();
    let eight_bits = QuantScheme::new(Mode::Affine, Some(8), Some(32)).ok();
    for (name, scheme, dtype) in [
        ("bert-q8-f16", None, Some(Dtype::F32)),
        ("nomic_bert-old-f32", None, Some(Dtype::BF16)),
        ("xlm-roberta-classify-f32", eight_bits, None),
        ("gemma3_text-f32", eight_bits, None),
    ] {
        let options = ConvertOptions {
            scheme,
            embedding_bits: EmbeddingBits::Usual,
            dtype,
            shard_bytes: 1 << 30,
            adapter: None,
            rules: Vec::new(),
            force: false,
        };
        let target = tempfile::tempdir().expect("a folder");
        let target = target.path().join("converted");
        let report = convert(&folder(name), &target, &options, &mut |_, _| ControlFlow::Continue(()));
        let report = report.expect("it is converted").expect("it is not stopped");
        assert_eq!(report.quantized > 10, scheme.is_some(), "{name}: {report:?}");
        let engine = start(&target);
        let cases = cases(&engine, &expected, name);
        let reference: Vec<Vec<f32>> = cases.iter().map(|case| case.numbers.clone()).collect();
        expect_near(&results(&engine, &cases, false), &reference, 0.05, name);
    }
}

#[test]
fn an_inspection_names_what_a_model_is_made_for() {
    let inspected = |name| inspect(&folder(name), &EngineOptions::default()).expect("it is inspected");
    let found = inspected("bert-q8-f16");
    assert!(found.abilities.embeds && !found.abilities.chats && !found.abilities.reranks);
    let embedding = found.embedding.expect("it embeds");
    assert_eq!((embedding.dimensions, embedding.poolings), (192, vec!["cls", "max", "mean"]));
    assert_eq!((embedding.max_tokens, found.spec.context_length), (48, 60));
    assert!(found.memory_fit.refusal.is_none() && found.memory_fit.longest == 60);
    let found = inspected("xlm-roberta-classify-f32");
    assert!(found.abilities.reranks && !found.abilities.embeds && found.embedding.is_none());
    assert_eq!(found.spec.encoder.and_then(|encoder| encoder.labels), Some(1));
    assert!(Abilities::of(&golden_folder().join("models/llama-f32")).expect("it is read").chats);
}
