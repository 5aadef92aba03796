//! A streaming parser for the answers of Qwen3-ASR, such as `language English<asr_text>Hello.` Invariant: pure.

use std::mem::take;

/// The text before the language, and the one after it.
const BEFORE_LANGUAGE: &str = "language ";
const BEFORE_TEXT: &str = "<asr_text>";

/// The maximum bytes before [`BEFORE_TEXT`]. An answer with a longer beginning is text.
const LONGEST_HEAD: usize = 256;

/// The beginning of an answer that names the language of the text after it.
pub(crate) fn answer_in(language: &str) -> String {
    format!("{BEFORE_LANGUAGE}{language}{BEFORE_TEXT}")
}

/// Splits an answer into language and text. The result does not depend on where the deltas are cut.
#[derive(Debug, Default)]
pub(crate) struct TranscriptReader {
    /// The answer so far, until its text begins.
    head: String,
    is_text: bool,
    language: Option<String>,
    /// Spaces that are only text if more text follows.
    spaces: String,
    has_text: bool,
}

impl TranscriptReader {
    /// Returns a reader for an answer without a language. The prompt names it.
    pub(crate) fn of_text() -> Self {
        Self { is_text: true, ..Self::default() }
    }

    /// The model's name of the language, once it has arrived. `None` if the model detected none.
    pub(crate) fn language(&self) -> Option<&str> {
        self.language.as_deref()
    }

    /// Reads a delta. Returns the text in it. Spaces at both ends of the whole text are removed.
    pub(crate) fn push(&mut self, delta: &str) -> String {
        if self.is_text {
            return self.text(delta);
        }
        self.head.push_str(delta);
        let head = self.head.trim_start();
        if let Some(at) = head.find(BEFORE_TEXT).filter(|at| has_language(head) && *at <= LONGEST_HEAD) {
            self.language = language(&head[..at]);
            let text = head[at + BEFORE_TEXT.len()..].to_owned();
            return self.begin(&text);
        }
        if has_language(head) && head.len() <= LONGEST_HEAD + BEFORE_TEXT.len() {
            return String::new();
        }
        let text = take(&mut self.head);
        self.begin(&text)
    }

    /// Ends the answer. Returns the rest of the text. An answer without a language is all text.
    pub(crate) fn finish(&mut self) -> String {
        let text = take(&mut self.head);
        self.begin(&text)
    }

    fn begin(&mut self, text: &str) -> String {
        self.is_text = true;
        self.head.clear();
        self.text(text)
    }

    /// Returns text without the spaces at its end, which are returned before the next text.
    fn text(&mut self, delta: &str) -> String {
        let delta = if self.has_text { delta } else { delta.trim_start() };
        let end = delta.trim_end().len();
        if end == 0 {
            self.spaces.push_str(delta);
            return String::new();
        }
        self.has_text = true;
        let text = take(&mut self.spaces) + &delta[..end];
        delta[end..].clone_into(&mut self.spaces);
        text
    }
}

/// Returns true if the beginning of an answer may still name a language.
fn has_language(head: &str) -> bool {
    let begins = |marker: &str| head.starts_with(marker) || marker.starts_with(head);
    begins(BEFORE_LANGUAGE) || begins(BEFORE_TEXT)
}

/// Returns the name of the language in the beginning of an answer.
fn language(head: &str) -> Option<String> {
    let name = head.strip_prefix(BEFORE_LANGUAGE)?.lines().next()?.trim();
    (!name.is_empty() && name != "None").then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads an answer in pieces that end before these characters.
    fn read(answer: &str, ends: &[usize]) -> (Option<String>, String) {
        let mut reader = TranscriptReader::default();
        let (mut text, mut piece) = (String::new(), String::new());
        for (at, letter) in answer.chars().enumerate() {
            if ends.contains(&at) {
                text += &reader.push(&take(&mut piece));
            }
            piece.push(letter);
        }
        text += &reader.push(&piece);
        text += &reader.finish();
        (reader.language().map(str::to_owned), text)
    }

    #[test]
    fn answers_have_a_language_and_a_text() {
        for (answer, language, text) in [
            ("language English<asr_text>Hello, world. ", Some("English"), "Hello, world."),
            ("language Chinese\n<asr_text> 你好。", Some("Chinese"), "你好。"),
            ("language None<asr_text>", None, ""),
            ("language None<asr_text>Hm.", None, "Hm."),
            ("<asr_text>Hm.", None, "Hm."),
            (" Hello.", None, "Hello."),
            ("language is hard <b>", None, "language is hard <b>"),
            ("Say language X<asr_text>Y", None, "Say language X<asr_text>Y"),
            ("language A<asr_text>B<asr_text>C", Some("A"), "B<asr_text>C"),
            ("", None, ""),
        ] {
            assert_eq!(read(answer, &[]), (language.map(str::to_owned), text.to_owned()), "{answer}");
        }
        let long = format!("language {}<asr_text>x", "y".repeat(LONGEST_HEAD));
        assert_eq!(read(&long, &[]), (None, long.clone()));
    }

    #[test]
    fn text_is_not_held_back_after_the_language() {
        let mut reader = TranscriptReader::default();
        let pieces = ["lang", "uage German", "<asr", "_text>", "Guten", " ", "Tag."];
        let texts = pieces.map(|piece| reader.push(piece));
        assert_eq!(texts, ["", "", "", "", "Guten", "", " Tag."]);
        assert_eq!(reader.language(), Some("German"));
        assert_eq!(TranscriptReader::of_text().push(" language X<asr_text>Y"), "language X<asr_text>Y");
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_answer_gives(
            parts in prop::collection::vec(
                prop::sample::select(vec!["language ", "<asr_text>", "lang", "English", "None", " ", "\n", "<asr", "ä", "word"]), 0..9),
            repeated in 0usize..40, ends in prop::collection::vec(0usize..80, 0..12),
        ) {
            let answer = parts.concat() + &"word <asr_text>".repeat(repeated);
            prop_assert_eq!(read(&answer, &ends), read(&answer, &[]));
        }
    }
}
