//! Parses expressions, with Jinja's precedences.

use std::sync::Arc;

use super::super::fault::{Fault, Outcome};
use super::ast::{Argument, Expression, ExpressionKind as Is, MAX_HEIGHT};
use super::cursor::Cursor;
use super::token::Kind;

/// Builds an expression and checks its height.
fn build(line: u32, kind: Is) -> Outcome<Expression> {
    let height = 1 + highest(&kind);
    if height > MAX_HEIGHT {
        return Err(Fault::limit(format!("has an expression of more than {MAX_HEIGHT} levels")));
    }
    Ok(Expression { line, height, kind })
}

/// Returns the height of the highest child.
fn highest(kind: &Is) -> u16 {
    let all = |parts: &[Expression]| parts.iter().map(|part| part.height).max().unwrap_or(0);
    let given = |arguments: &[Argument]| arguments.iter().map(|one| one.value().height).max().unwrap_or(0);
    match kind {
        Is::List(parts) | Is::Tuple(parts) => all(parts),
        Is::Map(pairs) => pairs.iter().map(|(key, value)| key.height.max(value.height)).max().unwrap_or(0),
        Is::Attribute { of, .. } | Is::Unary { of, .. } => of.height,
        Is::Item { of, key } => of.height.max(key.height),
        Is::Slice { of, bounds } => {
            bounds.iter().flatten().map(|bound| bound.height).max().unwrap_or(0).max(of.height)
        }
        Is::Call { of, arguments } | Is::Filter { of, arguments, .. } | Is::Test { of, arguments, .. } => {
            of.height.max(given(arguments))
        }
        Is::Binary { left, right, .. } | Is::And(left, right) | Is::Or(left, right) => {
            left.height.max(right.height)
        }
        Is::Compare { first, rest } => {
            rest.iter().map(|(_, part)| part.height).max().unwrap_or(0).max(first.height)
        }
        Is::Conditional { condition, value, otherwise } => {
            let otherwise = otherwise.as_ref().map_or(0, |part| part.height);
            condition.height.max(value.height).max(otherwise)
        }
        Is::None | Is::Bool(_) | Is::Int(_) | Is::Float(_) | Is::Text(_) | Is::Name(_) | Is::Body => 0,
    }
}

/// The precedence levels of binary operators, loosest first.
const LEVELS: [&[&str]; 4] = [&["+", "-"], &["~"], &["*", "/", "//", "%"], &["**"]];

/// Parses an expression, including conditionals.
pub(super) fn expression(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    let mut value = either(cursor)?;
    while cursor.skip_word("if") {
        let condition = Box::new(either(cursor)?);
        let otherwise =
            if cursor.skip_word("else") { Some(Box::new(cursor.nested(expression)?)) } else { None };
        value = build(line, Is::Conditional { condition, value: Box::new(value), otherwise })?;
    }
    Ok(value)
}

/// Parses an expression without conditionals.
pub(super) fn either(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    let mut left = both(cursor)?;
    while cursor.skip_word("or") {
        left = build(line, Is::Or(Box::new(left), Box::new(both(cursor)?)))?;
    }
    Ok(left)
}

fn both(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    let mut left = negation(cursor)?;
    while cursor.skip_word("and") {
        left = build(line, Is::And(Box::new(left), Box::new(negation(cursor)?)))?;
    }
    Ok(left)
}

fn negation(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    if cursor.skip_word("not") {
        let of = Box::new(cursor.nested(negation)?);
        return build(line, Is::Unary { operator: "not", of });
    }
    comparison(cursor)
}

fn comparison(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    let first = binary(cursor, 0)?;
    let mut rest = Vec::new();
    loop {
        let operators = ["==", "!=", "<", "<=", ">", ">="];
        let operator = match (cursor.peek(), cursor.peek_second()) {
            (Kind::Operator(operator), _) if operators.contains(operator) => *operator,
            (Kind::Name(word), _) if word == "in" => "in",
            (Kind::Name(word), Kind::Name(next)) if word == "not" && next == "in" => {
                cursor.next();
                "not in"
            }
            _ => break,
        };
        cursor.next();
        rest.push((operator, binary(cursor, 0)?));
    }
    if rest.is_empty() { Ok(first) } else { build(line, Is::Compare { first: Box::new(first), rest }) }
}

fn binary(cursor: &mut Cursor, level: usize) -> Outcome<Expression> {
    let Some(operators) = LEVELS.get(level) else { return unary(cursor, true) };
    let line = cursor.line();
    let mut left = binary(cursor, level + 1)?;
    while let Kind::Operator(operator) = *cursor.peek()
        && operators.contains(&operator)
    {
        cursor.next();
        let right = Box::new(binary(cursor, level + 1)?);
        left = build(line, Is::Binary { operator, left: Box::new(left), right })?;
    }
    Ok(left)
}

fn unary(cursor: &mut Cursor, with_filters: bool) -> Outcome<Expression> {
    let line = cursor.line();
    let sign = ["-", "+"].into_iter().find(|sign| cursor.skip(sign));
    let value = match sign {
        Some(operator) => {
            let of = Box::new(cursor.nested(|cursor| unary(cursor, false))?);
            build(line, Is::Unary { operator, of })?
        }
        None => primary(cursor)?,
    };
    let value = postfix(cursor, value)?;
    if with_filters { filters(cursor, value) } else { Ok(value) }
}

pub(super) fn primary(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    match cursor.peek() {
        Kind::Operator("(") => return cursor.nested(parenthesized),
        Kind::Operator("[") => return cursor.nested(list),
        Kind::Operator("{") => return cursor.nested(map),
        Kind::Operator(_) | Kind::Data(_) | Kind::BlockBegin | Kind::BlockEnd => {
            return Err(cursor.unexpected("an expression"));
        }
        Kind::VariableBegin | Kind::VariableEnd | Kind::End => return Err(cursor.unexpected("an expression")),
        Kind::Name(_) | Kind::Text(_) | Kind::Int(_) | Kind::Float(_) => {}
    }
    let kind = match cursor.next() {
        Kind::Name(name) => named(cursor, name),
        Kind::Int(value) => Is::Int(value),
        Kind::Float(value) => Is::Float(value),
        Kind::Text(mut text) => {
            // Adjacent strings are concatenated.
            while matches!(cursor.peek(), Kind::Text(_)) {
                if let Kind::Text(more) = cursor.next() {
                    text.push_str(&more);
                }
            }
            Is::Text(text)
        }
        _ => Is::None,
    };
    build(line, kind)
}

fn named(cursor: &mut Cursor, name: String) -> Is {
    let open = cursor.macros.last_mut();
    match (name.as_str(), open) {
        ("true" | "True", _) => return Is::Bool(true),
        ("false" | "False", _) => return Is::Bool(false),
        ("none" | "None", _) => return Is::None,
        ("varargs", Some(takes)) => takes.varargs = true,
        ("kwargs", Some(takes)) => takes.kwargs = true,
        ("caller", Some(takes)) => takes.caller = true,
        _ => {}
    }
    Is::Name(name.into())
}

/// Parses `(a)`, `(a, b)` or `()`.
fn parenthesized(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    cursor.expect("(")?;
    if cursor.skip(")") {
        return build(line, Is::Tuple(Vec::new()));
    }
    let value = tuple(cursor, expression, |cursor| cursor.is_operator(")"))?;
    cursor.expect(")")?;
    Ok(value)
}

/// Parses one expression, or a tuple separated by commas.
pub(super) fn tuple(
    cursor: &mut Cursor,
    part: fn(&mut Cursor) -> Outcome<Expression>,
    ends: impl Fn(&Cursor) -> bool,
) -> Outcome<Expression> {
    let line = cursor.line();
    let first = part(cursor)?;
    if !cursor.is_operator(",") {
        return Ok(first);
    }
    let mut parts = vec![first];
    while cursor.skip(",") && !ends(cursor) {
        parts.push(part(cursor)?);
    }
    build(line, Is::Tuple(parts))
}

fn list(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    cursor.expect("[")?;
    let mut parts = Vec::new();
    while !cursor.skip("]") {
        if !parts.is_empty() {
            cursor.expect(",")?;
            if cursor.skip("]") {
                break;
            }
        }
        parts.push(expression(cursor)?);
    }
    build(line, Is::List(parts))
}

fn map(cursor: &mut Cursor) -> Outcome<Expression> {
    let line = cursor.line();
    cursor.expect("{")?;
    let mut pairs = Vec::new();
    while !cursor.skip("}") {
        if !pairs.is_empty() {
            cursor.expect(",")?;
            if cursor.skip("}") {
                break;
            }
        }
        let key = expression(cursor)?;
        cursor.expect(":")?;
        pairs.push((key, expression(cursor)?));
    }
    build(line, Is::Map(pairs))
}

/// Parses attributes, subscripts and calls after an expression.
pub(super) fn postfix(cursor: &mut Cursor, mut value: Expression) -> Outcome<Expression> {
    loop {
        let line = cursor.line();
        value = if cursor.skip(".") {
            attribute(cursor, value)?
        } else if cursor.is_operator("[") {
            cursor.nested(|cursor| subscript(cursor, value))?
        } else if cursor.is_operator("(") {
            let arguments = cursor.nested(arguments)?;
            build(line, Is::Call { of: Box::new(value), arguments })?
        } else {
            return Ok(value);
        };
    }
}

fn attribute(cursor: &mut Cursor, of: Expression) -> Outcome<Expression> {
    let line = cursor.line();
    if let Kind::Int(index) = *cursor.peek() {
        cursor.next();
        let key = Box::new(build(line, Is::Int(index))?);
        return build(line, Is::Item { of: Box::new(of), key });
    }
    let name: Arc<str> = cursor.expect_name()?.into();
    let path = match &of.kind {
        Is::Name(before) | Is::Attribute { path: before, .. } if before.len() + name.len() < 100 => {
            format!("{before}.{name}").into()
        }
        _ => Arc::clone(&name),
    };
    build(line, Is::Attribute { of: Box::new(of), name, path })
}

fn subscript(cursor: &mut Cursor, of: Expression) -> Outcome<Expression> {
    let line = cursor.line();
    cursor.expect("[")?;
    let mut bounds = [const { None }; 3];
    let mut colons = 0;
    while !cursor.is_operator("]") {
        if cursor.skip(":") {
            colons += 1;
            if colons > 2 {
                return Err(cursor.unexpected("]"));
            }
        } else if bounds[colons].is_some() {
            return Err(cursor.unexpected("]"));
        } else {
            let part = tuple(cursor, expression, |cursor| cursor.is_operator("]"))?;
            bounds[colons] = Some(Box::new(part));
        }
    }
    cursor.expect("]")?;
    let of = Box::new(of);
    match bounds {
        [Some(key), None, None] if colons == 0 => build(line, Is::Item { of, key }),
        // Jinja reads `a[]` as `a[()]`.
        _ if colons == 0 => {
            let key = Box::new(build(line, Is::Tuple(Vec::new()))?);
            build(line, Is::Item { of, key })
        }
        bounds => build(line, Is::Slice { of, bounds }),
    }
}

pub(super) fn arguments(cursor: &mut Cursor) -> Outcome<Vec<Argument>> {
    cursor.expect("(")?;
    let mut found = Vec::new();
    while !cursor.skip(")") {
        if !found.is_empty() {
            cursor.expect(",")?;
            if cursor.skip(")") {
                break;
            }
        }
        found.push(if cursor.skip("**") {
            Argument::SpreadNamed(expression(cursor)?)
        } else if cursor.skip("*") {
            Argument::Spread(expression(cursor)?)
        } else if matches!(cursor.peek(), Kind::Name(_)) && *cursor.peek_second() == Kind::Operator("=") {
            let name = cursor.expect_name()?;
            cursor.expect("=")?;
            Argument::Named(name, expression(cursor)?)
        } else {
            Argument::Positional(expression(cursor)?)
        });
    }
    Ok(found)
}

/// Parses filters, tests and calls after an expression.
pub(super) fn filters(cursor: &mut Cursor, mut value: Expression) -> Outcome<Expression> {
    loop {
        let line = cursor.line();
        value = if cursor.skip("|") {
            filter(cursor, value)?
        } else if cursor.skip_word("is") {
            test(cursor, value)?
        } else if cursor.is_operator("(") {
            let arguments = cursor.nested(arguments)?;
            build(line, Is::Call { of: Box::new(value), arguments })?
        } else {
            return Ok(value);
        };
    }
}

/// Parses the filter after a `|`.
pub(super) fn filter(cursor: &mut Cursor, value: Expression) -> Outcome<Expression> {
    let line = cursor.line();
    let name = dotted(cursor)?;
    let arguments = if cursor.is_operator("(") { cursor.nested(arguments)? } else { Vec::new() };
    build(line, Is::Filter { of: Box::new(value), name, arguments })
}

fn test(cursor: &mut Cursor, value: Expression) -> Outcome<Expression> {
    let line = cursor.line();
    let negated = cursor.skip_word("not");
    let name = dotted(cursor)?;
    let takes_value = match cursor.peek() {
        Kind::Name(word) => !matches!(word.as_str(), "else" | "or" | "and" | "is" | "if"),
        Kind::Text(_) | Kind::Int(_) | Kind::Float(_) | Kind::Operator("[" | "{") => true,
        _ => false,
    };
    let arguments = if cursor.is_operator("(") {
        cursor.nested(arguments)?
    } else if takes_value {
        let value = primary(cursor)?;
        vec![Argument::Positional(postfix(cursor, value)?)]
    } else {
        Vec::new()
    };
    let test = build(line, Is::Test { of: Box::new(value), name, arguments })?;
    if negated { build(line, Is::Unary { operator: "not", of: Box::new(test) }) } else { Ok(test) }
}

fn dotted(cursor: &mut Cursor) -> Outcome<String> {
    let mut name = cursor.expect_name()?;
    while cursor.skip(".") {
        name = format!("{name}.{}", cursor.expect_name()?);
    }
    Ok(name)
}

/// Returns the expression that represents the body of a block.
pub(super) fn body(line: u32) -> Outcome<Expression> {
    build(line, Is::Body)
}
