//! Text on every path: the server and the program return the decoded text of all tokens, with a vocabulary of pieces and bytes, on
//! models with and without sliding windows.

use std::path::Path;
use std::process::Command;

use chat_format::text::Tokenizer;
use mlx_tests::server::Server;
use mlx_tests::{Dice, added, model_copy, model_folder, piped};
use serde_json::{Value, json};
use tempfile::TempDir;

const MLX: &str = env!("CARGO_BIN_EXE_mlx");
/// The size of the smaller vocabulary.
const VOCABULARY: usize = 320;

/// Runs `each` on the tiny models. The vocabulary of one has pieces, bytes and a space before the first word; the others use it too.
fn with_models(mut each: impl FnMut(&Path, &Server, &Tokenizer)) {
    for name in ["llama-spm-f32", "mistral-f32", "gemma3_text-f32"] {
        let folder = pieces(name);
        let server = Server::start_on(&[MLX, "serve"], folder.path(), &["--exact"]);
        each(folder.path(), &server, &Tokenizer::load(folder.path()).expect("it loads"));
    }
}

fn pieces(name: &str) -> TempDir {
    let copy = model_copy(name);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(model_folder("llama-spm-f32").join(file), copy.path().join(file))
            .expect("it is copied");
    }
    copy
}

/// Returns words, half characters, and bytes that form no character.
fn prompts() -> Vec<Vec<u32>> {
    let mut dice = Dice::new(11);
    let mut prompts: Vec<Vec<u32>> = (0..6)
        .map(|length| (0..=length * 2).map(|_| 3 + dice.below(VOCABULARY - 3) as u32).collect())
        .collect();
    // "a", line ends, and two thirds of a character; only the token that begins a text.
    prompts.extend([vec![1, 303], vec![1, 303, 13, 13], vec![1, 303, 233, 191], vec![1]]);
    prompts
}

fn request(prompt: &[u32], more: &Value) -> Value {
    let mut request = json!({"prompt": prompt, "n": 2, "seed": 5, "temperature": 1.5, "max_tokens": 24,
        "ignore_eos": true, "return_token_ids": true, "logprobs": 1});
    request.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    request
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

/// Joins the deltas of a streamed answer.
fn joined(chunks: &[Value], index: usize) -> Value {
    let (mut text, mut offsets) = (String::new(), Vec::new());
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("a list")) {
        if choice["index"] == index {
            text.push_str(choice["text"].as_str().expect("text"));
            let of_chunk = choice["logprobs"]["text_offset"].as_array();
            offsets.extend(of_chunk.into_iter().flatten().cloned());
        }
    }
    json!([text, offsets])
}

#[test]
fn a_completion_is_what_its_tokens_add_to_the_prompt() {
    with_models(|_, server, tokenizer| {
        for prompt in prompts() {
            for echo in [false, true] {
                let mut request = request(&prompt, &json!({"echo": echo}));
                let whole = server.post("/v1/completions", &request).body;
                request["stream"] = json!(true);
                let chunks = server.stream("/v1/completions", &request);
                for (index, choice) in whole["choices"].as_array().expect("a list").iter().enumerate() {
                    let answer = ids(&choice["token_ids"]);
                    let echoed = if echo { tokenizer.decode(&prompt, false) } else { String::new() };
                    let text = choice["text"].as_str().expect("text");
                    assert_eq!(text, echoed.clone() + &added(tokenizer, &prompt, &answer), "{prompt:?}");
                    let offsets = &choice["logprobs"]["text_offset"];
                    assert_eq!(joined(&chunks, index), json!([text, offsets]), "{prompt:?}");
                    let shown = if echo { [&prompt[..], &answer].concat() } else { answer };
                    let answer_begins = echoed.chars().count();
                    check_offsets(
                        tokenizer,
                        text,
                        &shown,
                        offsets,
                        if echo { prompt.len() } else { 0 },
                        answer_begins,
                    );
                }
            }
        }
    });
}

/// Each token's offset is that of its first character, or of the character that it belongs to.
fn check_offsets(
    tokenizer: &Tokenizer,
    text: &str,
    tokens: &[u32],
    offsets: &Value,
    prompt: usize,
    answer_begins: usize,
) {
    let offsets: Vec<usize> = serde_json::from_value(offsets.clone()).expect("offsets");
    let letters: Vec<char> = text.chars().collect();
    assert_eq!(offsets.len(), tokens.len());
    assert!(offsets.is_sorted(), "{offsets:?}");
    assert_eq!(offsets.get(prompt), Some(&answer_begins), "{text:?}");
    for (&at, &id) in offsets.iter().zip(tokens).filter(|(_, id)| !tokenizer.is_special(**id)) {
        let (bytes, token) = (tokenizer.token_bytes(id), tokenizer.token(id).expect("a token"));
        let from: String = letters[at..].iter().collect();
        if token.starts_with("<0x") {
            let letter = letters.get(at).map_or(String::new(), char::to_string);
            assert!(letter == "\u{FFFD}" || letter.as_bytes().contains(&bytes[0]), "{token} at {from:?}");
        } else {
            let word = String::from_utf8(bytes).expect("a word");
            assert!(from.starts_with(word.trim_start()) || from.starts_with(&word), "{word:?} at {from:?}");
        }
    }
}

#[test]
fn a_stop_string_ends_a_completion_where_its_text_has_it() {
    with_models(|_, server, tokenizer| {
        let mut dice = Dice::new(5);
        for prompt in prompts() {
            let free = server.post("/v1/completions", &request(&prompt, &json!({"n": 1}))).body;
            let answer = ids(&free["choices"][0]["token_ids"]);
            let letters: Vec<char> = added(tokenizer, &prompt, &answer).chars().collect();
            let start = dice.below(letters.len());
            let stop: String = letters[start..].iter().take(1 + dice.below(3)).collect();
            if stop.contains('\u{FFFD}') {
                continue;
            }
            let first = (1..=answer.len())
                .map(|count| added(tokenizer, &prompt, &answer[..count]))
                .find_map(|shown| shown.find(&stop).map(|place| shown[..place].to_owned()));
            let mut request = request(&prompt, &json!({"n": 1, "stop": stop}));
            let choice = server.post("/v1/completions", &request).body["choices"][0].clone();
            assert_eq!(choice["text"].as_str(), first.as_deref(), "{stop:?} after {prompt:?}");
            assert_eq!(choice["finish_reason"], "stop");
            request["stream"] = json!(true);
            let chunks = server.stream("/v1/completions", &request);
            assert_eq!(joined(&chunks, 0)[0], choice["text"], "{stop:?} after {prompt:?}");
        }
    });
}

#[test]
fn the_first_word_keeps_its_space() {
    let server = Server::start_on(&[MLX, "serve"], &model_folder("llama-spm-f32"), &[]);
    let tokenizer = Tokenizer::load(&model_folder("llama-spm-f32")).expect("it loads");
    // This token is " w".
    let space = tokenizer.id("▁w").expect("a token").to_string();
    let mut request = json!({"prompt": "the", "max_tokens": 2, "temperature": 0, "echo": true, "logprobs": 0,
        "logit_bias": {space.as_str(): 100}});
    let answer = server.post("/v1/completions", &request).body;
    assert_eq!(answer["choices"][0]["text"], "the w w");
    assert_eq!(answer["choices"][0]["logprobs"]["text_offset"], json!([0, 0, 3, 5]));
    request["stop"] = json!(" w");
    let stopped = server.post("/v1/completions", &request).body;
    assert_eq!(stopped["choices"][0]["text"], "the");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let mut command = Command::new(MLX);
    command.arg("generate").arg("-m").arg(model_folder("llama-spm-f32"));
    command.args(["--raw", "-p", "the", "--max-tokens", "2", "--temperature", "0"]);
    command.arg("--logit-bias").arg(format!("{space}=100"));
    assert_eq!(String::from_utf8_lossy(&piped(command, "").stdout), " w w\n");
}

/// A message is a separate text: it does not begin with the space before its first word.
#[test]
fn a_message_is_what_its_tokens_decode_to() {
    let folder = model_folder("llama-spm-f32");
    let server = Server::start_on(&[MLX, "serve"], &folder, &["--exact"]);
    let tokenizer = Tokenizer::load(&folder).expect("it loads");
    for seed in 0..8 {
        let mut request = json!({"messages": [{"role": "user", "content": "the waves"}], "seed": seed,
            "temperature": 1.5, "max_tokens": 24, "ignore_eos": true, "return_token_ids": true});
        let choice = server.post("/v1/chat/completions", &request).body["choices"][0].clone();
        let text = tokenizer.decode(&ids(&choice["token_ids"]), true);
        assert_eq!(choice["message"]["content"], text);
        request["stream"] = json!(true);
        let chunks = server.stream("/v1/chat/completions", &request);
        let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        assert_eq!(parts.collect::<String>(), text);
        let mut command = Command::new(MLX);
        command.arg("generate").arg("-m").arg(&folder).args([
            "-p",
            "the waves",
            "--max-tokens",
            "24",
            "--exact",
        ]);
        command.args(["--temperature", "1.5", "--min-p", "0", "--ignore-eos", "--seed", &seed.to_string()]);
        assert_eq!(String::from_utf8_lossy(&piped(command, "").stdout), text + "\n");
    }
}
