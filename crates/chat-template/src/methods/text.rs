//! Methods of texts. The result of a method of a text marked as `safe` is marked too.

use super::super::arguments::{Arguments, flag, integer, text};
use super::super::fault::{Outcome, invalid};
use super::super::format::braces;
use super::super::markup;
use super::super::meter::{Buffer, Meter};
use super::super::python;
use super::super::value::{ListKind, Value};
use super::{letters, range, split};

/// Calls a method of a text.
pub(super) fn call(of: &Value, name: &str, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let (subject, safe) = (of.as_text().unwrap_or_default(), of.is_safe());
    // Every method reads the text at most a few times, and its result is at most three times as long.
    meter.spend(subject.len().saturating_mul(2))?;
    let made = |text: String| Value::marked(meter, text, safe);
    let cased = |change: fn(&str) -> String| {
        meter.check_memory(subject.len().saturating_mul(3))?;
        made(change(subject))
    };
    match name {
        "upper" => cased(str::to_uppercase),
        "lower" | "casefold" => cased(str::to_lowercase),
        "title" => cased(letters::title),
        "capitalize" => cased(letters::capitalize),
        "swapcase" => cased(letters::swap_case),
        "format" => braces(of, &arguments, meter),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = arguments.bind(["chars"])?;
            let chars = chars.as_ref().map(text).transpose()?;
            meter.spend(subject.len().saturating_mul(chars.map_or(0, str::len)))?;
            meter.check_memory(subject.len())?;
            made(split::strip(subject, name, chars).to_owned())
        }
        "split" | "rsplit" => split::split(of, name == "rsplit", arguments, meter),
        "splitlines" => {
            let [keep] = arguments.bind(["keepends"])?;
            let lines = split::lines(subject, flag(keep.as_ref()), meter)?;
            Value::list(meter, split::parts(&lines, safe, meter)?)
        }
        "partition" | "rpartition" => {
            let [separator] = arguments.require(["sep"])?;
            let parts = split::partition(subject, text(&separator)?, name == "rpartition")?;
            Value::tuple(meter, split::parts(&parts, safe, meter)?)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(subject, name, arguments, meter),
        "join" => join(of, arguments, meter),
        "replace" => {
            let [old, new, count] = arguments.bind(["old", "new", "count"])?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(invalid("replace takes an old and a new text"));
            };
            let count = usize::try_from(integer(count.as_ref(), -1)?).ok();
            let new = markup::entering(&new, safe, meter)?;
            replaced(of, text(&old)?, text(&new)?, count, meter)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = arguments.require(["affix"])?;
            let affix = text(&affix)?;
            let cut = if name == "removeprefix" {
                subject.strip_prefix(affix)
            } else {
                subject.strip_suffix(affix)
            };
            made(cut.unwrap_or(subject).to_owned())
        }
        "startswith" | "endswith" => affixed(subject, name == "startswith", arguments, meter),
        "zfill" | "ljust" | "rjust" | "center" => pad(of, name, arguments, meter),
        "expandtabs" | "format_map" => Err(invalid(format!("the method {name} is not supported"))),
        _ => {
            let [] = arguments.bind([])?;
            Ok(Value::Bool(letters::is(subject, name)))
        }
    }
}

/// Replaces the first `count` occurrences of `old`, or all, with `new`.
pub(in super::super) fn replaced(
    subject: &Value,
    old: &str,
    new: &str,
    count: Option<usize>,
    meter: &Meter,
) -> Outcome<Value> {
    let (text, count) = (subject.as_text().unwrap_or_default(), count.unwrap_or(usize::MAX));
    meter.spend(text.len() + old.len())?;
    let hits = text.matches(old).take(count).count();
    meter.check_memory(text.len().saturating_add(hits.saturating_mul(new.len())))?;
    Value::marked(meter, text.replacen(old, new, count), subject.is_safe())
}

fn join(of: &Value, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [items] = arguments.require(["iterable"])?;
    let mut buffer = Buffer::new(meter);
    for (index, item) in items.iterate(meter)?.items().iter().enumerate() {
        buffer.push(if index == 0 { "" } else { of.as_text().unwrap_or_default() })?;
        text(item)?;
        buffer.push(text(&markup::entering(item, of.is_safe(), meter)?)?)?;
    }
    Value::buffered(buffer, of.is_safe())
}

/// `find`, `index` and `count`, with positions in characters.
fn search(subject: &str, name: &str, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [needle, start, end] = arguments.bind(["sub", "start", "end"])?;
    let needle = needle.ok_or_else(|| invalid(format!("{name} takes a text to search for")))?;
    let needle = text(&needle)?;
    let length = subject.chars().count();
    let (start, end) = range(start.as_ref(), end.as_ref(), length)?;
    meter.spend(subject.len().saturating_mul(2))?;
    let byte = |place: usize| subject.char_indices().nth(place).map_or(subject.len(), |(at, _)| at);
    if start > end {
        return if name.ends_with("index") {
            Err(invalid("substring not found"))
        } else {
            Ok(Value::Int(if name == "count" { 0 } else { -1 }))
        };
    }
    let part = &subject[byte(start)..byte(end)];
    if name == "count" {
        return Ok(Value::Int(part.matches(needle).count() as i128));
    }
    let found = if name.starts_with('r') { part.rfind(needle) } else { part.find(needle) };
    match found {
        Some(at) => Ok(Value::Int((start + part[..at].chars().count()) as i128)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => Err(invalid("substring not found")),
    }
}

/// `startswith` and `endswith`, with one affix or a tuple of them.
fn affixed(subject: &str, starts: bool, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [affix, start, end] = arguments.bind(["prefix", "start", "end"])?;
    let affix = affix.ok_or_else(|| invalid("the prefix or suffix is missing"))?;
    let one = [affix.clone()];
    let affixes = match &affix {
        Value::List(list) if list.kind == ListKind::Tuple => list.items(),
        _ => &one,
    };
    let mut part = subject;
    if start.is_some() || end.is_some() {
        let (start, end) = range(start.as_ref(), end.as_ref(), subject.chars().count())?;
        let byte = |place: usize| subject.char_indices().nth(place).map_or(subject.len(), |(at, _)| at);
        part = if start > end { return Ok(Value::Bool(false)) } else { &subject[byte(start)..byte(end)] };
    }
    for affix in affixes {
        let affix = text(affix)?;
        meter.spend(affix.len())?;
        if if starts { part.starts_with(affix) } else { part.ends_with(affix) } {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

/// `zfill`, `ljust`, `rjust` and `center`.
fn pad(of: &Value, name: &str, arguments: Arguments, meter: &Meter) -> Outcome<Value> {
    let [width, fill] = arguments.bind(["width", "fillchar"])?;
    let width = width.ok_or_else(|| invalid("the width is missing"))?;
    padded(of, name, integer(Some(&width), 0)?, fill.as_ref(), meter)
}

/// Pads a text to a width, with spaces or `fill`.
pub(in super::super) fn padded(
    of: &Value,
    name: &str,
    width: i64,
    fill: Option<&Value>,
    meter: &Meter,
) -> Outcome<Value> {
    let subject = of.as_text().unwrap_or_default();
    let fill = fill.map_or(Ok(" "), text)?;
    if fill.chars().count() != 1 {
        return Err(invalid("the fill character must be exactly one character long"));
    }
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(subject.chars().count());
    meter.check_memory(missing.saturating_mul(fill.len()).saturating_add(subject.len()))?;
    let fill = python::str(&markup::entering(&Value::text(meter, fill)?, of.is_safe(), meter)?, meter)?;
    let fill = if name == "zfill" { "0" } else { text(&fill)? };
    meter.check_memory(missing.saturating_mul(fill.len()))?;
    let (left, right) = match name {
        "ljust" => (0, missing),
        "rjust" | "zfill" => (missing, 0),
        // Like Python, put the extra character on the left if the width is odd too.
        _ => {
            let left = missing / 2 + (missing & width as usize & 1);
            (left, missing - left)
        }
    };
    let signed = usize::from(name == "zfill" && subject.starts_with(['+', '-']));
    let (sign, rest) = subject.split_at(signed);
    let padded = [sign, &fill.repeat(left), rest, &fill.repeat(right)].concat();
    Value::marked(meter, padded, of.is_safe())
}
