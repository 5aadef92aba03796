//! Chats with pictures: turns that do not fit are dropped, and pictures that cannot be used are rejected by name.

use chat_format::text::NO_PAUSE;
use chat_format::{Message, Part, Pixels, TemplateInput};
use mlx_core::chat::{ChatSession, chat_prompt};
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_tests::pictures::{MODELS, load, noise, start};
use mlx_tests::{device, greedy, model_folder};

/// Turns with pictures are dropped like others, and an oversized message is rejected with the number of tokens.
#[test]
fn a_chat_with_pictures_outgrows_the_context() {
    let _turn = device();
    for model in MODELS {
        let engine = start(model, &EngineOptions { context: Some(300), ..EngineOptions::default() });
        let options = RequestOptions { max_tokens: Some(8), ..greedy(8) };
        let mut session = ChatSession::new(engine, options);
        for turn in 0..12 {
            let answer = session.ask_about(vec![noise(96, 96, turn)], "What is it?").expect("it fits");
            answer.for_each(drop);
        }
        assert!(!session.dropped().is_empty(), "{model}: {:?}", session.dropped());
        assert_eq!(session.messages().len(), 24);
        let many = (0..12).map(|seed| noise(96, 96, seed)).collect();
        let refused = session.ask_about(many, "Which?").map(drop).expect_err("they do not fit").to_string();
        // Nine pictures of 36 rows each, or five of 64, exceed the context.
        let least = if model.starts_with("gemma4") { 5 * 64 } else { 9 * 36 };
        let expected = format!(
            "messages: have at least {least} tokens with only the system prompt and the latest turn; at most 292 leave space for an answer"
        );
        assert_eq!(refused, expected, "{model}");
        assert_eq!(session.messages().len(), 24, "a rejected message must not be added");
    }
}

#[test]
fn what_cannot_be_seen_is_refused_by_name() {
    let _turn = device();
    let image = noise(32, 32, 1);
    let ask = |engine: &Engine| {
        let parts = vec![Part::Image(image.clone()), Part::Text("What?".to_owned())];
        let messages = vec![Message { parts, ..Message::user("") }];
        chat_prompt(engine, &TemplateInput { messages, ..TemplateInput::default() }, NO_PAUSE)
    };
    let text_only =
        Engine::start(&model_folder("llama-f32"), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let error = ask(&text_only).expect_err("it has no tower").to_string();
    assert!(error.starts_with("content: holds an image") && error.contains("llama"), "{error}");
    let pixels = image.pixels().expect("they are there");
    let options = RequestOptions { images: vec![pixels], ..greedy(1) };
    let error = text_only.request(vec![5], &options).expect_err("it has no tower").to_string();
    assert!(error.starts_with("images: ") && error.contains("llama"), "{error}");
    let sees = start(MODELS[0], &EngineOptions::default());
    let good = ask(&sees).expect("it renders");
    let with = |tokens: &[u32], image: &Pixels| {
        let options = RequestOptions { images: vec![image.clone()], ..greedy(1) };
        sees.request(tokens.to_vec(), &options).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(with(&good.tokens, &good.images[0]), Ok(()));
    let error = with(&good.tokens[1..5], &good.images[0]).expect_err("places are missing");
    assert!(error.starts_with("images: have 4 rows"), "{error}");
    let error = with(&good.tokens, &noise(17, 16, 1).pixels().expect("they are there"))
        .expect_err("17 is not a multiple");
    assert!(error.contains("multiples of 16"), "{error}");
    let parts = vec![Part::Image(image.clone()), Part::Text("What is [IMG]?".to_owned())];
    let messages = vec![Message { parts, ..Message::user("") }];
    let input = TemplateInput { messages, ..TemplateInput::default() };
    let error = chat_prompt(&sees, &input, NO_PAUSE).expect_err("a text cannot hold pictures").to_string();
    assert!(error.contains("[IMG]"), "{error}");
    // Without memory for the tower, text is still answered.
    let resting = sees.stats().reserved_bytes;
    let tower = load(MODELS[0]).footprint().weight_bytes;
    let budget = Some((resting + tower / 2) * 16 / 15);
    let options = EngineOptions { memory_budget: budget, ..EngineOptions::default() };
    let small = start(MODELS[0], &options);
    let error = ask(&small).expect_err("the tower does not fit").to_string();
    assert!(error.contains("memory budget"), "{error}");
    assert_eq!(mlx_tests::run(&small, &[5, 6], &greedy(2)).ids().len(), 2);
}
