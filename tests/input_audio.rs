//! Audio towers and prompts with audio equal transformers' results, and audio that cannot be used is rejected by name.

use chat_format::text::NO_PAUSE;
use chat_format::{Audio, Message, Part, TemplateInput};
use mlx_core::ModelFolder;
use mlx_core::array;
use mlx_core::backend::Backend;
use mlx_core::chat::chat_prompt;
use mlx_core::engine::{Engine, EngineOptions};
use mlx_core::model::AudioTower;
use mlx_core::weights::WeightPolicy;
use mlx_tests::input_audio::{
    MODELS, copy_as_first_published, copy_as_mlx, file, folder, golden, load, noise, question, start,
};
use mlx_tests::pictures::{answer, exact, floats, numbers, options, prompt, start_from};
use mlx_tests::{device, model_folder, tensors};
use serde_json::Value;

/// Returns the largest difference of two lists.
fn worst(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
}

#[test]
fn features_of_a_clip_are_those_of_transformers() {
    let _turn = device();
    for model in MODELS {
        let tower = load(model);
        let processor = ModelFolder::open(&folder(model)).expect("a folder").audio.expect("it hears");
        let expected = tensors::read(&folder(model).join("expected.safetensors"));
        for length in golden(model).lengths {
            let clip = processor.clip(&Audio::file(file(&format!("{length}.wav"))), &mut || Ok(()));
            let clip = clip.expect("it is audio");
            if let Some(frames) = expected.get(&format!("{length}.frames")) {
                let worst = worst(clip.values(), &floats(&frames.2));
                assert!(worst < 1e-4, "{length} samples: {worst}");
            }
            let features = tower.features(&clip).expect("it is heard");
            assert_eq!(features.dim(0) as usize, processor.rows(&clip).expect("frames"), "{length}");
            let theirs = floats(&expected[&format!("{length}.features")].2);
            let worst = worst(array::host::<f32>(&features).expect("numbers"), &theirs);
            let spread = theirs.iter().map(|value| value.abs()).fold(0.0, f32::max);
            assert!(worst <= 1e-4 * spread, "{model}, {length} samples: {worst} of {spread}");
        }
    }
}

#[test]
fn prompts_and_answers_are_those_of_transformers() {
    let _turn = device();
    for model in MODELS {
        let golden = golden(model);
        for options in [EngineOptions::default(), exact()] {
            let engine = start(model, &options);
            for case in &golden.cases {
                let prompt = prompt(&engine, golden.messages(case));
                assert_eq!(prompt.tokens, numbers::<u32>(&case["prompt_ids"]), "{model}");
                let expected = numbers::<u32>(&case["tokens"]);
                let outcome = answer(&engine, &prompt, expected.len());
                assert_eq!(outcome.ids(), expected, "{model}, {} clips", prompt.audio.len());
                let logprobs = case["logprobs"].as_array().expect("numbers").iter();
                for (token, logprob) in outcome.tokens.iter().zip(logprobs) {
                    let ours = token.logprob.as_ref().expect("it was asked for").logprob;
                    let theirs = logprob.as_f64().expect("a number") as f32;
                    assert!((ours - theirs).abs() < 1e-3, "{model}: {ours} and {theirs}");
                }
                let processor = engine.audio_processor().expect("it hears");
                let rows = prompt.tokens.iter().filter(|token| **token == processor.audio_token()).count();
                assert_eq!(outcome.finished.usage.audio_tokens, rows);
            }
        }
    }
}

/// mlx-vlm uses other names for towers, and kernels with the channels last.
#[test]
fn towers_are_found_under_the_names_of_mlx_vlm() {
    let _turn = device();
    for model in MODELS {
        let copy = tempfile::tempdir().expect("a folder");
        copy_as_mlx(model, copy.path());
        let policy = WeightPolicy::new(Backend::CPU, false);
        let moved = AudioTower::load(copy.path(), policy, &mut |_, _| {}).expect("it loads");
        let processor = ModelFolder::open(&folder(model)).expect("a folder").audio.expect("it hears");
        let clip = processor.clip(&noise(500, 1), &mut || Ok(())).expect("it is audio");
        let features = |tower: &AudioTower| {
            array::host::<f32>(&tower.features(&clip).expect("it is heard")).expect("numbers").to_vec()
        };
        assert_eq!(features(&moved), features(&load(model)), "{model}");
    }
}

/// The first files have a section for most of config.json, other names of tensors, and no tokenizer.json. Conversions dropped the beginning
/// of the names.
#[test]
fn the_first_files_of_qwen3_asr_give_the_same_answers() {
    let _turn = device();
    let golden = golden("qwen3_asr-f32");
    for beginning in ["thinker.", ""] {
        let copy = tempfile::tempdir().expect("a folder");
        copy_as_first_published(beginning, copy.path());
        let engine = start_from(copy.path(), &EngineOptions::default());
        for case in &golden.cases {
            let prompt = prompt(&engine, golden.messages(case));
            let expected = numbers::<u32>(&case["tokens"]);
            assert_eq!(answer(&engine, &prompt, expected.len()).ids(), expected, "{beginning:?}");
        }
    }
}

/// Conversions of Qwen3-ASR often lack the chat template.
#[test]
fn a_recognizer_without_a_chat_template_has_that_of_qwen3_asr() {
    let source = folder("qwen3_asr-f32");
    let copy = tempfile::tempdir().expect("a folder");
    for name in ["config.json", "tokenizer.json", "processor_config.json"] {
        std::fs::copy(source.join(name), copy.path().join(name)).expect("a copy");
    }
    let folder = ModelFolder::open(copy.path()).expect("a folder");
    let template = folder.template.expect("a template");
    let audio = Message { parts: vec![Part::Audio(Audio::file(Vec::new()))], ..Message::user("") };
    let rendered = |messages: Vec<Message>| {
        let input = TemplateInput { messages, add_generation_prompt: true, ..TemplateInput::default() };
        template.render(&input).expect("it is rendered")
    };
    let end =
        "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered(vec![audio.clone()]), format!("<|im_start|>system\n<|im_end|>\n{end}"));
    let with_context = rendered(vec![Message::system("MLX, Metal"), audio]);
    assert_eq!(with_context, format!("<|im_start|>system\nMLX, Metal<|im_end|>\n{end}"));
}

/// Its files have the same model_type as those of a recognizer.
#[test]
fn the_aligner_of_qwen3_asr_is_refused_by_name() {
    let config = std::fs::read_to_string(folder("qwen3_asr-f32").join("config.json")).expect("a config");
    let mut thinker: Value = serde_json::from_str(&config).expect("json");
    thinker["model_type"] = "qwen3_forced_aligner".into();
    let config = serde_json::json!({"model_type": "qwen3_asr", "thinker_config": thinker});
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::write(copy.path().join("config.json"), config.to_string()).expect("a config");
    let error = mlx_core::Abilities::of(copy.path()).expect_err("it must be refused").to_string();
    assert!(error.contains("model_type is qwen3_forced_aligner"), "{error}");
}

#[test]
fn what_cannot_be_heard_is_refused_by_name() {
    let _turn = device();
    let ask = |engine: &Engine, parts: Vec<Part>| {
        let messages = vec![Message { parts, ..Message::user("") }];
        chat_prompt(engine, &TemplateInput { messages, ..TemplateInput::default() }, NO_PAUSE)
            .map(drop)
            .expect_err("it must be refused")
            .to_string()
    };
    let heard = |bytes: Vec<u8>| vec![Part::Audio(Audio::file(bytes)), Part::Text("What?".to_owned())];
    let text_only =
        Engine::start(&model_folder("llama-f32"), &EngineOptions::default(), |_, _| {}).expect("it loads");
    let error = ask(&text_only, heard(file("1000.wav")));
    assert_eq!(error, "input_audio: cannot be given to llama, which has no audio tower");
    let engine = start(MODELS[0], &EngineOptions::default());
    let whole = file("16000.wav");
    let long = mlx_audio::wav::of_samples(&vec![0.1; 16_000 * 30 + 1]);
    for (bytes, why) in [
        (b"not audio at all".to_vec(), "not audio in a supported format"),
        (whole[..20_000].to_vec(), "the audio file is cut"),
        (mlx_audio::wav::of_samples(&[0.5; 160]), "shorter than a frame"),
        (long, "the audio is longer than the limit of 30 seconds"),
    ] {
        let error = ask(&engine, heard(bytes));
        let expected = "input_audio: is invalid, number 1 in the conversation: ";
        assert!(error.starts_with(expected) && error.contains(why), "{error}");
    }
    let written = vec![Part::Audio(noise(300, 1)), Part::Text("What is <|audio|>?".to_owned())];
    let error = ask(&engine, written);
    assert!(error.contains("their prompt has 2 placeholders for audio"), "{error}");
    // A request that did not come from a template.
    let mut prompt = question(&engine, &[&noise(300, 1)], "What?");
    prompt.tokens.retain(|token| *token != engine.audio_processor().expect("it hears").audio_token());
    let error = engine.request(prompt.tokens.clone(), &options(&prompt, 4)).expect_err("rows are missing");
    assert!(error.to_string().contains("audio: have 8 rows"), "{error}");
}
