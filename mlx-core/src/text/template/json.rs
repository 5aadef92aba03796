//! Writes values as Python's `json.dumps` does.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::python;

/// `json.dumps`' options.
#[derive(Debug, Clone)]
pub(super) struct Style {
    pub(super) ascii: bool,
    /// The indent of one level of nesting; `None` writes a single line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

/// Deeper nesting is refused, like Python's recursion limit does.
const MAX_DEPTH: usize = 200;

/// The JSON of `value`.
pub(super) fn dump(value: &Value, style: &Style) -> Result<String, Error> {
    let mut writer = Writer { style, output: String::new(), depth: 0 };
    writer.value(value)?;
    Ok(writer.output)
}

struct Writer<'a> {
    style: &'a Style,
    output: String,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        if self.output.len() > python::MAX_LENGTH {
            return Err(Error::new(ErrorKind::BadSerialization, "value is too long for JSON"));
        }
        match value.kind() {
            ValueKind::None => self.output.push_str("null"),
            ValueKind::Bool => self.output.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.output.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq => self.list(value)?,
            ValueKind::Map => self.object(value)?,
            ValueKind::Iterable if value.len().is_some() => self.list(value)?,
            kind => return Err(refused(kind)),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.open('[')?;
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.item(empty);
            empty = false;
            self.value(&item?)?;
        }
        self.close(']', empty);
        Ok(())
    }

    fn object(&mut self, value: &Value) -> Result<(), Error> {
        let mut entries = Vec::new();
        for key in value.try_iter()?.checked() {
            let key = key?;
            let item = value.get_item(&key)?;
            entries.push((key, item));
        }
        if self.style.sort_keys {
            entries.sort_by(|(left, _), (right, _)| left.cmp(right));
        }
        self.open('{')?;
        let empty = entries.is_empty();
        for (index, (key, item)) in entries.iter().enumerate() {
            self.item(index == 0);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    self.output.push('"');
                    self.value(key)?;
                    self.output.push('"');
                }
                kind => return Err(refused(kind)),
            }
            self.output.push_str(&self.style.key_separator);
            self.value(item)?;
        }
        self.close('}', empty);
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<(), Error> {
        if self.depth == MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "value is too deep for JSON"));
        }
        self.depth += 1;
        self.output.push(bracket);
        Ok(())
    }

    fn item(&mut self, first: bool) {
        if !first {
            self.output.push_str(&self.style.item_separator);
        }
        self.new_line();
    }

    fn close(&mut self, bracket: char, empty: bool) {
        self.depth -= 1;
        if !empty {
            self.new_line();
        }
        self.output.push(bracket);
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.style.indent {
            self.output.push('\n');
            for _ in 0..self.depth {
                self.output.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.output.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.output.push_str("\\\""),
                '\\' => self.output.push_str("\\\\"),
                '\n' => self.output.push_str("\\n"),
                '\r' => self.output.push_str("\\r"),
                '\t' => self.output.push_str("\\t"),
                '\u{8}' => self.output.push_str("\\b"),
                '\u{c}' => self.output.push_str("\\f"),
                letter if letter < ' ' || (self.style.ascii && letter > '~') => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(self.output, "\\u{unit:04x}");
                    }
                }
                letter => self.output.push(letter),
            }
        }
        self.output.push('"');
    }
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => match number {
            number if number.is_nan() => "NaN".to_string(),
            number if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_string(),
            number => python::float(number),
        },
        _ => value.to_string(),
    }
}

fn refused(kind: ValueKind) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("a value of type {kind} cannot be written as JSON"))
}
