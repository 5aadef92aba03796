//! The bytes that a single token stands for, whatever stands beside it.

use tokenizers::DecoderWrapper;

use super::bytes::{byte_token, spelled_bytes};

/// The bytes of a token as the vocabulary spells it; `decoder` tells which spelling that is: every byte as a
/// character, or sentencepiece's `▁` for a space and `<0xNN>` for a byte.
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
    fn both_spellings_give_bytes() {
        let byte_level = DecoderWrapper::ByteLevel(ByteLevel::default());
        let bytes = |token| token_bytes(Some(&byte_level), token);
        assert_eq!(bytes("Ġ\u{10a}Ã©"), b" \n\xc3\xa9");
        assert_eq!(bytes("<|end of turn|>"), b"<|end of turn|>");
        assert_eq!(token_bytes(None, "▁the"), b" the");
        assert_eq!(token_bytes(None, "<0x0A>"), b"\n");
        assert_eq!(token_bytes(None, "<0xZZ>"), b"<0xZZ>");
    }
}
