//! Makes text of models and files safe for a terminal or a log. A terminal interprets ESC sequences, their 8-bit forms
//! and other control characters as commands: titles, the clipboard, the cursor. Characters that reverse, join or hide
//! text can make a reader see a different text.

use std::borrow::Cow;

use crate::hidden::{Place, is_hidden, is_kept};

/// Removes control characters except line ends and tabs. Replaces hidden characters by their codes, such as `\u{202e}`,
/// except joiners and selectors that scripts and emoji need.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_changed) {
        return Cow::Borrowed(text);
    }
    let mut printer = Printer::default();
    let mut out = printer.add(text).into_owned();
    out.push_str(&printer.finish());
    Cow::Owned(out)
}

/// Like [`printable`], but on one line, and control characters become codes too. For text that the user has to approve.
pub fn visible(text: &str) -> String {
    let shown = |letter: char| if letter.is_control() { escaped(letter) } else { letter.into() };
    printable(&text.chars().map(shown).collect::<String>()).into_owned()
}

/// Makes a streamed text [`printable`].
#[derive(Debug, Default)]
pub struct Printer {
    place: Place,
    /// A joiner at the end of the text so far. The next letter decides whether it is printed.
    held: Option<char>,
}

impl Printer {
    /// Adds a chunk of the text. Returns the output that later chunks cannot change.
    pub fn add<'a>(&mut self, piece: &'a str) -> Cow<'a, str> {
        if self.held.is_none() && !piece.contains(is_changed) {
            self.place.follow(piece);
            return Cow::Borrowed(piece);
        }
        let mut out = String::with_capacity(piece.len());
        for letter in piece.chars() {
            self.release(Some(letter), &mut out);
            if is_command(letter) {
                continue;
            }
            if !is_hidden(letter) {
                out.push(letter);
                self.place.pass(letter);
            } else if self.place.may_join(letter) {
                self.held = Some(letter);
            } else if is_kept(&mut self.place, letter) {
                out.push(letter);
            } else {
                self.place = Place::default();
                out.push_str(&escaped(letter));
            }
        }
        Cow::Owned(out)
    }

    /// Ends the text. Returns the output that was held back.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.release(None, &mut out);
        self.place = Place::default();
        out
    }

    /// Prints or escapes the held joiner, now that the next letter is known.
    fn release(&mut self, after: Option<char>, out: &mut String) {
        let Some(joiner) = self.held.take() else { return };
        if after.is_some_and(|after| self.place.joins(joiner, after)) {
            out.push(joiner);
        } else {
            self.place = Place::default();
            out.push_str(&escaped(joiner));
        }
    }
}

fn is_command(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\n' | '\t')
}

fn is_changed(letter: char) -> bool {
    is_command(letter) || is_hidden(letter)
}

fn escaped(letter: char) -> String {
    letter.escape_unicode().to_string()
}

/// Escapes hidden characters and the control characters that JSON allows in strings. The value stays the same.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_escaped = |letter: char| matches!(letter, '\u{7f}'..='\u{9f}') || is_hidden(letter);
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let units = |letter: char| {
        let mut units = [0; 2];
        let units = letter.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}"));
        units.collect::<Vec<_>>().concat()
    };
    let shown = |letter: char| if is_escaped(letter) { units(letter) } else { letter.to_string() };
    Cow::Owned(json.chars().map(shown).collect())
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
    fn what_hides_or_reverses_text_has_its_code() {
        for (text, shown) in [
            ("user\u{202e}gpj.exe\u{202c}", "user\\u{202e}gpj.exe\\u{202c}"),
            ("\u{2066}a\u{2069}\u{200e}\u{200f}\u{61c}", "\\u{2066}a\\u{2069}\\u{200e}\\u{200f}\\u{61c}"),
            ("pa\u{200b}y\u{2060}p\u{feff}al\u{ad}", "pa\\u{200b}y\\u{2060}p\\u{feff}al\\u{ad}"),
            ("a\u{200d}b \u{200c}", "a\\u{200d}b \\u{200c}"),
            // Hidden text in tags, and in selectors.
            ("ok\u{e0068}\u{e0069}", "ok\\u{e0068}\\u{e0069}"),
            ("😀\u{fe0f}\u{fe0e}\u{e0101}", "😀\u{fe0f}\\u{fe0e}\\u{e0101}"),
            ("😀\u{200d}a", "😀\\u{200d}a"),
            ("م\u{200c}\u{200c}ی", "م\\u{200c}\\u{200c}ی"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    /// Texts whose joiners are required by the script.
    const WRITTEN: [&str; 9] = [
        "می\u{200c}خواهم",
        "क\u{94d}\u{200d}ष न\u{94d}\u{200c}न",
        "ශ\u{dca}\u{200d}රී",
        "👩\u{200d}💻 👨\u{200d}👩\u{200d}👧 ❤\u{fe0f}\u{200d}🔥 🧑🏽\u{200d}🚀",
        "🏳\u{fe0f}\u{200d}🌈 1\u{fe0f}\u{20e3} ☎\u{fe0e}",
        "🏴\u{e0067}\u{e0062}\u{e0065}\u{e006e}\u{e0067}\u{e007f}",
        "葛\u{e0100}",
        "ខ្ញុំ\u{200b}ទៅ",
        "ᠨ\u{180b}ᠠ",
    ];

    #[test]
    fn joiners_of_scripts_and_emoji_stay_however_the_text_is_cut() {
        for text in WRITTEN {
            assert_eq!(printable(text), text);
            assert_eq!(visible(text), text);
            let mut printer = Printer::default();
            let mut out: String = text.chars().map(|it| printer.add(&it.to_string()).into_owned()).collect();
            out.push_str(&printer.finish());
            assert_eq!(out, text);
        }
        let mut printer = Printer::default();
        assert_eq!(
            (printer.add("😀\u{200d}").into_owned(), printer.finish()),
            ("😀".into(), "\\u{200d}".into())
        );
    }

    #[test]
    fn a_text_to_approve_has_one_line() {
        assert_eq!(visible("a\nb\u{1b}[2J\u{202e}"), "a\\u{a}b\\u{1b}[2J\\u{202e}");
    }

    #[test]
    fn escaped_json_says_the_same() {
        assert_eq!(printable_json("{\"a\": \"\u{9b}m\u{7f}é\"}"), "{\"a\": \"\\u009bm\\u007fé\"}");
        assert_eq!(printable_json("[\"\u{202e}\u{e0068}\"]"), "[\"\\u202e\\udb40\\udc68\"]");
        assert_eq!(printable_json("[\"é\"]"), "[\"é\"]");
    }
}
