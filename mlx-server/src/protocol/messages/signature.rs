//! Signatures of thoughts: opaque texts that clients send back unchanged. That of a thought whose text is withheld carries the
//! thought, so that the model knows it again in the next turn.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What signatures of this server begin with.
const MARK: &[u8] = b"mlx\x01";
/// The maximum bytes of a thought in a signature; a longer thought is cut at its beginning.
const MAX_TEXT_LEN: usize = 256 << 10;

/// The signature of a thought whose text is sent beside it.
pub(super) fn beside_text() -> String {
    STANDARD.encode(MARK)
}

/// The signature of a thought whose text is withheld.
pub(super) fn in_place_of(text: &str) -> String {
    let begin = text.ceil_char_boundary(text.len().saturating_sub(MAX_TEXT_LEN));
    STANDARD.encode([MARK, &text.as_bytes()[begin..]].concat())
}

/// The thought of a block that comes back. Signatures of other servers carry nothing that can be read.
pub(super) fn thought(text: String, signature: Option<&str>) -> String {
    if !text.is_empty() {
        return text;
    }
    let carried = signature.and_then(|signature| STANDARD.decode(signature).ok());
    let carried = carried.and_then(|bytes| String::from_utf8(bytes.strip_prefix(MARK)?.to_vec()).ok());
    carried.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withheld_thought_comes_back() {
        let thought_of = |text: &str, signature: &str| thought(text.to_owned(), Some(signature));
        assert_eq!(thought_of("", &in_place_of("the tide é")), "the tide é");
        assert_eq!(thought_of("seen", &beside_text()), "seen");
        assert_eq!(thought_of("seen", &in_place_of("other")), "seen", "the text that the client shows wins");
        for foreign in ["", "EqoBCkgIBxABGAIiQL", "bWx4", "****"] {
            assert_eq!(thought_of("", foreign), "", "{foreign}");
        }
        assert_eq!(thought(String::new(), None), "");
    }

    #[test]
    fn signatures_are_bounded() {
        let long = "é".repeat(MAX_TEXT_LEN) + "end";
        let signature = in_place_of(&long);
        assert!(signature.len() < MAX_TEXT_LEN * 3 / 2, "{}", signature.len());
        let back = thought(String::new(), Some(&signature));
        assert!(long.ends_with(&back) && back.ends_with("éend"));
    }
}
