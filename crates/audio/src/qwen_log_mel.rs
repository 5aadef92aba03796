//! The log-mel features of Qwen3-ASR: Whisper's, but without silence after the end, which is mirrored like the start.

use crate::spectrogram::{HOP, SILENCE, Spectrogram, scaled};

/// The samples of the shortest clip. The reference continues shorter ones with zeros.
const SHORTEST: usize = 8000;

/// Returns the features of samples at 16 kHz, frame by frame, with `bins` numbers each.
pub fn qwen_log_mel(samples: &[f32], bins: usize) -> Vec<f32> {
    let count = samples.len().max(SHORTEST);
    let zeros = vec![0.0; count - samples.len()];
    let mut spectrogram = Spectrogram::new(bins);
    let mut features = Vec::with_capacity((count / HOP + 1) * bins);
    spectrogram.push(samples, &mut features);
    spectrogram.push(&zeros, &mut features);
    spectrogram.finish_mirrored(&mut features);
    features.truncate(count / HOP * bins);
    let loudest = features.iter().copied().fold(SILENCE, f32::max);
    for value in &mut features {
        *value = scaled(*value, loudest);
    }
    features
}
