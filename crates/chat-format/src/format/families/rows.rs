//! Helpers for the rows of families: sections, plain calls, objects and tags.

use super::super::family::{Args, Envelope, Family, Ids, Part, Section, Tagged};

pub(super) const fn each(open: &'static str, close: &'static str) -> Section {
    Section { open, close, is_shared: false }
}

pub(super) const fn shared(open: &'static str, close: &'static str) -> Section {
    Section { open, close, is_shared: true }
}

/// Returns a row whose calls have no section.
pub(super) const fn row(name: &'static str, call: &'static [Part]) -> Family {
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

/// Returns a row with a section per call, and with tags on separate lines.
pub(super) const fn on_lines(
    name: &'static str,
    (open, close): (&'static str, &'static str),
    call: &'static [Part],
) -> Family {
    Family { section: Some(each(open, close)), between: "\n", ..row(name, call) }
}

pub(super) const NAMED: Envelope = Envelope { name: "name", args: "arguments", id: None };
pub(super) const OBJECT: &[Part] = &[Part::Envelope(NAMED)];

pub(super) const fn tags(key: (&'static str, &'static str), value: (&'static str, &'static str)) -> Part {
    Part::Args(Args::Tagged(Tagged { key, kind: None, value, has_cdata: false }))
}
