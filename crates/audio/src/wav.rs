//! Writes WAV files, for tests.

use crate::rate::SAMPLE_RATE;

/// Returns a WAV file with these samples, mono at 16 kHz in 16 bits. Samples are cut to the range from -1 to 1.
pub fn of_samples(samples: &[f32]) -> Vec<u8> {
    let bytes = 2 * samples.len() as u32;
    let mut file = Vec::with_capacity(44 + bytes as usize);
    file.extend(b"RIFF");
    file.extend((36 + bytes).to_le_bytes());
    file.extend(b"WAVEfmt ");
    file.extend(16u32.to_le_bytes());
    // PCM, one channel.
    file.extend([1, 0, 1, 0]);
    file.extend(SAMPLE_RATE.to_le_bytes());
    file.extend((2 * SAMPLE_RATE).to_le_bytes());
    file.extend([2, 0, 16, 0]);
    file.extend(b"data");
    file.extend(bytes.to_le_bytes());
    for sample in samples {
        let rounded = (sample.clamp(-1.0, 1.0) * 32_767.0).round() as i16;
        file.extend(rounded.to_le_bytes());
    }
    file
}
