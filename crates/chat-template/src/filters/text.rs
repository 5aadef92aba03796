//! Filters on texts. Other values are converted to texts first.

use super::super::arguments::{Arguments, flag, integer, text};
use super::super::fault::{Outcome, invalid};
use super::super::meter::{Buffer, Meter};
use super::super::methods::{self, split, text as text_methods};
use super::super::python::{self, is_space};
use super::super::value::Value;
use super::item;

/// Applies a filter on texts.
pub(super) fn apply(name: &str, value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    match name {
        "upper" | "lower" => {
            let [] = arguments.bind([])?;
            methods::call(&python::str(value, meter)?, name, Arguments::default(), meter)
        }
        "capitalize" => methods::call(&python::str(value, meter)?, "capitalize", arguments, meter),
        "title" => title(value, meter),
        "trim" => methods::call(&python::str(value, meter)?, "strip", arguments, meter),
        "center" => {
            let [width] = arguments.bind(["width"])?;
            let subject = python::str(value, meter)?;
            text_methods::padded(&subject, "center", integer(width.as_ref(), 80)?, None, meter)
        }
        "indent" => indent(value, arguments, meter),
        "replace" => {
            let [old, new, count] = arguments.bind(["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(invalid("replace takes an old and a new text"));
            };
            let count = usize::try_from(integer(count.as_ref(), -1)?).ok();
            let (old, new) = (python::str(&old, meter)?, python::str(&new, meter)?);
            let subject = python::str(value, meter)?;
            let plain = Value::text(meter, subject.as_text().unwrap_or_default())?;
            text_methods::replaced(&plain, text(&old)?, text(&new)?, count, meter)
        }
        "truncate" => truncate(value, arguments, meter),
        "wordcount" => {
            let [] = arguments.bind([])?;
            let subject = python::str(value, meter)?;
            let subject = text(&subject)?;
            meter.spend(subject.len())?;
            let words = subject.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128))
        }
        "urlencode" => {
            let [] = arguments.bind([])?;
            url_encode(value, meter)
        }
        _ => Err(invalid(format!("there is no filter {name}"))),
    }
}

/// Converts to upper case after whitespace, hyphens and opening brackets, and to lower case elsewhere.
fn title(value: &Value, meter: &Meter) -> Outcome<Value> {
    let subject = python::str(value, meter)?;
    let subject = text(&subject)?;
    meter.check_memory(subject.len().saturating_mul(3))?;
    let mut output = String::with_capacity(subject.len());
    let splits = |letter: char| is_space(letter) || "-({[<".contains(letter);
    let mut before = None;
    for letter in subject.chars() {
        // A run of separators counts as a word.
        if before.is_none_or(|before| splits(before) != splits(letter)) {
            output.extend(letter.to_uppercase());
        } else {
            output.extend(letter.to_lowercase());
        }
        before = Some(letter);
    }
    Value::text(meter, output)
}

/// `indent(s, width=4, first=False, blank=False)`
fn indent(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [width, first, blank] = arguments.bind(["width", "first", "blank"])?;
    let subject = value.as_text().ok_or_else(|| invalid("only text can be indented"))?;
    let spaces;
    let indentation = if let Some(text) = width.as_ref().and_then(Value::as_text) {
        text
    } else {
        let count = usize::try_from(integer(width.as_ref(), 4)?).unwrap_or(0);
        meter.check_memory(count)?;
        spaces = " ".repeat(count);
        &spaces
    };
    // Jinja adds a line break to preserve a trailing one.
    meter.check_memory(subject.len())?;
    let whole = format!("{subject}\n");
    let mut output = Buffer::new(meter);
    for (index, line) in split::lines(&whole, false, meter)?.into_iter().enumerate() {
        output.push(if index > 0 { "\n" } else { "" })?;
        let indents =
            if index == 0 { flag(first.as_ref()) } else { flag(blank.as_ref()) || !line.is_empty() };
        output.push(if indents { indentation } else { "" })?;
        output.push(line)?;
    }
    Value::buffered(output, value.is_safe())
}

/// `truncate(s, length=255, killwords=False, end='...', leeway=5)`
fn truncate(value: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [length, kill_words, end, leeway] = arguments.bind(["length", "killwords", "end", "leeway"])?;
    let length = usize::try_from(integer(length.as_ref(), 255)?).unwrap_or(0);
    let leeway = usize::try_from(integer(leeway.as_ref(), 5)?).unwrap_or(0);
    let end = end.as_ref().map_or(Ok("..."), text)?;
    let kept = length.checked_sub(end.chars().count());
    let kept = kept.ok_or_else(|| invalid("the length to truncate to is shorter than the end"))?;
    if item::length(value, meter)? <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let subject = text(value)?;
    let cut = &subject[..subject.char_indices().nth(kept).map_or(subject.len(), |(at, _)| at)];
    let whole_words = cut.rsplit_once(' ').map_or(cut, |(words, _)| words);
    let mut output = Buffer::new(meter);
    output.push(if flag(kill_words.as_ref()) { cut } else { whole_words })?;
    output.push(end)?;
    Value::buffered(output, false)
}

/// Percent-encodes a text, or the pairs of a query.
fn url_encode(value: &Value, meter: &Meter) -> Outcome<Value> {
    let mut output = Buffer::new(meter);
    let pairs = match value {
        Value::Map(_) => methods::call(value, "items", Arguments::default(), meter)?,
        Value::List(_) => value.clone(),
        other => {
            encode(&mut output, text(&python::str(other, meter)?)?, false)?;
            return Value::buffered(output, false);
        }
    };
    for (index, pair) in pairs.iterate(meter)?.items().iter().enumerate() {
        output.push(if index == 0 { "" } else { "&" })?;
        let Value::List(pair) = pair else {
            return Err(invalid("urlencode takes a text, a mapping or pairs"));
        };
        let [key, value] = pair.items() else {
            return Err(invalid("urlencode takes a text, a mapping or pairs"));
        };
        encode(&mut output, text(&python::str(key, meter)?)?, true)?;
        output.push("=")?;
        encode(&mut output, text(&python::str(value, meter)?)?, true)?;
    }
    Value::buffered(output, false)
}

fn encode(output: &mut Buffer, text: &str, in_query: bool) -> Outcome<()> {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                output.push_char(char::from(byte))?;
            }
            b'/' if !in_query => output.push("/")?,
            b' ' if in_query => output.push("+")?,
            byte => output.push(&format!("%{byte:02X}"))?,
        }
    }
    Ok(())
}
