//! Texts marked by `safe` or `escape`, as in MarkupSafe: text that is added to them is escaped.

use super::fault::Outcome;
use super::meter::{Buffer, Meter};
use super::python;
use super::value::Value;

/// `escape(value)`: escapes a value for HTML unless it is already marked.
pub(super) fn escape(value: &Value, meter: &Meter) -> Outcome<Value> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = python::str(value, meter)?;
    let mut buffer = Buffer::new(meter);
    for letter in text.as_text().unwrap_or_default().chars() {
        match letter {
            '&' => buffer.push("&amp;")?,
            '<' => buffer.push("&lt;")?,
            '>' => buffer.push("&gt;")?,
            '\'' => buffer.push("&#39;")?,
            '"' => buffer.push("&#34;")?,
            letter => buffer.push_char(letter)?,
        }
    }
    Value::buffered(buffer, true)
}

/// Returns a value to insert into a text, escaped if that text is marked.
pub(super) fn entering(value: &Value, safe: bool, meter: &Meter) -> Outcome<Value> {
    if safe { escape(value, meter) } else { Ok(value.clone()) }
}
