//! The bytes of a single token, independent of its neighbors.

use tokenizers::DecoderWrapper;

use super::bytes::{byte_token, spelled_bytes};

/// Returns the bytes of a token of the vocabulary. The `decoder` determines their spelling: each byte as a
/// character (byte-level BPE), or as in sentencepiece, with `▁` for a space and `<0xNN>` for a byte.
pub(super) fn token_bytes(decoder: Option<&DecoderWrapper>, token: &str) -> Vec<u8> {
    if decoder.is_some_and(is_byte_level) {
        return spelled_bytes(token);
    }
    byte_token(token).map_or_else(|| token.replace('▁', " ").into_bytes(), |byte| vec![byte])
}

fn is_byte_level(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteLevel(_) => true,
        DecoderWrapper::Sequence(sequence) => sequence.get_decoders().iter().any(is_byte_level),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::decoders::byte_level::ByteLevel;

    use super::*;

    #[test]
    fn byte_level_and_sentencepiece_tokens_give_bytes() {
        let byte_level = DecoderWrapper::ByteLevel(ByteLevel::default());
        let bytes = |token| token_bytes(Some(&byte_level), token);
        assert_eq!(bytes("Ġ\u{10a}Ã©"), b" \n\xc3\xa9");
        assert_eq!(bytes("<|end of turn|>"), b"<|end of turn|>");
        assert_eq!(token_bytes(None, "▁the"), b" the");
        assert_eq!(token_bytes(None, "<0x0A>"), b"\n");
        assert_eq!(token_bytes(None, "<0xZZ>"), b"<0xZZ>");
    }
}
