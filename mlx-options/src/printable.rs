//! Text of models and files on its way to a terminal or a log. A terminal takes what follows ESC, its 8-bit forms and other control
//! characters for commands: titles, the clipboard, the cursor.

use std::borrow::Cow;

/// The text without control characters but line ends and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_command = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    if text.contains(is_command) { Cow::Owned(text.replace(is_command, "")) } else { Cow::Borrowed(text) }
}

/// The same JSON, in which the control characters that JSON allows in a text are escaped, too.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_command = |letter: char| matches!(letter, '\u{7f}'..='\u{9f}');
    if !json.contains(is_command) {
        return Cow::Borrowed(json);
    }
    let escaped = |letter: char| {
        if is_command(letter) { format!("\\u{:04x}", u32::from(letter)) } else { letter.to_string() }
    };
    Cow::Owned(json.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_left_out() {
        for (text, shown) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\x1b]0;title\x07\x1b[2J", "]0;title[2J"),
            ("\u{9b}31m\u{9d}52;c;x\u{9c}", "31m52;c;x"),
            ("a\rb\x08c\x7f\0", "abc"),
            ("é 漢字 🦀 \u{a0}", "é 漢字 🦀 \u{a0}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn escaped_json_says_the_same() {
        assert_eq!(printable_json("{\"a\": \"\u{9b}m\u{7f}é\"}"), "{\"a\": \"\\u009bm\\u007fé\"}");
        assert_eq!(printable_json("[\"é\"]"), "[\"é\"]");
    }
}
