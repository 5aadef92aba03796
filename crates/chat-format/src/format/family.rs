//! The types of a family's row, which describes its tool call syntax.

/// A family's tool call syntax. Literals are spelled as in the family's template. Whitespace in them is optional
/// when output is parsed.
#[derive(Debug)]
pub(crate) struct Family {
    /// The name shown to users.
    pub(crate) name: &'static str,
    /// The tag that opens the thoughts of its models.
    pub(crate) thoughts: &'static str,
    /// Texts of templates that list tools for these models but do not write calls.
    pub(crate) signs: &'static [&'static str],
    /// The markers around calls.
    pub(crate) section: Option<Section>,
    /// The parts of a call.
    pub(crate) call: &'static [Part],
    /// The text between two calls of a section, or between two sections with one call each.
    pub(crate) between: &'static str,
    /// The form of call ids in the prompt.
    pub(crate) ids: Ids,
    /// Markers around the answer that are removed.
    pub(crate) silent: &'static [&'static str],
    /// True if calls have no marker. Then only the beginning of an answer, with the name of a tool, can be a call.
    pub(crate) only_first: bool,
}

/// The markers around calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section {
    pub(crate) open: &'static str,
    /// Empty if the end of the answer ends the section.
    pub(crate) close: &'static str,
    /// True if several calls share a section. Otherwise each call has its own.
    pub(crate) is_shared: bool,
}

/// A part of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// A literal text.
    Text(&'static str),
    /// The name of the tool.
    Name,
    /// `functions.NAME:INDEX`, which is also the id.
    NameInId,
    /// The id of the call.
    Id,
    /// The arguments.
    Args(Args),
    /// An object with name and arguments.
    Envelope(Envelope),
}

/// The syntax of arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Args {
    /// A JSON object.
    Json,
    /// `key='value', other=3)`, after the opening parenthesis.
    Python,
    /// `{key:"value",other:3}` with this quote around texts.
    Bare { quote: &'static str },
    /// A tag for each argument.
    Tagged(Tagged),
    /// An element for each argument and each nested value, with this prefix before each tag.
    Nested { prefix: &'static str },
}

/// An object with name and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    /// The key of the name. Empty if the name itself is the key of the arguments.
    pub(crate) name: &'static str,
    /// The key of the arguments.
    pub(crate) args: &'static str,
    /// The key of the id, and true if it comes first.
    pub(crate) id: Option<(&'static str, bool)>,
}

/// A tag for each argument. Texts are written literally, and other values as JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tagged {
    /// The text before and after an argument's name.
    pub(crate) key: (&'static str, &'static str),
    /// The attribute with the type of the value, and the text after it.
    pub(crate) kind: Option<(KindOfValue, &'static str)>,
    /// The text before and after the value. If both contain a line end, the value is on separate lines.
    pub(crate) value: (&'static str, &'static str),
    /// Values may be in `<![CDATA[…]]>`.
    pub(crate) has_cdata: bool,
}

/// The notation of a value's type in a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KindOfValue {
    /// `true` for a text, `false` for JSON.
    IsText,
    /// The name of a JSON type.
    TypeName,
}

/// The form of call ids in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// Unchanged, if present.
    AsGiven,
    /// Exactly nine letters and digits.
    Nine,
    /// `functions.NAME:INDEX`, counted across the conversation.
    NameAndIndex,
}
