//! The variables of a template, and the objects that refer to scopes.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::fault::{Outcome, invalid};
use super::meter::Meter;
use super::syntax::ast::{For, Macro};
use super::value::{List, Object, Value};

/// The variables of a block, and the enclosing scope.
#[derive(Default)]
pub(super) struct Scope {
    variables: RefCell<HashMap<Arc<str>, Value>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    pub(super) fn inside(parent: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self { variables: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }

    pub(super) fn set(&self, name: &Arc<str>, value: Value) {
        self.variables.borrow_mut().insert(Arc::clone(name), value);
    }

    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let mut scope = self;
        loop {
            if let Some(value) = scope.variables.borrow().get(name) {
                return Some(value.clone());
            }
            scope = scope.parent.as_deref()?;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.variables.borrow().len()
    }

    /// Drops the variables, which may refer to this scope.
    pub(super) fn clear(&self) {
        let variables = self.variables.take();
        drop(variables);
    }
}

/// `namespace(...)`: the only value that templates can change. It may contain itself, so the rendering empties it at
/// the end.
#[derive(Default)]
pub(super) struct Namespace(pub(super) RefCell<HashMap<Arc<str>, Value>>);

impl Object for Rc<Namespace> {
    fn label(&self) -> String {
        "<Namespace>".to_owned()
    }

    fn is_callable(&self) -> bool {
        false
    }

    fn attribute(&self, _meter: &Meter, name: &str) -> Outcome<Option<Value>> {
        Ok(self.0.borrow().get(name).cloned())
    }
}

/// A macro, or the `caller` of a call block.
pub(super) struct MacroValue {
    pub(super) definition: Arc<Macro>,
    pub(super) scope: Rc<Scope>,
}

impl Object for MacroValue {
    fn label(&self) -> String {
        format!("<Macro '{}'>", self.definition.name)
    }

    fn attribute(&self, meter: &Meter, name: &str) -> Outcome<Option<Value>> {
        let definition = &self.definition;
        Ok(Some(match name {
            "name" => Value::text(meter, &*definition.name)?,
            "arguments" => {
                let names = definition.parameters.iter().map(|(name, _)| Value::text(meter, &**name));
                Value::tuple(meter, names.collect::<Outcome<_>>()?)?
            }
            "catch_varargs" => Value::Bool(definition.takes.varargs),
            "catch_kwargs" => Value::Bool(definition.takes.kwargs),
            "caller" => Value::Bool(definition.takes.caller),
            _ => return Ok(None),
        }))
    }
}

/// The variable `loop`.
pub(super) struct Loop {
    pub(super) items: Rc<List>,
    pub(super) index: Cell<usize>,
    /// The number of loops that called it recursively.
    pub(super) level: usize,
    /// The last values passed to `loop.changed`. Emptied when the loop ends.
    pub(super) changed: RefCell<Option<Value>>,
    pub(super) ended: Cell<bool>,
    /// The loop's syntax node, and the enclosing scope.
    pub(super) node: Arc<For>,
    pub(super) scope: Rc<Scope>,
}

impl Object for Rc<Loop> {
    fn label(&self) -> String {
        format!("<LoopContext {}/{}>", self.index.get() + 1, self.items.items().len())
    }

    fn depth(&self) -> u16 {
        1 + self.items.depth()
    }

    fn is_callable(&self) -> bool {
        self.node.recursive
    }

    fn attribute(&self, _meter: &Meter, name: &str) -> Outcome<Option<Value>> {
        let (index, items) = (self.index.get(), self.items.items());
        let number = |number: usize| Value::Int(number as i128);
        let neighbour = |place: Option<usize>| place.and_then(|place| items.get(place)).cloned();
        Ok(Some(match name {
            "index" => number(index + 1),
            "index0" => number(index),
            "revindex" => number(items.len() - index),
            "revindex0" => number(items.len() - index - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == items.len()),
            "length" => number(items.len()),
            "depth" => number(self.level + 1),
            "depth0" => number(self.level),
            "previtem" => neighbour(index.checked_sub(1)).unwrap_or(Value::Undefined(None)),
            "nextitem" => neighbour(Some(index + 1)).unwrap_or(Value::Undefined(None)),
            _ => return Ok(None),
        }))
    }

    fn invoke(&self, meter: &Meter, method: &str, arguments: Vec<Value>) -> Outcome<Value> {
        match method {
            "cycle" if !arguments.is_empty() => Ok(arguments[self.index.get() % arguments.len()].clone()),
            "changed" => {
                let now = Value::tuple(meter, arguments)?;
                let same = match &*self.changed.borrow() {
                    Some(before) => before.equals(&now, meter)?,
                    None => false,
                };
                // An ended loop stores nothing, since the values may contain the loop.
                self.changed.replace(if self.ended.get() { None } else { Some(now) });
                Ok(Value::Bool(!same))
            }
            _ => Err(invalid(format!("loop has no method {method}"))),
        }
    }
}
