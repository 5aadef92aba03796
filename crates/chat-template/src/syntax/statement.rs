//! Parses templates.

use std::sync::Arc;

use super::super::fault::{Outcome, at, invalid};
use super::ast::{Body, Expression, For, Macro, Statement, StatementKind as Is, Takes, Target};
use super::cursor::Cursor;
use super::expression::{body as body_text, either, expression, filter, filters, postfix, primary, tuple};
use super::lexer::tokenize;
use super::token::Kind;

/// Parses a template.
pub(in super::super) fn parse(source: &str) -> Outcome<Body> {
    let mut cursor = Cursor::new(tokenize(source)?);
    let (parsed, line) = (template(&mut cursor), cursor.line());
    at(line, parsed)
}

fn template(cursor: &mut Cursor) -> Outcome<Body> {
    let (parsed, end) = body(cursor, &[])?;
    if end.is_empty() { Ok(parsed) } else { Err(invalid(format!("syntax error: unexpected {{% {end} %}}"))) }
}

/// Parses statements up to a tag with one of the names in `ends`, which is consumed. Returns the name of the tag, or an
/// empty name at the end of the template.
fn body(cursor: &mut Cursor, ends: &[&str]) -> Outcome<(Body, String)> {
    let mut statements = Vec::new();
    loop {
        let line = cursor.line();
        let kind = match cursor.next() {
            Kind::Data(text) => Is::Data(text),
            Kind::VariableBegin => {
                let value = any_tuple(cursor)?;
                if *cursor.peek() != Kind::VariableEnd {
                    return Err(cursor.unexpected("}}"));
                }
                cursor.next();
                Is::Print(value)
            }
            Kind::BlockBegin => {
                let name = cursor.expect_name()?;
                if ends.contains(&name.as_str()) {
                    return Ok((statements, name));
                }
                cursor.nested(|cursor| statement(cursor, line, &name))?
            }
            _ if ends.is_empty() => return Ok((statements, String::new())),
            _ => {
                return Err(invalid(format!(
                    "syntax error: expected {{% {} %}}, found the end",
                    ends.join(" %} or {% ")
                )));
            }
        };
        statements.push(Statement { line, kind });
    }
}

/// Parses the end of the current tag, and a body up to its end tag.
fn block(cursor: &mut Cursor, end: &str) -> Outcome<Body> {
    cursor.expect_block_end()?;
    let (parsed, _) = body(cursor, &[end])?;
    Ok(parsed)
}

/// Parses the statement with this name.
fn statement(cursor: &mut Cursor, line: u32, name: &str) -> Outcome<Is> {
    let parsed = match name {
        "if" => return branches(cursor),
        "for" => for_loop(cursor)?,
        "set" => return set(cursor, line),
        "macro" => macro_definition(cursor)?,
        "call" => call_block(cursor)?,
        "filter" => {
            let inner = body_text(line)?;
            let filtered = filter(cursor, inner)?;
            let filtered = filters(cursor, filtered)?;
            Is::Filtered { filtered, body: block(cursor, "endfilter")? }
        }
        "with" => with(cursor)?,
        "generation" => Is::Scoped(block(cursor, "endgeneration")?),
        "block" => {
            cursor.expect_name()?;
            while cursor.skip_word("scoped") || cursor.skip_word("required") {}
            let parsed = Is::Scoped(block(cursor, "endblock")?);
            if matches!(cursor.peek(), Kind::Name(_)) {
                cursor.next();
            }
            parsed
        }
        "autoescape" => {
            if !cursor.skip_word("false") && !cursor.skip_word("False") {
                return Err(invalid("chat templates are not HTML: autoescape must be false"));
            }
            Is::Scoped(block(cursor, "endautoescape")?)
        }
        "print" => Is::Print(any_tuple(cursor)?),
        "do" => Is::Do(any_tuple(cursor)?),
        "break" => Is::Break,
        "continue" => Is::Continue,
        "include" | "import" | "from" | "extends" => {
            while !matches!(cursor.peek(), Kind::BlockEnd | Kind::End) {
                cursor.next();
            }
            Is::Unsupported(name.to_owned())
        }
        _ => return Err(invalid(format!("syntax error: there is no tag {name}"))),
    };
    cursor.expect_block_end()?;
    Ok(parsed)
}

/// Parses an expression, or a tuple separated by commas.
fn any_tuple(cursor: &mut Cursor) -> Outcome<Expression> {
    tuple(cursor, expression, |cursor| {
        matches!(cursor.peek(), Kind::BlockEnd | Kind::VariableEnd | Kind::End)
    })
}

fn branches(cursor: &mut Cursor) -> Outcome<Is> {
    let mut branches = Vec::new();
    loop {
        let condition = tuple(cursor, either, |cursor| *cursor.peek() == Kind::BlockEnd)?;
        cursor.expect_block_end()?;
        let (parsed, end) = body(cursor, &["elif", "else", "endif"])?;
        branches.push((condition, parsed));
        let otherwise = match end.as_str() {
            "elif" => continue,
            "else" => block(cursor, "endif")?,
            _ => Vec::new(),
        };
        cursor.expect_block_end()?;
        return Ok(Is::If { branches, otherwise });
    }
}

fn for_loop(cursor: &mut Cursor) -> Outcome<Is> {
    let target = target(cursor)?;
    cursor.expect_word("in")?;
    let ends = |cursor: &Cursor| {
        *cursor.peek() == Kind::BlockEnd || cursor.is_word("recursive") || cursor.is_word("if")
    };
    let iterable = tuple(cursor, either, ends)?;
    let condition = if cursor.skip_word("if") { Some(expression(cursor)?) } else { None };
    let recursive = cursor.skip_word("recursive");
    cursor.expect_block_end()?;
    let (parsed, end) = body(cursor, &["endfor", "else"])?;
    let otherwise = if end == "else" { block(cursor, "endfor")? } else { Vec::new() };
    Ok(Is::For(Arc::new(For { target, iterable, condition, recursive, body: parsed, otherwise })))
}

/// Parses an assignment target: a name, an attribute of a namespace, or a tuple of targets.
fn target(cursor: &mut Cursor) -> Outcome<Target> {
    let first = one_target(cursor)?;
    if !cursor.is_operator(",") {
        return Ok(first);
    }
    let mut targets = vec![first];
    while cursor.skip(",") && !cursor.is_word("in") && !cursor.is_operator("=") {
        targets.push(one_target(cursor)?);
    }
    Ok(Target::Tuple(targets))
}

fn one_target(cursor: &mut Cursor) -> Outcome<Target> {
    if cursor.skip("(") {
        let inner = cursor.nested(target)?;
        cursor.expect(")")?;
        return Ok(inner);
    }
    let name = cursor.expect_name()?;
    if ["true", "false", "none", "True", "False", "None"].contains(&name.as_str()) {
        return Err(invalid(format!("syntax error: cannot assign to {name}")));
    }
    if cursor.skip(".") {
        return Ok(Target::Attribute(name.into(), cursor.expect_name()?.into()));
    }
    Ok(Target::Name(name.into()))
}

fn set(cursor: &mut Cursor, line: u32) -> Outcome<Is> {
    let target = target(cursor)?;
    if cursor.skip("=") {
        let value = any_tuple(cursor)?;
        cursor.expect_block_end()?;
        return Ok(Is::Set { target, value });
    }
    let inner = body_text(line)?;
    let filtered = filters(cursor, inner)?;
    let parsed = block(cursor, "endset")?;
    cursor.expect_block_end()?;
    Ok(Is::SetBody { target, filtered, body: parsed })
}

fn with(cursor: &mut Cursor) -> Outcome<Is> {
    let mut targets = Vec::new();
    while *cursor.peek() != Kind::BlockEnd {
        if !targets.is_empty() {
            cursor.expect(",")?;
        }
        let target = one_target(cursor)?;
        cursor.expect("=")?;
        targets.push((target, expression(cursor)?));
    }
    Ok(Is::With { targets, body: block(cursor, "endwith")? })
}

fn macro_definition(cursor: &mut Cursor) -> Outcome<Is> {
    let name = cursor.expect_name()?;
    let definition = macro_body(cursor, name, "endmacro")?;
    if matches!(cursor.peek(), Kind::Name(_)) {
        cursor.next();
    }
    Ok(Is::Macro(Arc::new(definition)))
}

fn call_block(cursor: &mut Cursor) -> Outcome<Is> {
    cursor.macros.push(Takes::default());
    let parameters = if cursor.is_operator("(") { parameters(cursor)? } else { Vec::new() };
    cursor.macros.pop();
    let head = primary(cursor)?;
    let call = postfix(cursor, head)?;
    let (parsed, takes) = counted_body(cursor, "endcall")?;
    let caller = Arc::new(Macro { name: "caller".into(), parameters, body: parsed, takes });
    Ok(Is::Call { caller, call })
}

fn macro_body(cursor: &mut Cursor, name: String, end: &str) -> Outcome<Macro> {
    let parameters = parameters(cursor)?;
    let (parsed, takes) = counted_body(cursor, end)?;
    Ok(Macro { name: name.into(), parameters, body: parsed, takes })
}

/// Parses a body. Returns it with the special names that it uses.
fn counted_body(cursor: &mut Cursor, end: &str) -> Outcome<(Body, Takes)> {
    cursor.macros.push(Takes::default());
    let parsed = block(cursor, end)?;
    Ok((parsed, cursor.macros.pop().unwrap_or_default()))
}

/// Parses parameters, such as `(a, b=1)`.
fn parameters(cursor: &mut Cursor) -> Outcome<Vec<(Arc<str>, Option<Expression>)>> {
    let mut found: Vec<(Arc<str>, Option<Expression>)> = Vec::new();
    cursor.expect("(")?;
    while !cursor.skip(")") {
        if !found.is_empty() {
            cursor.expect(",")?;
            if cursor.skip(")") {
                break;
            }
        }
        let name = cursor.expect_name()?;
        let default = if cursor.skip("=") { Some(expression(cursor)?) } else { None };
        found.push((name.into(), default));
    }
    Ok(found)
}
