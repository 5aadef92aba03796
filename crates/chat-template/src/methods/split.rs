//! Methods that split texts.

use super::super::arguments::{Arguments, integer, text};
use super::super::fault::{Outcome, invalid};
use super::super::meter::Meter;
use super::super::python::is_space;
use super::super::value::Value;

/// `strip`, `lstrip` and `rstrip`.
pub(in super::super) fn strip<'a>(subject: &'a str, method: &str, chars: Option<&str>) -> &'a str {
    let outer = |letter| chars.map_or_else(|| is_space(letter), |set| set.contains(letter));
    let start = if method == "rstrip" { subject } else { subject.trim_start_matches(outer) };
    if method == "lstrip" { start } else { start.trim_end_matches(outer) }
}

/// Converts texts to values.
pub(super) fn parts(texts: &[&str], safe: bool, meter: &Meter) -> Outcome<Vec<Value>> {
    texts.iter().map(|text| Value::marked(meter, *text, safe)).collect()
}

/// `split(sep=None, maxsplit=-1)` and `rsplit`.
pub(super) fn split(of: &Value, from_right: bool, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let subject = of.as_text().unwrap_or_default();
    let [separator, limit] = arguments.bind(["sep", "maxsplit"])?;
    let limit =
        usize::try_from(integer(limit.as_ref(), -1)?).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut found: Vec<&str> = match separator.as_ref().map(text).transpose()? {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => {
            let hits = subject.matches(separator).take(limit).count();
            meter.check_memory(hits.saturating_mul(2 * size_of::<&str>()))?;
            if from_right {
                subject.rsplitn(limit, separator).collect()
            } else {
                subject.splitn(limit, separator).collect()
            }
        }
        None => {
            // Words start at least two bytes apart.
            meter.check_memory((subject.len() / 2).min(limit).saturating_mul(2 * size_of::<&str>()))?;
            words(subject, limit, from_right)
        }
    };
    if from_right {
        found.reverse();
    }
    Value::list(meter, parts(&found, of.is_safe(), meter)?)
}

/// Returns the words of `text` in splitting order. Item number `limit` is the remaining text.
fn words(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            return parts;
        }
        let found = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let found = found.filter(|_| parts.len() + 1 < limit);
        let Some(at) = found else {
            // The remaining text keeps its inner whitespace. Python drops the whitespace at its far end.
            parts.push(rest);
            return parts;
        };
        let space = rest[at..].chars().next().map_or(0, char::len_utf8);
        let (before, after) = (&rest[..at], &rest[at + space..]);
        parts.push(if from_right { after } else { before });
        rest = if from_right { before } else { after };
    }
}

/// `partition(sep)`: returns the text before the first (or last) separator, the separator, and the text after
/// it.
pub(super) fn partition<'a>(text: &'a str, separator: &'a str, from_right: bool) -> Outcome<[&'a str; 3]> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    Ok(match found {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    })
}

/// `splitlines`, with or without line breaks.
pub(in super::super) fn lines<'a>(text: &'a str, keep: bool, meter: &Meter) -> Outcome<Vec<&'a str>> {
    meter.spend(text.len())?;
    meter.check_memory(text.matches(is_break).count().saturating_mul(2 * size_of::<&str>()))?;
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_break) {
        let length = if rest[start..].starts_with("\r\n") {
            2
        } else {
            rest[start..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep { start + length } else { start }]);
        rest = &rest[start + length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    Ok(lines)
}

/// Returns true if `str.splitlines` splits at this character.
fn is_break(letter: char) -> bool {
    matches!(
        letter,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}
