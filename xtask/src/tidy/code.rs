//! Rust source without comments and strings, for rules about code.

/// Blanks comments and the contents of strings. Lines keep their numbers and columns.
pub(super) fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank =
            comment(rest).or_else(|| raw_string(rest, code.chars().next_back())).or_else(|| string(rest));
        if let Some(length) = blank {
            code.extend(rest[..length].chars().map(|symbol| if symbol == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        } else {
            // A quote in a character literal does not start a string.
            let length = character(rest).unwrap_or(first.len_utf8());
            code.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    code
}

/// Returns the length of the comment at the start of `text`.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(text.len())
}

/// Returns the length of a string with escapes, including quotes.
fn string(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('"')?;
    let mut escaped = false;
    for (at, symbol) in inside.char_indices() {
        match symbol {
            '"' if !escaped => return Some(at + 2),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    Some(text.len())
}

/// Returns the length of a raw string, from its `r` to the last `#`. Within a word, `r` starts nothing.
fn raw_string(text: &str, before: Option<char>) -> Option<usize> {
    // `br"…"`: the `b` has been read as code.
    if before.is_some_and(|symbol| is_word(symbol) && symbol != 'b') {
        return None;
    }
    let marks = text.strip_prefix('r')?;
    let inside = marks.trim_start_matches('#');
    let count = marks.len() - inside.len();
    let inside = inside.strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(count));
    let length = inside.find(&close).map_or(inside.len(), |at| at + close.len());
    Some(text.len() - inside.len() + length)
}

/// Returns the length of a character literal; `'a` without a closing quote is a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    let length = if first == '\\' { 1 + inside[1..].chars().next()?.len_utf8() } else { first.len_utf8() };
    inside[length..].starts_with('\'').then_some(length + 2)
}

/// Returns true if a character can be part of a name.
pub(super) fn is_word(symbol: char) -> bool {
    symbol.is_alphanumeric() || symbol == '_'
}

/// Returns the columns of `word` in `line`, excluding matches within longer names.
pub(super) fn find_word<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let starts_name = word.starts_with(is_word);
    let ends_name = word.ends_with(is_word);
    line.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = line[..*at].chars().next_back().is_some_and(is_word);
        let after = line[at + word.len()..].chars().next().is_some_and(is_word);
        !(starts_name && before || ends_name && after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        without_comments_and_strings(text)
    }

    #[test]
    fn comments_are_blanked_and_lines_stay() {
        assert_eq!(code("a // b\nc"), "a     \nc");
        assert_eq!(code("a /* b /* c */\n d */ e"), "a             \n      e");
        assert_eq!(code("//! 'tis"), "        ");
    }

    #[test]
    fn strings_are_blanked() {
        assert_eq!(code(r#"f("x\"y", 1)"#), "f(      , 1)");
        assert_eq!(code("f(r#\"a\"b\"#) + 1"), "f(        ) + 1");
        assert_eq!(code(r#"bar"x""#), "bar   ");
        assert_eq!(code(r#"b"// x" y"#), "b       y");
    }

    #[test]
    fn character_literals_and_lifetimes_open_no_string() {
        assert_eq!(code(r#"'"' x '\'' y '\\' "s""#), r#"'"' x '\'' y '\\'    "#);
        assert_eq!(code("fn f<'a>(x: &'a str) // c"), "fn f<'a>(x: &'a str)     ");
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(find_word("unsafe_code unsafe { } un unsafe", "unsafe").collect::<Vec<_>>(), [12, 26]);
        assert_eq!(find_word("eprintln!() println!()", "println!").collect::<Vec<_>>(), [12]);
    }
}
