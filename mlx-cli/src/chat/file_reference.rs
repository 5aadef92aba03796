//! Finds the files that a message names: words after `@`, and paths as terminals paste them for dropped files.
//! Invariant: checks whether files exist and reads none.

use std::path::PathBuf;

use crate::input::expanded;

/// A word that names a file or looks like it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileReference {
    /// A file after `@`.
    File { display_path: String, file: PathBuf },
    /// An absolute path or a `file:` URL of an existing file, without `@`.
    Pasted { display_path: String, file: PathBuf },
    /// A word after `@` that names no file.
    Missing { display_path: String, is_folder: bool },
}

/// Returns every file that `message` names, in order.
pub(super) fn files(message: &str) -> Vec<FileReference> {
    let (mut named, mut rest) = (Vec::new(), message.trim_start());
    while !rest.is_empty() {
        let length = match rest.strip_prefix('@') {
            Some(path) => {
                let (found, length) = after_at_sign(path);
                named.push(found);
                length + 1
            }
            None => match pasted(rest) {
                Some((found, length)) => {
                    named.push(found);
                    length
                }
                None => word(rest).len(),
            },
        };
        rest = rest[length..].trim_start();
    }
    named
}

/// Returns true if a line begins with a pasted path, which is not a command.
pub(super) fn begins_with_file(line: &str) -> bool {
    pasted(line.trim_start()).is_some()
}

fn after_at_sign(text: &str) -> (FileReference, usize) {
    if let Some((path, file, length)) = file_at(text) {
        return (FileReference::File { display_path: path, file }, length);
    }
    let display_path = without_punctuation(word(text)).to_owned();
    let is_folder = expanded(&display_path).is_dir();
    (FileReference::Missing { display_path, is_folder }, word(text).len())
}

fn pasted(text: &str) -> Option<(FileReference, usize)> {
    const PREFIXES: [&str; 5] = ["/", "~/", "'/", "\"/", "file://"];
    PREFIXES.iter().find(|it| text.starts_with(**it))?;
    let (display_path, file, length) = file_at(text)?;
    Some((FileReference::Pasted { display_path, file }, length))
}

/// Returns the file that the first word of `text` names, and the length of the word. The word may be plain, shell-quoted or a URL.
fn file_at(text: &str) -> Option<(String, PathBuf, usize)> {
    let plain = word(text);
    let of_shell = shell_word(text);
    let readings = [Some((plain.to_owned(), plain.len())), of_shell];
    readings.into_iter().flatten().find_map(|(path, length)| {
        let path = file_url_path(&path).unwrap_or(path);
        [path.as_str(), without_punctuation(&path)].into_iter().find_map(|path| {
            let file = expanded(path);
            file.is_file().then(|| (path.to_owned(), file, length))
        })
    })
}

/// Returns the text up to white space.
fn word(text: &str) -> &str {
    text.split(char::is_whitespace).next().unwrap_or_default()
}

/// Removes trailing punctuation.
fn without_punctuation(path: &str) -> &str {
    path.trim_end_matches([',', ';', ':', '?', '!', ')'])
}

/// Parses the first word as a shell does, with quotes and backslashes, and returns it with its length; `None` if a quote is not closed.
fn shell_word(text: &str) -> Option<(String, usize)> {
    let (mut path, mut quote) = (String::new(), None);
    let mut chars = text.char_indices();
    while let Some((at, ch)) = chars.next() {
        match (quote, ch) {
            (None, ch) if ch.is_whitespace() => return Some((path, at)),
            (None, '\'' | '"') => quote = Some(ch),
            (Some(open), ch) if ch == open => quote = None,
            (None, '\\') => path.push(chars.next()?.1),
            (Some('"'), '\\') => {
                let (_, next) = chars.next()?;
                if !matches!(next, '"' | '\\' | '$' | '`') {
                    path.push('\\');
                }
                path.push(next);
            }
            (_, ch) => path.push(ch),
        }
    }
    quote.is_none().then_some((path, text.len()))
}

/// Returns the path of a `file:` URL of this machine.
fn file_url_path(text: &str) -> Option<String> {
    let rest = text.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((&first, mut after)) = rest.split_first() {
        let digits = (first == b'%').then(|| after.get(..2)).flatten();
        let digits = digits.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 16).ok());
        if digits.is_some() {
            after = &after[2..];
        }
        bytes.push(digits.unwrap_or(first));
        rest = after;
    }
    String::from_utf8(bytes).ok().filter(|path| path.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_files_are_found_as_terminals_paste_them() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir = folder.path().display().to_string();
        for name in ["it's (1) a é.png", "b.png", "cat?.png"] {
            std::fs::write(folder.path().join(name), "").expect("it can be written");
        }
        let (hard, easy) = (format!("{dir}/it's (1) a é.png"), format!("{dir}/b.png"));
        let of =
            |path: &str| FileReference::Pasted { display_path: path.to_owned(), file: PathBuf::from(path) };
        for (text, expected) in [
            // macOS Terminal, iTerm2, kitty, Ghostty.
            (format!("{dir}/it\\'s\\ \\(1\\)\\ a\\ é.png "), vec![&hard]),
            // GNOME Terminal, foot, Konsole.
            (format!("'{dir}/it'\\''s (1) a é.png' '{easy}'"), vec![&hard, &easy]),
            (format!("\"{dir}/it's (1) a é.png\""), vec![&hard]),
            (format!("file://{dir}/it's%20(1)%20a%20%C3%A9.png\nfile://localhost{easy}"), vec![&hard, &easy]),
            (format!("what's in {easy}, and in '{easy}'?"), vec![&easy, &easy]),
            (format!("{dir}/cat?.png"), vec![&format!("{dir}/cat?.png")]),
            (format!("it's said that '{dir}/none.png' isn't in {dir}"), vec![]),
            (format!("'{easy}"), vec![]),
            (format!("see file://host{easy} and x{easy}"), vec![]),
        ] {
            let expected: Vec<FileReference> = expected.into_iter().map(|path| of(path)).collect();
            assert_eq!(files(&text), expected, "{text}");
        }
        assert!(begins_with_file(&format!("{easy} what is it?")) && !begins_with_file("/save b.png"));
        let quoted = files(&format!("@\"{hard}\" @{dir}/it\\'s\\ (1)"));
        assert_eq!(quoted[0], FileReference::File { display_path: hard.clone(), file: PathBuf::from(&hard) });
        assert!(matches!(&quoted[1], FileReference::Missing { is_folder: false, .. }), "{quoted:?}");
    }

    #[test]
    fn nothing_in_a_message_makes_it_fail() {
        proptest::proptest!(|(text in "[@'\"/~\\\\ a%é]{0,40}|file://[%0-9a-f/é]{0,20}")| { files(&text); });
    }
}
