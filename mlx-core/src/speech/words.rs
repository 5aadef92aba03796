//! Cuts the tokens of a text into words with their punctuation. The rules are those of Whisper's reference implementation. Invariant: pure.

use chat_format::text::Tokenizer;

/// The languages that separate no words. Each of their characters counts as one.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// ASCII punctuation, in order. A token is punctuation if it is part of this text.
const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

/// Punctuation that belongs to the next word.
const BEFORE_WORDS: &str = "\"'“¿([{-";

/// Punctuation that belongs to the previous word.
const AFTER_WORDS: &str = "\"'.。,，!！?？:：”)]}、";

/// A word and its number of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WordTokens {
    pub(crate) text: String,
    pub(crate) tokens: usize,
}

/// Cuts the tokens of a text in the language `code`. Bytes at the end that are no character belong to no word.
pub(crate) fn split_words(tokenizer: &Tokenizer, tokens: &[u32], code: Option<&str>) -> Vec<WordTokens> {
    let characters = split_at_characters(|tokens| tokenizer.decode(tokens, false), tokens);
    if code.is_some_and(|code| WITHOUT_SPACES.contains(&code)) {
        return characters;
    }
    let mut words: Vec<WordTokens> = Vec::new();
    for next in characters {
        let begins = next.text.starts_with(' ') || PUNCTUATION.contains(next.text.trim());
        match words.last_mut() {
            Some(word) if !begins => {
                word.text.push_str(&next.text);
                word.tokens += next.tokens;
            }
            _ => words.push(next),
        }
    }
    words
}

/// Cuts tokens where their text so far has only complete characters.
fn split_at_characters(decode: impl Fn(&[u32]) -> String, tokens: &[u32]) -> Vec<WordTokens> {
    let whole: Vec<char> = decode(tokens).chars().collect();
    let (mut words, mut start, mut offset) = (Vec::new(), 0, 0);
    for end in 1..=tokens.len() {
        let text = decode(&tokens[start..end]);
        let broken = text.chars().position(|it| it == char::REPLACEMENT_CHARACTER);
        // The text may have this character itself.
        let is_complete =
            |place: usize| whole.get(offset + place).is_none_or(|it| *it == char::REPLACEMENT_CHARACTER);
        if broken.is_none_or(is_complete) {
            offset += text.chars().count();
            words.push(WordTokens { text, tokens: end - start });
            start = end;
        }
    }
    words
}

/// A word with its times in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TimedWord {
    /// Empty if it became part of another word.
    pub(crate) text: String,
    pub(crate) tokens: usize,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

impl TimedWord {
    /// Returns true for punctuation that ends a sentence.
    pub(crate) fn ends_sentence(&self) -> bool {
        ".。!！?？".contains(&self.text)
    }

    pub(crate) fn duration(&self) -> f64 {
        self.end - self.start
    }

    fn take(&mut self) -> (String, usize) {
        (std::mem::take(&mut self.text), std::mem::take(&mut self.tokens))
    }
}

/// Makes punctuation a part of its word, whose times remain.
pub(crate) fn merge_punctuation(words: &mut [TimedWord]) {
    let mut next = words.len().saturating_sub(1);
    for place in (0..next).rev() {
        let word = &words[place];
        if word.text.starts_with(' ') && BEFORE_WORDS.contains(word.text.trim()) {
            let (text, tokens) = words[place].take();
            words[next].text.insert_str(0, &text);
            words[next].tokens += tokens;
        } else {
            next = place;
        }
    }
    let mut previous = 0;
    for place in 1..words.len() {
        if !words[previous].text.ends_with(' ') && AFTER_WORDS.contains(&words[place].text) {
            let (text, tokens) = words[place].take();
            words[previous].text.push_str(&text);
            words[previous].tokens += tokens;
        } else {
            previous = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A decoder of bytes, each of which is a token.
    fn decode(tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn characters_of_several_tokens_are_not_cut() {
        let of = |text: &[u8]| {
            let tokens: Vec<u32> = text.iter().map(|byte| u32::from(*byte)).collect();
            split_at_characters(decode, &tokens)
                .into_iter()
                .map(|word| (word.text, word.tokens))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("a€日".as_bytes()), [("a".to_owned(), 1), ("€".to_owned(), 3), ("日".to_owned(), 3)]);
        let broken = || ("\u{fffd}".to_owned(), 1);
        assert_eq!(of(b"a\xe2\x82"), [("a".to_owned(), 1), broken(), broken()]);
    }

    #[test]
    fn punctuation_belongs_to_words_as_in_openais_package() {
        let texts = [" \"", "Hello", ",", " (", " old", ")", " friend", ".", "\"", " -", " ok"];
        let word = |(place, text): (usize, &&str)| TimedWord {
            text: (*text).to_owned(),
            tokens: 1,
            start: place as f64,
            end: place as f64 + 1.0,
        };
        let mut words: Vec<TimedWord> = texts.iter().enumerate().map(word).collect();
        merge_punctuation(&mut words);
        let left = words.iter().filter(|word| !word.text.is_empty());
        let left: Vec<_> = left.map(|word| (word.text.as_str(), word.tokens, word.start)).collect();
        let expected =
            [(" \"Hello,", 3, 1.0), (" ( old)", 3, 4.0), (" friend.\"", 3, 6.0), (" - ok", 2, 10.0)];
        assert_eq!(left, expected);
    }
}
