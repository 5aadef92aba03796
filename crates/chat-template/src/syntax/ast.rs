//! Syntax trees. Invariant: no tree is higher than [`MAX_HEIGHT`], so that walking and dropping one never exhausts a
//! stack.

use std::sync::Arc;

/// The maximum height of an expression.
pub(in super::super) const MAX_HEIGHT: u16 = 500;

/// Statements in order.
pub(in super::super) type Body = Vec<Statement>;

/// A statement and its line.
#[derive(Debug)]
pub(in super::super) struct Statement {
    pub(in super::super) line: u32,
    pub(in super::super) kind: StatementKind,
}

#[derive(Debug)]
pub(in super::super) enum StatementKind {
    Data(String),
    Print(Expression),
    If {
        branches: Vec<(Expression, Body)>,
        otherwise: Body,
    },
    For(Arc<For>),
    Set {
        target: Target,
        value: Expression,
    },
    /// `{% set x | filter %}body{% endset %}`. If there are no filters, `filtered` is [`ExpressionKind::Body`].
    SetBody {
        target: Target,
        filtered: Expression,
        body: Body,
    },
    /// `{% filter f %}body{% endfilter %}`
    Filtered {
        filtered: Expression,
        body: Body,
    },
    With {
        targets: Vec<(Target, Expression)>,
        body: Body,
    },
    /// `{% block %}`, `{% generation %}` and `{% autoescape false %}`, which only scope their body.
    Scoped(Body),
    Macro(Arc<Macro>),
    /// `{% call(arguments) expression %}body{% endcall %}`
    Call {
        caller: Arc<Macro>,
        call: Expression,
    },
    Do(Expression),
    Break,
    Continue,
    /// `{% include %}` and other tags that need other files.
    Unsupported(String),
}

/// A `for` loop.
#[derive(Debug)]
pub(in super::super) struct For {
    pub(in super::super) target: Target,
    pub(in super::super) iterable: Expression,
    pub(in super::super) condition: Option<Expression>,
    pub(in super::super) recursive: bool,
    pub(in super::super) body: Body,
    pub(in super::super) otherwise: Body,
}

/// A macro, or the body of a `call` block.
#[derive(Debug)]
pub(in super::super) struct Macro {
    pub(in super::super) name: Arc<str>,
    pub(in super::super) parameters: Vec<(Arc<str>, Option<Expression>)>,
    pub(in super::super) body: Body,
    /// The special variables `varargs`, `kwargs` and `caller`, if the body uses them.
    pub(in super::super) takes: Takes,
}

/// The special variables that a macro's body uses.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct Takes {
    pub(in super::super) varargs: bool,
    pub(in super::super) kwargs: bool,
    pub(in super::super) caller: bool,
}

/// The target of an assignment.
#[derive(Debug)]
pub(in super::super) enum Target {
    Name(Arc<str>),
    /// An attribute of a namespace.
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

/// An expression, its line and height.
#[derive(Debug)]
pub(in super::super) struct Expression {
    pub(in super::super) line: u32,
    pub(in super::super) height: u16,
    pub(in super::super) kind: ExpressionKind,
}

#[derive(Debug)]
pub(in super::super) enum ExpressionKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Name(Arc<str>),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Map(Vec<(Expression, Expression)>),
    /// `a.b`. `path` is its text, for messages.
    Attribute {
        of: Box<Expression>,
        name: Arc<str>,
        path: Arc<str>,
    },
    Item {
        of: Box<Expression>,
        key: Box<Expression>,
    },
    Slice {
        of: Box<Expression>,
        bounds: [Option<Box<Expression>>; 3],
    },
    Call {
        of: Box<Expression>,
        arguments: Vec<Argument>,
    },
    Filter {
        of: Box<Expression>,
        name: String,
        arguments: Vec<Argument>,
    },
    Test {
        of: Box<Expression>,
        name: String,
        arguments: Vec<Argument>,
    },
    Unary {
        operator: &'static str,
        of: Box<Expression>,
    },
    Binary {
        operator: &'static str,
        left: Box<Expression>,
        right: Box<Expression>,
    },
    /// `a < b <= c`
    Compare {
        first: Box<Expression>,
        rest: Vec<(&'static str, Expression)>,
    },
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Conditional {
        condition: Box<Expression>,
        value: Box<Expression>,
        otherwise: Option<Box<Expression>>,
    },
    /// The text of the block that a filter is applied to.
    Body,
}

/// An argument of a call.
#[derive(Debug)]
pub(in super::super) enum Argument {
    Positional(Expression),
    Named(String, Expression),
    /// `*values`
    Spread(Expression),
    /// `**values`
    SpreadNamed(Expression),
}

impl Argument {
    pub(in super::super) fn value(&self) -> &Expression {
        match self {
            Self::Positional(value)
            | Self::Named(_, value)
            | Self::Spread(value)
            | Self::SpreadNamed(value) => value,
        }
    }
}
