//! Words that are banned in comments, messages and documentation, because sentences name their subject and code is not personified.

use super::{code::find_word, files::SourceFile, violation::Violation};

/// The banned words. Written in halves, so that this file may contain them.
const WORDS: [&str; 7] = [
    concat!("some", "body"),
    concat!("no", "body"),
    concat!("any", "body"),
    concat!("who", "ever"),
    concat!("to", "ld"),
    concat!("wan", "ted"),
    concat!("right", "ly"),
];

pub(super) fn check(file: &SourceFile, prose: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    for (number, line) in prose.lines().enumerate() {
        let line = line.to_lowercase();
        let here = WORDS.iter().filter(|word| find_word(&line, word).next().is_some());
        found.extend(
            here.map(|word| {
                Violation::new(file, number + 1, format!("rewrite the sentence without `{word}`"))
            }),
        );
    }
    found
}

/// Returns the comments and strings of a Rust file: the text that is blank in `code`.
pub(super) fn of_rust(text: &str, code: &str) -> String {
    let prose = |(symbol, code): (char, char)| if code == symbol && symbol != '\n' { ' ' } else { symbol };
    text.chars().zip(code.chars()).map(prose).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::code::without_comments_and_strings;

    fn lines(text: &str) -> Vec<usize> {
        let file = SourceFile { path: "a/src/b.rs".to_owned(), text: text.to_owned() };
        let prose = of_rust(text, &without_comments_and_strings(text));
        check(&file, &prose).into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn prose_is_comments_and_strings() {
        for word in WORDS {
            let capital = word[..1].to_uppercase() + &word[1..];
            let text =
                format!("let {word} = 1;\n// {word} waits\nf(\"{capital}\");\nf({word}s, \"{word}s\");");
            assert_eq!(lines(&text), [2, 3]);
        }
    }
}
