//! The values of templates, which follow Python's as far as templates can see them.
//!
//! Invariant: values nest at most [`MAX_DEPTH`] levels, so that walking and dropping one never exhausts a stack. Values
//! that may contain themselves (namespaces, scopes of macros) are owned by the rendering and emptied at its end.

mod key;

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;

use super::fault::{Fault, Outcome, invalid};
use super::meter::{Buffer, Meter, Reservation, STEP};
pub(super) use key::Key;
use key::Name;

/// The maximum nesting of lists, mappings and objects. JSON in requests has at most 128 levels.
pub(super) const MAX_DEPTH: u16 = 200;

/// The bytes of a value besides its content.
const OVERHEAD: usize = 64;

/// A value.
#[derive(Clone)]
pub(super) enum Value {
    /// A missing value, with its name for messages.
    Undefined(Option<Arc<str>>),
    None,
    Bool(bool),
    Int(i128),
    /// An integer beyond 128 bits. It can only be printed and compared.
    Long(Rc<Text>),
    Float(f64),
    Text(Rc<Text>),
    List(Rc<List>),
    Map(Rc<Map>),
    Object(Rc<dyn Object>),
}

/// A text.
pub(super) struct Text {
    content: String,
    /// True if marked by `safe` or `escape`, like `Markup`: text that is added is escaped.
    pub(super) safe: bool,
    _held: Reservation,
}

/// A list or another Python sequence.
pub(super) struct List {
    items: Vec<Value>,
    pub(super) kind: ListKind,
    depth: u16,
    _held: Reservation,
}

/// The Python type of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    List,
    Tuple,
    /// `range(start, stop, step)`
    Range(i64, i64, i64),
    /// The result of `items()`, `keys()` or `values()` of a mapping: neither indexed nor sliced.
    View(&'static str),
    /// A pair of `groupby`: a tuple with the attributes `grouper` and `list`.
    Group,
    /// The result of filters such as `map`: without a length, and always true.
    Generator,
}

/// A mapping in insertion order.
pub(super) struct Map {
    entries: Entries,
    depth: u16,
    _held: Reservation,
}

pub(super) type Entries = IndexMap<Key, Value>;

/// A value with its own methods, compared by identity.
pub(super) trait Object: Any {
    /// Returns Python's `repr` of it.
    fn label(&self) -> String;

    /// Returns the nesting depth of the values in it that cannot contain it.
    fn depth(&self) -> u16 {
        0
    }

    /// Returns true if templates may call it.
    fn is_callable(&self) -> bool {
        true
    }

    /// Calls a method with positional arguments.
    fn invoke(&self, _meter: &Meter, method: &str, _arguments: Vec<Value>) -> Outcome<Value> {
        Err(invalid(format!("{} has no method {method}", self.label())))
    }

    /// Returns an attribute, if it has one of that name.
    fn attribute(&self, _meter: &Meter, _name: &str) -> Outcome<Option<Value>> {
        Ok(None)
    }
}

impl Value {
    /// Returns a text and counts its bytes.
    pub(super) fn text(meter: &Meter, text: impl Into<String>) -> Outcome<Self> {
        Self::marked(meter, text, false)
    }

    /// Returns a text, marked as `safe` or not.
    pub(super) fn marked(meter: &Meter, text: impl Into<String>, safe: bool) -> Outcome<Self> {
        let text = text.into();
        let held = meter.reserve(OVERHEAD + text.capacity())?;
        Ok(Self::Text(Rc::new(Text { content: text, safe, _held: held })))
    }

    /// Returns an integer of any length from its digits, and counts its bytes.
    pub(super) fn long(meter: &Meter, digits: String) -> Outcome<Self> {
        let held = meter.reserve(OVERHEAD + digits.capacity())?;
        Ok(Self::Long(Rc::new(Text { content: digits, safe: false, _held: held })))
    }

    /// Returns a text whose bytes are already counted.
    pub(super) fn buffered(buffer: Buffer, safe: bool) -> Outcome<Self> {
        let (text, mut held) = buffer.into_parts();
        held.grow(OVERHEAD)?;
        Ok(Self::Text(Rc::new(Text { content: text, safe, _held: held })))
    }

    pub(super) fn list(meter: &Meter, items: Vec<Self>) -> Outcome<Self> {
        Self::list_of(meter, items, ListKind::List)
    }

    pub(super) fn tuple(meter: &Meter, items: Vec<Self>) -> Outcome<Self> {
        Self::list_of(meter, items, ListKind::Tuple)
    }

    pub(super) fn generator(meter: &Meter, items: Vec<Self>) -> Outcome<Self> {
        Self::list_of(meter, items, ListKind::Generator)
    }

    pub(super) fn list_of(meter: &Meter, items: Vec<Self>, kind: ListKind) -> Outcome<Self> {
        let depth = above(items.iter())?;
        let held = meter.reserve(OVERHEAD + items.capacity() * size_of::<Self>())?;
        Ok(Self::List(Rc::new(List { items, kind, depth, _held: held })))
    }

    pub(super) fn map(meter: &Meter, entries: Entries) -> Outcome<Self> {
        let depth = above(entries.values())?;
        // Keys and values, hashes, and the hash table.
        let entry = size_of::<Key>() + size_of::<Self>() + 3 * size_of::<usize>();
        let held = meter.reserve(OVERHEAD + entries.capacity() * entry)?;
        Ok(Self::Map(Rc::new(Map { entries, depth, _held: held })))
    }

    pub(super) fn object(object: impl Object) -> Outcome<Self> {
        if object.depth() > MAX_DEPTH {
            return Err(too_deep());
        }
        Ok(Self::Object(Rc::new(object)))
    }

    /// Returns the nesting depth of the value.
    pub(super) fn depth(&self) -> u16 {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            Self::Object(object) => object.depth(),
            _ => 0,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(&text.content),
            _ => None,
        }
    }

    /// Returns the name of an undefined value.
    pub(super) fn undefined_name(&self) -> Option<&str> {
        match self {
            Self::Undefined(name) => Some(name.as_deref().unwrap_or("value")),
            _ => None,
        }
    }

    /// Returns true for a text that is marked as `safe`.
    pub(super) fn is_safe(&self) -> bool {
        matches!(self, Self::Text(text) if text.safe)
    }

    /// Returns an integer, or a boolean as 0 or 1.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(flag) => Some(i128::from(*flag)),
            _ => None,
        }
    }

    /// Returns a number as a float.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Long(digits) => digits.content.parse().ok(),
            other => other.as_int().map(|number| number as f64),
        }
    }

    /// Returns Python's truth value.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(flag) => *flag,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
            Self::Text(text) => !text.content.is_empty(),
            Self::List(list) => list.kind == ListKind::Generator || !list.items.is_empty(),
            Self::Map(map) => !map.entries.is_empty(),
            Self::Long(_) | Self::Object(_) => true,
        }
    }

    /// Returns the name of the Python type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Long(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(list) => match list.kind {
                ListKind::List => "list",
                ListKind::Tuple | ListKind::Group => "tuple",
                ListKind::Range(..) => "range",
                ListKind::View(name) => name,
                ListKind::Generator => "generator",
            },
            Self::Map(_) => "dict",
            Self::Object(_) => "object",
        }
    }

    /// Returns the values over which a loop iterates.
    pub(super) fn iterate(&self, meter: &Meter) -> Outcome<Rc<List>> {
        let items = match self {
            Self::List(list) => {
                meter.spend(list.items.len() * STEP)?;
                return Ok(Rc::clone(list));
            }
            Self::Undefined(_) => Vec::new(),
            Self::Map(map) => {
                meter.check_memory(map.entries.len() * size_of::<Self>())?;
                map.entries.keys().map(|key| key.value().clone()).collect()
            }
            Self::Text(text) => {
                meter.check_memory(text.content.len() * (size_of::<Self>() + OVERHEAD))?;
                text.content
                    .chars()
                    .map(|letter| Self::marked(meter, letter, text.safe))
                    .collect::<Outcome<_>>()?
            }
            other => return Err(invalid(format!("{} is not iterable", other.type_name()))),
        };
        match Self::list(meter, items)? {
            Self::List(list) => Ok(list),
            _ => Err(invalid("expected a list")),
        }
    }

    /// Python's `==`.
    pub(super) fn equals(&self, other: &Self, meter: &Meter) -> Outcome<bool> {
        meter.spend(STEP)?;
        Ok(match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::Text(one), Self::Text(other)) => {
                meter.spend(one.content.len().min(other.content.len()))?;
                one.content == other.content
            }
            (Self::List(one), Self::List(other)) => {
                let same_kind = std::mem::discriminant(&one.kind) == std::mem::discriminant(&other.kind);
                if !same_kind || one.items.len() != other.items.len() {
                    return Ok(false);
                }
                for (one, other) in one.items.iter().zip(&other.items) {
                    if !one.equals(other, meter)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Map(one), Self::Map(other)) => {
                if one.entries.len() != other.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &one.entries {
                    meter.spend(key.size())?;
                    match other.entries.get(key) {
                        Some(other) if value.equals(other, meter)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::Object(one), Self::Object(other)) => Rc::ptr_eq(one, other),
            (Self::Long(one), Self::Long(other)) => one.content == other.content,
            _ => match (self.as_int(), other.as_int()) {
                (Some(one), Some(other)) => one == other,
                _ => self.as_float().is_some_and(|one| other.as_float() == Some(one)),
            },
        })
    }
}

/// Returns the depth of a value that contains these.
fn above<'a>(values: impl Iterator<Item = &'a Value>) -> Outcome<u16> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > MAX_DEPTH { Err(too_deep()) } else { Ok(depth) }
}

fn too_deep() -> Fault {
    Fault::limit(format!("nests values more than {MAX_DEPTH} levels deep"))
}

/// Returns a mapping of named values.
pub(super) fn named(values: Vec<(String, Value)>, meter: &Meter) -> Outcome<Value> {
    let mut entries = Entries::new();
    for (name, value) in values {
        entries.insert(Key::new(&Value::text(meter, name)?)?, value);
    }
    Value::map(meter, entries)
}

impl Text {
    pub(super) fn content(&self) -> &str {
        &self.content
    }

    /// Returns true for equal short texts. Python interns short strings, so `is` is often true for equal ones.
    pub(super) fn is_short_and_equal(&self, other: &Self) -> bool {
        self.content.len() < 32 && self.content == other.content
    }
}

impl List {
    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    pub(super) fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the number of items; `None` for generators.
    pub(super) fn length(&self) -> Option<usize> {
        (self.kind != ListKind::Generator).then_some(self.items.len())
    }

    /// Returns true if the items have indices.
    pub(super) fn is_sequence(&self) -> bool {
        matches!(self.kind, ListKind::List | ListKind::Tuple | ListKind::Group | ListKind::Range(..))
    }
}

impl Map {
    pub(super) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Returns the value of a text key.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.entries.get(&Name(name))
    }
}
