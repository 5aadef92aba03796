//! Evaluates expressions.

use std::rc::Rc;

use super::super::access;
use super::super::arguments::Arguments;
use super::super::checks::check;
use super::super::fault::{Outcome, at, invalid};
use super::super::filters;
use super::super::operators::{binary, compare, signed};
use super::super::scope::Scope;
use super::super::syntax::ast::{Argument, Expression, ExpressionKind as Is};
use super::super::value::{Entries, Key, Value};
use super::Interpreter;

impl Interpreter {
    pub(super) fn evaluate(&mut self, expression: &Expression, scope: &Rc<Scope>) -> Outcome<Value> {
        let value = self.nested(|this| this.value(expression, scope));
        at(expression.line, value)
    }

    fn value(&mut self, expression: &Expression, scope: &Rc<Scope>) -> Outcome<Value> {
        Ok(match &expression.kind {
            Is::None => Value::None,
            Is::Bool(flag) => Value::Bool(*flag),
            Is::Int(number) => Value::Int(*number),
            Is::Float(number) => Value::Float(*number),
            Is::Text(text) => Value::text(&self.meter, text.as_str())?,
            Is::Name(name) => scope.get(name).unwrap_or_else(|| Value::Undefined(Some(name.clone()))),
            Is::List(parts) => {
                let items = self.all(parts, scope)?;
                Value::list(&self.meter, items)?
            }
            Is::Tuple(parts) => {
                let items = self.all(parts, scope)?;
                Value::tuple(&self.meter, items)?
            }
            Is::Map(pairs) => self.mapping(pairs, scope)?,
            Is::Attribute { of, name, path } => {
                let of = self.evaluate(of, scope)?;
                access::attribute(&of, name, path, &self.meter)?
            }
            Is::Item { of, key } => {
                let (of, key) = (self.evaluate(of, scope)?, self.evaluate(key, scope)?);
                access::item(&of, &key, &self.meter)?
            }
            Is::Slice { of, bounds } => self.slice(of, bounds, scope)?,
            Is::Call { of, arguments } => self.call(of, arguments, None, scope)?,
            Is::Filter { of, name, arguments } => {
                let (of, arguments) = (self.evaluate(of, scope)?, self.arguments(arguments, scope)?);
                filters::apply(name, &of, arguments, &self.meter)?
            }
            Is::Test { of, name, arguments } => {
                let (of, arguments) = (self.evaluate(of, scope)?, self.arguments(arguments, scope)?);
                Value::Bool(check(name, &of, arguments, &self.meter)?)
            }
            Is::Unary { operator: "not", of } => Value::Bool(!self.evaluate(of, scope)?.is_true()),
            Is::Unary { operator, of } => signed(operator, &self.evaluate(of, scope)?)?,
            Is::Binary { operator, left, right } => {
                let (left, right) = (self.evaluate(left, scope)?, self.evaluate(right, scope)?);
                binary(operator, &left, &right, &self.meter)?
            }
            Is::Compare { first, rest } => self.comparison(first, rest, scope)?,
            Is::And(left, right) => {
                let left = self.evaluate(left, scope)?;
                if left.is_true() { self.evaluate(right, scope)? } else { left }
            }
            Is::Or(left, right) => {
                let left = self.evaluate(left, scope)?;
                if left.is_true() { left } else { self.evaluate(right, scope)? }
            }
            Is::Conditional { condition, value, otherwise } => {
                if self.evaluate(condition, scope)?.is_true() {
                    self.evaluate(value, scope)?
                } else if let Some(otherwise) = otherwise {
                    self.evaluate(otherwise, scope)?
                } else {
                    Value::Undefined(None)
                }
            }
            Is::Body => self.body.clone().unwrap_or(Value::Undefined(None)),
        })
    }

    fn all(&mut self, parts: &[Expression], scope: &Rc<Scope>) -> Outcome<Vec<Value>> {
        parts.iter().map(|part| self.evaluate(part, scope)).collect()
    }

    fn mapping(&mut self, pairs: &[(Expression, Expression)], scope: &Rc<Scope>) -> Outcome<Value> {
        let mut entries = Entries::with_capacity(pairs.len());
        for (key, value) in pairs {
            let key = Key::new(&self.evaluate(key, scope)?)?;
            self.meter.spend(key.size())?;
            entries.insert(key, self.evaluate(value, scope)?);
        }
        Value::map(&self.meter, entries)
    }

    fn slice(
        &mut self,
        of: &Expression,
        bounds: &[Option<Box<Expression>>; 3],
        scope: &Rc<Scope>,
    ) -> Outcome<Value> {
        let of = self.evaluate(of, scope)?;
        let mut values = [const { Value::None }; 3];
        for (value, bound) in values.iter_mut().zip(bounds) {
            if let Some(bound) = bound {
                *value = self.evaluate(bound, scope)?;
            }
        }
        access::slice(&of, &values, &self.meter)
    }

    /// Evaluates a chained comparison, `a < b <= c`.
    fn comparison(
        &mut self,
        first: &Expression,
        rest: &[(&'static str, Expression)],
        scope: &Rc<Scope>,
    ) -> Outcome<Value> {
        let mut left = self.evaluate(first, scope)?;
        for (operator, right) in rest {
            let right = self.evaluate(right, scope)?;
            if !compare(operator, &left, &right, &self.meter)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(super) fn arguments(&mut self, given: &[Argument], scope: &Rc<Scope>) -> Outcome<Arguments> {
        let mut arguments = Arguments::default();
        for argument in given {
            let value = self.evaluate(argument.value(), scope)?;
            match argument {
                Argument::Positional(_) => arguments.positional.push(value),
                Argument::Named(name, _) => arguments.named.push((name.clone(), value)),
                Argument::Spread(_) => {
                    let items = value.iterate(&self.meter)?;
                    self.meter.check_memory(size_of_val(items.items()))?;
                    arguments.positional.extend_from_slice(items.items());
                }
                Argument::SpreadNamed(_) => {
                    let Value::Map(map) = &value else { return Err(invalid("** takes a mapping")) };
                    for (key, value) in map.entries() {
                        let key =
                            key.value().as_text().ok_or_else(|| invalid("argument names must be strings"))?;
                        self.meter.check_memory(key.len())?;
                        arguments.named.push((key.to_owned(), value.clone()));
                    }
                }
            }
        }
        Ok(arguments)
    }
}
