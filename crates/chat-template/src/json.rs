//! Writes values as JSON, like Python's `json.dumps`.

use super::fault::{Outcome, invalid};
use super::meter::{Buffer, Meter};
use super::python;
use super::value::{Key, List, ListKind, Map, Value};

/// The options of `json.dumps`.
pub(super) struct Style {
    pub(super) ascii: bool,
    /// The indent of one level of nesting; `None` writes a single line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

/// Returns the JSON of `value`.
pub(super) fn dump(value: &Value, style: &Style, meter: &Meter) -> Outcome<Value> {
    let mut writer = Writer { style, output: Buffer::new(meter), depth: 0 };
    writer.value(value)?;
    Value::buffered(writer.output, false)
}

struct Writer<'a> {
    style: &'a Style,
    output: Buffer,
    depth: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Outcome<()> {
        match value {
            Value::None => self.output.push("null"),
            Value::Bool(flag) => self.output.push(if *flag { "true" } else { "false" }),
            Value::Int(number) => self.output.push(&number.to_string()),
            Value::Long(digits) => self.output.push(digits.content()),
            Value::Float(number) => self.output.push(&float(*number)),
            Value::Text(_) => self.string(value.as_text().unwrap_or_default()),
            Value::List(list) if matches!(list.kind, ListKind::List | ListKind::Tuple) => self.list(list),
            Value::Map(map) => self.object(map),
            other => Err(refused(other)),
        }
    }

    fn list(&mut self, list: &List) -> Outcome<()> {
        self.open("[")?;
        for (index, item) in list.items().iter().enumerate() {
            self.item(index == 0)?;
            self.value(item)?;
        }
        self.close("]", list.items().is_empty())
    }

    fn object(&mut self, map: &Map) -> Outcome<()> {
        let meter = self.output.meter().clone();
        meter.check_memory(map.entries().len() * 2 * size_of::<&Value>())?;
        let mut entries: Vec<(&Key, &Value)> = map.entries().iter().collect();
        if self.style.sort_keys {
            if entries.iter().any(|(key, _)| key.value().as_text().is_none()) {
                return Err(invalid("sort_keys needs string keys"));
            }
            meter.spend(map.entries().keys().map(Key::size).sum::<usize>().saturating_mul(8))?;
            entries.sort_by_key(|(key, _)| key.value().as_text());
        }
        self.open("{")?;
        for (index, (key, item)) in entries.iter().enumerate() {
            self.item(index == 0)?;
            match key.value() {
                Value::Text(_) => self.string(key.value().as_text().unwrap_or_default())?,
                scalar
                @ (Value::None | Value::Bool(_) | Value::Int(_) | Value::Long(_) | Value::Float(_)) => {
                    self.output.push("\"")?;
                    self.value(scalar)?;
                    self.output.push("\"")?;
                }
                other => return Err(refused(other)),
            }
            self.output.push(&self.style.key_separator)?;
            self.value(item)?;
        }
        self.close("}", entries.is_empty())
    }

    fn open(&mut self, bracket: &str) -> Outcome<()> {
        self.depth += 1;
        self.output.push(bracket)
    }

    fn item(&mut self, first: bool) -> Outcome<()> {
        if !first {
            self.output.push(&self.style.item_separator)?;
        }
        self.new_line()
    }

    fn close(&mut self, bracket: &str, empty: bool) -> Outcome<()> {
        self.depth -= 1;
        if !empty {
            self.new_line()?;
        }
        self.output.push(bracket)
    }

    fn new_line(&mut self) -> Outcome<()> {
        let Some(indent) = &self.style.indent else { return Ok(()) };
        self.output.push("\n")?;
        (0..self.depth).try_for_each(|_| self.output.push(indent))
    }

    fn string(&mut self, text: &str) -> Outcome<()> {
        self.output.push("\"")?;
        for letter in text.chars() {
            match letter {
                '"' => self.output.push("\\\"")?,
                '\\' => self.output.push("\\\\")?,
                '\n' => self.output.push("\\n")?,
                '\r' => self.output.push("\\r")?,
                '\t' => self.output.push("\\t")?,
                '\u{8}' => self.output.push("\\b")?,
                '\u{c}' => self.output.push("\\f")?,
                letter if letter < ' ' || (self.style.ascii && letter > '~') => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        self.output.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                letter => self.output.push_char(letter)?,
            }
        }
        self.output.push("\"")
    }
}

fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    python::float(number)
}

fn refused(value: &Value) -> super::fault::Fault {
    match value {
        Value::Undefined(Some(name)) => {
            invalid(format!("`{name}` is undefined and cannot be written as JSON"))
        }
        other => invalid(format!("a value of type {} cannot be written as JSON", other.type_name())),
    }
}
