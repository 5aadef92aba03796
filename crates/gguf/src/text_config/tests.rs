//! Tests of tokenizer_config.json and generation_config.json.

use serde_json::json;

use super::*;
use crate::metadata::Value as Stored;
use crate::tokenizer::tests::{byte_level, sentencepiece, text};

#[test]
fn special_tokens_are_named() {
    let file =
        sentencepiece("llama", &[]).with("tokenizer.ggml.padding_token_id", Stored::Integer(4_294_967_295));
    let file = file.with("llama.context_length", Stored::Integer(4096));
    let config = tokenizer_config(&file.metadata()).expect("the file is valid");
    let expected = json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": true,
        "add_eos_token": false, "clean_up_tokenization_spaces": false, "model_max_length": 4096,
        "tokenizer_class": "PreTrainedTokenizerFast"});
    assert_eq!(config, expected);
}

#[test]
fn templates_are_a_string_or_a_list() {
    let template = |file: crate::tokenizer::tests::File| {
        tokenizer_config(&file.metadata()).expect("the file is valid").get("chat_template").cloned()
    };
    assert_eq!(template(byte_level("gpt-2", &[])), None);
    let file = || byte_level("gpt-2", &[]).with(CHAT_TEMPLATE, text("{{ a }}"));
    assert_eq!(template(file()), Some("{{ a }}".into()));
    let named = file().with("tokenizer.chat_template.tool_use", text("{{ b }}"));
    let expected =
        json!([{"name": "default", "template": "{{ a }}"}, {"name": "tool_use", "template": "{{ b }}"}]);
    assert_eq!(template(named), Some(expected));
    let wrong = byte_level("gpt-2", &[]).with(CHAT_TEMPLATE, Stored::Bool(true)).metadata();
    let message = tokenizer_config(&wrong).expect_err("it is no template").to_string();
    assert_eq!(message, "model.gguf: tokenizer.chat_template must be a string");
}

/// Returns the tokens that end an answer in a file with these tokens, by text.
fn ends(tokens: &[(&str, i64)]) -> Vec<String> {
    let file = byte_level("gpt-2", tokens).metadata();
    let config = generation_config(&file).expect("the file is valid");
    let ids = config.and_then(|config| config["eos_token_id"].as_array().cloned()).unwrap_or_default();
    ids.iter().filter_map(Value::as_u64).map(|id| tokens[id as usize - 102].0.to_owned()).collect()
}

#[test]
fn tokens_with_known_texts_end_an_answer() {
    assert_eq!(ends(&[("<other>", 3)]), [""; 0]);
    assert_eq!(
        ends(&[("<|im_start|>", 3), ("<|im_end|>", 3), ("<|endoftext|>", 1)]),
        ["<|im_end|>", "<|endoftext|>"]
    );
    assert_eq!(ends(&[("<|end|>", 3)]), ["<|end|>"]);
    assert_eq!(ends(&[("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)]), ["<|return|>", "<|call|>"]);
    assert_eq!(ends(&[("</s>", 3)]), ["</s>"]);
    assert_eq!(ends(&[("</s>", 4)]), [""; 0], "a tag of HTML");
}

#[test]
fn named_tokens_end_an_answer() {
    let file = byte_level("gpt-2", &[("<a>", 3), ("<b>", 3), ("<c>", 3)]);
    let file = file.with("tokenizer.ggml.eos_token_id", Stored::Integer(104));
    let file = file.with("tokenizer.ggml.eot_token_id", Stored::Integer(102));
    let file = file.with("tokenizer.ggml.bos_token_id", Stored::Integer(103));
    let config = generation_config(&file.metadata()).expect("the file is valid");
    assert_eq!(config, Some(json!({"bos_token_id": 103, "eos_token_id": [102, 104]})));
}

#[test]
fn sampling_values_are_the_defaults_of_the_file() {
    let with = |temperature: f32| {
        let file = byte_level("gpt-2", &[]).with("general.sampling.top_k", Stored::Integer(20));
        let file = file.with("general.sampling.top_p", Stored::Float(f64::from(0.95_f32)));
        let file = file.with("general.sampling.temp", Stored::Float(f64::from(temperature)));
        generation_config(&file.metadata()).expect("the file is valid")
    };
    let expected = json!({"temperature": 0.6, "top_k": 20, "top_p": 0.95, "do_sample": true});
    assert_eq!(with(0.6), Some(expected));
    assert_eq!(with(0.0), Some(json!({"top_k": 20, "top_p": 0.95, "do_sample": false})));
    let none = generation_config(&byte_level("gpt-2", &[]).metadata()).expect("the file is valid");
    assert_eq!(none, None);
}
