//! Replacements in the source of a template. Invariant: pure.

use std::ops::Range;

/// A replacement of a range of the source.
pub(super) type Edit = (Range<usize>, String);

/// The source with these edits, which do not overlap.
pub(super) fn apply(source: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    let mut output = String::with_capacity(source.len() + 16 * edits.len());
    let mut at = 0;
    for (range, text) in edits {
        output.push_str(&source[at..range.start]);
        output.push_str(&text);
        at = range.end;
    }
    output.push_str(&source[at..]);
    output
}
