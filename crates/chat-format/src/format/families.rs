//! The tool call syntax of all families, as data. To support a new family, add a row. If several rows match a template,
//! the one that writes identical text is used, else the first.

mod objects;
mod rows;
mod tagged;

use super::family::Family;
use objects::OBJECTS;
use tagged::TAGGED;

/// Returns all families.
pub(crate) fn families() -> impl Iterator<Item = &'static Family> {
    OBJECTS.iter().chain(&TAGGED)
}
