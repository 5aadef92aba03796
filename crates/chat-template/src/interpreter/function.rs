//! The global functions of templates.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::super::arguments::{Arguments, integer, text};
use super::super::clock;
use super::super::fault::{Fault, Outcome, invalid};
use super::super::meter::Meter;
use super::super::python;
use super::super::scope::Namespace;
use super::super::value::{Entries, Key, List, ListKind, Object, Value};
use super::{Interpreter, SCOPE_BYTES, VARIABLE_BYTES};

/// The maximum length of a `range`, as in Jinja's sandbox.
const MAX_RANGE: i64 = 100_000;

/// A function, identified by its name.
#[derive(Clone, Copy)]
pub(super) struct Function(&'static str);

impl Object for Function {
    fn label(&self) -> String {
        format!("<function {}>", self.0)
    }
}

/// Returns all functions by name.
pub(super) fn all() -> Outcome<Vec<(Arc<str>, Value)>> {
    let names = ["range", "dict", "namespace", "cycler", "joiner", "raise_exception", "strftime_now"];
    names.into_iter().map(|name| Ok((name.into(), Value::object(Function(name))?))).collect()
}

impl Interpreter {
    pub(super) fn call_function(&mut self, function: Function, arguments: Arguments) -> Outcome<Value> {
        let meter = &self.meter;
        match function.0 {
            "range" => range(&arguments, meter),
            "dict" => Value::map(meter, entries(arguments, meter)?),
            "namespace" => {
                let entries = entries(arguments, meter)?;
                let held = meter.reserve(SCOPE_BYTES + entries.len() * VARIABLE_BYTES)?;
                let namespace = Namespace::default();
                for (key, value) in entries {
                    namespace.0.borrow_mut().insert(text(key.value())?.into(), value);
                }
                let namespace = Rc::new(namespace);
                self.namespaces.push((Rc::clone(&namespace), held));
                Value::object(namespace)
            }
            "cycler" => {
                let Value::List(items) = Value::list(meter, arguments.positional)? else {
                    return Ok(Value::None);
                };
                if items.items().is_empty() {
                    return Err(invalid("cycler takes at least one item"));
                }
                Value::object(Cycler { items, at: Cell::new(0) })
            }
            "joiner" => {
                let [separator] = arguments.bind(["sep"])?;
                let separator = separator.map_or_else(|| Value::text(meter, ", "), Ok)?;
                Value::object(Joiner { separator, used: Cell::new(false) })
            }
            "raise_exception" => {
                let [message] = arguments.bind(["message"])?;
                let message = python::str(&message.unwrap_or(Value::None), meter)?;
                Err(Fault::raised(text(&message)?))
            }
            _ => {
                let [format] = arguments.require(["format"])?;
                let format = text(&format)?;
                // One directive may expand to many characters.
                meter.check_memory(format.len().saturating_mul(64))?;
                let now = self.now.unwrap_or_else(|| jiff::Zoned::now().datetime());
                Value::text(meter, clock::format(now, format))
            }
        }
    }
}

/// `range(stop)` and `range(start, stop, step)`
fn range(arguments: &Arguments, meter: &Meter) -> Outcome<Value> {
    let numbers: Vec<i64> =
        arguments.positional.iter().map(|number| integer(Some(number), 0)).collect::<Outcome<_>>()?;
    let (start, stop, stride) = match numbers.as_slice() {
        [stop] => (0, *stop, 1),
        [start, stop] => (*start, *stop, 1),
        [start, stop, stride] if *stride != 0 => (*start, *stop, *stride),
        _ => return Err(invalid("range takes one to three integers, the last of them not zero")),
    };
    let (first, end, by) = (i128::from(start), i128::from(stop), i128::from(stride));
    let count = if stride > 0 { (end - first + by - 1) / by } else { (first - end - by - 1) / -by };
    if count > i128::from(MAX_RANGE) {
        return Err(Fault::limit(format!("has a range of more than {MAX_RANGE} numbers")));
    }
    let count = count.max(0);
    meter.check_memory(count as usize * size_of::<Value>())?;
    let items = (0..count).map(|index| Value::Int(first + index * by)).collect();
    Value::list_of(meter, items, ListKind::Range(start, stop, stride))
}

/// Returns the entries of `dict(mapping or pairs, **entries)`.
fn entries(arguments: Arguments, meter: &Meter) -> Outcome<Entries> {
    let mut entries = Entries::new();
    let mut given = arguments.positional.into_iter();
    let (start, more) = (given.next(), given.next());
    if more.is_some() {
        return Err(invalid("dict takes one mapping or list of pairs"));
    }
    match start {
        Some(Value::Map(map)) => {
            meter.check_memory(map.entries().len() * 3 * size_of::<Value>())?;
            entries.extend(map.entries().iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Some(pairs) => {
            for pair in pairs.iterate(meter)?.items() {
                let pair = pair.iterate(meter)?;
                let [key, value] = pair.items() else {
                    return Err(invalid("dict takes pairs of keys and values"));
                };
                let key = Key::new(key)?;
                meter.spend(key.size())?;
                entries.insert(key, value.clone());
            }
        }
        None => {}
    }
    for (name, value) in arguments.named {
        entries.insert(Key::new(&Value::text(meter, name)?)?, value);
    }
    Ok(entries)
}

/// `cycler(...)`: returns its items in turn, repeatedly.
struct Cycler {
    items: Rc<List>,
    at: Cell<usize>,
}

impl Object for Cycler {
    fn label(&self) -> String {
        "<Cycler>".to_owned()
    }

    fn depth(&self) -> u16 {
        1 + self.items.depth()
    }

    fn is_callable(&self) -> bool {
        false
    }

    fn attribute(&self, _meter: &Meter, name: &str) -> Outcome<Option<Value>> {
        Ok(if name == "current" { self.items.items().get(self.at.get()).cloned() } else { None })
    }

    fn invoke(&self, _meter: &Meter, method: &str, _arguments: Vec<Value>) -> Outcome<Value> {
        let at = self.at.get();
        match method {
            "next" => self.at.set((at + 1) % self.items.items().len()),
            "reset" => {
                self.at.set(0);
                return Ok(Value::None);
            }
            _ => return Err(invalid(format!("cycler has no method {method}"))),
        }
        Ok(self.items.items()[at].clone())
    }
}

/// `joiner(sep)`: returns an empty text on the first call, and the separator on all others.
struct Joiner {
    separator: Value,
    used: Cell<bool>,
}

impl Object for Joiner {
    fn label(&self) -> String {
        "<Joiner>".to_owned()
    }

    fn depth(&self) -> u16 {
        1 + self.separator.depth()
    }

    fn invoke(&self, meter: &Meter, method: &str, _arguments: Vec<Value>) -> Outcome<Value> {
        match (method, self.used.replace(true)) {
            ("__call__", true) => Ok(self.separator.clone()),
            ("__call__", false) => Value::text(meter, ""),
            _ => Err(invalid(format!("joiner has no method {method}"))),
        }
    }
}
