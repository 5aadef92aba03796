//! The values of templates: Python's, as far as templates see them.
//!
//! Invariant: a value holds no more than [`MAX_DEPTH`] levels of others, so that walking and dropping one never exhausts a stack. What
//! may hold itself (namespaces, scopes of macros) is owned by the rendering and emptied at its end.

mod key;

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexMap;

use super::fault::{Fault, Outcome, invalid};
use super::meter::{Buffer, Held, Meter, STEP};
pub(super) use key::Key;
use key::Name;

/// The most levels of nested lists, mappings and objects. JSON of requests has at most 128.
pub(super) const MAX_DEPTH: u16 = 200;

/// The bytes around the content of a value.
const OVERHEAD: usize = 64;

/// A value.
#[derive(Clone)]
pub(super) enum Value {
    /// What was looked up in vain, for messages.
    Undefined(Option<Arc<str>>),
    None,
    Bool(bool),
    Int(i128),
    /// An integer beyond 128 bits, which is only written and compared.
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
    /// Marked by `safe` or `escape`, like `Markup`: what is added to it is escaped.
    pub(super) safe: bool,
    _held: Held,
}

/// A list, or what Python gives in its place.
pub(super) struct List {
    items: Vec<Value>,
    pub(super) kind: ListKind,
    depth: u16,
    _held: Held,
}

/// What a list is in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListKind {
    List,
    Tuple,
    /// `range(start, stop, step)`
    Range(i64, i64, i64),
    /// What `items()`, `keys()` and `values()` of a mapping give: neither indexed nor sliced.
    View(&'static str),
    /// A pair of `groupby`: a tuple with the attributes `grouper` and `list`.
    Group,
    /// What filters such as `map` give: without a length, and always true.
    Generator,
}

/// A mapping in the order of insertion.
pub(super) struct Map {
    entries: Entries,
    depth: u16,
    _held: Held,
}

pub(super) type Entries = IndexMap<Key, Value>;

/// A value with methods of its own, compared by identity.
pub(super) trait Object: Any {
    /// Python's text for it.
    fn label(&self) -> String;

    /// The levels of values in it that cannot hold itself.
    fn depth(&self) -> u16 {
        0
    }

    /// Whether templates may call it.
    fn is_callable(&self) -> bool {
        true
    }

    /// Calls a method with positional arguments.
    fn invoke(&self, _meter: &Meter, method: &str, _arguments: Vec<Value>) -> Outcome<Value> {
        Err(invalid(format!("{} has no method {method}", self.label())))
    }

    /// An attribute, if it has one of that name.
    fn attribute(&self, _meter: &Meter, _name: &str) -> Outcome<Option<Value>> {
        Ok(None)
    }
}

impl Value {
    /// A text; its bytes are counted.
    pub(super) fn text(meter: &Meter, text: impl Into<String>) -> Outcome<Self> {
        Self::marked(meter, text, false)
    }

    /// A text that is marked as `safe` or not.
    pub(super) fn marked(meter: &Meter, text: impl Into<String>, safe: bool) -> Outcome<Self> {
        let text = text.into();
        let held = meter.hold(OVERHEAD + text.capacity())?;
        Ok(Self::Text(Rc::new(Text { content: text, safe, _held: held })))
    }

    /// An integer of any length, by its digits; its bytes are counted.
    pub(super) fn long(meter: &Meter, digits: String) -> Outcome<Self> {
        let held = meter.hold(OVERHEAD + digits.capacity())?;
        Ok(Self::Long(Rc::new(Text { content: digits, safe: false, _held: held })))
    }

    /// A text whose bytes have been counted.
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
        let held = meter.hold(OVERHEAD + items.capacity() * size_of::<Self>())?;
        Ok(Self::List(Rc::new(List { items, kind, depth, _held: held })))
    }

    pub(super) fn map(meter: &Meter, entries: Entries) -> Outcome<Self> {
        let depth = above(entries.values())?;
        // Keys and values, hashes, and the table that finds them.
        let entry = size_of::<Key>() + size_of::<Self>() + 3 * size_of::<usize>();
        let held = meter.hold(OVERHEAD + entries.capacity() * entry)?;
        Ok(Self::Map(Rc::new(Map { entries, depth, _held: held })))
    }

    pub(super) fn object(object: impl Object) -> Outcome<Self> {
        if object.depth() > MAX_DEPTH {
            return Err(too_deep());
        }
        Ok(Self::Object(Rc::new(object)))
    }

    /// The levels of values that it holds.
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

    /// The name of what is undefined.
    pub(super) fn undefined_name(&self) -> Option<&str> {
        match self {
            Self::Undefined(name) => Some(name.as_deref().unwrap_or("value")),
            _ => None,
        }
    }

    /// Whether it is a text that is marked as `safe`.
    pub(super) fn is_safe(&self) -> bool {
        matches!(self, Self::Text(text) if text.safe)
    }

    /// An integer, or a boolean as 0 or 1.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bool(flag) => Some(i128::from(*flag)),
            _ => None,
        }
    }

    /// A number as a float.
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Long(digits) => digits.content.parse().ok(),
            other => other.as_int().map(|number| number as f64),
        }
    }

    /// Whether it counts as true.
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

    /// The name of its type in Python.
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

    /// The values that a loop over it passes.
    pub(super) fn iterate(&self, meter: &Meter) -> Outcome<Rc<List>> {
        let items = match self {
            Self::List(list) => {
                meter.spend(list.items.len() * STEP)?;
                return Ok(Rc::clone(list));
            }
            Self::Undefined(_) => Vec::new(),
            Self::Map(map) => {
                meter.expect_room(map.entries.len() * size_of::<Self>())?;
                map.entries.keys().map(|key| key.value().clone()).collect()
            }
            Self::Text(text) => {
                meter.expect_room(text.content.len() * (size_of::<Self>() + OVERHEAD))?;
                text.content
                    .chars()
                    .map(|letter| Self::marked(meter, letter, text.safe))
                    .collect::<Outcome<_>>()?
            }
            other => return Err(invalid(format!("{} is not iterable", other.type_name()))),
        };
        match Self::list(meter, items)? {
            Self::List(list) => Ok(list),
            _ => Err(invalid("a list was expected")),
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

/// The depth of a value that holds these.
fn above<'a>(values: impl Iterator<Item = &'a Value>) -> Outcome<u16> {
    let depth = 1 + values.map(Value::depth).max().unwrap_or(0);
    if depth > MAX_DEPTH { Err(too_deep()) } else { Ok(depth) }
}

fn too_deep() -> Fault {
    Fault::limit(format!("nests values more than {MAX_DEPTH} levels deep"))
}

/// A mapping of named values.
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

    /// Python keeps short texts once, so equal ones are often the same.
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

    /// The number of items; generators have none.
    pub(super) fn length(&self) -> Option<usize> {
        (self.kind != ListKind::Generator).then_some(self.items.len())
    }

    /// Whether it has numbered items.
    pub(super) fn is_sequence(&self) -> bool {
        matches!(self.kind, ListKind::List | ListKind::Tuple | ListKind::Group | ListKind::Range(..))
    }
}

impl Map {
    pub(super) fn entries(&self) -> &Entries {
        &self.entries
    }

    /// The value of a textual key.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.entries.get(&Name(name))
    }
}
