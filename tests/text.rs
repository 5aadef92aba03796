//! Text: tokens and templates are transformers' tokens and templates, and streamed text is the whole text.

use mlx_core::text::{ChatTemplate, TemplateInput, Tokenizer};
use mlx_tests::{golden_folder, model_folder};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Expected {
    tokenizers: BTreeMap<String, Vec<TokenCase>>,
    chat: Vec<ChatCase>,
}

#[derive(Deserialize)]
struct TokenCase {
    /// Absent for random ids.
    text: Option<String>,
    ids: Vec<u32>,
    ids_with_specials: Option<Vec<u32>>,
    decoded: String,
    decoded_skipping_specials: String,
}

#[derive(Deserialize)]
struct ChatCase {
    model: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    add_generation_prompt: bool,
    text: String,
    ids: Vec<u32>,
}

fn expected() -> Expected {
    let path = golden_folder().join("expected/text.json");
    let text = std::fs::read_to_string(path).expect("the fixture is in the repository");
    serde_json::from_str(&text).expect("the fixture has this form")
}

fn tokenizer(model: &str) -> Tokenizer {
    Tokenizer::load(&model_folder(model)).expect("the fixture loads")
}

#[test]
fn texts_become_the_references_tokens() {
    for (model, cases) in expected().tokenizers {
        let tokenizer = tokenizer(&model);
        for TokenCase { text, ids, ids_with_specials, .. } in cases {
            let Some(text) = text else { continue };
            let encode = |special| tokenizer.encode(&text, special).expect("the text can be encoded");
            assert_eq!(encode(false), ids, "{model}: {text:?}");
            assert_eq!(Some(encode(true)), ids_with_specials, "{model}: {text:?}");
        }
    }
}

/// At every token, what has been streamed is the beginning of what all tokens decode to; at the end, all of it.
#[test]
fn streamed_text_is_the_references_text() {
    for (model, cases) in expected().tokenizers {
        let tokenizer = tokenizer(&model);
        for case in cases {
            let with_specials = case.ids_with_specials.as_ref().unwrap_or(&case.ids);
            for (skip, ids, whole) in
                [(false, &case.ids, &case.decoded), (true, with_specials, &case.decoded_skipping_specials)]
            {
                let mut detokenizer = tokenizer.detokenizer(skip);
                let mut streamed = String::new();
                for &id in ids {
                    streamed.push_str(&detokenizer.push(id));
                    assert!(whole.starts_with(&streamed), "{model}: {streamed:?} does not begin {whole:?}");
                }
                streamed.push_str(&detokenizer.finish());
                assert_eq!(&streamed, whole, "{model}");
            }
        }
    }
}

#[test]
fn chats_become_the_references_prompts() {
    for case in expected().chat {
        let template = ChatTemplate::load(&model_folder(&case.model)).expect("it loads").expect("a template");
        let input = TemplateInput {
            messages: case.messages,
            tools: case.tools,
            add_generation_prompt: case.add_generation_prompt,
            ..TemplateInput::default()
        };
        let text = template.render(&input).expect("it renders");
        assert_eq!(text, case.text, "{}", case.model);
        assert_eq!(
            tokenizer(&case.model).encode(&text, false).expect("it encodes"),
            case.ids,
            "{}",
            case.model
        );
    }
}
