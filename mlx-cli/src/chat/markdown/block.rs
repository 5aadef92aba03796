//! Classifies a line of Markdown by its beginning. Invariant: pure.

/// The kind of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    /// A heading of this level.
    Heading(usize),
    /// A list item, with the bullet or number to show.
    Item(String),
    Text,
    /// The whole line is a rule.
    Rule,
    /// The whole line opens a code block: its fence and the language.
    Fence(String, String),
    /// The whole line is a row of a table.
    Row,
}

/// The result of parsing the beginning of a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LineStart {
    /// The kind of the line, and the length of its marker in bytes. Kinds that take the whole line are only certain at its end.
    Block(Block, usize),
    /// A quotation marker of this length; the kind of the line is yet to be parsed.
    Quote(usize),
    /// More text is needed to decide.
    Incomplete,
}

/// Parses the beginning of a line; `ends` is true if the line is complete.
pub(super) fn start(line: &str, ends: bool) -> LineStart {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let rest = &line[indent..];
    let Some(first) = rest.chars().next() else {
        return if ends { LineStart::Block(Block::Text, 0) } else { LineStart::Incomplete };
    };
    match first {
        '>' => quote(line, indent, ends),
        '|' => at_line_end(ends, Block::Row),
        '#' => heading(rest, indent, ends),
        '`' | '~' => fence(rest, first, ends),
        '-' | '*' | '_' | '+' => bullet(rest, first, indent, ends),
        '0'..='9' => number(rest, indent, ends),
        _ => LineStart::Block(Block::Text, 0),
    }
}

fn at_line_end(ends: bool, block: Block) -> LineStart {
    if ends { LineStart::Block(block, 0) } else { LineStart::Incomplete }
}

fn quote(line: &str, indent: usize, ends: bool) -> LineStart {
    match line.as_bytes().get(indent + 1) {
        None if !ends => LineStart::Incomplete,
        Some(b' ') => LineStart::Quote(indent + 2),
        _ => LineStart::Quote(indent + 1),
    }
}

fn heading(rest: &str, indent: usize, ends: bool) -> LineStart {
    let level = rest.len() - rest.trim_start_matches('#').len();
    match rest.as_bytes().get(level) {
        None if !ends && level <= 6 => LineStart::Incomplete,
        Some(b' ') if level <= 6 => LineStart::Block(Block::Heading(level), indent + level + 1),
        _ => LineStart::Block(Block::Text, 0),
    }
}

fn fence(rest: &str, mark: char, ends: bool) -> LineStart {
    let count = rest.len() - rest.trim_start_matches(mark).len();
    let info = &rest[count..];
    if count == rest.len() && !ends {
        return LineStart::Incomplete;
    }
    // Three backquotes with another one on the same line are inline code.
    if count < 3 || mark == '`' && info.contains('`') {
        return LineStart::Block(Block::Text, 0);
    }
    let language = info.split_whitespace().next().unwrap_or_default();
    at_line_end(ends, Block::Fence(rest[..count].to_owned(), language.to_owned()))
}

fn bullet(rest: &str, mark: char, indent: usize, ends: bool) -> LineStart {
    let marks = rest.chars().filter(|ch| *ch == mark).count();
    let is_rule = mark != '+' && rest.chars().all(|ch| ch == mark || ch == ' ');
    if is_rule && marks >= 3 && ends {
        return LineStart::Block(Block::Rule, 0);
    }
    if is_rule && !ends && (marks >= 2 || rest.len() < 2 || rest.trim_end().len() < 2) {
        return LineStart::Incomplete;
    }
    if mark == '_' || rest.as_bytes().get(1) != Some(&b' ') {
        return LineStart::Block(Block::Text, 0);
    }
    task(rest, indent, ends)
}

/// Returns a list item, which may be a task.
fn task(rest: &str, indent: usize, ends: bool) -> LineStart {
    let spaces = " ".repeat(indent);
    for (box_, marker) in [("[ ] ", "☐"), ("[x] ", "☑"), ("[X] ", "☑")] {
        let text = &rest[2..];
        if text.starts_with(box_) {
            return LineStart::Block(Block::Item(format!("{spaces}{marker} ")), indent + 2 + box_.len());
        }
        if !ends && box_.starts_with(text) {
            return LineStart::Incomplete;
        }
    }
    LineStart::Block(Block::Item(format!("{spaces}• ")), indent + 2)
}

fn number(rest: &str, indent: usize, ends: bool) -> LineStart {
    let digits = rest.len() - rest.trim_start_matches(|ch: char| ch.is_ascii_digit()).len();
    let mut after = rest[digits..].chars();
    match (after.next(), after.next()) {
        (None, _) | (Some('.' | ')'), None) if !ends && digits < 10 => LineStart::Incomplete,
        (Some(mark @ ('.' | ')')), Some(' ')) if digits < 10 => {
            let marker = format!("{}{}{mark} ", " ".repeat(indent), &rest[..digits]);
            LineStart::Block(Block::Item(marker), indent + digits + 2)
        }
        _ => LineStart::Block(Block::Text, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_by_their_beginnings() {
        let item = |text: &str, length| LineStart::Block(Block::Item(text.into()), length);
        let text = LineStart::Block(Block::Text, 0);
        assert_eq!(start("## Head", false), LineStart::Block(Block::Heading(2), 3));
        assert_eq!(start("#tag", false), text);
        assert_eq!(start("- one", false), item("• ", 2));
        assert_eq!(start("  * one", false), item("  • ", 4));
        assert_eq!(start("12. one", false), item("12. ", 4));
        assert_eq!(start("- [x] done", false), item("☑ ", 6));
        assert_eq!(start("1.5 litres", false), text);
        assert_eq!(start("**bold** text", false), text);
        assert_eq!(start("> said", false), LineStart::Quote(2));
        for open in ["", "  ", "-", "--", "- [", "*", "**", "1", "12.", "#", "``", "```ru", "| a", "- - -"] {
            assert_eq!(start(open, false), LineStart::Incomplete, "{open:?}");
        }
        assert_eq!(start("- - -", true), LineStart::Block(Block::Rule, 0));
        assert_eq!(start("***", true), LineStart::Block(Block::Rule, 0));
        assert_eq!(start("| a | b |", true), LineStart::Block(Block::Row, 0));
        let fence = Block::Fence("```".into(), "rust".into());
        assert_eq!(start("```rust ignore", true), LineStart::Block(fence, 0));
        assert_eq!(start("```a``` b", false), text);
        assert_eq!(start("-", true), text);
    }
}
