//! Executes templates.
//!
//! Invariant: the recursion depth is counted, here and in values, so that no template exhausts the stack of its thread.

mod call;
mod evaluate;
mod function;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use jiff::civil::DateTime;

use super::fault::{Fault, Outcome, at, invalid};
use super::meter::{Buffer, Meter, Reservation, STEP};
use super::python;
use super::scope::{Loop, MacroValue, Namespace, Scope};
use super::syntax::ast::{Expression, For, Statement, StatementKind as Is, Target};
use super::value::{ListKind, Value};

/// The maximum nesting of statements, expressions and calls.
const MAX_DEPTH: usize = 3000;

/// The size in bytes of an empty scope or namespace, and of a variable in it.
const SCOPE_BYTES: usize = 256;
const VARIABLE_BYTES: usize = 64;

/// The control flow after a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// One rendering.
pub(super) struct Interpreter {
    meter: Meter,
    /// The time for `strftime_now`.
    now: Option<DateTime>,
    depth: usize,
    /// The text of the block that filters are applied to.
    body: Option<Value>,
    /// Scopes and namespaces may contain themselves. They are stored here with their memory, and emptied at the end.
    scopes: Vec<(Rc<Scope>, Option<Reservation>)>,
    namespaces: Vec<(Rc<Namespace>, Reservation)>,
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        // All of them exist until all are empty, so dropping one never recursively drops another.
        self.scopes.iter().for_each(|(scope, _)| scope.clear());
        self.namespaces.iter().for_each(|(namespace, _)| drop(namespace.0.take()));
    }
}

/// Renders a template with these variables. `strftime_now` uses `now`, or the clock.
pub(super) fn render(
    body: &[Statement],
    variables: Vec<(Arc<str>, Value)>,
    now: Option<DateTime>,
    meter: &Meter,
) -> Outcome<String> {
    let (scopes, namespaces) = (Vec::new(), Vec::new());
    let mut interpreter = Interpreter { meter: meter.clone(), now, depth: 0, body: None, scopes, namespaces };
    let root = Rc::new(Scope::default());
    interpreter.scopes.push((Rc::clone(&root), None));
    for (name, function) in function::all()? {
        root.set(&name, function);
    }
    for (name, value) in variables {
        root.set(&name, value);
    }
    let mut output = Buffer::new(meter);
    interpreter.whole_body(body, &root, &mut output)?;
    Ok(output.into_parts().0)
}

impl Interpreter {
    /// Runs `work` one level deeper.
    fn nested<T>(&mut self, work: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.meter.spend(STEP)?;
        if self.depth == MAX_DEPTH {
            return Err(Fault::limit("recurses too deeply"));
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    /// Runs a body outside any loop.
    fn whole_body(&mut self, body: &[Statement], scope: &Rc<Scope>, output: &mut Buffer) -> Outcome<()> {
        match self.run(body, scope, output)? {
            Flow::Next => Ok(()),
            Flow::Break | Flow::Continue => Err(invalid("break and continue are only valid in loops")),
        }
    }

    /// Runs a body in a new scope.
    fn run_inside(&mut self, body: &[Statement], parent: &Rc<Scope>, output: &mut Buffer) -> Outcome<Flow> {
        let scope = Scope::inside(parent);
        let flow = self.run(body, &scope, output);
        self.leave(scope)?;
        flow
    }

    fn run(&mut self, body: &[Statement], scope: &Rc<Scope>, output: &mut Buffer) -> Outcome<Flow> {
        for statement in body {
            let ran = self.nested(|this| this.statement(statement, scope, output));
            let flow = at(statement.line, ran)?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    /// Ends a scope. If a macro still refers to it, it is kept until the end.
    fn leave(&mut self, scope: Rc<Scope>) -> Outcome<()> {
        if Rc::strong_count(&scope) == 1 {
            return Ok(());
        }
        let held = self.meter.reserve(SCOPE_BYTES + scope.len() * VARIABLE_BYTES);
        let (held, outcome) = held.map_or_else(|fault| (None, Err(fault)), |held| (Some(held), Ok(())));
        self.scopes.push((scope, held));
        outcome
    }

    fn statement(&mut self, statement: &Statement, scope: &Rc<Scope>, output: &mut Buffer) -> Outcome<Flow> {
        match &statement.kind {
            Is::Data(text) => output.push(text)?,
            Is::Print(value) => {
                let value = self.evaluate(value, scope)?;
                python::write_str(output, &value)?;
            }
            Is::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.evaluate(condition, scope)?.is_true() {
                        return self.run(body, scope, output);
                    }
                }
                return self.run(otherwise, scope, output);
            }
            Is::For(node) => {
                let items = self.evaluate(&node.iterable, scope)?;
                return self.for_loop(node, &items, scope, 0, output);
            }
            Is::Set { target, value } => {
                let value = self.evaluate(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Is::SetBody { target, filtered, body } => {
                let value = self.filtered(filtered, body, scope)?;
                self.assign(target, value, scope)?;
            }
            Is::Filtered { filtered, body } => {
                let value = self.filtered(filtered, body, scope)?;
                python::write_str(output, &value)?;
            }
            Is::With { targets, body } => {
                let inner = Scope::inside(scope);
                for (target, value) in targets {
                    let value = self.evaluate(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                let flow = self.run(body, &inner, output);
                self.leave(inner)?;
                return flow;
            }
            Is::Scoped(body) => return self.run_inside(body, scope, output),
            Is::Macro(definition) => {
                let value = MacroValue { definition: Arc::clone(definition), scope: Rc::clone(scope) };
                scope.set(&definition.name, Value::object(value)?);
            }
            Is::Call { caller, call } => {
                let caller = MacroValue { definition: Arc::clone(caller), scope: Rc::clone(scope) };
                let value = self.call_with(call, Value::object(caller)?, scope)?;
                python::write_str(output, &value)?;
            }
            Is::Do(value) => drop(self.evaluate(value, scope)?),
            Is::Break => return Ok(Flow::Break),
            Is::Continue => return Ok(Flow::Continue),
            Is::Unsupported(name) => {
                return Err(invalid(format!(
                    "the tag {name} needs other files, which chat templates do not have"
                )));
            }
        }
        Ok(Flow::Next)
    }

    /// Returns the text of a body with filters applied.
    fn filtered(&mut self, filtered: &Expression, body: &[Statement], scope: &Rc<Scope>) -> Outcome<Value> {
        let mut output = Buffer::new(&self.meter);
        if self.run_inside(body, scope, &mut output)? != Flow::Next {
            return Err(invalid("break and continue cannot leave a filter, set or call block"));
        }
        let text = Value::buffered(output, false)?;
        let outer = self.body.replace(text);
        let value = self.evaluate(filtered, scope);
        self.body = outer;
        value
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Outcome<()> {
        match target {
            Target::Name(name) => scope.set(name, value),
            Target::Attribute(name, attribute) => {
                let object = scope.get(name).unwrap_or(Value::None);
                let Some(namespace) = as_namespace(&object) else {
                    return Err(invalid(format!("cannot set {name}.{attribute}: {name} is not a namespace")));
                };
                namespace.0.borrow_mut().insert(Arc::clone(attribute), value);
            }
            Target::Tuple(targets) => {
                let items = value.iterate(&self.meter)?;
                if items.items().len() != targets.len() {
                    let (expected, found) = (targets.len(), items.items().len());
                    return Err(invalid(format!("expected {expected} values to unpack, found {found}")));
                }
                for (target, item) in targets.iter().zip(items.items()) {
                    self.assign(target, item.clone(), scope)?;
                }
            }
        }
        Ok(())
    }

    fn for_loop(
        &mut self,
        node: &Arc<For>,
        items: &Value,
        scope: &Rc<Scope>,
        level: usize,
        output: &mut Buffer,
    ) -> Outcome<Flow> {
        let mut items = items.iterate(&self.meter)?;
        if let Some(condition) = &node.condition {
            let mut kept = Vec::new();
            for item in items.items() {
                let inner = Scope::inside(scope);
                self.assign(&node.target, item.clone(), &inner)?;
                if self.evaluate(condition, &inner)?.is_true() {
                    kept.push(item.clone());
                }
                self.leave(inner)?;
            }
            items = Value::list_of(&self.meter, kept, ListKind::List)?.iterate(&self.meter)?;
        }
        if items.items().is_empty() {
            return self.run_inside(&node.otherwise, scope, output);
        }
        let (changed, index, ended) = (RefCell::new(None), Cell::new(0), Cell::new(false));
        let (node, scope) = (Arc::clone(node), Rc::clone(scope));
        let state = Rc::new(Loop { items, index, level, changed, ended, node, scope });
        let flow = self.iterations(&state, output);
        state.ended.set(true);
        state.changed.take();
        flow
    }

    fn iterations(&mut self, state: &Rc<Loop>, output: &mut Buffer) -> Outcome<Flow> {
        let name: Arc<str> = "loop".into();
        let value = Value::object(Rc::clone(state))?;
        let mut scope = Scope::inside(&state.scope);
        for (index, item) in state.items.items().iter().enumerate() {
            state.index.set(index);
            scope.set(&name, value.clone());
            self.assign(&state.node.target, item.clone(), &scope)?;
            let flow = self.run(&state.node.body, &scope, output);
            if Rc::strong_count(&scope) == 1 {
                scope.clear();
            } else {
                self.leave(std::mem::replace(&mut scope, Scope::inside(&state.scope)))?;
            }
            if flow? == Flow::Break {
                break;
            }
        }
        Ok(Flow::Next)
    }
}

/// Returns the namespace in a value, if it is one.
fn as_namespace(value: &Value) -> Option<&Rc<Namespace>> {
    let Value::Object(object) = value else { return None };
    let object: &dyn std::any::Any = &**object;
    object.downcast_ref()
}
