//! The compression ratio of a text. A text that repeats itself has a high one.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// Returns the bytes of a text divided by its bytes after compression with zlib.
pub(crate) fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    compressed.map_or(0.0, |compressed| text.len() as f32 / compressed.len().max(1) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_text_has_a_high_ratio() {
        // Python's zlib gives 0.86 and 10; encoders differ by a few bytes.
        let sentence = compression_ratio("The quick brown fox jumps over the lazy dog.");
        assert!((0.75..0.95).contains(&sentence), "{sentence}");
        assert!(compression_ratio(&"Thank you. ".repeat(20)) > 5.0);
        assert!(compression_ratio("").abs() < 1e-6);
    }
}
