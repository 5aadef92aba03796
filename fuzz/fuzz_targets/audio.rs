//! Audio files: any file becomes samples and features within its limits or is rejected.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlx_audio::{Limits, LogMel, SAMPLE_RATE, decode_samples, gemma_log_mel, qwen_log_mel};
use mlx_fuzz::watch_panics;

/// Few seconds, because features would take most of the time.
const LIMITS: Limits = Limits { bytes: 1 << 20, seconds: 2 };

// A panic of a decoder ends the run too. The product turns it into an error, but logs it.
fuzz_target!(init: watch_panics(), |data: &[u8]| {
    let Ok(samples) = decode_samples(data, &LIMITS, &mut || Ok(())) else { return };
    assert!(samples.len() <= (LIMITS.seconds * SAMPLE_RATE) as usize + 1);
    assert!(samples.iter().all(|sample| sample.is_finite()));
    let features = LogMel::of_samples(&samples, 80);
    assert_eq!(features.frames(), samples.len() / 160);
    assert!(features.window(0).iter().all(|value| value.is_finite()));
    assert!(gemma_log_mel(&samples, 128).iter().all(|value| value.is_finite()));
    assert!(qwen_log_mel(&samples, 128).iter().all(|value| value.is_finite()));
});
