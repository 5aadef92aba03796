//! Syntax highlighting by syntect with the grammars of bat. The grammars are loaded for the first code block.

use std::sync::LazyLock;

use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxSet};

use crate::chat::style::{RESET, Style};

/// The length limit of a line to highlight. Longer lines are usually data, and highlighting them is slow.
const MAX_LINE_LEN: usize = 2000;

static GRAMMARS: LazyLock<SyntaxSet> = LazyLock::new(two_face::syntax::extra_newlines);

/// The style for each scope prefix. The colors are the terminal's own, so that they suit its background. The innermost listed scope wins.
static STYLES: LazyLock<Vec<(Scope, Style)>> = LazyLock::new(|| {
    let styles = [
        ("comment", "\x1b[2m"),
        ("string", "\x1b[32m"),
        ("constant.character.escape", "\x1b[33m"),
        ("constant.numeric", "\x1b[36m"),
        ("constant.language", "\x1b[36m"),
        ("constant.other", "\x1b[36m"),
        ("entity.name.function", "\x1b[34m"),
        ("support.function", "\x1b[34m"),
        ("variable.function", "\x1b[34m"),
        ("entity.name", "\x1b[33m"),
        ("support.type", "\x1b[33m"),
        ("entity.other.attribute-name", "\x1b[33m"),
        ("meta.mapping.key", "\x1b[34m"),
        ("keyword.operator", ""),
        ("keyword", "\x1b[35m"),
        ("storage", "\x1b[35m"),
        ("markup.inserted", "\x1b[32m"),
        ("markup.deleted", "\x1b[31m"),
        ("meta.diff.range", "\x1b[36m"),
        ("meta.diff.header", "\x1b[1m"),
        ("markup.heading", "\x1b[1m"),
    ];
    let known = styles.into_iter().filter_map(|(name, style)| Some((Scope::new(name).ok()?, style)));
    known.collect()
});

/// Highlights the lines of one code block.
pub(super) struct Highlighter {
    /// `None` for an unknown language.
    state: Option<(ParseState, ScopeStack)>,
}

impl Highlighter {
    /// Creates a highlighter for the language named after a fence.
    pub(super) fn new(language: &str) -> Self {
        let known = if language.is_empty() { None } else { GRAMMARS.find_syntax_by_token(language) };
        Self { state: known.map(|syntax| (ParseState::new(syntax), ScopeStack::new())) }
    }

    /// Colors a line without its line end.
    pub(super) fn line(&mut self, line: &str) -> String {
        let Some((parser, stack)) = self.state.as_mut().filter(|_| line.len() <= MAX_LINE_LEN) else {
            return line.to_owned();
        };
        let terminated = format!("{line}\n");
        let Ok(changes) = parser.parse_line(&terminated, &GRAMMARS) else {
            // A grammar that fails on one line fails on others too.
            self.state = None;
            return line.to_owned();
        };
        let (mut out, mut style, mut at) = (String::new(), "", 0);
        for (next, change) in changes {
            let next = next.min(line.len());
            paint(&mut out, &mut style, style_of(stack), &line[at..next]);
            at = next;
            stack.apply(&change).ok();
        }
        paint(&mut out, &mut style, style_of(stack), &line[at..]);
        if !style.is_empty() {
            out.push_str(RESET);
        }
        out
    }
}

fn paint(out: &mut String, now: &mut Style, style: Style, text: &str) {
    if text.is_empty() {
        return;
    }
    if *now != style {
        if !now.is_empty() {
            out.push_str(RESET);
        }
        out.push_str(style);
        *now = style;
    }
    out.push_str(text);
}

fn style_of(stack: &ScopeStack) -> Style {
    let listed = |scope: &Scope| STYLES.iter().find(|(prefix, _)| prefix.is_prefix_of(*scope)).map(|it| it.1);
    stack.as_slice().iter().rev().find_map(listed).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(language: &str, code: &str) -> String {
        let mut highlighter = Highlighter::new(language);
        code.lines().map(|line| highlighter.line(line)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_was_wrong_before_is_right() {
        let rust = lines("rust", "fn f<'a>(x: &'a str) {}");
        assert!(
            rust.contains("\x1b[35m'a") && !rust.contains("\x1b[32m"),
            "a lifetime is no string: {rust:?}"
        );
        let c = lines("c", "#include <a.h>\nint x; /* one\ntwo */ int y;");
        assert!(c.starts_with("\x1b[35m#include"), "{c:?}");
        assert!(c.contains("\x1b[2mtwo */\x1b[0m \x1b[35mint"), "a comment over two lines: {c:?}");
        assert!(lines("sql", "SELECT a -- why").contains("\x1b[2m-- why"));
        assert!(lines("json", "{\"a\": true}").contains("\x1b[36mtrue"));
        assert!(lines("diff", "-a\n+b").contains("\x1b[32m+b"));
        assert!(lines("toml", "a = 1").contains("\x1b[36m1"));
    }

    #[test]
    fn unknown_languages_and_data_stay_as_they_are() {
        assert_eq!(lines("no-such-language", "fn x"), "fn x");
        assert_eq!(lines("", "fn x"), "fn x");
        let data = format!("\"{}\"", "a".repeat(3000));
        assert_eq!(lines("json", &data), data);
    }
}
