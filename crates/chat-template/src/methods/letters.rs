//! Case conversion and character classes for text methods.

use super::super::python::is_space;

/// Converts to title case. A word is a run of letters.
pub(super) fn title(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut inside = false;
    for letter in text.chars() {
        if inside {
            output.extend(letter.to_lowercase());
        } else {
            output.extend(letter.to_uppercase());
        }
        inside = letter.is_alphabetic();
    }
    output
}

/// Converts the first letter to upper case and the others to lower case.
pub(in super::super) fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &letters.as_str().to_lowercase()
}

pub(super) fn swap_case(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_uppercase() {
            output.extend(letter.to_lowercase());
        } else {
            output.extend(letter.to_uppercase());
        }
    }
    output
}

/// `isdigit` and similar methods.
pub(super) fn is(text: &str, method: &str) -> bool {
    let all = |holds: fn(char) -> bool| !text.is_empty() && text.chars().all(holds);
    match method {
        "isdigit" | "isdecimal" => all(|letter| letter.is_ascii_digit()),
        "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        "istitle" => text.chars().any(char::is_alphabetic) && title(text) == text,
        "isascii" => text.is_ascii(),
        "isprintable" => {
            text.chars().all(|letter| letter == ' ' || !(letter.is_control() || is_space(letter)))
        }
        "isidentifier" => {
            all(|letter| letter.is_alphanumeric() || letter == '_') && !text.starts_with(char::is_numeric)
        }
        _ => false,
    }
}
