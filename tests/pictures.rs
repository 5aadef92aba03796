//! Towers and prompts with pictures equal transformers' results, in one pass, in chunks and in steps.

use mlx_core::ModelFolder;
use mlx_core::array;
use mlx_core::backend::Backend;
use mlx_core::cache::Variant;
use mlx_core::engine::EngineOptions;
use mlx_core::model::{self, Batch, Input, LogitRows, Model, Span, Vision};
use mlx_core::weights::WeightPolicy;
use mlx_rs::Array;
use mlx_rs::ops::concatenate;
use mlx_tests::pictures::{
    MODELS, TWO_WAY, answer, exact, floats, folder, golden, load, many, messages, noise, numbers, prompt,
    start, with_answers,
};
use mlx_tests::{device, tensors};

/// The tolerance, relative to the spread of the features.
const TOLERANCE: f32 = 2e-4;

#[test]
fn features_of_a_picture_are_those_of_transformers() {
    let _turn = device();
    for model in with_answers() {
        let (vision, golden) = (load(model), golden(model));
        let processor = ModelFolder::open(&folder(model)).expect("a folder").images.expect("it sees");
        let expected = tensors::read(&folder(model).join("expected.safetensors"));
        for (image, name) in golden.images.iter().zip(&golden.names) {
            let parts = processor.resized(image).expect("it has a size").parts;
            let sides = parts.iter().flat_map(|part| [part.width(), part.height()].map(u32::to_le_bytes));
            assert_eq!(sides.collect::<Vec<_>>().concat(), expected[&format!("{name}.size")].2, "{name}");
            let of_part = |part| {
                let features = vision.features(part).expect("it is seen");
                assert_eq!(features.dim(0) as usize, processor.rows(part).expect("a grid"), "{name}");
                array::host::<f32>(&features).expect("numbers").to_vec()
            };
            let ours: Vec<f32> = parts.iter().flat_map(of_part).collect();
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

/// Returns the logits after each row of a prompt, in passes that end at these positions.
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
            // A picture with two-way attention is not divided.
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

/// Returns the f32 bytes with the second axis moved to the end.
fn colors_last(shape: &[usize], bytes: &[u8]) -> (Vec<usize>, Vec<u8>) {
    let (outer, colors, inner) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
    let places = (0..outer)
        .flat_map(|row| (0..inner).flat_map(move |at| (0..colors).map(move |color| (row, color, at))));
    let starts = places.map(|(row, color, at)| 4 * ((row * colors + color) * inner + at));
    let moved = starts.flat_map(|start| bytes[start..start + 4].to_vec()).collect();
    ([&shape[..1], &shape[2..], &[colors]].concat(), moved)
}

/// mlx-vlm uses other names for towers, and kernels with the color channels last.
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
        ("lfm2_vl-f32", "model.vision_tower.vision_model.", "vision_tower."),
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
