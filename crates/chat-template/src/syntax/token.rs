//! The tokens of a template.

/// A token and its first line, counted from 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: u32,
}

/// The kind of a token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Text outside tags.
    Data(String),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    /// The end of the template.
    End,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Data(_) => "text",
            Self::BlockBegin => "{%",
            Self::BlockEnd => "%}",
            Self::VariableBegin => "{{",
            Self::VariableEnd => "}}",
            Self::Name(name) => return write!(formatter, "\"{name}\""),
            Self::Text(_) => "a string",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Operator(operator) => return write!(formatter, "\"{operator}\""),
            Self::End => "the end of the template",
        })
    }
}
