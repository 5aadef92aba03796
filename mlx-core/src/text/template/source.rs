//! Adapts a template's source where transformers' Jinja differs from minijinja.
//!
//! - newlines: `\r\n` and `\r` become `\n`
//! - `{% generation %}` blocks, which transformers adds to Jinja, become `{% with %}`
//! - `{% for x in y %}` checks `y` with a filter, since iterating over `none` is an error in Python; the filter also counts the
//!   bytes that the body may print
//! - slices `x[a:b:c]` become a method call: minijinja's slices differ from Python's for negative steps
//! - a unary plus is removed, since minijinja's grammar lacks it
//! - operators that make texts and lists grow are bracketed, so that their results are counted (operators.rs)
//! - the newline after `{% raw %}` is kept, as in Jinja
//!
//! Invariant: line breaks are kept, so errors name the line of the original.

use super::edit::{Edit, apply};
use super::operators::bracket;
use super::token::{Token, is_unary, token_length};
use crate::error::{Error, Result};

/// The filter around the sequence of a loop.
pub(super) const EACH: &str = "__each";
/// The method that a slice becomes.
pub(super) const SLICE: &str = "__slice";

/// The maximum bytes of a template and of one tag. The parser recurses for every operator and `elif` without a limit of its
/// own. Real templates stay far below.
const MAX_BYTES: (usize, usize) = (512 << 10, 64 << 10);

/// Rewrites the source for minijinja.
pub(super) fn prepare(source: &str) -> Result<String> {
    if source.len() > MAX_BYTES.0 {
        return Err(Error::Template(format!(
            "the template has {} bytes; the limit is {}",
            source.len(),
            MAX_BYTES.0
        )));
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let (mut edits, mut loops) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        at = match source.as_bytes().get(start + 1) {
            Some(b'#') => source[start..].find("#}").map_or(source.len(), |end| start + end + 2),
            Some(b'%') => block(&source, start + 2, &mut edits, &mut loops),
            Some(b'{') => tag(&source, start + 2, "}}", &mut edits).1,
            _ => start + 1,
        };
        if at - start > MAX_BYTES.1 {
            return Err(Error::Template(format!(
                "a tag has {} bytes; the limit is {}",
                at - start,
                MAX_BYTES.1
            )));
        }
    }
    Ok(apply(&source, edits))
}

/// Rewrites the `{% %}` tag whose content starts at `start`. Returns its end, or the end of the block for a raw block.
/// `loops` has, for each open loop, the edit that adds the filter, and the start of the body.
fn block(source: &str, start: usize, edits: &mut Vec<Edit>, loops: &mut Vec<(usize, usize)>) -> usize {
    let (tokens, end) = tag(source, start, "%}", edits);
    let Some(name) = tokens.first() else { return end };
    match &source[name.range.clone()] {
        "generation" => edits.push((name.range.clone(), "with".into())),
        "endgeneration" => edits.push((name.range.clone(), "endwith".into())),
        "for" => {
            check_loop(source, &tokens, edits);
            loops.push((edits.len().saturating_sub(1), end));
        }
        "endfor" => {
            if let Some((edit, body)) =
                loops.pop().and_then(|(edit, body)| Some((edits.get_mut(edit)?, body)))
            {
                let length = (start - 2 - body).to_string();
                edit.1.extend(["(", &length, ")"]);
            }
        }
        "raw" => {
            if source[end..].starts_with('\n') {
                edits.push((end..end, "\n".into()));
            }
            return end_of_raw(source, end);
        }
        _ => {}
    }
    end
}

/// The end of the text of a raw block.
fn end_of_raw(source: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(found) = source[at..].find("{%") {
        let inside = source[at + found + 2..].trim_start_matches(['-', '+']).trim_start();
        if inside.starts_with("endraw") {
            return source[at + found..].find("%}").map_or(source.len(), |end| at + found + end + 2);
        }
        at += found + 2;
    }
    source.len()
}

/// Passes the sequence of a `for` tag through the filter [`EACH`].
fn check_loop(source: &str, tokens: &[Token], edits: &mut Vec<Edit>) {
    let outer =
        |name: &'static str| move |token: &Token| token.depth == 0 && &source[token.range.clone()] == name;
    let Some(start) = tokens.iter().position(outer("in")) else { return };
    let sequence = &tokens[start + 1..];
    let end = sequence.iter().position(|token| outer("if")(token) || outer("recursive")(token));
    let sequence = &sequence[..end.unwrap_or(sequence.len())];
    if let [first, ..] = sequence
        && let [.., last] = sequence
    {
        edits.push((first.range.start..first.range.start, "(".into()));
        edits.push((last.range.end..last.range.end, format!(")|{EACH}")));
    }
}

/// An open bracket and its contents so far.
struct Bracket {
    open: usize,
    colons: Vec<usize>,
    /// For each part between colons, whether it has tokens.
    filled: Vec<bool>,
}

/// Reads the tokens of a tag up to `close` and rewrites its expressions. Returns the tokens and the end of the tag.
fn tag(source: &str, start: usize, close: &str, edits: &mut Vec<Edit>) -> (Vec<Token>, usize) {
    let mut tokens: Vec<Token> = Vec::new();
    let mut brackets: Vec<Bracket> = Vec::new();
    let mut at = start + usize::from(source[start..].starts_with(['-', '+']));
    while let Some(letter) = source[at..].chars().next() {
        let rest = &source[at..];
        let ending = rest.strip_prefix(['+', '-']).unwrap_or(rest);
        if brackets.is_empty() && ending.starts_with(close) {
            // A block starts with its name.
            bracket(source, tokens.get(usize::from(close == "%}")..).unwrap_or_default(), edits);
            return (tokens, source.len() - ending.len() + close.len());
        }
        if letter.is_whitespace() {
            at += letter.len_utf8();
            continue;
        }
        let range = at..at + token_length(rest, letter);
        at = range.end;
        let depth = brackets.len();
        if letter == '+' && is_unary(source, tokens.last()) {
            edits.push((range, String::new()));
            continue;
        }
        match letter {
            '(' | '[' | '{' => {
                mark_filled(&mut brackets);
                brackets.push(Bracket { open: range.start, colons: Vec::new(), filled: vec![false] });
            }
            ')' | ']' | '}' => {
                if let Some(bracket) = brackets.pop() {
                    slice(source, &bracket, range.start, edits);
                }
            }
            ':' => {
                if let Some(bracket) = brackets.last_mut() {
                    bracket.colons.push(range.start);
                    bracket.filled.push(false);
                }
            }
            _ => mark_filled(&mut brackets),
        }
        tokens.push(Token { range, depth });
    }
    (tokens, source.len())
}

fn mark_filled(brackets: &mut [Bracket]) {
    if let Some(filled) = brackets.last_mut().and_then(|bracket| bracket.filled.last_mut()) {
        *filled = true;
    }
}

/// Rewrites `[a:b]` as a call of [`SLICE`]: only a slice has a colon directly inside square brackets.
fn slice(source: &str, bracket: &Bracket, close: usize, edits: &mut Vec<Edit>) {
    let Bracket { open, colons, filled } = bracket;
    if colons.is_empty() || !source[*open..].starts_with('[') || !source[close..].starts_with(']') {
        return;
    }
    let missing = |part: usize| if filled[part] { "" } else { "none" };
    edits.push((*open..open + 1, format!(".{SLICE}({}", missing(0))));
    for (part, colon) in colons.iter().enumerate() {
        edits.push((*colon..colon + 1, format!(",{}", missing(part + 1))));
    }
    edits.push((close..close + 1, ")".into()));
}

#[cfg(test)]
mod tests {
    use super::prepare;

    #[test]
    fn only_differing_syntax_is_rewritten() {
        for (source, expected) in [
            ("a\r\nb\rc {# {% for x in y %} #}", "a\nb\nc {# {% for x in y %} #}"),
            ("{%- generation -%} x {% endgeneration %}", "{%- with -%} x {% endwith %}"),
            ("{% for a, b in c if d -%}", "{% for a, b in (c)|__each if d -%}"),
            (
                "{% for a in b[1:]|x('if') recursive %}",
                "{% for a in (b.__slice(1,none)|x('if'))|__each recursive %}",
            ),
            (
                "{{ a[::-1][x[0]:f(1, {'k': 2})] }}",
                "{{ a.__slice(none,none,-1).__slice(x[0],f(1, {'k': 2})) }}",
            ),
            (
                "{{ +a + +b[+1] }}{{ '[1:]' ~ {'a': [1]}['a'] }}",
                "{{ (a + b[1])|__made }}{{ ('[1:]' ~ {'a': [1]}['a'])|__made }}",
            ),
            (
                "{% raw %}\n{{ a[1:] }}{% endraw %}{{ a[:\n2] }}",
                "{% raw %}\n\n{{ a[1:] }}{% endraw %}{{ a.__slice(none,\n2) }}",
            ),
            ("{% for x in y %}abc{% endfor %}", "{% for x in (y)|__each(3) %}abc{% endfor %}"),
            (
                "{% if a.b + b - c ~ d * e / -f is not g %}",
                "{% if ((a.b + b)|__made - (c ~ ((d )|__product( e) / -f is not g))|__made) %}",
            ),
            ("{{ {'a': {'b': 1}}}}} {", "{{ {'a': {'b': 1}}}}} {"),
            ("{{ 'open", "{{ 'open"),
        ] {
            assert_eq!(prepare(source).expect("it is short"), expected);
        }
    }
}
