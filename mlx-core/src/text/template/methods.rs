//! Python's methods of texts, mappings and lists that chat templates may call.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::spend;
use super::filters::{check_widths, replaced};
use super::python::{self, bind_values, is_space, type_error};
use super::source::SLICE;

/// Calls a method that minijinja lacks.
pub(super) fn call(
    state: &mut State,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if method == SLICE {
        return slice(value, arguments);
    }
    if let ("format", Some(text)) = (method, value.as_str()) {
        check_widths(text)?;
    }
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => text_method(state, text, method, arguments)?,
        (None, ValueKind::Map) => mapping_method(value, method, arguments)?,
        (None, ValueKind::Seq) => list_method(value, method, arguments)?,
        _ => None,
    };
    own.map_or_else(|| unknown_method_callback(state, value, method, arguments), Ok)
}

/// `value[start:stop:step]`
fn slice(value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    let [start, stop, stride] = bind_values(["start", "stop", "step"], arguments)?;
    let items: Vec<Value> = match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().chars().map(Value::from).collect(),
        ValueKind::Seq | ValueKind::Iterable => value.try_iter()?.checked().collect::<Result<_, _>>()?,
        kind => return Err(type_error(format!("a value of type {kind} cannot be sliced"))),
    };
    let stride = stride.map_or(Ok(1), i64::try_from)?;
    if stride == 0 {
        return Err(type_error("slice step cannot be zero"));
    }
    let length = items.len() as i64;
    // The bounds of the iteration: one past the last item forwards, one before the first backwards.
    let (lowest, highest) = if stride > 0 { (0, length) } else { (-1, length - 1) };
    let resolve = |given: Option<Value>, default: i64| match given.map(i64::try_from).transpose()? {
        Some(index) => {
            Ok(if index < 0 { index.saturating_add(length) } else { index }.clamp(lowest, highest))
        }
        None => Ok::<_, Error>(default),
    };
    let (first, last) = if stride > 0 { (lowest, highest) } else { (highest, lowest) };
    let (mut at, stop) = (resolve(start, first)?, resolve(stop, last)?);
    let mut taken = Vec::new();
    while if stride > 0 { at < stop } else { at > stop } {
        taken.push(items[at as usize].clone());
        at = at.saturating_add(stride);
    }
    Ok(match value.kind() {
        ValueKind::String => Value::from(taken.iter().filter_map(Value::as_str).collect::<String>()),
        _ if value.is_tuple() => Value::from(Tuple::from(taken)),
        _ => Value::from(taken),
    })
}

fn text_method(
    state: &mut State,
    text: &str,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let [letters] = bind_values(["chars"], arguments)?;
            let letters = letters.as_ref().map(string).transpose()?;
            let outer = |letter| letters.as_ref().map_or(is_space(letter), |set| set.contains(letter));
            let start = if method == "rstrip" { text } else { text.trim_start_matches(outer) };
            Value::from(if method == "lstrip" { start } else { start.trim_end_matches(outer) })
        }
        "split" | "rsplit" => split(text, method == "rsplit", arguments)?,
        "splitlines" => {
            let [keep] = bind_values(["keepends"], arguments)?;
            let keep = keep.is_some_and(|keep| keep.is_true());
            let line =
                |(line, end): (&str, usize)| Value::from(&line[..line.len() - if keep { 0 } else { end }]);
            Value::from(python::lines(text).into_iter().map(line).collect::<Vec<_>>())
        }
        "partition" | "rpartition" => {
            let [separator] = required(["sep"], arguments)?;
            let separator = string(&separator)?;
            if separator.is_empty() {
                return Err(type_error("empty separator"));
            }
            partition(text, &separator, method == "rpartition")
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, method, arguments)?,
        "join" => {
            let [items] = required(["iterable"], arguments)?;
            let items =
                items.try_iter()?.checked().map(|item| string(&item?)).collect::<Result<Vec<_>, _>>()?;
            let separators = text.len().saturating_mul(items.len());
            spend(state, items.iter().map(|item| item.len()).sum::<usize>().saturating_add(separators))?;
            Value::from(items.join(text))
        }
        "replace" => {
            let [old, new, count] = bind_values(["old", "new", "count"], arguments)?;
            let (Some(old), Some(new)) = (old, new) else {
                return Err(Error::from(ErrorKind::MissingArgument));
            };
            let count = count.map_or(Ok(-1), i64::try_from)?;
            let (old, new) = (string(&old)?, string(&new)?);
            Value::from(replaced(state, text, &old, &new, usize::try_from(count).ok())?)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = required(["affix"], arguments)?;
            let affix = string(&affix)?;
            let cut = if method == "removeprefix" {
                text.strip_prefix(&*affix)
            } else {
                text.strip_suffix(&*affix)
            };
            Value::from(cut.unwrap_or(text))
        }
        "title" => Value::from(title(text)),
        "casefold" => Value::from(text.to_lowercase()),
        "zfill" | "ljust" | "rjust" | "center" => pad(text, method, arguments)?,
        _ => return Ok(None),
    }))
}

/// `split(sep=None, maxsplit=-1)`, and from the right.
fn split(text: &str, from_right: bool, arguments: &[Value]) -> Result<Value, Error> {
    let [separator, limit] = bind_values(["sep", "maxsplit"], arguments)?;
    let limit = usize::try_from(limit.map_or(Ok(-1), i64::try_from)?)
        .map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut parts: Vec<&str> = match &separator {
        Some(separator) => match separator.as_str() {
            None => return Err(type_error("the separator is not text")),
            Some("") => return Err(type_error("empty separator")),
            Some(separator) if from_right => text.rsplitn(limit, separator).collect(),
            Some(separator) => text.splitn(limit, separator).collect(),
        },
        None => words(text, limit, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>()))
}

/// The words of `text` in splitting order; part number `limit` is the rest.
fn words(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let trim = |text: &'_ str| -> (usize, usize) {
        let trimmed =
            if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
        if from_right { (0, trimmed.len()) } else { (text.len() - trimmed.len(), text.len()) }
    };
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (start, end) = trim(rest);
        rest = &rest[start..end];
        let found = if from_right {
            rest.char_indices().rfind(|(_, letter)| is_space(*letter))
        } else {
            rest.char_indices().find(|(_, letter)| is_space(*letter))
        };
        match found {
            Some((at, letter)) if parts.len() + 1 < limit => {
                let (before, after) = (&rest[..at], &rest[at + letter.len_utf8()..]);
                let (part, left) = if from_right { (after, before) } else { (before, after) };
                parts.push(part);
                rest = left;
            }
            _ if rest.is_empty() => return parts,
            _ => {
                parts.push(rest);
                return parts;
            }
        }
    }
}

/// `partition(sep)`: the text before the first (or last) separator, the separator, and the text after it.
fn partition(text: &str, separator: &str, from_right: bool) -> Value {
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Value::from(Tuple::from(parts.map(Value::from)))
}

/// `find`, `index` and `count`, with positions in characters.
fn search(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [needle, start, end] = bind_values(["sub", "start", "end"], arguments)?;
    let needle = string(&needle.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?)?;
    let length = text.chars().count() as i64;
    let resolve = |given: Option<Value>, default| -> Result<i64, Error> {
        let index = given.map_or(Ok(default), i64::try_from)?;
        Ok(if index < 0 { (index + length).max(0) } else { index.min(length) })
    };
    let (start, end) = (resolve(start, 0)?, resolve(end, length)?);
    let part: String = text.chars().skip(start as usize).take((end - start).max(0) as usize).collect();
    if method == "count" {
        return Ok(Value::from(part.matches(&*needle).count()));
    }
    let found = if method.starts_with('r') { part.rfind(&*needle) } else { part.find(&*needle) };
    match found {
        Some(at) => Ok(Value::from(start + part[..at].chars().count() as i64)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(type_error("substring not found")),
    }
}

/// Title case, where a word is a run of letters.
fn title(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut inside = false;
    for letter in text.chars() {
        if inside {
            output.extend(letter.to_lowercase());
        } else {
            output.extend(letter.to_uppercase());
        }
        inside = letter.is_alphabetic();
    }
    output
}

/// `zfill`, `ljust`, `rjust` and `center`.
fn pad(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [width, fill] = bind_values(["width", "fillchar"], arguments)?;
    let width = width.map_or_else(|| Err(Error::from(ErrorKind::MissingArgument)), i64::try_from)?;
    let fill = fill.as_ref().map_or_else(|| Ok(" ".into()), string)?;
    if fill.chars().count() != 1 {
        return Err(type_error("the fill character must be exactly one character long"));
    }
    let missing = (width.clamp(0, 1 << 20) as usize).saturating_sub(text.chars().count());
    Ok(Value::from(match method {
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        "ljust" => format!("{text}{}", fill.repeat(missing)),
        "rjust" => format!("{}{text}", fill.repeat(missing)),
        _ => {
            // Like Python, put the odd character on the left if the width is odd, too.
            let left = missing / 2 + (missing & width as usize & 1);
            format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))
        }
    }))
}

fn mapping_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => bind_values([], arguments).map(|[]| Some(value.clone())),
        "pop" | "popitem" | "update" | "setdefault" | "clear" => Err(immutable(method)),
        _ => Ok(None),
    }
}

fn list_method(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "copy" => bind_values([], arguments).map(|[]| Some(value.clone())),
        "index" => {
            let [item] = required(["value"], arguments)?;
            let position = value.try_iter()?.position(|other| other == item);
            position
                .map(|position| Some(Value::from(position)))
                .ok_or_else(|| type_error("value is not in the list"))
        }
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "reverse" | "sort" => {
            Err(immutable(method))
        }
        _ => Ok(None),
    }
}

/// The error for a mutating method: transformers uses Jinja's immutable sandbox, in which these fail, too.
fn immutable(method: &str) -> Error {
    type_error(format!("{method} is not allowed: values cannot be changed in chat templates"))
}

/// [`bind_values`] for parameters without defaults.
fn required<const N: usize>(names: [&str; N], arguments: &[Value]) -> Result<[Value; N], Error> {
    let bound = bind_values(names, arguments)?;
    if bound.iter().any(Option::is_none) {
        return Err(Error::from(ErrorKind::MissingArgument));
    }
    Ok(bound.map(Option::unwrap_or_default))
}

/// The text of a value, or an error if it is no text.
fn string(value: &Value) -> Result<std::sync::Arc<str>, Error> {
    value.to_str().ok_or_else(|| type_error(format!("expected text, found {}", value.kind())))
}
