//! Patterns for string formats, and patterns that all validators interpret alike. The pattern of a format accepts no text that a validator
//! refuses. It excludes a few valid texts: years before 1, leap seconds, long names, and comments in addresses.

use std::fmt::Write;

/// A year from 0001 to 9999.
const YEAR: &str = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
/// A year that has a 29 February.
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
/// A month and a day that every year has.
const DAY: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
/// A host name: at most four labels of at most 61 characters.
const HOST: &str = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}(?:\\.[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}){0,3}";
const MAILBOX: &str = "[A-Za-z0-9_+-]{1,30}(?:\\.[A-Za-z0-9_+-]{1,30})?";

/// Returns a pattern for a format. `None`: the compiler's own rule for the format accepts no wrong texts.
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

/// White space for every validator.
const SPACE: &str =
    "\\t\\n\\x0B\\f\\r \\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
/// White space for some validators only.
const DISPUTED: &str = "\\x1C-\\x1F\\x{85}\\x{FEFF}";

/// Rewrites a pattern so that `\s` and `\S` match only characters on which all validators agree.
pub(super) fn with_agreed_space(pattern: &str) -> String {
    let mut agreed = String::with_capacity(pattern.len());
    // True while a character class is open, and while it is negated. A negated class matches the characters that it does not list.
    let (mut in_set, mut is_negated) = (false, false);
    let mut rest = pattern.chars().peekable();
    while let Some(symbol) = rest.next() {
        match (symbol, rest.peek()) {
            ('\\', Some('s' | 'S')) => {
                let is_space = rest.next() == Some('s');
                let disputed = if is_space == is_negated { DISPUTED } else { "" };
                let not = if is_space { "" } else { "^" };
                let _ = write!(agreed, "[{not}{SPACE}{disputed}]");
            }
            ('\\', Some(_)) => {
                agreed.push(symbol);
                agreed.extend(rest.next());
            }
            ('[', next) if !in_set => {
                (in_set, is_negated) = (true, next == Some(&'^'));
                agreed.push(symbol);
            }
            (']', _) => {
                (in_set, is_negated) = (false, false);
                agreed.push(symbol);
            }
            _ => agreed.push(symbol),
        }
    }
    agreed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_are_those_of_every_validator() {
        assert_eq!(with_agreed_space("a\\\\s[^s]"), "a\\\\s[^s]");
        assert_eq!(with_agreed_space("\\s"), format!("[{SPACE}]"));
        assert_eq!(with_agreed_space("\\S"), format!("[^{SPACE}{DISPUTED}]"));
        assert_eq!(with_agreed_space("[^\\s]\\s"), format!("[^[{SPACE}{DISPUTED}]][{SPACE}]"));
    }
}
