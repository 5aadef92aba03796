//! Rendered documents are the same on a terminal, however the text is split into deltas.

use proptest::prelude::*;
use unicode_width::UnicodeWidthStr;

use super::*;

fn printed(pieces: &[&str], columns: usize) -> String {
    let mut markdown = Markdown::new(columns, false);
    let mut out: String = pieces.iter().map(|piece| markdown.add(piece)).collect();
    out.push_str(&markdown.finish());
    out
}

/// Returns the lines that a terminal shows, without colors.
fn screen_lines(out: &str) -> Vec<String> {
    let mut lines = vec![Vec::<char>::new()];
    let mut chars = out.chars();
    while let Some(ch) = chars.next() {
        match ch {
            '\n' => lines.push(Vec::new()),
            '\x1b' => {
                let sequence: String = chars.by_ref().take_while_inclusive(|it| !it.is_ascii_alphabetic());
                if let Some(count) = sequence.strip_prefix('[').and_then(|it| it.strip_suffix('D')) {
                    let line = lines.last_mut().expect("one");
                    let mut columns: usize = count.parse().expect("a number");
                    while columns > 0 {
                        let ch = line.pop().expect("it was printed");
                        columns -= ch.to_string().width();
                    }
                }
            }
            _ => lines.last_mut().expect("one").push(ch),
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned()).collect()
}

trait TakeWhileInclusive {
    /// Returns the characters up to and including the first one for which `holds` is false.
    fn take_while_inclusive(self, holds: impl Fn(&char) -> bool) -> String;
}

impl<I: Iterator<Item = char>> TakeWhileInclusive for I {
    fn take_while_inclusive(self, holds: impl Fn(&char) -> bool) -> String {
        let mut taken = String::new();
        for ch in self {
            taken.push(ch);
            if !holds(&ch) {
                break;
            }
        }
        taken
    }
}

const DOCUMENT: &str = "# A *heading*\n\nSome **bold words** and `code`, a [link](https://a.b) and 2 * 3.\n\n- one item that is longer than a line of it\n  - nested\n1. first\n- [x] done\n\n> quoted words that go on\n> and on\n\n---\n\n| name | size |\n|---|--:|\n| a | 1 |\n\n```rust\nlet x = 1;\n```\nEnd.";

#[test]
fn a_document_is_laid_out() {
    assert_eq!(
        screen_lines(&printed(&[DOCUMENT], 33)),
        [
            "A heading",
            "",
            "Some bold words and code, a link",
            "(https://a.b) and 2 * 3.",
            "",
            "• one item that is longer than a",
            "  line of it",
            "  • nested",
            "1. first",
            "☑ done",
            "",
            "│ quoted words that go on",
            "│ and on",
            "",
            "────────────────────────────────",
            "",
            "name │ size",
            "─────┼─────",
            "a    │    1",
            "",
            "rust",
            "let x = 1;",
            "End.",
        ]
    );
}

#[test]
fn narrow_terminals_wrap_inside_of_items_and_quotations() {
    let text = "- words in an item of a list\n> words in a quotation";
    assert_eq!(
        screen_lines(&printed(&[text], 16)),
        ["• words in an", "  item of a", "  list", "│ words in a", "│ quotation",]
    );
}

#[test]
fn links_are_links_where_the_terminal_knows_them() {
    let mut markdown = Markdown::new(80, true);
    let out = markdown.add("[a b](https://c.d) e\n");
    assert_eq!(out, "\x1b]8;;https://c.d\x1b\\\x1b[4ma b\x1b[0m\x1b]8;;\x1b\\ e\n");
}

#[test]
fn only_addresses_of_the_web_are_links() {
    for address in
        ["file:///etc/passwd", "javascript:alert(1)", "vscode://x", "mailto:a@b.c", "x.png", "httpsx://a"]
    {
        let out = Markdown::new(80, true).add(&format!("[a]({address})\n"));
        assert!(!out.contains("\x1b]8") && out.contains(&format!("({address})")), "{out:?}");
    }
    assert!(!Markdown::new(80, true).add("<mailto:a@b.c>\n").contains("\x1b]8"));
    assert!(Markdown::new(80, true).add("[a](HTTPS://b.c)\n").contains("\x1b]8;;HTTPS://b.c"));
}

#[test]
fn text_is_printed_as_it_comes() {
    let mut markdown = Markdown::new(80, false);
    assert_eq!(markdown.add("Plain wo"), "Plain wo");
    assert_eq!(markdown.add("rds, **bo"), "rds, ");
    assert_eq!(markdown.add("ld** on"), "\x1b[1mbold\x1b[0m on");
    assert_eq!(markdown.add("\n1"), "\n");
    assert_eq!(markdown.add(". one"), "1. one");
}

#[test]
fn an_unfinished_table_or_fence_is_printed_at_the_end() {
    assert_eq!(
        screen_lines(&printed(&["| a | b |\n|---|---|\n| 1 |"], 40)),
        ["a   │ b", "────┼────", "1   │"]
    );
    assert_eq!(screen_lines(&printed(&["| a | b |"], 40)), ["| a | b |"]);
    assert_eq!(screen_lines(&printed(&["```\nlet x"], 40)), ["code", "let x"]);
}

proptest! {
    #[test]
    fn pieces_show_what_the_whole_shows(
        pieces in prop::collection::vec("[ab*`_\\[\\]()#>|~ \n1.\\-]{0,6}", 0..14),
        columns in 12..40usize,
    ) {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let out = printed(&pieces, columns);
        prop_assert_eq!(screen_lines(&out), screen_lines(&printed(&[&pieces.concat()], columns)));
        // Every color ends.
        let last = out.rfind("\x1b[").map(|at| &out[at..]);
        prop_assert!(last.is_none_or(|last| last.starts_with(RESET) || last.starts_with("\x1b[K")), "{:?}", out);
    }

    #[test]
    fn words_are_kept_and_lines_fit(
        words in prop::collection::vec("[a-z]{1,9}", 1..40),
        columns in 14..60usize,
    ) {
        let text = words.join(" ");
        for prefix in ["", "- ", "> ", "1. ", "# "] {
            let lines = screen_lines(&printed(&[&format!("{prefix}{text}")], columns));
            prop_assert!(lines.iter().all(|line| line.width() < columns), "{:?}", lines);
            let kept: Vec<&str> = lines.iter().flat_map(|line| line.split_whitespace()).collect();
            let kept: Vec<&str> = kept.into_iter().filter(|word| !["•", "│", "1."].contains(word)).collect();
            prop_assert_eq!(kept, words.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}
