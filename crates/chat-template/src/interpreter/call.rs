//! Calls: macros, loops, functions and methods.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

use super::super::access::{self, Bound};
use super::super::arguments::Arguments;
use super::super::fault::{Outcome, invalid};
use super::super::meter::Buffer;
use super::super::scope::{Loop, MacroValue, Scope};
use super::super::syntax::ast::{Argument, Expression, ExpressionKind};
use super::super::value::{Value, named};
use super::super::{method_names, methods};
use super::function::Function;
use super::{Flow, Interpreter};

impl Interpreter {
    /// Evaluates the call of a `call` block, whose body is `caller`.
    pub(super) fn call_with(
        &mut self,
        call: &Expression,
        caller: Value,
        scope: &Rc<Scope>,
    ) -> Outcome<Value> {
        match &call.kind {
            ExpressionKind::Call { of, arguments } => self.call(of, arguments, Some(caller), scope),
            _ => Err(invalid("a call block needs a call")),
        }
    }

    pub(super) fn call(
        &mut self,
        head: &Expression,
        arguments: &[Argument],
        caller: Option<Value>,
        scope: &Rc<Scope>,
    ) -> Outcome<Value> {
        if let ExpressionKind::Attribute { of, name, path } = &head.kind {
            let of = self.evaluate(of, scope)?;
            if method_names::has_method(&of, name) {
                let arguments = self.arguments(arguments, scope)?;
                return methods::call(&of, name, arguments, &self.meter);
            }
            let found = access::attribute(&of, name, path, &self.meter)?;
            let arguments = self.arguments(arguments, scope)?;
            return match (&of, &found) {
                (Value::Object(object), Value::Undefined(_)) => {
                    object.invoke(&self.meter, name, arguments.positional)
                }
                (_, Value::Undefined(_)) => {
                    Err(invalid(format!("a value of type {} has no method {name}", of.type_name())))
                }
                _ => self.call_value(&found, arguments, caller),
            };
        }
        let found = self.evaluate(head, scope)?;
        let arguments = self.arguments(arguments, scope)?;
        self.call_value(&found, arguments, caller)
    }

    fn call_value(
        &mut self,
        function: &Value,
        mut arguments: Arguments,
        caller: Option<Value>,
    ) -> Outcome<Value> {
        let Value::Object(object) = function else {
            return Err(match function.undefined_name() {
                Some(name) => invalid(format!("`{name}` is undefined")),
                None => invalid(format!("a value of type {} cannot be called", function.type_name())),
            });
        };
        arguments.named.extend(caller.map(|caller| ("caller".to_owned(), caller)));
        let any: &dyn Any = &**object;
        if let Some(found) = any.downcast_ref::<MacroValue>() {
            return self.nested(|this| this.call_macro(found, arguments));
        }
        if let Some(found) = any.downcast_ref::<Function>() {
            return self.call_function(*found, arguments);
        }
        if let Some(Bound { of, name }) = any.downcast_ref::<Bound>() {
            return methods::call(of, name, arguments, &self.meter);
        }
        if let Some(found) = any.downcast_ref::<Rc<Loop>>() {
            let [items] = arguments.require(["iterable"])?;
            return self.nested(|this| this.recurse(found, &items));
        }
        object.invoke(&self.meter, "__call__", arguments.positional)
    }

    /// Evaluates `loop(items)` inside a recursive loop.
    fn recurse(&mut self, found: &Rc<Loop>, items: &Value) -> Outcome<Value> {
        if !found.node.recursive {
            return Err(invalid("loop() needs a loop that is marked as recursive"));
        }
        let mut output = Buffer::new(&self.meter);
        self.for_loop(&found.node, items, &found.scope, found.level + 1, &mut output)?;
        Value::buffered(output, false)
    }

    fn call_macro(&mut self, found: &MacroValue, arguments: Arguments) -> Outcome<Value> {
        let scope = Scope::inside(&found.scope);
        self.bind(found, arguments, &scope)?;
        let mut output = Buffer::new(&self.meter);
        let flow = self.run(&found.definition.body, &scope, &mut output);
        self.leave(scope)?;
        if flow? != Flow::Next {
            return Err(invalid("break and continue cannot leave a macro"));
        }
        Value::buffered(output, false)
    }

    /// Binds arguments to the parameters of a macro.
    fn bind(&mut self, found: &MacroValue, arguments: Arguments, scope: &Rc<Scope>) -> Outcome<()> {
        let definition = &*found.definition;
        let mut positional = arguments.positional.into_iter();
        let mut keywords = arguments.named;
        for (name, default) in &definition.parameters {
            let keyword = keywords.iter().position(|(keyword, _)| **keyword == **name);
            let keyword = keyword.map(|place| keywords.swap_remove(place).1);
            let value = match (positional.next(), keyword, default) {
                (Some(_), Some(_), _) => {
                    return Err(invalid(format!("the argument \"{name}\" is given twice")));
                }
                (Some(value), None, _) | (None, Some(value), _) => value,
                (None, None, Some(default)) => self.evaluate(default, scope)?,
                (None, None, None) => Value::Undefined(Some(Arc::clone(name))),
            };
            scope.set(name, value);
        }
        let rest: Vec<Value> = positional.collect();
        let takes = definition.takes;
        if !rest.is_empty() && !takes.varargs {
            let most = definition.parameters.len();
            return Err(invalid(format!("macro '{}' takes not more than {most} arguments", definition.name)));
        }
        if takes.caller {
            let place = keywords.iter().position(|(keyword, _)| keyword == "caller");
            let caller = place.map(|place| keywords.swap_remove(place).1);
            scope.set(&"caller".into(), caller.unwrap_or_else(|| Value::Undefined(Some("caller".into()))));
        }
        if let Some((keyword, _)) = keywords.first().filter(|_| !takes.kwargs) {
            return Err(invalid(format!("macro '{}' has no argument \"{keyword}\"", definition.name)));
        }
        if takes.varargs {
            scope.set(&"varargs".into(), Value::tuple(&self.meter, rest)?);
        }
        if takes.kwargs {
            scope.set(&"kwargs".into(), named(keywords, &self.meter)?);
        }
        Ok(())
    }
}
