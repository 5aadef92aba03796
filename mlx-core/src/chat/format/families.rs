//! The families' syntax of calls, as data. A new family is a new row. Where several rows read what a template writes, one
//! that writes the same text is taken, or else the first.

mod objects;
mod tagged;

use super::family::{Args, Envelope, Family, Ids, Part, Section, Tagged};
use objects::OBJECTS;
use tagged::TAGGED;

/// All families.
pub(in crate::chat) fn families() -> impl Iterator<Item = &'static Family> {
    OBJECTS.iter().chain(&TAGGED)
}

const fn each(open: &'static str, close: &'static str) -> Section {
    Section { open, close, is_shared: false }
}

const fn shared(open: &'static str, close: &'static str) -> Section {
    Section { open, close, is_shared: true }
}

/// A row whose calls have nothing around them.
const fn row(name: &'static str, call: &'static [Part]) -> Family {
    Family {
        name,
        thoughts: "<think>",
        signs: &[],
        section: None,
        call,
        between: "",
        ids: Ids::AsGiven,
        silent: &[],
        only_first: false,
    }
}

const NAMED: Envelope = Envelope { name: "name", args: "arguments", id: None };
const OBJECT: &[Part] = &[Part::Envelope(NAMED)];

const fn tags(key: (&'static str, &'static str), value: (&'static str, &'static str)) -> Part {
    Part::Args(Args::Tagged(Tagged { key, kind: None, value, has_cdata: false }))
}
