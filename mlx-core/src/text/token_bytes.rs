//! The bytes that a single token stands for, whatever stands beside it.

use tokenizers::DecoderWrapper;

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Every byte as one printable character (GPT-2's table).
    ByteLevel,
    /// A space as `▁`, a byte that has no token of its own as `<0xNN>`.
    SentencePiece,
}

impl Spelling {
    /// The spelling that a tokenizer's decoder undoes.
    pub(super) fn of(decoder: Option<&DecoderWrapper>) -> Self {
        let byte_level = match decoder {
            Some(DecoderWrapper::ByteLevel(_)) => true,
            Some(DecoderWrapper::Sequence(sequence)) => {
                sequence.get_decoders().iter().any(|decoder| matches!(decoder, DecoderWrapper::ByteLevel(_)))
            }
            _ => false,
        };
        if byte_level { Self::ByteLevel } else { Self::SentencePiece }
    }

    /// The bytes of a token as the vocabulary spells it.
    pub(super) fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            // An added token is spelled plainly, so one odd character makes the whole of it plain.
            Self::ByteLevel => token
                .chars()
                .map(byte_of)
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Self::SentencePiece => {
                let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match hex.filter(|digits| digits.len() == 2).and_then(|it| u8::from_str_radix(it, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => token.replace('▁', " ").into_bytes(),
                }
            }
        }
    }
}

/// GPT-2's table: printable Latin-1 characters stand for themselves, the other bytes for characters from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    let is_plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => is_plain(byte).then_some(byte),
        Err(_) => (0..=u8::MAX).filter(|&byte| !is_plain(byte)).nth(code as usize - 0x100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_give_bytes() {
        assert_eq!(Spelling::ByteLevel.bytes("Ġ\u{10a}Ã©"), b" \n\xc3\xa9");
        assert_eq!(Spelling::ByteLevel.bytes("<|end of turn|>"), b"<|end of turn|>");
        assert_eq!(Spelling::SentencePiece.bytes("▁the"), b" the");
        assert_eq!(Spelling::SentencePiece.bytes("<0x0A>"), b"\n");
        assert_eq!(Spelling::SentencePiece.bytes("<0xZZ>"), b"<0xZZ>");
    }
}
