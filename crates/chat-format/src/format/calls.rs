//! A family's tool call syntax, compiled for a vocabulary.

use std::sync::Arc;

use super::families::families;
use super::family::{Args, Envelope, Family, Ids, KindOfValue, Part, Section, Tagged};
use super::pattern::{Compiler, Literal, Pattern};
use crate::text::Tokenizer;

/// A tool call format of a model family.
#[derive(Debug, Clone)]
pub struct CallFormat(Arc<CallSyntax>);

/// A family's row, compiled for the parser.
#[derive(Debug)]
pub(crate) struct CallSyntax {
    pub(crate) family: &'static Family,
    pub(crate) section: Option<(Literal, Literal)>,
    pub(crate) call: Vec<Step>,
    /// Brackets and commas may appear between calls.
    pub(crate) is_list: bool,
    pub(crate) silent: Vec<Pattern>,
    /// The special tokens in all of these literals.
    pub(crate) specials: Vec<u32>,
}

/// A part of a call, compiled for the parser.
#[derive(Debug)]
pub(crate) enum Step {
    Text(Literal),
    Name,
    NameInId,
    Id,
    Json,
    Python,
    Bare { quote: Pattern },
    Tagged(TaggedSyntax),
    Nested { prefix: Pattern },
    Envelope(Envelope),
}

/// A tag for each argument.
#[derive(Debug)]
pub(crate) struct TaggedSyntax {
    pub(crate) key: (Literal, Literal),
    pub(crate) kind: Option<(KindOfValue, Literal)>,
    pub(crate) value: (Literal, Literal),
    /// Values are on separate lines.
    pub(crate) has_lines: bool,
    pub(crate) has_cdata: bool,
}

impl CallFormat {
    /// Returns the names of all formats.
    pub fn names() -> impl Iterator<Item = &'static str> {
        families().map(|family| family.name)
    }

    /// Returns the format with this name, for text in which special tokens are spelled out.
    pub fn named(name: &str) -> Option<Self> {
        families().find(|family| family.name == name).map(|family| Self::new(family, None))
    }

    /// Returns the same format for text in which special tokens are spelled out.
    #[must_use]
    pub fn spelled_out(&self) -> Self {
        Self::new(self.0.family, None)
    }

    /// Returns the tag that opens the thoughts of models with this format.
    pub(super) fn thoughts(&self) -> &'static str {
        self.0.family.thoughts
    }

    /// Returns all formats, for text in which special tokens are spelled out.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        families().map(|family| Self::new(family, None))
    }

    /// Returns the same format for the tokens of a model.
    #[must_use]
    pub(crate) fn for_vocabulary(&self, tokenizer: &Tokenizer) -> Self {
        Self::new(self.0.family, Some(tokenizer))
    }

    /// Returns the name of the format.
    pub fn name(&self) -> &'static str {
        self.0.family.name
    }

    /// Returns the form of call ids in the prompt.
    pub(crate) fn ids(&self) -> Ids {
        self.0.family.ids
    }

    pub(crate) fn syntax(&self) -> &CallSyntax {
        &self.0
    }

    fn new(family: &'static Family, vocabulary: Option<&Tokenizer>) -> Self {
        let mut compiler = Compiler::new(vocabulary);
        let is_list = family.section.is_some_and(|section| section.open.trim_end().ends_with('['));
        let section = family.section.map(|Section { open, close, .. }| {
            let (open, close) = if is_list {
                (open.trim_end().trim_end_matches('['), close.trim_start().trim_start_matches(']'))
            } else {
                (open, close)
            };
            (compiler.literal(open), compiler.literal(close))
        });
        let call: Vec<Step> = family.call.iter().map(|part| step(part, &mut compiler)).collect();
        let is_list = is_list || matches!(call.as_slice(), [.., Step::Envelope(_)]);
        let silent = family.silent.iter().map(|text| compiler.pattern(text.trim())).collect();
        Self(Arc::new(CallSyntax { family, section, call, is_list, silent, specials: compiler.specials }))
    }
}

impl CallSyntax {
    /// Returns the markers that can begin a call: the section's and the call's.
    pub(crate) fn openers(&self) -> impl Iterator<Item = &Pattern> {
        let section = self.section.as_ref().and_then(|(open, _)| open.first());
        section.into_iter().chain(self.call_opener())
    }

    /// Returns the marker at the beginning of a call, if it has one.
    pub(crate) fn call_opener(&self) -> Option<&Pattern> {
        match self.call.first() {
            Some(Step::Text(literal)) => literal.first(),
            _ => None,
        }
    }
}

fn step(part: &Part, compiler: &mut Compiler) -> Step {
    match part {
        Part::Text(text) => Step::Text(compiler.literal(text)),
        Part::Name => Step::Name,
        Part::NameInId => Step::NameInId,
        Part::Id => Step::Id,
        Part::Envelope(envelope) => Step::Envelope(*envelope),
        Part::Args(Args::Json) => Step::Json,
        Part::Args(Args::Python) => Step::Python,
        Part::Args(Args::Bare { quote }) => Step::Bare { quote: compiler.pattern(quote) },
        Part::Args(Args::Tagged(tagged)) => Step::Tagged(tagged_syntax(tagged, compiler)),
        Part::Args(Args::Nested { prefix }) => Step::Nested { prefix: compiler.pattern(prefix) },
    }
}

fn tagged_syntax(tagged: &Tagged, compiler: &mut Compiler) -> TaggedSyntax {
    let Tagged { key, kind, value, has_cdata } = *tagged;
    let before = if value.0.is_empty() { key.1 } else { value.0 };
    TaggedSyntax {
        key: (compiler.literal(key.0), compiler.literal(key.1)),
        kind: kind.map(|(kind, after)| (kind, compiler.literal(after))),
        value: (compiler.literal(value.0), compiler.literal(value.1)),
        has_lines: before.ends_with('\n') && value.1.starts_with('\n'),
        has_cdata,
    }
}
