//! The features are those of transformers' `WhisperFeatureExtractor` and `Gemma4AudioFeatureExtractor`.

use std::f64::consts::TAU;
use std::path::Path;

use mlx_audio::{LogMel, gemma_frames, gemma_log_mel};
use serde_json::Value;

/// The signal of `tests/golden/audio.py`.
fn signal() -> Vec<f32> {
    let mut state = 1u32;
    let sample = |place: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = f64::from(state) / 2f64.powi(31) - 1.0;
        let time = place as f64 / 16_000.0;
        let tone = 0.3 * (TAU * (200.0 + 700.0 * time) * time).sin();
        if (16_000..20_000).contains(&place) { 0.0 } else { (tone + 0.05 * noise) as f32 }
    };
    (0..3 * 16_000 + 77).map(sample).collect()
}

fn expected() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audio/log_mel.json");
    let text = std::fs::read(path).expect("the fixture is in the repository");
    serde_json::from_slice(&text).expect("it is JSON")
}

/// Returns the largest difference of the listed frames.
fn worst(features: &LogMel, expected: &Value) -> f64 {
    let mut worst = 0.0f64;
    for (frame, values) in expected.as_object().expect("frames") {
        let frame: usize = frame.parse().expect("a number");
        // A window of a long file may begin anywhere.
        let first = if features.frames() > 3000 { frame.saturating_sub(7) } else { 0 };
        let window = features.window(first);
        let bins = features.bins();
        let row = &window[(frame - first) * bins..][..bins];
        let values = values.as_array().expect("numbers");
        assert_eq!(values.len(), row.len());
        for (value, expected) in row.iter().zip(values) {
            worst = worst.max((f64::from(*value) - expected.as_f64().expect("a number")).abs());
        }
    }
    worst
}

#[test]
fn a_later_window_of_a_short_file_has_silence_until_30_seconds_and_then_zeros() {
    let mut features = LogMel::of_samples(&signal(), 80);
    let whole = features.window(0);
    let silence = whole[2999 * 80];
    assert!(silence != 0.0 && whole[400 * 80..] == vec![silence; 2600 * 80]);
    let check = |features: &LogMel| {
        let later = features.window(250);
        assert_eq!(later[..2750 * 80], whole[250 * 80..]);
        assert_eq!(later[2750 * 80..], vec![0.0; 250 * 80]);
    };
    check(&features);
    let bytes = features.bytes();
    features.release_before(250);
    assert!(features.bytes() < bytes / 4, "{} of {bytes} bytes are left", features.bytes());
    check(&features);
}

#[test]
fn features_equal_those_of_transformers() {
    let (signal, expected) = (signal(), expected());
    let long: Vec<f32> = (0..11).flat_map(|_| signal.iter().copied()).collect();
    for bins in [80, 128] {
        for (kind, samples) in [("short", &signal), ("long", &long)] {
            let features = LogMel::of_samples(samples, bins);
            assert_eq!(features.frames(), samples.len() / 160);
            let worst = worst(&features, &expected[format!("{bins} {kind}")]);
            assert!(worst < 1e-4, "{bins} bins, {kind}: {worst}");
        }
    }
}

#[test]
fn features_do_not_depend_on_blocks_of_samples() {
    let signal = signal();
    let whole = LogMel::of_samples(&signal, 80).window(0);
    // A file is decoded packet by packet.
    let file = mlx_audio::wav::of_samples(&signal);
    let read =
        LogMel::of_file(file, 80, &mlx_audio::Limits::default(), &mut |_| Ok(())).expect("it is audio");
    let worst = whole.iter().zip(read.window(0)).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
    // The file has 16 bits per sample.
    assert!(worst < 0.2, "{worst}");
    let tiny = LogMel::of_samples(&signal[..50], 80);
    assert_eq!((tiny.frames(), tiny.window(0).len()), (0, 3000 * 80));
}

#[test]
fn features_for_gemma_equal_those_of_transformers() {
    let (samples, expected) = (signal(), expected());
    let features = gemma_log_mel(&samples, 128);
    // The last frame is the last one whose samples all exist.
    assert_eq!(features.len(), (samples.len() - 161) / 160 * 128 + 128);
    for (frame, values) in expected["gemma"].as_object().expect("frames") {
        let row = &features[128 * frame.parse::<usize>().expect("a number")..][..128];
        for (value, expected) in row.iter().zip(values.as_array().expect("numbers")) {
            let worst = (f64::from(*value) - expected.as_f64().expect("a number")).abs();
            assert!(worst < 1e-4, "frame {frame}: {worst}");
        }
    }
    for (count, frames) in [(0, 0), (160, 0), (161, 1), (320, 1), (321, 2), (8000, 49)] {
        assert_eq!(gemma_log_mel(&samples[..count], 128).len(), frames * 128, "{count} samples");
        assert_eq!(gemma_frames(count), frames, "{count} samples");
    }
}
