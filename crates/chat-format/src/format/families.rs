//! The families' syntax of calls, as data. A new family is a new row. Where several rows read what a template writes, one
//! that writes the same text is taken, or else the first.

mod objects;
mod rows;
mod tagged;

use super::family::Family;
use objects::OBJECTS;
use tagged::TAGGED;

/// All families.
pub(crate) fn families() -> impl Iterator<Item = &'static Family> {
    OBJECTS.iter().chain(&TAGGED)
}
