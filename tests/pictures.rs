//! Pictures: towers and prompts with pictures give what transformers gives, exact answers keep their bits, and no picture is taken for another.

use std::path::PathBuf;

use mlx_core::array;
use mlx_core::backend::Backend;
use mlx_core::cache::{DiskOptions, Variant};
use mlx_core::chat::{ChatPrompt, ChatSession, Message, Part, chat_prompt};
use mlx_core::engine::{
    Engine, EngineOptions, Event, Exactness, FinishReason, Generation, Priority, RequestOptions, Speculate,
};
use mlx_core::model::{self, Batch, Input, LogitRows, Model, Span, Vision};
use mlx_core::text::{NO_PAUSE, TemplateInput};
use mlx_core::weights::WeightPolicy;
use mlx_core::{Image, ModelFolder, Pixels};
use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_tests::{Dice, Outcome, collect, cpu, device, golden_folder, greedy, model_folder, tensors};
use serde_json::Value;

/// Of the spread of the features.
const TOLERANCE: f32 = 2e-4;

/// The one where the rows of a picture see each other.
pub(crate) const TWO_WAY: &str = "gemma4-two-way-f32";

/// One of each kind.
pub(crate) const MODELS: [&str; 7] =
    ["mistral3-f32", "qwen2_vl-f32", "qwen2_5_vl-f32", "qwen3_5-f32", "qwen3_vl-f32", "gemma4-f32", TWO_WAY];

pub(crate) fn folder(name: &str) -> PathBuf {
    golden_folder().join("pictures").join(name)
}

/// All with answers of transformers: also mixtures of experts, and checkpoints whose towers and texts mlx-vlm has quantized.
pub(crate) fn with_answers() -> impl Iterator<Item = &'static str> {
    let others =
        ["qwen3_5_moe-f32", "qwen3_vl_moe-f32", "mistral3-q4-f32", "qwen3_vl-q4-f32", "gemma4-q4-f32"];
    MODELS.into_iter().chain(others)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
}

pub(crate) fn load(name: &str) -> Vision {
    Vision::load(&folder(name), WeightPolicy::new(Backend::CPU, false), &mut |_, _| {}).expect("it loads")
}

pub(crate) fn start(name: &str, options: &EngineOptions) -> Engine {
    Engine::start(&folder(name), options, |_, _| {}).expect("it loads")
}

pub(crate) fn exact() -> EngineOptions {
    EngineOptions { exact: true, ..EngineOptions::default() }
}

/// What transformers makes of prompts with pictures.
struct Golden {
    /// The pictures as they were before they were resized.
    images: Vec<Image>,
    /// Their sizes, by which the features are named.
    names: Vec<String>,
    cases: Vec<Value>,
}

fn golden(name: &str) -> Golden {
    let text = std::fs::read_to_string(folder(name).join("cases.json")).expect("the fixture has cases");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let tensors = tensors::read(&folder(name).join("expected.safetensors"));
    let sizes = value["sizes"].as_array().expect("sizes").iter();
    let sizes: Vec<(u64, u64)> =
        sizes.map(|size| (size[0].as_u64().expect("width"), size[1].as_u64().expect("height"))).collect();
    let names: Vec<String> = sizes.iter().map(|(width, height)| format!("{width}x{height}")).collect();
    let image = |(&(width, height), name): (&(u64, u64), &String)| {
        let pixels = floats(&tensors[&format!("{name}.pixels")].2);
        let pixels = pixels.into_iter().map(|value| value as u8).collect();
        Image::new(width as u32, height as u32, pixels).expect("a picture")
    };
    let images = sizes.iter().zip(&names).map(image).collect();
    Golden { images, names, cases: value["cases"].as_array().expect("cases").clone() }
}

fn numbers<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let number = |it: &Value| it.as_u64().and_then(|it| T::try_from(it).ok()).expect("a number");
    value.as_array().expect("numbers").iter().map(number).collect()
}

/// The messages of a case.
fn messages(golden: &Golden, case: &Value) -> Vec<Message> {
    let part = |part: &Value| match part["picture"].as_u64() {
        Some(picture) => Part::Image(golden.images[picture as usize].clone()),
        None => Part::Text(part["text"].as_str().expect("a text").to_owned()),
    };
    let message = |message: &Value| match &message["content"] {
        Value::String(text) if message["role"] == "user" => Message::user(text),
        Value::String(text) => Message::assistant(text),
        parts => {
            let parts = parts.as_array().expect("parts").iter().map(part).collect();
            Message { parts, ..Message::user("") }
        }
    };
    case["messages"].as_array().expect("messages").iter().map(message).collect()
}

pub(crate) fn prompt(engine: &Engine, messages: Vec<Message>) -> ChatPrompt {
    let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
    chat_prompt(engine, &input, NO_PAUSE).expect("it renders")
}

/// A question about some pictures.
pub(crate) fn question(engine: &Engine, images: &[&Image], text: &str) -> ChatPrompt {
    let images = images.iter().map(|image| Part::Image((*image).clone()));
    let parts = images.chain([Part::Text(text.to_owned())]).collect();
    prompt(engine, vec![Message { parts, ..Message::user("") }])
}

fn options(prompt: &ChatPrompt, tokens: usize) -> RequestOptions {
    RequestOptions { images: prompt.images.clone(), is_message: true, logprobs: Some(0), ..greedy(tokens) }
}

pub(crate) fn submit(engine: &Engine, prompt: &ChatPrompt, tokens: usize) -> Generation {
    let request = engine.request(prompt.tokens.clone(), &options(prompt, tokens)).expect("it is valid");
    engine.submit(request).expect("it runs")
}

pub(crate) fn answer(engine: &Engine, prompt: &ChatPrompt, tokens: usize) -> Outcome {
    collect(submit(engine, prompt, tokens))
}

pub(crate) fn bits(outcome: &Outcome) -> Vec<(u32, u32)> {
    assert_eq!(outcome.finished.reason, FinishReason::Length);
    let logprob =
        |token: &mlx_core::engine::TokenOutput| token.logprob.as_ref().map(|it| it.logprob.to_bits());
    outcome.tokens.iter().map(|token| (token.id, logprob(token).expect("it was asked for"))).collect()
}

pub(crate) fn cached(outcome: &Outcome) -> usize {
    outcome.finished.usage.cached_tokens
}

/// A picture of noise.
pub(crate) fn noise(width: u32, height: u32, seed: u64) -> Image {
    let mut dice = Dice::new(seed);
    let pixels = (0..width * height * 3).map(|_| dice.below(256) as u8).collect();
    Image::new(width, height, pixels).expect("a picture")
}

#[test]
fn features_of_a_picture_are_those_of_transformers() {
    let _turn = device();
    for model in with_answers() {
        let (vision, golden) = (load(model), golden(model));
        let processor = ModelFolder::open(&folder(model)).expect("a folder").images.expect("it sees");
        let expected = tensors::read(&folder(model).join("expected.safetensors"));
        for (image, name) in golden.images.iter().zip(&golden.names) {
            let resized = processor.resized(image).expect("it has a size");
            let size = &expected[&format!("{name}.size")].2;
            assert_eq!([resized.width(), resized.height()].map(u32::to_le_bytes).concat(), *size, "{name}");
            let features = vision.features(&resized).expect("it is seen");
            assert_eq!(features.dim(0) as usize, processor.rows(&resized).expect("a grid"), "{name}");
            let ours = array::host::<f32>(&features).expect("numbers");
            let theirs = floats(&expected[&format!("{name}.features")].2);
            assert_eq!(ours.len(), theirs.len(), "{name}");
            let bounds = |pick: fn(f32, f32) -> f32| theirs.iter().copied().reduce(pick).expect("numbers");
            let spread = bounds(f32::max) - bounds(f32::min);
            let worst = ours.iter().zip(&theirs).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
            assert!(worst <= TOLERANCE * spread, "{model}, {name}: {worst} of {spread}");
        }
    }
}

#[test]
fn prompts_and_answers_are_those_of_transformers() {
    let _turn = device();
    for model in with_answers() {
        let golden = golden(model);
        for options in [EngineOptions::default(), exact()] {
            let engine = start(model, &options);
            for case in &golden.cases {
                let prompt = prompt(&engine, messages(&golden, case));
                assert_eq!(prompt.tokens, numbers::<u32>(&case["prompt_ids"]), "{model}");
                let expected = numbers::<u32>(&case["tokens"]);
                let outcome = answer(&engine, &prompt, expected.len());
                assert_eq!(outcome.ids(), expected, "{model}, {} pictures", prompt.images.len());
                let logprobs = case["logprobs"].as_array().expect("numbers").iter();
                for (token, logprob) in outcome.tokens.iter().zip(logprobs) {
                    let ours = token.logprob.as_ref().expect("it was asked for").logprob;
                    let theirs = logprob.as_f64().expect("a number") as f32;
                    assert!((ours - theirs).abs() < 1e-3, "{model}: {ours} and {theirs}");
                }
            }
        }
    }
}

/// Prompts of 0 to 8 pictures that begin alike.
pub(crate) fn many(engine: &Engine) -> Vec<ChatPrompt> {
    let images: Vec<Image> =
        (0..8).map(|salt| noise(60 + 13 * (salt as u32 % 4), 70 + 20 * (salt as u32 % 3), salt)).collect();
    (0..=8)
        .map(|count| question(engine, &images.iter().take(count).collect::<Vec<_>>(), "What is there?"))
        .collect()
}

#[test]
fn exact_answers_about_pictures_have_the_same_bits_alone_and_in_company() {
    let _turn = cpu();
    for model in MODELS {
        let alone = start(model, &EngineOptions { prefix_cache: Some(0), max_running: 1, ..exact() });
        assert_eq!(alone.exactness(), Exactness::Bit);
        let prompts = many(&alone);
        assert!(prompts[8].tokens.len() > 256, "it has several chunks: {}", prompts[8].tokens.len());
        let expected: Vec<_> = prompts.iter().map(|prompt| bits(&answer(&alone, prompt, 12))).collect();
        drop(alone);
        let engine = start(model, &exact());
        for round in 0..3 {
            let running: Vec<Generation> = prompts.iter().map(|prompt| submit(&engine, prompt, 12)).collect();
            for (count, (generation, expected)) in running.into_iter().zip(&expected).enumerate() {
                assert_eq!(&bits(&collect(generation)), expected, "{count} pictures, round {round}");
            }
        }
        assert!(engine.stats().prefix_hits > 0, "the second round begins with what the first one kept");
    }
}

/// The logits behind each row of a prompt, in passes that end at these places.
fn logits(model: &dyn Model, tokens: &[u32], features: &Array, places: &[usize], ends: &[usize]) -> Vec<f32> {
    let (mut state, mut start, mut all) = (model.new_state(Variant::default()), 0, Vec::new());
    for &end in ends {
        let row = |position: usize| places.partition_point(|place| *place < position) as i32;
        let (first, last) = (row(start), row(end));
        let within =
            places[first as usize..last as usize].iter().map(|place| place - start).collect::<Vec<_>>();
        let ids = array::from_tokens(&tokens[start..end]);
        let input = if within.is_empty() {
            Input::Tokens(ids)
        } else {
            let rows = array::slice_axis(features, 0, first, last).expect("rows");
            Input::Pictured { tokens: ids, rows, places: within, positions: Vec::new() }
        };
        let span = Span { state: 0, start, len: end - start, logits: LogitRows::All };
        let hidden = model.forward(Batch::new(input, vec![span]), &mut [&mut state]).expect("a pass");
        let logits = model.logits(&hidden).expect("logits");
        all.extend_from_slice(array::host::<f32>(&logits).expect("numbers"));
        start = end;
    }
    all
}

#[test]
fn rows_of_pictures_are_the_same_in_one_pass_in_chunks_and_in_steps() {
    let _turn = device();
    for name in MODELS {
        let engine = start(name, &EngineOptions::default());
        let processor = engine.image_processor().expect("it sees");
        let policy = WeightPolicy::new(Backend::CPU, false);
        let (model, vision) =
            (model::load(&folder(name), policy, &mut |_, _| {}).expect("it loads"), load(name));
        for prompt in many(&engine).into_iter().filter(|prompt| !prompt.images.is_empty()) {
            let features: Vec<Array> =
                prompt.images.iter().map(|image| vision.features(image).expect("it is seen")).collect();
            let features = concatenate(&features.iter().collect::<Vec<_>>(), 0).expect("rows of one width");
            let length = prompt.tokens.len();
            let is_place = |place: &usize| prompt.tokens[*place] == processor.image_token();
            let places: Vec<usize> = (0..length).filter(is_place).collect();
            let of = |ends: &[usize]| logits(model.as_ref(), &prompt.tokens, &features, &places, ends);
            let whole = of(&[length]);
            // A picture whose rows see each other is not divided.
            let divides = |end: usize| [end - 1, end].iter().all(|place| places.contains(place));
            let steps: Vec<usize> = (1..=length).filter(|end| !(name == TWO_WAY && divides(*end))).collect();
            let chunks = steps.iter().copied().filter(|end| end % 23 == 0 || *end == length).collect();
            for ends in [chunks, steps] {
                let worst =
                    of(&ends).iter().zip(&whole).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
                assert!(worst < 5e-3, "{name}, {} pictures: {worst}", prompt.images.len());
            }
        }
    }
}

#[test]
fn a_picture_is_never_taken_for_another() {
    let _turn = device();
    for model in MODELS {
        for options in [EngineOptions::default(), exact()] {
            let engine = start(model, &options);
            let cold = start(model, &EngineOptions { prefix_cache: Some(0), ..options });
            // More than a chunk of text before the picture, which both have in common.
            let text = "The lamp burns all night. Who lit it, and what for? ".repeat(9);
            let (one, other) = (noise(64, 64, 1), noise(64, 64, 2));
            let ask = |image: &Image| {
                let parts = vec![
                    Part::Text(text.clone()),
                    Part::Image(image.clone()),
                    Part::Text("What is it?".to_owned()),
                ];
                prompt(&engine, vec![Message { parts, ..Message::user("") }])
            };
            let (first, second) = (ask(&one), ask(&other));
            assert_eq!(first.tokens, second.tokens, "the tokens alone do not tell them apart");
            let token = engine.image_processor().expect("it sees").image_token();
            let place = first.tokens.iter().position(|it| *it == token).expect("a place");
            let mut seen = Vec::new();
            for (prompt, least, most) in [
                (&first, 0, 0),
                (&second, 64, place),
                // The same again is known as a whole.
                (&first, place - 64, first.tokens.len() - 1),
                (&second, place - 64, first.tokens.len() - 1),
            ] {
                let outcome = answer(&engine, prompt, 16);
                assert!(
                    (least..=most).contains(&cached(&outcome)),
                    "{} of {least} to {most}",
                    cached(&outcome)
                );
                assert_eq!(bits(&outcome).len(), 16);
                let alone = answer(&cold, prompt, 16);
                assert_eq!((cached(&alone), alone.ids()), (0, outcome.ids()));
                seen.push(outcome.ids());
            }
            assert_ne!(seen[0], seen[1], "the pictures differ, and so do the answers");
            assert_eq!((&seen[0], &seen[1]), (&seen[2], &seen[3]));
        }
    }
}

/// Requests that meet in flight copy from each other, up to where their pictures differ.
#[test]
fn pictures_in_flight_are_not_mixed_up() {
    let _turn = device();
    for model in MODELS {
        let cold = start(model, &EngineOptions { prefix_cache: Some(0), max_running: 1, ..exact() });
        let images: Vec<Image> = (0..4).map(|seed| noise(80, 64, seed)).collect();
        let prompts: Vec<ChatPrompt> =
            images.iter().map(|image| question(&cold, &[image, &images[0]], "Which one?")).collect();
        let expected: Vec<_> = prompts.iter().map(|prompt| bits(&answer(&cold, prompt, 10))).collect();
        let engine = start(model, &exact());
        let running: Vec<(usize, Generation)> =
            [0, 1, 2, 3, 0, 1, 2, 3].map(|it| (it, submit(&engine, &prompts[it], 10))).into();
        for (which, generation) in running {
            assert_eq!(bits(&collect(generation)), expected[which], "picture {which}");
        }
    }
}

/// Its prompt is seen again, and its answer goes on at the positions that it had.
#[test]
fn a_preempted_answer_about_pictures_resumes_with_the_same_bits() {
    let _turn = cpu();
    for model in MODELS {
        // With its own answer as a draft the low one would have ended before the high one comes.
        let speculate = Speculate::Off;
        let engine = start(model, &EngineOptions { max_running: 1, speculate, ..exact() });
        let (one, other) = (noise(96, 80, 1), noise(64, 96, 2));
        let (low, high) = (question(&engine, &[&one, &other], "Why?"), question(&engine, &[&other], "And?"));
        let with = |prompt: &ChatPrompt, priority, tokens| {
            let options = RequestOptions { priority, ..options(prompt, tokens) };
            let request = engine.request(prompt.tokens.clone(), &options).expect("it is valid");
            engine.submit(request).expect("it runs")
        };
        let alone = collect(with(&low, Priority::Low, 100));
        let mut preempted = with(&low, Priority::Low, 100);
        let first = preempted.next().expect("it runs");
        assert_eq!(bits(&collect(with(&high, Priority::High, 4))).len(), 4);
        let rest = collect(preempted);
        let Event::Token(first) = first else { panic!("a token comes first") };
        let tokens: Vec<_> = std::iter::once(first).chain(rest.tokens).collect();
        assert_eq!(tokens, alone.tokens, "{model}");
        assert!(engine.stats().preemptions > 0, "{model}");
    }
}

/// What is behind a picture is not saved, and what is before it serves any picture.
#[test]
fn on_disk_is_what_stands_before_the_first_picture() {
    let _turn = device();
    let saved = tempfile::tempdir().expect("a folder");
    let options = || EngineOptions {
        prompt_cache: Some(DiskOptions::new(saved.path().to_path_buf())),
        ..EngineOptions::default()
    };
    let text = "The lamp burns all night. Who lit it, and what for? ".repeat(9);
    let ask = |engine: &Engine, image: Image| {
        let parts = vec![Part::Text(text.clone()), Part::Image(image), Part::Text("What is it?".to_owned())];
        prompt(engine, vec![Message { parts, ..Message::user("") }])
    };
    let engine = start(MODELS[0], &options());
    let first = ask(&engine, noise(96, 96, 1));
    let expected = answer(&engine, &first, 8);
    drop(engine);
    let engine = start(MODELS[0], &options());
    let token = engine.image_processor().expect("it sees").image_token();
    let place = first.tokens.iter().position(|it| *it == token).expect("a place");
    let other = answer(&engine, &ask(&engine, noise(96, 96, 2)), 8);
    assert_eq!(cached(&other), place / 64 * 64);
    assert_ne!(other.ids(), expected.ids());
    assert_eq!(answer(&engine, &first, 8).ids(), expected.ids());
}

/// Turns with pictures are dropped as others are, and what does not fit is refused with the number of tokens.
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
        // Nine pictures of 36 rows each, or five of 64, are more than the context holds.
        let least = if model.starts_with("gemma4") { 5 * 64 } else { 9 * 36 };
        let expected = format!(
            "messages: have at least {least} tokens with nothing but the system prompt and the latest turn; 292 fit beside an answer"
        );
        assert_eq!(refused, expected, "{model}");
        assert_eq!(session.messages().len(), 24, "nothing was added");
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
    // Without room for the tower, text is answered all the same.
    let resting = sees.stats().reserved_bytes;
    let tower = load(MODELS[0]).footprint().weight_bytes;
    let budget = Some((resting + tower / 2) * 16 / 15);
    let options = EngineOptions { memory_budget: budget, ..EngineOptions::default() };
    let small = start(MODELS[0], &options);
    let error = ask(&small).expect_err("the tower does not fit").to_string();
    assert!(error.contains("memory budget"), "{error}");
    assert_eq!(mlx_tests::run(&small, &[5, 6], &greedy(2)).ids().len(), 2);
}

/// The bytes of f32 of this shape, with the second axis behind the last.
fn colors_last(shape: &[usize], bytes: &[u8]) -> (Vec<usize>, Vec<u8>) {
    let (outer, colors, inner) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
    let places = (0..outer)
        .flat_map(|row| (0..inner).flat_map(move |at| (0..colors).map(move |color| (row, color, at))));
    let starts = places.map(|(row, color, at)| 4 * ((row * colors + color) * inner + at));
    let moved = starts.flat_map(|start| bytes[start..start + 4].to_vec()).collect();
    ([&shape[..1], &shape[2..], &[colors]].concat(), moved)
}

/// mlx-vlm gives towers other names, and kernels with the colors behind rows and columns.
#[test]
fn towers_are_found_under_the_names_of_mlx_vlm() {
    let _turn = device();
    for (model, from, to) in [
        ("mistral3-f32", "model.vision_tower.", "vision_tower.vision_model."),
        ("qwen2_vl-f32", "model.visual.", "vision_tower."),
        ("qwen2_5_vl-f32", "model.visual.", "vision_tower."),
        ("qwen3_5-f32", "model.visual.", "vision_tower."),
        ("qwen3_vl-f32", "model.visual.", "vision_tower."),
        ("gemma4-f32", "model.vision_tower.", "vision_tower."),
        (TWO_WAY, "model.vision_tower.", "vision_tower."),
    ] {
        let copy = tempfile::tempdir().expect("a folder");
        for name in ["config.json", "preprocessor_config.json"] {
            std::fs::copy(folder(model).join(name), copy.path().join(name)).expect("it can be copied");
        }
        let tensors = tensors::read(&folder(model).join("model.safetensors"));
        let renamed = tensors.into_iter().map(|(name, (dtype, shape, bytes))| {
            let (shape, bytes) = if shape.len() > 3 { colors_last(&shape, &bytes) } else { (shape, bytes) };
            let name =
                name.replace(from, to).replace("model.multi", "multi").replace("model.embed_v", "embed_v");
            (name.replace("model.language_model.", "language_model.model."), (dtype, shape, bytes))
        });
        tensors::write(&copy.path().join("model.safetensors"), &renamed.collect());
        let policy = WeightPolicy::new(Backend::CPU, false);
        let moved = Vision::load(copy.path(), policy, &mut |_, _| {}).expect("it loads");
        let image = noise(96, 48, 3).pixels().expect("they are there");
        let features = |vision: &Vision| {
            let features = vision.features(&image).expect("it is seen");
            array::host::<f32>(&features).expect("numbers").to_vec()
        };
        assert_eq!(features(&moved), features(&load(model)), "{model}");
    }
}
