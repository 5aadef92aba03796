//! Inline Markdown: code, emphasis, links. A construct is parsed once it is complete; one that never closes is text. Invariant: pure.

/// The look of a stretch of text.
#[expect(clippy::struct_excessive_bools, reason = "looks that do not depend on each other")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) bold: bool,
    pub(super) italic: bool,
    pub(super) strike: bool,
    pub(super) code: bool,
    /// The target address of a link.
    pub(super) link: Option<String>,
}

/// A stretch of text with one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) text: String,
    pub(super) look: Look,
}

/// The maximum length of a construct in bytes. Longer ones are text.
const MAX_SPAN_LEN: usize = 2000;

/// The result of parsing the beginning of a text.
enum Found {
    /// A complete construct and its length in bytes.
    Whole(usize, Vec<Span>),
    /// Plain text of this length in bytes.
    Text(usize),
    /// More text is needed to decide.
    Open,
}

/// Removes the spans that are certain from the beginning of `text`; all of them if the text `ends` here. `before` is the preceding character.
pub(super) fn take(text: &mut String, before: &mut Option<char>, look: &Look, ends: bool) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let found = match find(rest, *before, look, ends) {
            Found::Open if ends || rest.len() > MAX_SPAN_LEN => Found::Text(first_length(rest)),
            found => found,
        };
        let length = match found {
            Found::Open => break,
            Found::Whole(length, inner) => {
                spans.extend(inner);
                length
            }
            Found::Text(length) => {
                push(&mut spans, &rest[..length], look);
                length
            }
        };
        *before = rest[..length].chars().next_back();
        at += length;
    }
    text.drain(..at);
    spans
}

fn push(spans: &mut Vec<Span>, text: &str, look: &Look) {
    match spans.last_mut().filter(|last| last.look == *look) {
        Some(last) => last.text.push_str(text),
        None => spans.push(Span { text: text.to_owned(), look: look.clone() }),
    }
}

fn first_length(text: &str) -> usize {
    text.chars().next().map_or(0, char::len_utf8)
}

fn find(text: &str, before: Option<char>, look: &Look, ends: bool) -> Found {
    match text.as_bytes()[0] {
        b'\\' => escape(text, look),
        b'`' => code(text, look, ends),
        mark @ (b'*' | b'_' | b'~') => emphasis(text, char::from(mark), before, look, ends),
        b'[' => link(text, 0, look),
        b'!' if text.len() == 1 => Found::Open,
        b'!' if text.as_bytes()[1] == b'[' => link(text, 1, look),
        b'<' => address(text, look),
        _ => Found::Text(text.find(['\\', '`', '*', '_', '~', '[', '!', '<']).unwrap_or(text.len()).max(1)),
    }
}

fn escape(text: &str, look: &Look) -> Found {
    match text.as_bytes().get(1) {
        None => Found::Open,
        Some(mark) if mark.is_ascii_punctuation() => {
            Found::Whole(2, vec![Span { text: char::from(*mark).into(), look: look.clone() }])
        }
        Some(_) => Found::Text(1),
    }
}

/// Returns the length of the run of `mark` at the beginning.
fn run(text: &str, mark: char) -> usize {
    text.len() - text.trim_start_matches(mark).len()
}

fn code(text: &str, look: &Look, ends: bool) -> Found {
    let count = run(text, '`');
    let mut at = count;
    while let Some(next) = text[at..].find('`').map(|next| at + next) {
        let closing = run(&text[next..], '`');
        // The run may continue.
        if next + closing == text.len() && !ends {
            return Found::Open;
        }
        if closing == count {
            let inside = &text[count..next];
            let padded = inside.starts_with(' ') && inside.ends_with(' ') && !inside.trim().is_empty();
            let inside = if padded { &inside[1..inside.len() - 1] } else { inside };
            let look = Look { code: true, ..look.clone() };
            return Found::Whole(next + closing, vec![Span { text: inside.to_owned(), look }]);
        }
        at = next + closing;
    }
    if ends { Found::Text(count) } else { Found::Open }
}

fn emphasis(text: &str, mark: char, before: Option<char>, look: &Look, ends: bool) -> Found {
    let count = run(text, mark);
    let Some(next) = text[count..].chars().next() else {
        return if ends { Found::Text(count) } else { Found::Open };
    };
    let inside_word = mark == '_' && before.is_some_and(char::is_alphanumeric);
    let known = if mark == '~' { count == 2 } else { count <= 3 };
    if next.is_whitespace() || inside_word || !known {
        return Found::Text(count);
    }
    let mut at = count;
    while let Some(place) = text[at..].find(mark).map(|place| at + place) {
        let closing = run(&text[place..], mark);
        let behind = text[place + closing..].chars().next();
        // The run or a word may continue.
        if behind.is_none() && !ends {
            return Found::Open;
        }
        let follows_text = !text[..place].ends_with([' ', '\\']);
        let is_word = mark == '_' && behind.is_some_and(char::is_alphanumeric);
        if closing == count && follows_text && !is_word {
            let mut inside = text[count..place].to_owned();
            let look = Look {
                bold: look.bold || mark != '~' && count >= 2,
                italic: look.italic || mark != '~' && count != 2,
                strike: look.strike || mark == '~',
                ..look.clone()
            };
            return Found::Whole(place + closing, take(&mut inside, &mut None, &look, true));
        }
        at = place + closing;
    }
    if ends { Found::Text(count) } else { Found::Open }
}

/// Parses `[text](address "title")` after `skipped` bytes.
fn link(text: &str, skipped: usize, look: &Look) -> Found {
    let inside = &text[skipped..];
    let mut depth = 0_usize;
    let close = inside.char_indices().find(|&(_, letter)| {
        depth = if letter == '[' { depth + 1 } else { depth.saturating_sub(usize::from(letter == ']')) };
        depth == 0
    });
    let Some((close, _)) = close else { return Found::Open };
    match inside.as_bytes().get(close + 1) {
        None => return Found::Open,
        Some(b'(') => {}
        Some(_) => return Found::Text(skipped + 1),
    }
    let target = &inside[close + 2..];
    let mut depth = 1_usize;
    let end = target.char_indices().find(|&(_, letter)| {
        depth = if letter == '(' { depth + 1 } else { depth - usize::from(letter == ')') };
        depth == 0
    });
    let Some((end, _)) = end else { return Found::Open };
    let address = target[..end].split_whitespace().next().unwrap_or_default();
    let address = address.trim_start_matches('<').trim_end_matches('>');
    let mut label = inside[1..close].to_owned();
    let look = Look { link: Some(address.to_owned()), ..look.clone() };
    Found::Whole(skipped + close + 2 + end + 1, take(&mut label, &mut None, &look, true))
}

/// Parses `<https://…>`.
fn address(text: &str, look: &Look) -> Found {
    let schemes = ["<https://", "<http://", "<mailto:"];
    if schemes.iter().any(|scheme| scheme.len() > text.len() && scheme.starts_with(text)) {
        return Found::Open;
    }
    if !schemes.iter().any(|scheme| text.starts_with(scheme)) {
        return Found::Text(1);
    }
    match text.find(['>', ' ']) {
        None => Found::Open,
        Some(end) if text.as_bytes()[end] == b'>' => {
            let address = text[1..end].to_owned();
            let look = Look { link: Some(address.clone()), ..look.clone() };
            Found::Whole(end + 1, vec![Span { text: address, look }])
        }
        Some(_) => Found::Text(1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spans(text: &str) -> Vec<(String, String)> {
        let all = take(&mut text.to_owned(), &mut None, &Look::default(), true);
        let name = |look: &Look| {
            let marks = [(look.bold, "b"), (look.italic, "i"), (look.strike, "s"), (look.code, "c")];
            let marks: String = marks.iter().filter(|it| it.0).map(|it| it.1).collect();
            marks + &look.link.as_ref().map_or_else(String::new, |link| format!("<{link}>"))
        };
        all.into_iter().map(|span| (span.text.clone(), name(&span.look))).collect()
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
                    push(&mut all, &span.text, &span.look);
                }
                all
            };
            let expected = take(&mut whole.clone(), &mut None, &Look::default(), true);
            let (mut held, mut before, mut found) = (String::new(), None, Vec::new());
            for piece in &pieces {
                held.push_str(piece);
                found.extend(take(&mut held, &mut before, &Look::default(), false));
            }
            found.extend(take(&mut held, &mut before, &Look::default(), true));
            prop_assert_eq!(merged(found), merged(expected));
        }
    }
}
