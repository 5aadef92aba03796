//! `@path` in a message attaches a text file or a picture. A pasted path of a picture attaches it if the model has vision.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use chat_format::Image;

use super::file_reference::{FileReference, files};

/// The size limit of a text file in a message, in bytes.
const MAX_TEXT_LEN: usize = 4 << 20;

/// A message with its attached files.
pub(super) struct MessageWithFiles {
    pub(super) text: String,
    pub(super) images: Vec<Image>,
    /// One line per attached file, and per word that looks like a file but names none.
    pub(super) notes: Vec<String>,
}

/// Attaches the files that a message names; each text is appended in a code fence. A word after `@` that names no file stays in the
/// message, as do pasted paths. Pasted pictures are attached if the model supports images (`has_vision`). `count_tokens` returns the tokens of a text.
pub(super) fn with_files(
    message: &str,
    has_vision: bool,
    count_tokens: impl Fn(&str) -> usize,
) -> Result<MessageWithFiles, String> {
    let (mut full_text, mut images, mut notes) = (message.to_owned(), Vec::new(), Vec::new());
    for reference in files(message) {
        let (path, file) = match reference {
            FileReference::File { display_path, file } => (display_path, file),
            FileReference::Pasted { display_path, file } if is_picture(&file) => {
                if !has_vision {
                    notes.push(unsupported_image_note(&display_path));
                    continue;
                }
                (display_path, file)
            }
            FileReference::Pasted { .. } => continue,
            FileReference::Missing { display_path, is_folder } => {
                notes.extend(missing_file_note(&display_path, is_folder));
                continue;
            }
        };
        let text = match read(&path, &file)? {
            Content::Text(text) => text,
            Content::Picture(_) if !has_vision => return Err(unsupported_image_note(&path)),
            Content::Picture(image) => {
                notes.push(format!("attached {path}, a picture"));
                images.push(image);
                continue;
            }
        };
        notes.push(format!("attached {path}, {} tokens", count_tokens(&text)));
        // A fence longer than any in the text.
        let fence = "`".repeat(longest_backtick_run(&text).max(2) + 1);
        let end = if text.ends_with('\n') { "" } else { "\n" };
        // Writing to a string cannot fail.
        write!(full_text, "\n\n{path}:\n{fence}\n{text}{end}{fence}").ok();
    }
    Ok(MessageWithFiles { text: full_text, images, notes })
}

/// Returns the message about a picture that a text-only model cannot use.
fn unsupported_image_note(path: &str) -> String {
    format!("{path} is a picture, and this model reads only text")
}

/// Returns true if a file begins like a picture.
fn is_picture(file: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(64).read_to_end(&mut start));
    read.is_ok() && Image::is_file(&start)
}

/// Returns a note about a word that names no file, if it looks like a path.
fn missing_file_note(path: &str, is_folder: bool) -> Option<String> {
    if is_folder {
        return Some(format!("@{path} is a folder; only files are attached"));
    }
    let looks_like_path = path.contains('/') || path.trim_end_matches('.').contains('.');
    looks_like_path.then(|| format!("@{path} is not a file here; the message keeps the word unchanged"))
}

enum Content {
    Text(String),
    Picture(Image),
}

fn read(path: &str, file: &Path) -> Result<Content, String> {
    let about = |error: &dyn std::fmt::Display| format!("{path} cannot be attached: {error}");
    let size = std::fs::metadata(file).map_err(|error| about(&error))?.len();
    let max_len = Image::largest_file().max(MAX_TEXT_LEN);
    if size > max_len as u64 {
        return Err(about(&format_args!("it has {size} bytes, and {max_len} are allowed")));
    }
    let bytes = std::fs::read(file).map_err(|error| about(&error))?;
    if Image::is_file(&bytes) {
        return Ok(Content::Picture(Image::file(bytes)));
    }
    if bytes.len() > MAX_TEXT_LEN {
        return Err(about(&format_args!("it has {size} bytes, and {MAX_TEXT_LEN} are allowed")));
    }
    String::from_utf8(bytes).map(Content::Text).map_err(|_| about(&"it is neither UTF-8 text nor a picture"))
}

fn longest_backtick_run(text: &str) -> usize {
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
        let letters = |text: &str| text.len();
        let attached =
            with_files(&format!("what is in @{path}, @other?"), false, letters).expect("it can be read");
        assert_eq!(
            attached.text,
            format!("what is in @{path}, @other?\n\n{path}:\n````\none\n```\ntwo\n````")
        );
        assert_eq!(attached.notes, [format!("attached {path}, 11 tokens")]);
        std::fs::write(&file, b"\xff\xfe").expect("it can be written");
        assert!(with_files(&format!("@{path}"), false, letters).is_err());
        std::fs::write(&file, b"GIF89a").expect("it can be written");
        let refused = with_files(&format!("what is in @{path}?"), false, letters).map(drop);
        assert_eq!(refused, Err(format!("{path} is a picture, and this model reads only text")));
        let attached = with_files(&format!("what is in @{path}?"), true, letters).expect("it can be read");
        assert_eq!(attached.text, format!("what is in @{path}?"));
        assert_eq!(attached.images, [Image::file(b"GIF89a".to_vec())]);
        assert_eq!(attached.notes, [format!("attached {path}, a picture")]);
    }

    #[test]
    fn a_pasted_picture_is_attached_where_the_model_sees_and_no_other_file_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (picture, text) = (folder.path().join("a b.gif"), folder.path().join("notes.md"));
        std::fs::write(&picture, b"GIF89a").expect("it can be written");
        std::fs::write(&text, "one").expect("it can be written");
        let message = format!("'{}' {}", picture.display(), text.display());
        let attached = with_files(&message, true, str::len).expect("it can be read");
        assert_eq!((attached.text, attached.images.len()), (message.clone(), 1));
        assert_eq!(attached.notes, [format!("attached {}, a picture", picture.display())]);
        let attached = with_files(&message, false, str::len).expect("it can be read");
        assert_eq!((attached.text, attached.images.len()), (message, 0));
        assert!(
            attached.notes[0].ends_with("is a picture, and this model reads only text"),
            "{:?}",
            attached.notes
        );
    }

    #[test]
    fn words_that_look_like_files_and_are_none_are_noted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let message = format!("@nofile.txt @{} @me. @you", folder.path().display());
        let attached = with_files(&message, false, str::len).expect("nothing is read");
        assert_eq!(attached.text, message);
        assert_eq!(attached.notes.len(), 2, "{:?}", attached.notes);
        assert!(
            attached.notes[0].contains("@nofile.txt is not a file")
                && attached.notes[1].contains("is a folder")
        );
    }
}
