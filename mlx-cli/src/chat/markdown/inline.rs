//! Inline Markdown: code, emphasis, links. A construct is parsed once it is complete; one that never closes is text. Invariant: pure.

/// The style of a stretch of text.
#[expect(clippy::struct_excessive_bools, reason = "looks that do not depend on each other")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TextStyle {
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) strike: bool,
    pub(super) code: bool,
    /// The target address of a link.
    pub(super) link: Option<String>,
}

/// A stretch of text with one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    pub(super) style: TextStyle,
}

/// The maximum length of a construct in bytes. Longer ones are text.
const MAX_SPAN_LEN: usize = 2000;

/// The result of parsing the beginning of a text.
enum Parsed {
    /// A complete construct and its length in bytes.
    Spans(usize, Vec<Span>),
    /// Plain text of this length in bytes.
    Text(usize),
    /// More text is needed to decide.
    Incomplete,
}

/// Removes the spans that are certain from the beginning of `text`; all of them if the text `ends` here. `before` is the preceding character.
pub(super) fn take_spans(
    text: &mut String,
    before: &mut Option<char>,
    style: &TextStyle,
    ends: bool,
) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let found = match find(rest, *before, style, ends) {
            Parsed::Incomplete if ends || rest.len() > MAX_SPAN_LEN => Parsed::Text(first_length(rest)),
            found => found,
        };
        let length = match found {
            Parsed::Incomplete => break,
            Parsed::Spans(length, inner) => {
                spans.extend(inner);
                length
            }
            Parsed::Text(length) => {
                push(&mut spans, &rest[..length], style);
                length
            }
        };
        *before = rest[..length].chars().next_back();
        at += length;
    }
    text.drain(..at);
    spans
}

fn push(spans: &mut Vec<Span>, text: &str, style: &TextStyle) {
    match spans.last_mut().filter(|last| last.style == *style) {
        Some(last) => last.text.push_str(text),
        None => spans.push(Span { text: text.to_owned(), style: style.clone() }),
    }
}

fn first_length(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

fn find(text: &str, before: Option<char>, style: &TextStyle, ends: bool) -> Parsed {
    match text.as_bytes()[0] {
        b'\\' => escape(text, style),
        b'`' => code(text, style, ends),
        mark @ (b'*' | b'_' | b'~') => emphasis(text, char::from(mark), before, style, ends),
        b'[' => link(text, 0, style),
        b'!' if text.len() == 1 => Parsed::Incomplete,
        b'!' if text.as_bytes()[1] == b'[' => link(text, 1, style),
        b'<' => address(text, style),
        _ => Parsed::Text(text.find(['\\', '`', '*', '_', '~', '[', '!', '<']).unwrap_or(text.len()).max(1)),
    }
}

fn escape(text: &str, style: &TextStyle) -> Parsed {
    match text.as_bytes().get(1) {
        None => Parsed::Incomplete,
        Some(mark) if mark.is_ascii_punctuation() => {
            Parsed::Spans(2, vec![Span { text: char::from(*mark).into(), style: style.clone() }])
        }
        Some(_) => Parsed::Text(1),
    }
}

/// Returns the length of the run of `mark` at the beginning.
fn run(text: &str, mark: char) -> usize {
    text.len() - text.trim_start_matches(mark).len()
}

fn code(text: &str, style: &TextStyle, ends: bool) -> Parsed {
    let count = run(text, '`');
    let mut at = count;
    while let Some(next) = text[at..].find('`').map(|next| at + next) {
        let closing = run(&text[next..], '`');
        // The run may continue.
        if next + closing == text.len() && !ends {
            return Parsed::Incomplete;
        }
        if closing == count {
            let inside = &text[count..next];
            let padded = inside.starts_with(' ') && inside.ends_with(' ') && !inside.trim().is_empty();
            let inside = if padded { &inside[1..inside.len() - 1] } else { inside };
            let style = TextStyle { code: true, ..style.clone() };
            return Parsed::Spans(next + closing, vec![Span { text: inside.to_owned(), style }]);
        }
        at = next + closing;
    }
    if ends { Parsed::Text(count) } else { Parsed::Incomplete }
}

fn emphasis(text: &str, mark: char, before: Option<char>, style: &TextStyle, ends: bool) -> Parsed {
    let count = run(text, mark);
    let Some(next) = text[count..].chars().next() else {
        return if ends { Parsed::Text(count) } else { Parsed::Incomplete };
    };
    let inside_word = mark == '_' && before.is_some_and(char::is_alphanumeric);
    let is_valid_count = if mark == '~' { count == 2 } else { count <= 3 };
    if next.is_whitespace() || inside_word || !is_valid_count {
        return Parsed::Text(count);
    }
    let mut at = count;
    while let Some(end) = text[at..].find(mark).map(|offset| at + offset) {
        let closing = run(&text[end..], mark);
        let after = text[end + closing..].chars().next();
        // The run or a word may continue.
        if after.is_none() && !ends {
            return Parsed::Incomplete;
        }
        let follows_text = !text[..end].ends_with([' ', '\\']);
        let is_word = mark == '_' && after.is_some_and(char::is_alphanumeric);
        if closing == count && follows_text && !is_word {
            let mut inside = text[count..end].to_owned();
            let style = TextStyle {
                bold: style.bold || mark != '~' && count >= 2,
                italic: style.italic || mark != '~' && count != 2,
                strike: style.strike || mark == '~',
                ..style.clone()
            };
            return Parsed::Spans(end + closing, take_spans(&mut inside, &mut None, &style, true));
        }
        at = end + closing;
    }
    if ends { Parsed::Text(count) } else { Parsed::Incomplete }
}

/// Parses `[text](address "title")` after `skipped` bytes.
fn link(text: &str, skipped: usize, style: &TextStyle) -> Parsed {
    let inside = &text[skipped..];
    let mut depth = 0_usize;
    let close = inside.char_indices().find(|&(_, ch)| {
        depth = if ch == '[' { depth + 1 } else { depth.saturating_sub(usize::from(ch == ']')) };
        depth == 0
    });
    let Some((close, _)) = close else { return Parsed::Incomplete };
    match inside.as_bytes().get(close + 1) {
        None => return Parsed::Incomplete,
        Some(b'(') => {}
        Some(_) => return Parsed::Text(skipped + 1),
    }
    let target = &inside[close + 2..];
    let mut depth = 1_usize;
    let end = target.char_indices().find(|&(_, ch)| {
        depth = if ch == '(' { depth + 1 } else { depth - usize::from(ch == ')') };
        depth == 0
    });
    let Some((end, _)) = end else { return Parsed::Incomplete };
    let address = target[..end].split_whitespace().next().unwrap_or_default();
    let address = address.trim_start_matches('<').trim_end_matches('>');
    let mut label = inside[1..close].to_owned();
    let style = TextStyle { link: Some(address.to_owned()), ..style.clone() };
    Parsed::Spans(skipped + close + 2 + end + 1, take_spans(&mut label, &mut None, &style, true))
}

/// Parses `<https://…>`.
fn address(text: &str, style: &TextStyle) -> Parsed {
    let schemes = ["<https://", "<http://", "<mailto:"];
    if schemes.iter().any(|scheme| scheme.len() > text.len() && scheme.starts_with(text)) {
        return Parsed::Incomplete;
    }
    if !schemes.iter().any(|scheme| text.starts_with(scheme)) {
        return Parsed::Text(1);
    }
    match text.find(['>', ' ']) {
        None => Parsed::Incomplete,
        Some(end) if text.as_bytes()[end] == b'>' => {
            let address = text[1..end].to_owned();
            let style = TextStyle { link: Some(address.clone()), ..style.clone() };
            Parsed::Spans(end + 1, vec![Span { text: address, style }])
        }
        Some(_) => Parsed::Text(1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spans(text: &str) -> Vec<(String, String)> {
        let all = take_spans(&mut text.to_owned(), &mut None, &TextStyle::default(), true);
        let name = |style: &TextStyle| {
            let marks = [(style.bold, "b"), (style.italic, "i"), (style.strike, "s"), (style.code, "c")];
            let marks: String = marks.iter().filter(|it| it.0).map(|it| it.1).collect();
            marks + &style.link.as_ref().map_or_else(String::new, |link| format!("<{link}>"))
        };
        all.into_iter().map(|span| (span.text.clone(), name(&span.style))).collect()
    }

    fn is(text: &str, expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|it| (it.0.to_owned(), it.1.to_owned())).collect();
        assert_eq!(spans(text), expected, "{text}");
    }

    #[test]
    fn constructs_are_found() {
        is("a **b _c_** d", &[("a ", ""), ("b ", "b"), ("c", "bi"), (" d", "")]);
        is("***x*** ~~y~~", &[("x", "bi"), (" ", ""), ("y", "s")]);
        is("`a*b*` ``c`d``", &[("a*b*", "c"), (" ", ""), ("c`d", "c")]);
        is(
            "see [the *docs*](https://a.b/(c) \"t\").",
            &[("see ", ""), ("the ", "<https://a.b/(c)>"), ("docs", "i<https://a.b/(c)>"), (".", "")],
        );
        is("<https://a.b> ![pic](x.png)", &[("https://a.b", "<https://a.b>"), (" ", ""), ("pic", "<x.png>")]);
    }

    #[test]
    fn what_is_none_stays() {
        for text in [
            "2 * 3 * 4",
            "snake_case_name",
            "a ** b",
            "x[1] = y",
            "if a < b",
            "5 ~ 6",
            "**open",
            "`open",
            "[a]",
        ] {
            is(text, &[(text, "")]);
        }
        let escaped: String = spans("\\*not\\* it").into_iter().map(|it| it.0).collect();
        assert_eq!(escaped, "*not* it");
    }

    proptest! {
        #[test]
        fn pieces_say_what_the_whole_says(pieces in prop::collection::vec("[ab*_`~\\[\\]()!<>\\\\ h:/é]{0,5}", 0..12)) {
            let whole: String = pieces.concat();
            let merged = |spans: Vec<Span>| {
                let mut all: Vec<Span> = Vec::new();
                for span in &spans {
                    push(&mut all, &span.text, &span.style);
                }
                all
            };
            let expected = take_spans(&mut whole.clone(), &mut None, &TextStyle::default(), true);
            let (mut pending, mut before, mut found) = (String::new(), None, Vec::new());
            for piece in &pieces {
                pending.push_str(piece);
                found.extend(take_spans(&mut pending, &mut before, &TextStyle::default(), false));
            }
            found.extend(take_spans(&mut pending, &mut before, &TextStyle::default(), true));
            prop_assert_eq!(merged(found), merged(expected));
        }
    }
}
