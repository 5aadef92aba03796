//! `@path` in a message attaches the text of a file.

use std::fmt::Write;

use crate::input::expanded;

/// No file of a message may be larger than this.
const LARGEST: u64 = 4 << 20;

/// A message with the files that it names, each below it between fences. A word that begins with `@` and names no file stays as it
/// is.
pub(super) fn with_files(message: &str) -> Result<String, String> {
    let mut whole = message.to_owned();
    let named = message.split_whitespace().filter_map(|word| word.strip_prefix('@'));
    let paths = named.map(|path| path.trim_end_matches([',', ';', ':', '?', '!', ')']));
    for (path, file) in paths.map(|path| (path, expanded(path))).filter(|it| it.1.is_file()) {
        let about = |error: &dyn std::fmt::Display| format!("{path} cannot be attached: {error}");
        let size = std::fs::metadata(&file).map_err(|error| about(&error))?.len();
        if size > LARGEST {
            return Err(about(&format_args!("it has {size} bytes, and {LARGEST} are allowed")));
        }
        let bytes = std::fs::read(&file).map_err(|error| about(&error))?;
        let text = String::from_utf8(bytes).map_err(|_| about(&"it is not a text in utf-8"))?;
        // A fence that the text does not hold itself.
        let fence = "`".repeat(longest_run(&text).max(2) + 1);
        let end = if text.ends_with('\n') { "" } else { "\n" };
        // Writing to a text cannot fail.
        write!(whole, "\n\n{path}:\n{fence}\n{text}{end}{fence}").ok();
    }
    Ok(whole)
}

fn longest_run(text: &str) -> usize {
    text.split(|character| character != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_attached_and_other_words_stay() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("notes.md");
        std::fs::write(&file, "one\n```\ntwo").expect("it can be written");
        let path = file.display();
        let said = with_files(&format!("what is in @{path}, @other?")).expect("it can be read");
        assert_eq!(said, format!("what is in @{path}, @other?\n\n{path}:\n````\none\n```\ntwo\n````"));
        std::fs::write(&file, b"\xff\xfe").expect("it can be written");
        assert!(with_files(&format!("@{path}")).is_err());
    }
}
