//! GGUF files run as models: logits, tokens and text of the reference; damaged, split and changed files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chat_format::text::Tokenizer;
use chat_format::{ChatTemplate, Message, TemplateInput};
use mlx_core::ModelFolder;
use mlx_core::backend::Backend;
use mlx_core::engine::{Engine, EngineOptions, Engines, RequestOptions};
use mlx_core::model::{self, Batch};
use mlx_core::weights::{FloatPolicy, WeightPolicy};
use mlx_tests::golden::{self, worst_difference};
use mlx_tests::{Dice, copied, device, golden_folder, greedy, model_folder, run, scale};
use serde_json::json;

use crate::convert;
use crate::families::{logits_in_passes, tolerance};

/// The name of the expected results, the file, and the fixture with the same tokenizer and chat template.
const FILES: [(&str, &str, &str); 4] = [
    ("llama-gguf", "llama.gguf", "llama-spm-f32"),
    ("gemma3-gguf", "gemma3.gguf", "llama-f32"),
    ("qwen3moe-gguf", "qwen3moe-00001-of-00003.gguf", "llama-f32"),
    ("qwen35-gguf", "qwen35.gguf", "llama-f32"),
];

/// The longest time to open and run a damaged file. A debug build on a busy machine takes 0.2 s.
const LIMIT: Duration = Duration::from_secs(5);

fn folder() -> PathBuf {
    golden_folder().join("gguf")
}

fn policy(floats: FloatPolicy, keep_packed: bool) -> WeightPolicy {
    WeightPolicy { floats, keep_packed, backend: Backend::CPU }
}

/// Opens a file, loads it, and computes the logits of a short text.
fn open_and_run(path: &Path) -> mlx_core::Result<Vec<f32>> {
    let opened = ModelFolder::open(path)?;
    let policy = policy(FloatPolicy::F32, true);
    // A real load starts with this check of memory.
    model::inspect(path, policy)?;
    let model = model::load(path, policy, &mut |_, _| {})?;
    let tokens = opened.tokenizer.encode("the sea", false)?;
    let last = model.spec().vocab_size.saturating_sub(1) as u32;
    let tokens: Vec<u32> = tokens.into_iter().map(|id| id.min(last)).collect();
    let mut state = model.new_state(model.spec().variant(tokens.len()));
    let hidden = model.forward(Batch::prompt(&tokens, 0), &mut [&mut state])?;
    Ok(mlx_core::array::Rows::new(&model.logits(&hidden)?)?.values()?.to_vec())
}

/// Returns the error of a file with these bytes.
fn refused(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, bytes).expect("it can be written");
    open_and_run(&path).expect_err("it must be refused").to_string()
}

/// Returns the file of llama with the first `from` after `anchor` replaced.
fn replaced(anchor: &str, from: &str, to: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(folder().join("llama.gguf")).expect("the fixture is in the repository");
    let find = |text: &str, start: usize| {
        let place = bytes[start..].windows(text.len()).position(|window| window == text.as_bytes());
        start + place.expect("the file contains it")
    };
    let start = find(from, find(anchor, 0) + anchor.len());
    bytes[start..start + to.len()].copy_from_slice(to.as_bytes());
    bytes
}

/// Quantized in Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, with F16 and F32; rows of llama's heads are permuted, and norms of Gemma and Qwen have 1
/// added; experts are stacked; value heads are tiled.
#[test]
fn gguf_files_give_the_logits_of_the_reference() {
    let _turn = device();
    for (name, file, _) in FILES {
        let expected = golden::logits(name, true);
        let one_by_one: Vec<usize> = (1..expected.tokens.len()).collect();
        for policy in [
            policy(FloatPolicy::F32, true),
            policy(FloatPolicy::F32, false),
            policy(FloatPolicy::Mixed, true),
        ] {
            let model = model::load(&folder().join(file), policy, &mut |_, _| {}).expect("it loads");
            for (way, cuts) in [("one pass", &[][..]), ("chunks", &[7, 8, 31]), ("one by one", &one_by_one)] {
                let values = logits_in_passes(model.as_ref(), &expected.tokens, cuts);
                let worst = worst_difference(&values, &expected.values, expected.vocabulary);
                assert!(worst < tolerance("f32"), "{file}, {policy:?}, {way}: {worst:e} of the spread");
            }
        }
    }
}

/// A converted file has the same packing, so both give the same bits.
#[test]
fn the_engine_gives_the_tokens_of_the_reference_and_of_the_converted_file() {
    let _turn = device();
    let options = EngineOptions { keep_quantized: true, ..EngineOptions::default() };
    for (name, file, _) in FILES {
        let target = tempfile::tempdir().expect("a temporary folder");
        let plain = convert::options(&json!({}));
        let report = convert::run(&folder().join(file), target.path(), &plain).expect("it converts");
        assert_eq!(report.quantized, 0, "{file}: quantized again: {report:?}");
        let start = |path: &Path| Engine::start(path, &options, |_, _| {}).expect("it loads");
        let (engine, converted) = (start(&folder().join(file)), start(target.path()));
        if engine.spec().dtype != "f32" {
            continue; // The tokens were recorded in f32; a GPU keeps half precision.
        }
        for case in golden::cases(name).cases {
            let request = RequestOptions { logprobs: Some(2), ..greedy(case.tokens.len()) };
            let outcome = run(&engine, &case.prompt_ids, &request);
            assert_eq!(outcome.ids(), case.tokens, "{file}");
            for (token, expected) in outcome.tokens.iter().zip(&case.logprobs) {
                let found = token.logprob.as_ref().expect("requested").logprob;
                assert!((found - expected).abs() < 1e-3, "{file}: {found} instead of {expected}");
            }
            assert_eq!(outcome.tokens, run(&converted, &case.prompt_ids, &request).tokens, "{file}");
        }
    }
}

#[test]
fn tokens_and_templates_of_gguf_files_are_those_of_the_folder() {
    let texts = [
        "The sea was calm.",
        "  two  spaces, 1234567 digits\n\n\tand lines ",
        "Grüße, 日本語 and 🌊🌊",
        "<|im_start|>user\nhello<|im_end|>\n",
        "it's <s>we'll</s> I'M don't",
        "",
    ];
    let chat = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " Hello <|im_end|> 日本 "},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye."},
    ]);
    let messages: Vec<Message> = serde_json::from_value(chat).expect("messages");
    for (_, file, fixture) in FILES {
        let (path, fixture) = (folder().join(file), model_folder(fixture));
        let [ours, theirs] = [&path, &fixture].map(|path| Tokenizer::load(path).expect("it loads"));
        for text in texts {
            for special in [false, true] {
                let [ours, theirs] = [&ours, &theirs].map(|it| it.encode(text, special).expect("it encodes"));
                assert_eq!(ours, theirs, "{file}: {text:?}");
            }
        }
        let mut dice = Dice::new(11);
        let ids: Vec<u32> = (0..200).map(|_| dice.below(320) as u32).collect();
        for skips in [false, true] {
            assert_eq!(ours.decode(&ids, skips), theirs.decode(&ids, skips), "{file}");
        }
        let input = TemplateInput {
            messages: messages.clone(),
            add_generation_prompt: true,
            ..TemplateInput::default()
        };
        let [text, expected] = [&path, &fixture].map(|path| {
            let template = ChatTemplate::load(path).expect("it loads").expect("a template");
            template.render(&input).expect("it renders")
        });
        assert_eq!(text, expected, "{file}");
        let [ours, theirs] = [&ours, &theirs].map(|it| it.encode_chat(&text).expect("it encodes"));
        assert_eq!(ours, theirs, "{file}");
        let [ends, expected] =
            [&path, &fixture].map(|path| ModelFolder::open(path).expect("it opens").end_tokens);
        assert!(expected.iter().all(|id| ends.contains(id)), "{file}: {ends:?} instead of {expected:?}");
    }
}

#[test]
fn inspect_names_the_formats_of_a_gguf_file() {
    let _turn = device();
    for (_, file, _) in FILES {
        let path = folder().join(file);
        let policy = policy(FloatPolicy::F32, true);
        let (mut spec, kinds) = model::inspect(&path, policy).expect("it can be read");
        let loaded = model::load(&path, policy, &mut |_, _| {}).expect("it loads");
        // Only loading computes a hash of the weights.
        spec.fingerprint = loaded.spec().fingerprint;
        assert_eq!(&spec, loaded.spec(), "{file}");
        let names: Vec<&str> = kinds.keys().map(String::as_str).collect();
        let packed = [(4, "Q4_0"), (4, "Q4_1"), (5, "Q5_0"), (5, "Q5_1"), (8, "Q8_0")];
        let packed =
            packed.map(|(bits, name)| format!("affine {bits} bits, groups of 32 (in the files: {name})"));
        let expected: Vec<&str> = packed.iter().map(String::as_str).chain(["f16", "f32"]).collect();
        assert_eq!(names, expected, "{file}");
    }
}

#[test]
fn a_split_file_needs_all_its_parts() {
    let _turn = device();
    let copy = copied(&folder());
    let part = |number: usize| copy.path().join(format!("qwen3moe-0000{number}-of-00003.gguf"));
    let message = open_and_run(&part(2)).expect_err("it is not the first").to_string();
    assert!(message.contains("open") && message.contains("qwen3moe-00001-of-00003.gguf"), "{message}");
    std::fs::remove_file(part(3)).expect("it was there");
    let message = open_and_run(&part(1)).expect_err("a part is missing").to_string();
    assert!(message.contains("qwen3moe-00003-of-00003.gguf"), "{message}");
}

#[test]
fn unknown_architectures_and_tensors_are_named() {
    let _turn = device();
    let message = refused(&replaced("general.architecture", "llama", "lamma"));
    assert!(message.contains("general.architecture") && message.contains("\"lamma\""), "{message}");
    let message = refused(&replaced("GGUF", "blk.1.attn_q.weight", "blk.1.attn_z.weight"));
    assert!(message.contains("blk.1.attn_z.weight"), "{message}");
    let message = refused(&replaced("tokenizer.ggml.model", "llama", "lamma"));
    assert!(message.contains("tokenizer.ggml.model") && message.contains("\"lamma\""), "{message}");
    // The layer has two such tensors, and lacks another.
    let message = refused(&replaced("GGUF", "blk.1.attn_k.weight", "blk.1.attn_v.weight"));
    assert!(message.contains("attn_v") || message.contains("v_proj"), "{message}");
}

#[test]
fn damaged_gguf_files_are_errors_and_never_panics() {
    let _turn = device();
    let mut dice = Dice::new(23);
    for (_, file, _) in FILES {
        let copy = copied(&folder());
        let path = copy.path().join(file);
        let bytes = std::fs::read(&path).expect("it was copied");
        let run = |damaged: &[u8], about: &dyn Fn() -> String| {
            std::fs::write(&path, damaged).expect("it can be written");
            let begun = Instant::now();
            let result = open_and_run(&path);
            assert!(begun.elapsed() < LIMIT, "{file}, {}: {:?}", about(), begun.elapsed());
            result
        };
        for cut in 0..20 {
            let length = if cut < 10 { bytes.len() * cut / 10 } else { dice.below(bytes.len()) };
            let message = run(&bytes[..length], &|| format!("cut at {length}"));
            let message = message.expect_err("a part is missing").to_string();
            assert!(message.contains(file), "{file}, cut at {length}: {message}");
        }
        let vocabulary = bytes.windows(21).position(|it| it == b"tokenizer.ggml.tokens").expect("tokens");
        let descriptions = bytes.windows(4).position(|it| it == b"blk.").expect("tensors");
        // Keys, the vocabulary, and the descriptions of tensors.
        for (start, end, count) in
            [(0, vocabulary, 20), (vocabulary, descriptions, 6), (descriptions, descriptions + 1400, 20)]
        {
            for _ in 0..scale::cases(count) {
                let (place, value) = (start + dice.below(end - start), dice.below(255) as u8 + 1);
                let mut damaged = bytes.clone();
                damaged[place] ^= value;
                // Some changes only give another model, such as one with another name.
                if let Err(error) = run(&damaged, &|| format!("byte {place} xor {value}")) {
                    let message = error.to_string();
                    let is_legible = message.len() < 4000 && !message.contains(char::is_control);
                    assert!(is_legible, "{file}, byte {place} xor {value}: {message}");
                }
            }
        }
    }
}

#[test]
fn a_changed_gguf_file_is_loaded_again() {
    let _turn = device();
    let copy = copied(&folder());
    let reads = Arc::new(AtomicUsize::new(0));
    let engines = Engines::default();
    let ask = |file: &str| {
        let reads = Arc::clone(&reads);
        let progress = move |read, all| {
            if read == all {
                reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        engines.start(&copy.path().join(file), &EngineOptions::single(), progress).expect("it loads")
    };
    let (first, second) = (ask("llama.gguf"), ask("llama.gguf"));
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    std::fs::copy(copy.path().join("gemma3.gguf"), copy.path().join("llama.gguf")).expect("a copy");
    let third = ask("llama.gguf");
    assert_eq!(reads.load(Ordering::Relaxed), 2, "the file has changed");
    assert_ne!(first.spec().family, third.spec().family);
    // Any part of a split file counts.
    let split = ask(FILES[2].1);
    assert_eq!(reads.load(Ordering::Relaxed), 3);
    let part = copy.path().join("qwen3moe-00002-of-00003.gguf");
    let bytes = std::fs::read(&part).expect("it is there");
    std::fs::write(&part, [&bytes[..], &[0; 32]].concat()).expect("it can be written");
    let again = ask(FILES[2].1);
    assert_eq!(reads.load(Ordering::Relaxed), 4, "a part has changed");
    drop((first, second, third, split, again));
}
