//! Audio files: any file becomes features within its limits or is rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlx_audio::{Limits, LogMel, decode_samples, gemma_log_mel, qwen_log_mel};
use mlx_fuzz::watch_panics;

const LIMITS: Limits = Limits { bytes: 1 << 20, seconds: 30 };

fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let Ok(features) = LogMel::of_file(data, 80, &LIMITS, &mut |_| Ok(())) else { return };
    assert!(features.frames() <= 3000 + 100);
    assert!(features.window(0).iter().all(|value| value.is_finite()));
    let samples = decode_samples(data, &LIMITS, &mut || Ok(())).expect("it was decoded before");
    assert!(gemma_log_mel(&samples, 128).iter().all(|value| value.is_finite()));
    assert!(qwen_log_mel(&samples, 128).iter().all(|value| value.is_finite()));
});
