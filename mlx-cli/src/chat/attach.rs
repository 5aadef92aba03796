//! `@path` in a message attaches a text file, a picture or a recording. A pasted path of a picture or a recording attaches it if the model takes
//! it.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use chat_format::{Audio, Image, Part};

use super::file_reference::{FileReference, files};

/// The size limit of a text file in a message, in bytes.
const MAX_TEXT_LEN: usize = 4 << 20;

/// A message with its attached files.
pub(super) struct MessageWithFiles {
    pub(super) text: String,
    /// Its pictures and recordings.
    pub(super) media: Vec<Part>,
    /// One line per attached file, and per word that looks like a file but names none.
    pub(super) notes: Vec<String>,
}

/// The kinds of files besides text that a model takes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Senses {
    pub(super) vision: bool,
    pub(super) hearing: bool,
}

/// A kind of file besides text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Picture,
    Recording,
}

impl Kind {
    /// Returns the kind of a file that begins with these bytes; `None` if it may be a text.
    fn of(bytes: &[u8]) -> Option<Self> {
        let recording = Audio::is_file(bytes).then_some(Self::Recording);
        if Image::is_file(bytes) { Some(Self::Picture) } else { recording }
    }

    fn is_taken(self, senses: Senses) -> bool {
        match self {
            Self::Picture => senses.vision,
            Self::Recording => senses.hearing,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Picture => "a picture",
            Self::Recording => "a recording",
        }
    }
}

/// Attaches the files that a message names; each text is appended in a code fence. A word after `@` that names no file stays in the
/// message, as do pasted paths. Pasted pictures and recordings are attached if the model takes them. `count_tokens` returns the tokens of a
/// text.
pub(super) fn with_files(
    message: &str,
    senses: Senses,
    count_tokens: impl Fn(&str) -> usize,
) -> Result<MessageWithFiles, String> {
    let (mut full_text, mut media, mut notes) = (message.to_owned(), Vec::new(), Vec::new());
    for reference in files(message) {
        let (path, file) = match reference {
            FileReference::File { display_path, file } => (display_path, file),
            FileReference::Pasted { display_path, file } => match kind_of(&file) {
                Some(kind) if kind.is_taken(senses) => (display_path, file),
                Some(kind) => {
                    notes.push(unsupported_note(&display_path, kind, senses));
                    continue;
                }
                None => continue,
            },
            FileReference::Missing { display_path, is_folder } => {
                notes.extend(missing_file_note(&display_path, is_folder));
                continue;
            }
        };
        let text = match read(&path, &file)? {
            Content::Text(text) => text,
            Content::Medium(kind, _) if !kind.is_taken(senses) => {
                return Err(unsupported_note(&path, kind, senses));
            }
            Content::Medium(kind, part) => {
                notes.push(format!("attached {path}, {}", kind.name()));
                media.push(part);
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
    Ok(MessageWithFiles { text: full_text, media, notes })
}

/// Returns the message about a file that the model cannot use.
fn unsupported_note(path: &str, kind: Kind, senses: Senses) -> String {
    let taken = match senses {
        Senses { vision: true, .. } => "text and pictures",
        Senses { hearing: true, .. } => "text and recordings",
        Senses { .. } => "text",
    };
    format!("{path} is {}, and this model reads only {taken}", kind.name())
}

/// Returns the kind of a file by its first bytes.
fn kind_of(file: &Path) -> Option<Kind> {
    let mut start = Vec::new();
    let read = File::open(file).and_then(|file| file.take(64).read_to_end(&mut start));
    read.ok().and_then(|_| Kind::of(&start))
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
    Medium(Kind, Part),
}

fn read(path: &str, file: &Path) -> Result<Content, String> {
    let about = |error: &dyn std::fmt::Display| format!("{path} cannot be attached: {error}");
    let size = std::fs::metadata(file).map_err(|error| about(&error))?.len();
    let max_len = Image::largest_file().max(Audio::LARGEST_FILE).max(MAX_TEXT_LEN);
    if size > max_len as u64 {
        return Err(about(&format_args!("it has {size} bytes, and {max_len} are allowed")));
    }
    let bytes = std::fs::read(file).map_err(|error| about(&error))?;
    match Kind::of(&bytes) {
        Some(Kind::Picture) => return Ok(Content::Medium(Kind::Picture, Image::file(bytes).into())),
        Some(Kind::Recording) => return Ok(Content::Medium(Kind::Recording, Audio::file(bytes).into())),
        None => {}
    }
    if bytes.len() > MAX_TEXT_LEN {
        return Err(about(&format_args!("it has {size} bytes, and {MAX_TEXT_LEN} are allowed")));
    }
    String::from_utf8(bytes)
        .map(Content::Text)
        .map_err(|_| about(&"it is neither UTF-8 text nor a picture or a recording"))
}

fn longest_backtick_run(text: &str) -> usize {
    text.split(|character| character != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: Senses = Senses { vision: false, hearing: false };
    const SEEING: Senses = Senses { vision: true, hearing: false };

    #[test]
    fn recordings_are_attached_where_the_model_hears() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("a.wav");
        std::fs::write(&file, b"RIFF\x24\0\0\0WAVEfmt ").expect("it can be written");
        let hearing = Senses { hearing: true, ..TEXT };
        for path in [format!("@{}", file.display()), file.display().to_string()] {
            let attached = with_files(&path, hearing, str::len).expect("it can be read");
            assert!(matches!(attached.media[..], [Part::Audio(_)]), "{path}");
            assert_eq!(attached.notes, [format!("attached {}, a recording", file.display())]);
        }
        let refused = with_files(&format!("@{}", file.display()), SEEING, str::len).map(drop);
        let expected =
            format!("{} is a recording, and this model reads only text and pictures", file.display());
        assert_eq!(refused, Err(expected));
    }

    #[test]
    fn files_are_attached_and_other_words_stay() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("notes.md");
        std::fs::write(&file, "one\n```\ntwo").expect("it can be written");
        let path = file.display();
        let letters = |text: &str| text.len();
        let attached =
            with_files(&format!("what is in @{path}, @other?"), TEXT, letters).expect("it can be read");
        assert_eq!(
            attached.text,
            format!("what is in @{path}, @other?\n\n{path}:\n````\none\n```\ntwo\n````")
        );
        assert_eq!(attached.notes, [format!("attached {path}, 11 tokens")]);
        std::fs::write(&file, b"\xff\xfe").expect("it can be written");
        assert!(with_files(&format!("@{path}"), TEXT, letters).is_err());
        std::fs::write(&file, b"GIF89a").expect("it can be written");
        let refused = with_files(&format!("what is in @{path}?"), TEXT, letters).map(drop);
        assert_eq!(refused, Err(format!("{path} is a picture, and this model reads only text")));
        let attached = with_files(&format!("what is in @{path}?"), SEEING, letters).expect("it can be read");
        assert_eq!(attached.text, format!("what is in @{path}?"));
        assert_eq!(attached.media, [Part::Image(Image::file(b"GIF89a".to_vec()))]);
        assert_eq!(attached.notes, [format!("attached {path}, a picture")]);
    }

    #[test]
    fn a_pasted_picture_is_attached_where_the_model_sees_and_no_other_file_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (picture, text) = (folder.path().join("a b.gif"), folder.path().join("notes.md"));
        std::fs::write(&picture, b"GIF89a").expect("it can be written");
        std::fs::write(&text, "one").expect("it can be written");
        let message = format!("'{}' {}", picture.display(), text.display());
        let attached = with_files(&message, SEEING, str::len).expect("it can be read");
        assert_eq!((attached.text, attached.media.len()), (message.clone(), 1));
        assert_eq!(attached.notes, [format!("attached {}, a picture", picture.display())]);
        let attached = with_files(&message, TEXT, str::len).expect("it can be read");
        assert_eq!((attached.text, attached.media.len()), (message, 0));
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
        let attached = with_files(&message, TEXT, str::len).expect("nothing is read");
        assert_eq!(attached.text, message);
        assert_eq!(attached.notes.len(), 2, "{:?}", attached.notes);
        assert!(
            attached.notes[0].contains("@nofile.txt is not a file")
                && attached.notes[1].contains("is a folder")
        );
    }
}
