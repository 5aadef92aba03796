//! Conversions of models that hear keep their audio towers.

use chat_format::Audio;
use mlx_core::ModelFolder;
use mlx_core::array::host;
use mlx_core::backend::Backend;
use mlx_core::engine::EngineOptions;
use mlx_core::model::AudioTower;
use mlx_core::weights::WeightPolicy;
use mlx_tests::device;
use mlx_tests::input_audio::{MODELS, copy_as_first_published, copy_as_mlx, file, folder, golden};
use mlx_tests::pictures::{answer, numbers, prompt, start_from};
use mlx_tests::tensors;

use crate::convert::run;
use crate::converted_pictures::{PLAIN, in_bits};

#[test]
fn converted_models_answer_about_clips_as_before() {
    let _turn = device();
    for model in MODELS {
        let (target, golden) = (tempfile::tempdir().expect("a folder"), golden(model));
        let report = run(&folder(model), target.path(), &PLAIN).expect("it converts");
        assert!(report.left_out.is_empty(), "{model}: {report:?}");
        let names = tensors::read(&target.path().join("model.safetensors"));
        let projector = if model.starts_with("gemma4") { "embed_audio." } else { "multi_modal_projector." };
        for part in ["audio_tower.", projector].iter().skip(usize::from(model.contains("unified"))) {
            assert!(names.keys().any(|name| name.starts_with(part)), "{model}: the names of MLX's tools");
        }
        let engine = start_from(target.path(), &EngineOptions::default());
        for case in &golden.cases {
            let prompt = prompt(&engine, golden.messages(case));
            let expected = numbers::<u32>(&case["tokens"]);
            assert_eq!(answer(&engine, &prompt, expected.len()).ids(), expected, "{model}");
        }
    }
}

#[test]
fn an_audio_tower_stays_in_floats_where_its_text_is_quantized() {
    let _turn = device();
    for model in MODELS {
        let (target, golden) = (tempfile::tempdir().expect("a folder"), golden(model));
        let report = run(&folder(model), target.path(), &in_bits(4)).expect("it converts");
        assert!(report.quantized > 0 && report.left_out.is_empty(), "{model}: {report:?}");
        let clip = Audio::file(file(&format!("{}.wav", golden.lengths[0])));
        let [ours, theirs] = [target.path(), &folder(model)].map(|folder| {
            let processor = ModelFolder::open(folder).expect("a folder").audio.expect("it hears");
            let clip = processor.clip(&clip, &mut || Ok(())).expect("it is audio");
            let tower = AudioTower::load(folder, WeightPolicy::new(Backend::CPU, false), &mut |_, _| {});
            let features = tower.expect("it loads").features(&clip).expect("it is heard");
            host::<f32>(&features).expect("numbers").to_vec()
        });
        assert!(ours == theirs, "{model}: the towers differ");
    }
}

/// Kernels of MLX's tools have three rows where those of pictures have three colors.
#[test]
fn a_tower_in_the_form_of_mlx_stays_the_same() {
    let _turn = device();
    for model in MODELS {
        let [source, target] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        copy_as_mlx(model, source.path());
        run(source.path(), target.path(), &PLAIN).expect("it converts");
        let [before, after] = [&source, &target].map(|folder| {
            let tensors = tensors::read(&folder.path().join("model.safetensors"));
            let of_tower = tensors.into_iter().filter(|(name, _)| name.starts_with("audio_tower."));
            of_tower.collect::<Vec<_>>()
        });
        assert!(before == after, "{model}");
        assert_eq!(before.is_empty(), model.contains("unified"));
    }
}

#[test]
fn the_first_files_of_qwen3_asr_are_converted() {
    let _turn = device();
    let [source, target] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    copy_as_first_published("thinker.", source.path());
    run(source.path(), target.path(), &PLAIN).expect("it converts");
    let (engine, golden) = (start_from(target.path(), &EngineOptions::default()), golden("qwen3_asr-f32"));
    for case in &golden.cases {
        let prompt = prompt(&engine, golden.messages(case));
        let expected = numbers::<u32>(&case["tokens"]);
        assert_eq!(answer(&engine, &prompt, expected.len()).ids(), expected);
    }
}
