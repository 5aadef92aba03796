//! `strftime_now`: formats the time with Python's directives.

use std::fmt::Write;

use jiff::civil::DateTime;

/// Formats `time` like Python's `datetime.strftime` for a naive time. Unknown directives stay unchanged, as in the C
/// library.
pub(super) fn format(time: DateTime, format: &str) -> String {
    let mut output = String::new();
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        output.push_str(&rest[..start]);
        let directive = directive(&rest[start..]);
        push(&mut output, time, directive);
        rest = &rest[start + directive.len()..];
    }
    output + rest
}

/// Returns the directive at the start of `text`: a percent sign, flags, a width and a letter.
fn directive(text: &str) -> &str {
    let mut letters = text.char_indices().skip(1);
    let end = letters.find(|(_, letter)| !matches!(letter, '-' | '_' | '^' | '#' | '0'..='9'));
    end.map_or(text, |(start, letter)| &text[..start + letter.len_utf8()])
}

fn push(output: &mut String, time: DateTime, directive: &str) {
    let same_as = match directive {
        // A naive time has no zone name or offset.
        "%Z" | "%z" | "%:z" => return,
        "%f" => "%6f",
        "%c" => "%a %b %e %H:%M:%S %Y",
        "%x" | "%D" => "%m/%d/%y",
        "%X" => "%H:%M:%S",
        "%r" => "%I:%M:%S %p",
        other => other,
    };
    // jiff reports an invalid directive when it writes the text.
    let length = output.len();
    if write!(output, "{}", time.strftime(same_as)).is_err() {
        output.truncate(length);
        output.push_str(directive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_as_python_does() {
        let time = jiff::civil::date(2024, 7, 6).at(9, 5, 3, 1_000_000);
        for (directives, expected) in [
            ("%Y-%m-%d", "2024-07-06"),
            ("%d %b %Y, %A %B", "06 Jul 2024, Saturday July"),
            ("%-d/%-m %I:%M %p %H%%", "6/7 09:05 AM 09%"),
            ("%c|%x|%X|%j|%U|%f|%Z|%z|%y", "Sat Jul  6 09:05:03 2024|07/06/24|09:05:03|188|26|001000|||24"),
            ("no directive %", "no directive %"),
            ("%é %Ö", "%é %Ö"),
        ] {
            assert_eq!(format(time, directives), expected);
        }
    }
}
