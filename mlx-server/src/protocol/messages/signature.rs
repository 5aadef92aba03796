//! Signatures of thinking: opaque strings that clients send back unchanged. If the text of the thinking is withheld, its signature carries
//! that text, so that the model gets it in the next turn.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The first bytes of this server's signatures.
const MARK: &[u8] = b"mlx\x01";
/// The maximum length of the text in a signature, in bytes. Longer thinking loses its start.
const MAX_TEXT_LEN: usize = 256 << 10;

/// Returns the signature of thinking whose text is sent too.
pub(super) fn plain() -> String {
    STANDARD.encode(MARK)
}

/// Returns the signature of thinking whose text is withheld.
pub(super) fn carrying(text: &str) -> String {
    let begin = text.ceil_char_boundary(text.len().saturating_sub(MAX_TEXT_LEN));
    STANDARD.encode([MARK, &text.as_bytes()[begin..]].concat())
}

/// Returns the thinking of a block that a client sent back. Signatures of other servers are unreadable and give no text.
pub(super) fn thought(text: String, signature: Option<&str>) -> String {
    if !text.is_empty() {
        return text;
    }
    let withheld = signature.and_then(|signature| STANDARD.decode(signature).ok());
    let withheld = withheld.and_then(|bytes| String::from_utf8(bytes.strip_prefix(MARK)?.to_vec()).ok());
    withheld.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withheld_thought_comes_back() {
        let thought_of = |text: &str, signature: &str| thought(text.to_owned(), Some(signature));
        assert_eq!(thought_of("", &carrying("the tide é")), "the tide é");
        assert_eq!(thought_of("seen", &plain()), "seen");
        assert_eq!(thought_of("seen", &carrying("other")), "seen", "the text that the client shows wins");
        for foreign in ["", "EqoBCkgIBxABGAIiQL", "bWx4", "****"] {
            assert_eq!(thought_of("", foreign), "", "{foreign}");
        }
        assert_eq!(thought(String::new(), None), "");
    }

    #[test]
    fn signatures_are_bounded() {
        let long = "é".repeat(MAX_TEXT_LEN) + "end";
        let signature = carrying(&long);
        assert!(signature.len() < MAX_TEXT_LEN * 3 / 2, "{}", signature.len());
        let back = thought(String::new(), Some(&signature));
        assert!(long.ends_with(&back) && back.ends_with("éend"));
    }
}
