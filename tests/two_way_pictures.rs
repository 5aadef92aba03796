//! Pictures with two-way attention: no pass ends within one, so that prefixes, chunks and concurrent requests change no bit. Requests that
//! would divide one are rejected.

use chat_format::{Message, Part};
use mlx_core::array::{from_tokens, host, slice_axis};
use mlx_core::backend::Backend;
use mlx_core::cache::Variant;
use mlx_core::chat::ChatPrompt;
use mlx_core::engine::{Engine, EngineOptions, RequestOptions};
use mlx_core::model::{self, Batch, Input, LogitRows, Model, Span};
use mlx_core::weights::WeightPolicy;
use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_tests::pictures::{
    TWO_WAY, answer, bits, cached, exact, folder, load, noise, prompt, question, start, start_from,
};
use mlx_tests::{cpu, device, greedy};

/// Returns a prompt with this many words, two pictures and a question.
fn ask(engine: &Engine, words: usize, seeds: [u64; 2], text: &str) -> ChatPrompt {
    let [one, other] = seeds.map(|seed| Part::Image(noise(60 + 40 * (seed as u32 % 3), 90, seed)));
    let before = Part::Text("lamp ".repeat(words));
    let parts = vec![before, one, Part::Text("and".to_owned()), other, Part::Text(text.to_owned())];
    prompt(engine, vec![Message { parts, ..Message::user("") }])
}

/// Covers all offsets of chunk borders within the pictures.
#[test]
fn prefixes_with_undivided_pictures_keep_their_bits() {
    let _turn = cpu();
    let options = EngineOptions { max_running: 1, ..exact() };
    let cold = start(TWO_WAY, &EngineOptions { prefix_cache: Some(0), ..options.clone() });
    let engine = start(TWO_WAY, &options);
    let token = engine.image_processor().expect("it sees").image_token();
    let mut reused = 0;
    for words in [0, 3, 7, 11, 13, 19, 24, 29, 60] {
        let (first, second, third) = (
            ask(&engine, words, [1, 2], "What burns?"),
            ask(&engine, words, [1, 2], "Who lit it?"),
            ask(&engine, words, [1, 3], "Who lit it?"),
        );
        for prompt in [&first, &second, &third, &first] {
            let outcome = answer(&engine, prompt, 6);
            assert_eq!(bits(&outcome), bits(&answer(&cold, prompt, 6)), "{words} words");
            let length = cached(&outcome);
            let divides = length > 0 && prompt.tokens[length - 1] == token && prompt.tokens[length] == token;
            assert!(!divides, "{words} words: {length} tokens were cached, in the middle of a picture");
            reused += length;
        }
    }
    assert!(reused > 9 * 100, "{reused} tokens were reused");
}

/// Returns the logits after each row of a prompt with one picture of these features, in one pass.
fn logits(model: &dyn Model, tokens: &[u32], places: &[usize], rows: &Array) -> Vec<f32> {
    let (tokens, rows, len) = (from_tokens(tokens), rows.clone(), tokens.len());
    let input = Input::Pictured { tokens, rows, places: places.to_vec(), positions: Vec::new() };
    let span = Span { state: 0, start: 0, len, logits: LogitRows::All };
    let mut state = model.new_state(Variant::default());
    let hidden = model.forward(Batch::new(input, vec![span]), &mut [&mut state]).expect("a pass");
    host::<f32>(&model.logits(&hidden).expect("logits")).expect("numbers").to_vec()
}

/// This holds although the picture is longer than the window, and with both kinds of attention.
#[test]
fn the_last_row_of_a_picture_changes_what_the_first_one_becomes() {
    let _turn = device();
    let engine = start(TWO_WAY, &EngineOptions::default());
    let prompt = question(&engine, &[&noise(90, 90, 1)], "What?");
    let token = engine.image_processor().expect("it sees").image_token();
    let places: Vec<usize> = (0..prompt.tokens.len()).filter(|it| prompt.tokens[*it] == token).collect();
    let rows = load(TWO_WAY).features(&prompt.images[0]).expect("it is seen");
    let last = places.len() as i32 - 1;
    let part = |from: i32, to: i32| slice_axis(&rows, 0, from, to).expect("rows");
    let other = concatenate(&[&part(0, last), &part(0, 1)], 0).expect("rows of one width");
    let of = |fused: bool| {
        let backend = Backend { fused_attention: fused, ..Backend::CPU };
        let policy = WeightPolicy::new(backend, false);
        let model = model::load(&folder(TWO_WAY), policy, &mut |_, _| {}).expect("it loads");
        [&rows, &other].map(|rows| logits(model.as_ref(), &prompt.tokens, &places, rows))
    };
    let [one, other] = of(false);
    let width = one.len() / prompt.tokens.len();
    let mut differ = one.chunks(width).zip(other.chunks(width)).map(|(one, other)| one != other);
    assert_eq!(differ.position(|it| it), Some(places[0]), "text before the picture must not attend to it");
    let worst = one.iter().zip(&of(true)[0]).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-3, "{worst}");
}

/// If config.json does not specify it, the model without a tower uses two-way attention.
#[test]
fn a_model_without_a_tower_is_two_way_unless_its_config_denies_it() {
    let _turn = device();
    let copy = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(folder("gemma4_unified-f32")).expect("the fixture is there").flatten() {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("it can be copied");
    }
    let divided = || {
        let engine = start_from(copy.path(), &EngineOptions::default());
        let good = question(&engine, &[&noise(90, 90, 1)], "What?");
        let token = engine.image_processor().expect("it sees").image_token();
        let rows = good.tokens.iter().copied().filter(|it| *it == token).collect::<Vec<u32>>();
        let options = RequestOptions { images: good.images, ..greedy(1) };
        engine.request([&rows[..3], &[5], &rows[3..]].concat(), &options).map(drop)
    };
    divided().expect_err("it is two-way");
    let path = copy.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("a config");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    config["text_config"]["use_bidirectional_attention"] = serde_json::Value::Null;
    std::fs::write(&path, config.to_string()).expect("it can be written");
    divided().expect("it is not");
}

#[test]
fn what_would_divide_a_picture_is_refused_by_name() {
    let _turn = device();
    let engine = start(TWO_WAY, &EngineOptions::default());
    let image = noise(90, 90, 1);
    let good = question(&engine, &[&image, &image], "What?");
    let token = engine.image_processor().expect("it sees").image_token();
    let request = |tokens: Vec<u32>| {
        let options = RequestOptions { images: good.images.clone(), ..greedy(1) };
        engine.request(tokens, &options).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(request(good.tokens.clone()), Ok(()));
    let rows: Vec<u32> = good.tokens.iter().copied().filter(|it| *it == token).collect();
    let error = request(rows.clone()).expect_err("nothing is between them");
    assert!(error.starts_with("images: ") && error.contains("the rows of image 2 must"), "{error}");
    let error = request([&rows[..3], &[5], &rows[3..]].concat()).expect_err("one is divided");
    assert!(error.starts_with("images: ") && error.contains("the rows of image 1 must"), "{error}");
}
