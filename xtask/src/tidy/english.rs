//! Rates of the turns of phrase that CONTRIBUTING.md advises against, in comments and Markdown. They warn; nothing fails.

use std::fmt;

use super::{code::find_word, files::SourceFile};

/// Phrases that usually have a plainer equivalent. Some uses are correct, such as a server behind a proxy.
const PHRASES: [&str; 30] = [
    "behind",
    "alone",
    "in place of",
    "of which",
    "of whose",
    "whose",
    "what is",
    "what it",
    "what they",
    "what was",
    "what a",
    "what the",
    "what that",
    "goes on",
    "go on",
    "stands",
    "stand",
    "as it is",
    "as they are",
    "as it was",
    "the one that",
    "the ones that",
    "those that",
    "those of",
    "those with",
    "nothing but",
    "nothing else",
    "is there",
    "by itself",
    "of its own",
];

/// First words of a line, which should name its subject.
const BEGINNINGS: [&str; 6] = ["What", "Whether", "How", "Which", "Where", "The same"];

/// More phrases than this for every 1 000 words, or a larger share of beginnings, are worth a rewrite.
const MAX_PHRASES: f64 = 1.5;
const MAX_BEGINNINGS: f64 = 0.02;

/// Counts in one kind of prose.
#[derive(Default)]
pub(super) struct English {
    words: usize,
    phrases: usize,
    lines: usize,
    beginnings: usize,
}

impl English {
    /// Counts in the comments of Rust files.
    pub(super) fn of_comments(files: &[SourceFile]) -> Self {
        let mut found = Self::default();
        for file in files.iter().filter(|file| file.is_rust()) {
            file.text.lines().filter_map(comment).for_each(|line| found.add(line));
        }
        found
    }

    /// Counts in Markdown files, without code and tables.
    pub(super) fn of_markdown(files: &[SourceFile]) -> Self {
        let mut found = Self::default();
        for file in files.iter().filter(|file| file.is_markdown()) {
            let is_prose = |line: &&str| !["    ", "```", "|"].iter().any(|start| line.starts_with(start));
            file.text.lines().filter(is_prose).for_each(|line| found.add(line));
        }
        found
    }

    pub(super) fn is_plain(&self) -> bool {
        self.phrases_per_1000_words() <= MAX_PHRASES && self.share_of_beginnings() <= MAX_BEGINNINGS
    }

    fn add(&mut self, line: &str) {
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        let lower = line.to_lowercase();
        self.lines += 1;
        self.words += line.split_whitespace().count();
        self.phrases += PHRASES.iter().map(|phrase| find_word(&lower, phrase).count()).sum::<usize>();
        self.beginnings += usize::from(BEGINNINGS.iter().any(|word| find_word(line, word).next() == Some(0)));
    }

    fn phrases_per_1000_words(&self) -> f64 {
        1000.0 * self.phrases as f64 / self.words.max(1) as f64
    }

    fn share_of_beginnings(&self) -> f64 {
        self.beginnings as f64 / self.lines.max(1) as f64
    }
}

impl fmt::Display for English {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beginnings = 100.0 * self.share_of_beginnings();
        write!(
            f,
            "{:.2} odd phrases in 1000 words, {beginnings:.1} % odd beginnings",
            self.phrases_per_1000_words()
        )
    }
}

/// The text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> SourceFile {
        SourceFile { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn comments_and_prose_are_counted() {
        let files = [
            file("a.rs", "/// What is kept behind it.\nlet behind = \"alone\";\n// Returns a row.\n"),
            file("b.md", "Those of a row stand.\n\n    what is code\n| whose | table |\nWhatever.\n"),
        ];
        let comments = English::of_comments(&files);
        assert_eq!((comments.words, comments.phrases, comments.lines, comments.beginnings), (8, 2, 2, 1));
        let markdown = English::of_markdown(&files);
        assert_eq!((markdown.words, markdown.phrases, markdown.lines, markdown.beginnings), (6, 2, 2, 0));
        assert!(!comments.is_plain());
        assert!(English::of_comments(&[]).is_plain());
    }
}
