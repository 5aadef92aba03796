//! How a family writes calls of tools: the types of a row.

/// The syntax of a family's calls. Literals are written as the family's template writes them; white space in them is
/// optional when output is read.
#[derive(Debug)]
pub(crate) struct Family {
    /// The name for people.
    pub(crate) name: &'static str,
    /// The tag that opens the thoughts of its models.
    pub(crate) thoughts: &'static str,
    /// Text of templates that show tools to such models, but write no calls.
    pub(crate) signs: &'static [&'static str],
    /// What stands around calls.
    pub(crate) section: Option<Section>,
    /// One call.
    pub(crate) call: &'static [Part],
    /// What stands between two calls of a section, or between two sections of one call each.
    pub(crate) between: &'static str,
    /// The ids of calls in the prompt.
    pub(crate) ids: Ids,
    /// Markers around the answer that belong to no part of it.
    pub(crate) silent: &'static [&'static str],
    /// Calls have no marker: only an answer that begins like one, with the name of a tool, is one.
    pub(crate) only_first: bool,
}

/// What stands around calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section {
    pub(crate) open: &'static str,
    /// Empty where the end of the answer ends it.
    pub(crate) close: &'static str,
    /// Whether several calls share one; otherwise each has its own.
    pub(crate) is_shared: bool,
}

/// A part of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    /// A literal.
    Text(&'static str),
    /// The name of the tool.
    Name,
    /// `functions.NAME:INDEX`, which is the id, too.
    NameInId,
    /// The id.
    Id,
    /// The arguments.
    Args(Args),
    /// An object of name and arguments.
    Envelope(Envelope),
}

/// The syntax of arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Args {
    /// A JSON object.
    Json,
    /// `key='value', other=3)`, after the opening bracket.
    Python,
    /// `{key:"value",other:3}` with this around texts.
    Bare { quote: &'static str },
    /// A tag for each argument.
    Tagged(Tagged),
    /// An element for each argument and for all that it holds, with this before each tag.
    Nested { prefix: &'static str },
}

/// An object of name and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    /// The key of the name; empty if the name itself is the key of the arguments.
    pub(crate) name: &'static str,
    /// The key of the arguments.
    pub(crate) args: &'static str,
    /// The key of the id, and whether it comes first.
    pub(crate) id: Option<(&'static str, bool)>,
}

/// A tag for each argument: texts as they are, other values as JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tagged {
    /// Around the name of an argument.
    pub(crate) key: (&'static str, &'static str),
    /// What says the type of the value, with what stands behind it.
    pub(crate) kind: Option<(KindOfValue, &'static str)>,
    /// Around the value. Where both literals have a line end, the value stands on lines of its own.
    pub(crate) value: (&'static str, &'static str),
    /// Values may be in `<![CDATA[…]]>`.
    pub(crate) has_cdata: bool,
}

/// How a tag says the type of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KindOfValue {
    /// `true` for a text, `false` for JSON.
    IsText,
    /// The name of a JSON type.
    TypeName,
}

/// The ids of calls in the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// As they came, if at all.
    AsGiven,
    /// Exactly nine letters and digits.
    Nine,
    /// `functions.NAME:INDEX`, counted through the conversation.
    NameAndIndex,
}
