//! Filters that differ between minijinja and Jinja in arguments or results.

use std::cmp::Ordering;

use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::budget::{self, MADE, PRODUCT, spend};
use super::python::{self, Arguments, bind, is_space, type_error};
use super::source::EACH;
use super::{json, numbers};

/// The name of minijinja's own format filter, which ours calls.
const FORMAT: &str = "__format";

/// Limits the widths in a format string to four digits and refuses `*`, since an unlimited width exhausts the memory.
pub(super) fn check_widths(text: &str) -> Result<(), Error> {
    let mut digits = 0;
    for byte in text.bytes() {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits > 4 {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "a number in a format string has more than four digits",
            ));
        }
    }
    if text.contains('%') && text.contains('*') || text.contains("{:{") {
        return Err(Error::new(ErrorKind::InvalidOperation, "a width in a format string must be a number"));
    }
    Ok(())
}

/// Adds the filters to `environment`.
pub(super) fn add(environment: &mut Environment<'_>) {
    environment.add_filter(EACH, each);
    environment.add_filter(MADE, budget::made);
    environment.add_filter(PRODUCT, budget::product);
    // Both filters pad to a size that the template chooses.
    environment.add_filter("batch", |state: &mut State, value: Value, count: usize, fill: Option<Value>| {
        spend(state, count.saturating_mul(size_of::<Value>()))?;
        minijinja::filters::batch(state, value, count, fill)
    });
    environment.add_filter("slice", |state: &mut State, value: Value, count: usize, fill: Option<Value>| {
        spend(state, count.saturating_mul(size_of::<Value>()))?;
        minijinja::filters::slice(state, value, count, fill)
    });
    environment.add_filter("tojson", to_json);
    environment.add_filter(FORMAT, minijinja::filters::format);
    environment.add_filter("format", |state: &mut State, text: &str, arguments: Rest<Value>| {
        check_widths(text)?;
        state.apply_filter(FORMAT, &[&[Value::from(text)], &arguments[..]].concat())
    });
    environment.add_filter("string", python::str);
    environment.add_filter("join", join);
    environment.add_filter("list", |value: &Value| elements(value));
    environment.add_filter("first", |value: &Value| {
        Ok::<_, Error>(elements(value)?.into_iter().next().unwrap_or_default())
    });
    environment
        .add_filter("last", |value: &Value| Ok::<_, Error>(elements(value)?.pop().unwrap_or_default()));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("items", items);
    environment.add_filter("sort", sort);
    environment.add_filter("dictsort", dict_sort);
    environment.add_filter("int", numbers::int);
    environment.add_filter("float", numbers::float);
    environment.add_filter("indent", indent);
    environment.add_filter("replace", replace);
    environment.add_filter("trim", trim);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", word_count);
    environment.add_filter("e", escape);
    environment.add_filter("escape", escape);
}

/// Checks the sequence of a loop, since minijinja accepts `none` as empty, and counts the bytes that the body may print.
fn each(state: &mut State, value: &Value, body: Option<usize>) -> Result<Value, Error> {
    let value = iterable(value)?;
    let value =
        if value.is_undefined() || value.len().is_some() { value.clone() } else { elements(value)?.into() };
    spend(state, value.len().unwrap_or(0).saturating_mul(body.unwrap_or(0)))?;
    Ok(value)
}

fn iterable(value: &Value) -> Result<&Value, Error> {
    if value.is_none() { Err(type_error("none is not iterable")) } else { Ok(value) }
}

/// The elements of an iterable; none for undefined.
fn elements(value: &Value) -> Result<Vec<Value>, Error> {
    iterable(value)?.try_iter()?.checked().collect()
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as transformers
/// defines it.
fn to_json(value: &Value, arguments: Arguments) -> Result<String, Error> {
    let [ascii, indent, separators, sort_keys] =
        bind(["ensure_ascii", "indent", "separators", "sort_keys"], arguments)?;
    let indent = indent.map(|value| match value.as_str() {
        Some(text) => Ok(text.to_string()),
        None => i64::try_from(value).map(|count| " ".repeat(count.clamp(0, 80) as usize)),
    });
    let indent = indent.transpose()?;
    let separator = |index: usize, default: &str| match &separators {
        Some(pair) => pair.get_item_by_index(index).map(|text| text.to_string()),
        None => Ok(default.to_string()),
    };
    let style = json::Style {
        ascii: is_true(ascii.as_ref()),
        item_separator: separator(0, if indent.is_some() { "," } else { ", " })?,
        key_separator: separator(1, ": ")?,
        indent,
        sort_keys: is_true(sort_keys.as_ref()),
    };
    json::dump(value, &style)
}

/// `join(value, d='', attribute=None)`
fn join(state: &mut State, value: &Value, arguments: Arguments) -> Result<String, Error> {
    let [separator, attribute] = bind(["d", "attribute"], arguments)?;
    let separator = separator.as_ref().map_or_else(String::new, python::str);
    let mut joined = String::new();
    for (index, element) in elements(value)?.into_iter().enumerate() {
        let text = python::str(&match &attribute {
            Some(path) => attribute_of(&element, path),
            None => element,
        });
        let separator = if index == 0 { "" } else { &separator };
        spend(state, separator.len() + text.len())?;
        joined.push_str(separator);
        joined.push_str(&text);
    }
    Ok(joined)
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| type_error(format!("a value of type {} has no length", value.kind())))
}

fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if !value.is_undefined() && value.kind() != ValueKind::Map {
        return Err(type_error("can only get item pairs from a mapping"));
    }
    let pair = |key: Value| Ok(Value::from(Tuple::from([key.clone(), value.get_item(&key)?])));
    elements(value)?.into_iter().map(pair).collect()
}

/// `sort(value, reverse=False, case_sensitive=False, attribute=None)`
fn sort(value: &Value, arguments: Arguments) -> Result<Vec<Value>, Error> {
    let [reverse, case_sensitive, attributes] = bind(["reverse", "case_sensitive", "attribute"], arguments)?;
    let attributes: Vec<Value> = match attributes {
        Some(paths) if paths.as_str().is_some() => paths.to_string().split(',').map(Value::from).collect(),
        other => other.into_iter().collect(),
    };
    let key = |element: &Value| match attributes.as_slice() {
        [] => vec![element.clone()],
        paths => paths.iter().map(|path| attribute_of(element, path)).collect(),
    };
    let elements = elements(value)?.into_iter().map(|element| (key(&element), element)).collect();
    sorted(elements, is_true(case_sensitive.as_ref()), is_true(reverse.as_ref()))
}

/// `dictsort(value, case_sensitive=False, by='key', reverse=False)`
fn dict_sort(value: &Value, arguments: Arguments) -> Result<Vec<Value>, Error> {
    let [case_sensitive, by, reverse] = bind(["case_sensitive", "by", "reverse"], arguments)?;
    let by = by.map_or_else(|| "key".to_string(), |by| by.to_string());
    let part = match by.as_str() {
        "key" => 0,
        "value" => 1,
        _ => return Err(type_error("you can only sort by either 'key' or 'value'")),
    };
    let pairs = items(value)?.into_iter().map(|pair| Ok((vec![pair.get_item_by_index(part)?], pair)));
    let pairs = pairs.collect::<Result<_, Error>>()?;
    sorted(pairs, is_true(case_sensitive.as_ref()), is_true(reverse.as_ref()))
}

/// Sorts by keys, stable also in reverse, as in Python.
fn sorted(
    mut keyed: Vec<(Vec<Value>, Value)>,
    case_sensitive: bool,
    reverse: bool,
) -> Result<Vec<Value>, Error> {
    let mut failure = None;
    for key in keyed.iter_mut().flat_map(|(keys, _)| keys).filter(|_| !case_sensitive) {
        if let Some(text) = key.as_str() {
            *key = Value::from(text.to_lowercase());
        }
    }
    keyed.sort_by(|(left, _), (right, _)| {
        let (left, right) = if reverse { (right, left) } else { (left, right) };
        let mut order = left.iter().zip(right).map(|(left, right)| compare(left, right));
        let order = order.try_fold(Ordering::Equal, |order, next| next.map(|next| order.then(next)));
        order.unwrap_or_else(|error| {
            failure = Some(error);
            Ordering::Equal
        })
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(keyed.into_iter().map(|(_, element)| element).collect()),
    }
}

/// Compares like Python's `<`: only numbers with numbers, texts with texts and lists with lists.
fn compare(left: &Value, right: &Value) -> Result<Ordering, Error> {
    let class = |value: &Value| match value.kind() {
        ValueKind::Bool | ValueKind::Number => Some(ValueKind::Number),
        kind @ (ValueKind::String | ValueKind::Seq) => Some(kind),
        _ => None,
    };
    if class(left).is_some() && class(left) == class(right) {
        return Ok(left.cmp(right));
    }
    Err(type_error(format!("values of type {} and {} cannot be ordered", left.kind(), right.kind())))
}

/// An attribute by its path, such as `function.name` or `0`; undefined if missing.
fn attribute_of(value: &Value, path: &Value) -> Value {
    let at = |value: &Value, index: i64| {
        let index = if index < 0 { value.len().unwrap_or(0) as i64 + index } else { index };
        usize::try_from(index).ok().and_then(|index| value.get_item_by_index(index).ok())
    };
    if let Some(index) = path.as_i64() {
        return at(value, index).unwrap_or_default();
    }
    let step = |value: Value, name: &str| match name.parse() {
        Ok(index) => at(&value, index).unwrap_or_default(),
        Err(_) => value.get_attr(name).unwrap_or_default(),
    };
    path.to_string().split('.').fold(value.clone(), step)
}

/// `indent(s, width=4, first=False, blank=False)`
fn indent(state: &mut State, value: &Value, arguments: Arguments) -> Result<String, Error> {
    let [width, first, blank] = bind(["width", "first", "blank"], arguments)?;
    let text = value.as_str().ok_or_else(|| type_error("only text can be indented"))?;
    let indentation = match width {
        Some(width) if width.as_str().is_some() => width.to_string(),
        width => " ".repeat(width.map_or(Ok(4), i64::try_from)?.clamp(0, 10_000) as usize),
    };
    let (first, blank) = (is_true(first.as_ref()), is_true(blank.as_ref()));
    // Jinja adds a line break to keep a trailing one.
    let lines_text = format!("{text}\n");
    let mut output = String::new();
    for (index, (line, line_break)) in python::lines(&lines_text).into_iter().enumerate() {
        let line = &line[..line.len() - line_break];
        if index > 0 {
            output.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            spend(state, indentation.len())?;
            output.push_str(&indentation);
        }
        output.push_str(line);
    }
    Ok(output)
}

/// `replace(s, old, new, count=None)`
fn replace(state: &mut State, value: &Value, arguments: Arguments) -> Result<String, Error> {
    let [old, new, count] = bind(["old", "new", "count"], arguments)?;
    let (Some(old), Some(new)) = (old, new) else { return Err(Error::from(ErrorKind::MissingArgument)) };
    let (text, old, new) = (python::str(value), python::str(&old), python::str(&new));
    let count = count.map(i64::try_from).transpose()?.and_then(|count| usize::try_from(count).ok());
    replaced(state, &text, &old, &new, count)
}

/// Replaces the first `count` occurrences of `old`, or all, by `new`. The result is counted before it is produced.
pub(super) fn replaced(
    state: &mut State,
    text: &str,
    old: &str,
    new: &str,
    count: Option<usize>,
) -> Result<String, Error> {
    let count = count.unwrap_or(usize::MAX);
    let hits = text.matches(old).take(count).count();
    spend(state, text.len().saturating_add(hits.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count))
}

/// `trim(value, chars=None)`
fn trim(value: &Value, arguments: Arguments) -> Result<String, Error> {
    let [letters] = bind(["chars"], arguments)?;
    let text = python::str(value);
    let letters = letters.map(|letters| letters.to_string());
    Ok(text
        .trim_matches(|letter| letters.as_ref().map_or(is_space(letter), |set| set.contains(letter)))
        .to_string())
}

/// `truncate(s, length=255, killwords=False, end='...', leeway=5)`
fn truncate(value: &Value, arguments: Arguments) -> Result<String, Error> {
    let [length, kill_words, end, leeway] = bind(["length", "killwords", "end", "leeway"], arguments)?;
    let text = python::str(value);
    let length = length.map_or(Ok(255), usize::try_from)?;
    let leeway = leeway.map_or(Ok(5), usize::try_from)?;
    let end = end.map_or_else(|| "...".to_string(), |end| end.to_string());
    let length_without_end = length
        .checked_sub(end.chars().count())
        .ok_or_else(|| type_error("length is shorter than the end"))?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let cut: String = text.chars().take(length_without_end).collect();
    let whole_words = cut.rsplit_once(' ').map_or(cut.as_str(), |(words, _)| words);
    Ok(if is_true(kill_words.as_ref()) { cut + &end } else { whole_words.to_string() + &end })
}

fn word_count(value: &Value) -> usize {
    let words = python::str(value);
    words
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| !word.is_empty())
        .count()
}

/// Escapes for HTML, as `MarkupSafe` does.
fn escape(value: &Value) -> String {
    let text = python::str(value).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('\'', "&#39;").replace('"', "&#34;")
}

fn is_true(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}
