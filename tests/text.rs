//! Text: tokens and rendered templates equal transformers' results, and streamed text equals the decoded text.

use mlx_tests::{Dice, golden_folder, model_copy, model_folder};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

use chat_format::text::Tokenizer;
use chat_format::{ChatTemplate, Message, TemplateInput};

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
    messages: Vec<Message>,
    tools: Option<Vec<mlx_json::Value>>,
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
fn tokens_equal_the_reference() {
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

/// The word cache of a tokenizer takes at most a few megabytes per thread.
#[test]
fn the_word_cache_of_a_tokenizer_stays_small() {
    for model in expected().tokenizers.into_keys() {
        let tokenizer = tokenizer(&model);
        let counted = allocation_counter::measure(|| {
            for number in 0..4000 {
                let word: String =
                    (0..200).map(|index| if number >> (index % 12) & 1 == 0 { 'a' } else { 'e' }).collect();
                tokenizer.encode(&word, false).expect("the text can be encoded");
            }
        });
        assert!(counted.bytes_current < 8 << 20, "{model}: {} bytes stay", counted.bytes_current);
    }
}

/// After every token, the streamed text is a prefix of the decoded text; at the end, it is equal.
#[test]
fn streamed_text_equals_the_reference() {
    for (model, cases) in expected().tokenizers {
        let tokenizer = tokenizer(&model);
        for case in cases {
            let with_specials = case.ids_with_specials.as_ref().unwrap_or(&case.ids);
            for (skip, ids, full_text) in
                [(false, &case.ids, &case.decoded), (true, with_specials, &case.decoded_skipping_specials)]
            {
                let mut detokenizer = tokenizer.detokenizer(skip);
                let mut streamed = String::new();
                for &id in ids {
                    streamed.push_str(&detokenizer.push(id));
                    assert!(
                        full_text.starts_with(&streamed),
                        "{model}: {streamed:?} does not begin {full_text:?}"
                    );
                }
                streamed.push_str(&detokenizer.finish());
                assert_eq!(&streamed, full_text, "{model}");
            }
        }
    }
}

/// A prompt's text plus its continuation's is the text of all tokens: no space is lost, no character is broken.
#[test]
fn a_continuation_is_what_its_tokens_add_to_the_text() {
    for (model, cases) in expected().tokenizers {
        let tokenizer = tokenizer(&model);
        let mut dice = Dice::new(7);
        for case in cases {
            let ids = case.ids_with_specials.as_ref().unwrap_or(&case.ids);
            let (prompt, answer) = ids.split_at(dice.below(ids.len() + 1));
            let mut detokenizer = tokenizer.detokenizer_after(prompt, true);
            let mut added: String = answer.iter().map(|id| detokenizer.push(*id)).collect();
            added.push_str(&detokenizer.finish());
            let (before, whole) = (tokenizer.decode(prompt, true), &case.decoded_skipping_specials);
            assert_eq!(added, mlx_tests::added(&tokenizer, prompt, answer), "{model}");
            if let Some(rest) = whole.strip_prefix(&before) {
                assert_eq!(added, rest, "{model}");
            }
        }
    }
}

/// Special tokens that tokenizer_config.json only names have their settings in tokenizer.json, such as stripping white space.
#[test]
fn named_special_tokens_keep_what_tokenizer_json_says_about_them() {
    let copy = model_copy("llama-spm-f32");
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let path = copy.path().join(name);
        let mut value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("json");
        change(&mut value);
        std::fs::write(&path, Value::to_string(&value)).expect("it can be written");
    };
    edit("tokenizer.json", &|file| {
        let end = file["added_tokens"].as_array_mut().expect("a list").last_mut().expect("a token");
        (end["rstrip"], end["lstrip"]) = (true.into(), true.into());
    });
    let encode = || Tokenizer::load(copy.path()).expect("it loads").encode("the  <|im_end|>  waves", false);
    for named in [
        Value::Null,
        "<|im_end|>".into(),
        serde_json::json!({"content": "<|im_end|>", "rstrip": false, "lstrip": false}),
    ] {
        for name in ["eos_token", "pad_token", "bos_token"] {
            edit("tokenizer_config.json", &|config| {
                config.as_object_mut().expect("an object").remove("added_tokens_decoder");
                config[name] = named.clone();
            });
            let tokens = encode().expect("it encodes");
            let tokenizer = Tokenizer::load(copy.path()).expect("it loads");
            let end = tokenizer.id("<|im_end|>").expect("a token");
            let place = tokens.iter().position(|id| *id == end).expect("the end is there");
            assert_eq!(tokenizer.decode(&tokens[..place], false), "the", "{name}: {named}");
            assert_eq!(tokenizer.decode(&tokens[place + 1..], false), "waves", "{name}: {named}");
        }
    }
    // A token that tokenizer.json lacks is defined by its description.
    edit("tokenizer_config.json", &|config| {
        config["pad_token"] = serde_json::json!({"content": "[PAD]", "rstrip": true});
    });
    let tokenizer = Tokenizer::load(copy.path()).expect("it loads");
    let tokens = tokenizer.encode("[PAD]  waves", false).expect("it encodes");
    assert_eq!(tokenizer.decode(&tokens, true), "waves");
}

#[test]
fn rendered_chats_equal_the_reference() {
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
            tokenizer(&case.model).encode_chat(&text).expect("it encodes"),
            case.ids,
            "{}",
            case.model
        );
    }
}

#[test]
fn a_chat_begins_with_one_bos_token() {
    let tokenizer = tokenizer("llama-spm-f32");
    let bos = tokenizer.bos_id().expect("this tokenizer adds one");
    for text in ["Hello", "<s>Hello"] {
        let ids = tokenizer.encode_chat(text).expect("it encodes");
        assert_eq!(ids.iter().filter(|&&id| id == bos).count(), 1, "{text}");
        assert_eq!(ids[0], bos);
    }
}

/// A template is an untrusted program. It may be rejected, but it must not end the process.
#[test]
fn hostile_templates_are_errors() {
    let deep = |part: &str| format!("{{{{ {}1 }}}}", part.repeat(20_000));
    let chained = |part: &str| format!("{{{{ a{} }}}}", part.repeat(15_000));
    let branches = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(20_000));
    let hostile = [
        deep("-"),
        deep("not "),
        deep("1+"),
        chained("|upper"),
        chained(".a"),
        branches,
        "{{ '%999999999999d'|format(1) }}".into(),
        "{{ '%*d'|format(999999999999, 1) }}".into(),
        "{{ '{:>999999999999}'.format(1) }}".into(),
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}".into(),
        format!("{{{{ {} }}}}", "a".repeat(100_000)),
        " ".repeat(1 << 20),
    ];
    for source in hostile {
        // It may be rejected at compilation or at rendering.
        let template = ChatTemplate::from_source(&source, serde_json::Map::new());
        let outcome = template.and_then(|template| template.render(&TemplateInput::default()));
        if let Ok(text) = outcome {
            assert!(text.len() < 1000, "{}", &source[..40]);
        }
    }
    let plain = ChatTemplate::from_source("{{ '%05.1f|%s'|format(2.25, 'x') }}", serde_json::Map::new());
    assert_eq!(plain.and_then(|it| it.render(&TemplateInput::default())).expect("it renders"), "002.2|x");
}

#[test]
fn a_text_has_at_least_the_tokens_of_its_lower_bound() {
    let letters = ["a", "the ", " ", "\n", "é", "e\u{301}", "각", "中", "🦀", "<|im_end|>", "\0", "9", "▁"];
    for model in ["llama-f32", "llama-spm-f32"] {
        let tokenizer = tokenizer(model);
        let mut dice = Dice::new(3);
        for length in 0..200 {
            let text: String = (0..length).map(|_| dice.pick(&letters)).collect();
            let tokens = tokenizer.encode(&text, false).expect("encodes").len();
            assert!(tokenizer.min_tokens(&text) <= tokens, "{model}: {text}");
        }
        assert!(tokenizer.min_tokens(&"waves ".repeat(10_000)) > 500, "{model}");
    }
}
