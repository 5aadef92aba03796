//! Python's string formatting: `text % values` and `text.format(values)`.

mod number;

use std::sync::Arc;

use super::access;
use super::arguments::Arguments;
use super::fault::{Outcome, invalid};
use super::markup;
use super::meter::{Buffer, Meter};
use super::python;
use super::value::{ListKind, Value};
use number::{Spec, padded};

/// The maximum width of a field in the format string. A `*` allows wider ones.
const MAX_WIDTH: usize = 1 << 20;

/// Evaluates `text % values`.
pub(super) fn percent(text: &Value, values: &Value, meter: &Meter) -> Outcome<Value> {
    let safe = text.is_safe();
    let mut rest = text.as_text().unwrap_or_default();
    let single = [values.clone()];
    let list = match values {
        Value::List(list) if list.kind == ListKind::Tuple => list.items(),
        _ => &single,
    };
    let mut next = list.iter();
    let mut output = Buffer::new(meter);
    while let Some(start) = rest.find('%') {
        output.push(&rest[..start])?;
        let (name, spec, length) = directive(&rest[start + 1..])?;
        rest = &rest[start + 1 + length..];
        if spec.kind == '%' {
            output.push("%")?;
            continue;
        }
        let value = match name {
            Some(name) => match values {
                Value::Map(map) => map.get(name).cloned(),
                _ => return Err(invalid("format requires a mapping")),
            },
            None => next.next().cloned(),
        };
        let value = value.ok_or_else(|| invalid("not enough arguments for format string"))?;
        percent_field(&mut output, &spec, &value, safe)?;
    }
    let may_be_left = match values {
        Value::Map(_) => true,
        Value::List(list) => list.kind != ListKind::Tuple,
        _ => false,
    };
    if next.next().is_some() && !may_be_left {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    output.push(rest)?;
    Value::buffered(output, safe)
}

/// Parses the text after a percent sign. Returns the name, the specification and the length.
fn directive(text: &str) -> Outcome<(Option<&str>, Spec, usize)> {
    let incomplete = || invalid("incomplete format");
    let mut rest = text;
    let mut name = None;
    if let Some(named) = rest.strip_prefix('(') {
        let end = named.find(')').ok_or_else(incomplete)?;
        name = Some(&named[..end]);
        rest = &named[end + 1..];
    }
    let mut spec = Spec { align: Some('>'), ..Spec::default() };
    loop {
        match rest.chars().next() {
            Some('-') => spec.align = Some('<'),
            Some('0') => spec.zero = true,
            Some(sign @ ('+' | ' ')) => spec.sign = sign,
            Some('#') => spec.alternate = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    rest = spec.read_width(rest)?;
    let rest = rest.trim_start_matches(['h', 'l', 'L']);
    spec.kind = rest.chars().next().ok_or_else(incomplete)?;
    spec.zero &= spec.align != Some('<');
    let length = text.len() - rest.len() + spec.kind.len_utf8();
    Ok((name, spec, length))
}

fn percent_field(output: &mut Buffer, spec: &Spec, value: &Value, safe: bool) -> Outcome<()> {
    let meter = output.meter().clone();
    if !matches!(spec.kind, 's' | 'r' | 'a' | 'c') {
        let text = number::written(spec, value)?;
        return padded(output, spec, &text, true);
    }
    let text = match (spec.kind, value.as_int()) {
        ('s', _) => python::str(value, &meter)?,
        ('c', Some(code)) => {
            let letter = u32::try_from(code).ok().and_then(char::from_u32);
            Value::text(&meter, letter.ok_or_else(|| invalid("%c requires a character"))?)?
        }
        ('c', None) => value.clone(),
        _ => {
            let mut buffer = Buffer::new(&meter);
            python::write_repr(&mut buffer, value)?;
            Value::buffered(buffer, false)?
        }
    };
    let text = markup::entering(&text, safe, &meter)?;
    padded(output, spec, spec.cut(text.as_text().unwrap_or_default()), false)
}

/// Evaluates `text.format(values)`.
pub(super) fn braces(text: &Value, arguments: &Arguments, meter: &Meter) -> Outcome<Value> {
    let safe = text.is_safe();
    let mut rest = text.as_text().unwrap_or_default();
    let mut output = Buffer::new(meter);
    let mut index = 0;
    while let Some(start) = rest.find(['{', '}']) {
        output.push(&rest[..start])?;
        let (bracket, after) = rest[start..].split_at(1);
        if after.starts_with(bracket) {
            output.push(bracket)?;
            rest = &after[1..];
            continue;
        }
        if bracket == "}" {
            return Err(invalid("single '}' encountered in format string"));
        }
        let end = after.find('}').ok_or_else(|| invalid("expected '}' before end of string"))?;
        field(&mut output, &after[..end], arguments, &mut index, safe)?;
        rest = &after[end + 1..];
    }
    output.push(rest)?;
    Value::buffered(output, safe)
}

/// Writes one field, `name!r:spec`.
fn field(
    output: &mut Buffer,
    field: &str,
    arguments: &Arguments,
    index: &mut usize,
    safe: bool,
) -> Outcome<()> {
    let meter = output.meter().clone();
    let (target, spec) = field.split_once(':').unwrap_or((field, ""));
    if spec.contains('{') {
        return Err(invalid("a width in a format string must be a number"));
    }
    let (path, conversion) = target.split_once('!').unwrap_or((target, ""));
    let value = looked_up(path, arguments, index, &meter)?;
    let value = match conversion {
        "r" => {
            let mut buffer = Buffer::new(&meter);
            python::write_repr(&mut buffer, &value)?;
            Value::buffered(buffer, false)?
        }
        "s" => python::str(&value, &meter)?,
        _ => value,
    };
    let spec = Spec::parse(spec)?;
    if value.as_float().is_some() && !matches!(value, Value::Bool(_)) || matches!(spec.kind, 'd' | 'f') {
        let text = number::written(&spec, &value)?;
        return padded(output, &spec, &text, true);
    }
    let text = markup::entering(&python::str(&value, &meter)?, safe, &meter)?;
    padded(output, &spec, spec.cut(text.as_text().unwrap_or_default()), false)
}

/// Returns the argument of a field: by number, by name, or the next one. Attributes and items may follow.
fn looked_up(path: &str, arguments: &Arguments, index: &mut usize, meter: &Meter) -> Outcome<Value> {
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, mut rest) = path.split_at(end);
    let found = match name.parse::<usize>() {
        Ok(place) => arguments.positional.get(place),
        Err(_) if name.is_empty() => {
            *index += 1;
            arguments.positional.get(*index - 1)
        }
        Err(_) => arguments.named.iter().find(|(known, _)| known == name).map(|(_, value)| value),
    };
    let mut value = found.cloned().ok_or_else(|| invalid(format!("no argument for the field {{{name}}}")))?;
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            let (key, after) =
                inside.split_once(']').ok_or_else(|| invalid("expected ']' in format string"))?;
            let key =
                key.parse().map_or_else(|_| Value::text(meter, key), |number| Ok(Value::Int(number)))?;
            value = access::item(&value, &key, meter)?;
            rest = after;
        } else {
            let inside = rest.trim_start_matches('.');
            let end = inside.find(['.', '[']).unwrap_or(inside.len());
            let name: Arc<str> = inside[..end].into();
            value = access::attribute(&value, &name, &name, meter)?;
            rest = &inside[end..];
        }
    }
    Ok(value)
}
