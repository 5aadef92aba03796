//! Formats of strings as patterns. They accept no text that a validator of the format refuses; a few that it accepts are left
//! out: years before 1, leap seconds, long names, comments in addresses.

use std::fmt::Write;

/// A year from 0001 to 9999.
const YEAR: &str = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
/// A year that has a 29 February.
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
/// A month and a day that every year has.
const DAY: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// A name of a host: at most four labels of at most 61 characters.
const HOST: &str = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}(?:\\.[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}){0,3}";
const MAILBOX: &str = "[A-Za-z0-9_+-]{1,30}(?:\\.[A-Za-z0-9_+-]{1,30})?";

/// The pattern of a format whose own rule would let wrong texts through.
pub(super) fn pattern_of(format: &str) -> Option<String> {
    let date = || format!("(?:{YEAR}-{DAY}|{LEAP_YEAR}-02-29)");
    let mut pattern = String::from("^");
    match format {
        "date" => pattern.push_str(&date()),
        "time" => pattern.push_str(TIME),
        "date-time" => write!(pattern, "{}T{TIME}", date()).ok()?,
        "hostname" => pattern.push_str(HOST),
        "email" => write!(pattern, "{MAILBOX}@{HOST}").ok()?,
        _ => return None,
    }
    pattern.push('$');
    Some(pattern)
}
