//! Computes the start of each token in the text of a completion, in characters. A token that continues a character starts where the
//! character starts. A special token without text has no width.

use std::sync::Arc;

use chat_format::text::{Detokenizer, Tokenizer};

/// The offsets of one answer's tokens, in order.
#[derive(Debug, Clone)]
pub(crate) struct TextOffsets {
    /// The offsets of the prompt's tokens. The first `returned` have been returned.
    prompt: Arc<[usize]>,
    returned: usize,
    detokenizer: Detokenizer,
    /// The number of characters before the text that the detokenizer holds.
    chars: usize,
}

impl TextOffsets {
    /// Creates the offsets for an answer. `ids` is the prompt, and `echo` its text at the start of the answer, or empty.
    pub(crate) fn new(tokenizer: &Tokenizer, ids: &[u32], echo: &str) -> Self {
        let prompt = if echo.is_empty() { vec![0; ids.len()] } else { prompt_offsets(tokenizer, ids, echo) };
        let detokenizer = tokenizer.detokenizer_after(ids, true);
        Self { prompt: prompt.into(), returned: 0, detokenizer, chars: echo.chars().count() }
    }

    /// Returns the start of the next prompt token.
    pub(crate) fn next_prompt_offset(&mut self) -> usize {
        self.returned += 1;
        self.prompt.get(self.returned - 1).copied().unwrap_or(self.chars)
    }

    /// Returns the start of the answer's next token.
    pub(crate) fn next_answer_offset(&mut self, id: u32) -> usize {
        let (before, text) = self.detokenizer.locate(id);
        let begin = self.chars + before;
        self.chars += text.chars().count();
        begin
    }
}

/// Returns the start of each prompt token in the prompt's text. The tokenizer may have added special tokens and spaces that are not in the
/// text, and special tokens may have absorbed white space.
fn prompt_offsets(tokenizer: &Tokenizer, ids: &[u32], text: &str) -> Vec<usize> {
    let mut detokenizer = tokenizer.detokenizer(false);
    let (mut rest, mut chars) = (text, 0);
    let offset = |id: &u32| {
        let pending = detokenizer.uncertain();
        let special = tokenizer.token(*id).filter(|_| tokenizer.is_special(*id));
        let after = rest.strip_prefix(pending.as_str()).unwrap_or(rest);
        if special.is_some_and(|token| !after.trim_start().starts_with(&token)) {
            return chars + pending.chars().count();
        }
        let (before, more) = detokenizer.locate(*id);
        let (space, length) = match_lengths(rest, &more);
        let absorbed = if before == 0 { rest[..space].chars().count() } else { 0 };
        let begin = chars + before + absorbed;
        chars += rest[..space + length].chars().count();
        rest = &rest[space + length..];
        begin
    };
    ids.iter().map(offset).collect()
}

/// Returns the number of white space bytes before `part` at the start of `text`, and the number of bytes of `part` there. If a normalizer has
/// changed `part`, counts the same number of characters instead.
fn match_lengths(text: &str, part: &str) -> (usize, usize) {
    if text.starts_with(part) {
        return (0, part.len());
    }
    let (trimmed, part) = (text.trim_start(), part.trim_start());
    if trimmed.starts_with(part) {
        return (text.len() - trimmed.len(), part.len());
    }
    (0, text.chars().take(part.chars().count()).map(char::len_utf8).sum())
}

#[cfg(test)]
mod tests {
    use mlx_tests::model_folder;

    use super::*;

    fn tokenizer(model: &str) -> Tokenizer {
        Tokenizer::load(&model_folder(model)).expect("the fixture loads")
    }

    /// Returns each token with the text from its offset on.
    fn tokens_with_rest(model: &str, text: &str) -> Vec<(String, String)> {
        let tokenizer = tokenizer(model);
        let ids = tokenizer.encode(text, true).expect("encodes");
        let offsets = prompt_offsets(&tokenizer, &ids, text);
        let from = |offset: usize| text.chars().skip(offset).collect();
        ids.iter().zip(offsets).map(|(id, at)| (tokenizer.token(*id).expect("a token"), from(at))).collect()
    }

    #[test]
    fn tokens_of_a_prompt_begin_where_they_stand() {
        for (model, text) in [
            ("llama-spm-f32", "The waves and é ñ"),
            ("llama-spm-f32", "漢字 the"),
            ("llama-spm-f32", "the<|im_end|> waves\n<|im_start|>the"),
            ("llama-f32", "The waves é 漢字🦀 the"),
            ("llama-f32", "<|im_start|>user\nThe waves<|im_end|>"),
        ] {
            let tokens = tokens_with_rest(model, text);
            let bytes =
                |token: &str| tokenizer(model).token_bytes(tokenizer(model).id(token).expect("a token"));
            for (index, (token, rest)) in tokens.iter().enumerate() {
                let special = bytes(token);
                let at_start = rest.len() == text.len();
                let as_text = String::from_utf8(special.clone()).ok().filter(|_| !token.starts_with("<0x"));
                let fits = if let Some(word) = as_text {
                    // The space marker that sentencepiece puts before a text is not part of the text, nor is an added special token.
                    rest.starts_with(&word) || rest.starts_with(word.trim_start()) || at_start && index == 0
                } else {
                    let letter = rest.chars().next().expect("a letter").to_string();
                    letter.as_bytes().contains(&special[0])
                };
                assert!(fits, "{model}: {token:?} at {rest:?}");
            }
            assert!(tokens.windows(2).all(|pair| pair[0].1.len() >= pair[1].1.len()), "{tokens:?}");
        }
    }

    #[test]
    fn an_answer_begins_after_the_echo() {
        let tokenizer = tokenizer("llama-spm-f32");
        let prompt = tokenizer.encode("the", true).expect("encodes");
        let answer = tokenizer.encode("\u{6f22}\u{5b57} the waves", false).expect("encodes");
        let mut offsets = TextOffsets::new(&tokenizer, &prompt, "the");
        let begins: Vec<usize> = answer.iter().map(|id| offsets.next_answer_offset(*id)).collect();
        // The space marker before the text, three bytes for each of two characters, and words.
        let spaced: Vec<usize> = answer[7..]
            .iter()
            .scan(6, |at, id| {
                let begin = *at;
                *at += tokenizer.token_bytes(*id).len();
                Some(begin)
            })
            .collect();
        assert_eq!(begins, [&[3, 4, 4, 4, 5, 5, 5][..], &spaced].concat());
    }
}
