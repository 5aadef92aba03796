//! Where the tokens of a completion begin in its text, in characters. A token that is half a character begins where the character
//! does, and a special token that is no text has no width.

use std::sync::Arc;

use chat_format::text::{Detokenizer, Tokenizer};

/// The offsets of one answer's tokens, in their order.
#[derive(Debug, Clone)]
pub(crate) struct TextOffsets {
    /// Those of the prompt's tokens, and how many of them were given.
    prompt: Arc<[usize]>,
    given: usize,
    /// Decodes the answer.
    detokenizer: Detokenizer,
    /// The characters before the text that the detokenizer holds.
    chars: usize,
}

impl TextOffsets {
    /// For answers to a prompt of these tokens, which begin with its text `echo`; empty unless echoed.
    pub(crate) fn new(tokenizer: &Tokenizer, ids: &[u32], echo: &str) -> Self {
        let prompt = if echo.is_empty() { vec![0; ids.len()] } else { prompt_offsets(tokenizer, ids, echo) };
        let detokenizer = tokenizer.detokenizer_after(ids, true);
        Self { prompt: prompt.into(), given: 0, detokenizer, chars: echo.chars().count() }
    }

    /// Where the next token of the prompt begins.
    pub(crate) fn of_prompt(&mut self) -> usize {
        self.given += 1;
        self.prompt.get(self.given - 1).copied().unwrap_or(self.chars)
    }

    /// Where the answer's next token begins.
    pub(crate) fn of_answer(&mut self, id: u32) -> usize {
        let (before, text) = self.detokenizer.locate(id);
        let begin = self.chars + before;
        self.chars += text.chars().count();
        begin
    }
}

/// Where each token of a prompt begins in its text. The tokenizer may have added special tokens that the text does not spell, and
/// spaces; special tokens may have swallowed white space.
fn prompt_offsets(tokenizer: &Tokenizer, ids: &[u32], text: &str) -> Vec<usize> {
    let mut detokenizer = tokenizer.detokenizer(false);
    let (mut rest, mut chars) = (text, 0);
    let offset = |id: &u32| {
        let held = detokenizer.uncertain();
        let spelled = tokenizer.token(*id).filter(|_| tokenizer.is_special(*id));
        let after = rest.strip_prefix(held.as_str()).unwrap_or(rest);
        if spelled.is_some_and(|token| !after.trim_start().starts_with(&token)) {
            return chars + held.chars().count();
        }
        let (before, more) = detokenizer.locate(*id);
        let (space, length) = found(rest, &more);
        let swallowed = if before == 0 { rest[..space].chars().count() } else { 0 };
        let begin = chars + before + swallowed;
        chars += rest[..space + length].chars().count();
        rest = &rest[space + length..];
        begin
    };
    ids.iter().map(offset).collect()
}

/// The bytes of white space before `part` at the start of `text`, and the bytes of `part` there. If it does not stand there, since a
/// normalizer has changed it, it is as many characters.
fn found(text: &str, part: &str) -> (usize, usize) {
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

    /// Each token with the text from its offset on.
    fn of_prompt(model: &str, text: &str) -> Vec<(String, String)> {
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
            let tokens = of_prompt(model, text);
            let bytes =
                |token: &str| tokenizer(model).token_bytes(tokenizer(model).id(token).expect("a token"));
            for (place, (token, rest)) in tokens.iter().enumerate() {
                let spelled = bytes(token);
                let at_start = rest.len() == text.len();
                let as_text = String::from_utf8(spelled.clone()).ok().filter(|_| !token.starts_with("<0x"));
                let fits = if let Some(word) = as_text {
                    // The mark that sentencepiece puts before a text is no part of it, nor is a special token that was added.
                    rest.starts_with(&word) || rest.starts_with(word.trim_start()) || at_start && place == 0
                } else {
                    let letter = rest.chars().next().expect("a letter").to_string();
                    letter.as_bytes().contains(&spelled[0])
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
        let begins: Vec<usize> = answer.iter().map(|id| offsets.of_answer(*id)).collect();
        // The mark before the text, three bytes for each of two letters, and words.
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
