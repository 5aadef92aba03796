//! Messages for clients, without the folders of this machine.

use std::path::Path;

/// Replaces paths in the folder of a model, or beside its GGUF file, and all absolute paths with their file names.
pub(crate) fn without_folders(text: &str, model: &Path) -> String {
    let canonical = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let (name, parents) = if model.is_file() {
        let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (name, [model, &canonical].map(Path::parent))
    } else {
        ("the folder".to_owned(), [None; 2])
    };
    let paths = [model, &canonical].map(|path| (path, name.as_str()));
    // Other parts of a split file.
    let parents = parents.into_iter().flatten().filter(|path| !path.as_os_str().is_empty());
    let redacted = paths.into_iter().chain(parents.map(|path| (path, ""))).fold(
        text.to_owned(),
        |text, (path, name)| {
            let (is_absolute, path) = (path.is_absolute(), path.display().to_string());
            if is_absolute {
                let text = text.replace(&format!("{path}/"), "");
                // The folder of a file may be as short as `/`, and other text may contain it.
                return if name.is_empty() { text } else { text.replace(&path, name) };
            }
            // A relative path such as `model` may also be a word of the message, so only a path at the start is replaced.
            let Some(rest) = text.strip_prefix(&path) else { return text };
            match (rest.strip_prefix('/'), rest.starts_with(':')) {
                (Some(file), _) => file.to_owned(),
                (None, true) => format!("{name}{rest}"),
                (None, false) => text,
            }
        },
    );
    let name_of = |word: &str| {
        let is_path = word.trim_start_matches(['"', '\'', '`', '(']).starts_with('/');
        word.rsplit_once('/').filter(|_| is_path).map_or(word.to_owned(), |(_, name)| name.to_owned())
    };
    redacted.split(' ').map(name_of).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_names_files_and_no_folders() {
        let folder = Path::new("/srv/jo smith/models/a");
        for (given, expected) in [
            (
                "/srv/jo smith/models/a/config.json: model_type is missing",
                "config.json: model_type is missing",
            ),
            ("/srv/jo smith/models/a: has no weights", "the folder: has no weights"),
            ("cannot open /mnt/b/x.safetensors: gone", "cannot open x.safetensors: gone"),
            ("a/b is not a number", "a/b is not a number"),
        ] {
            assert_eq!(without_folders(given, folder), expected);
        }
        // A relative folder whose name is a common word.
        for (given, expected) in [
            ("model/config.json: model_type is missing", "config.json: model_type is missing"),
            ("model: the model has no weights", "the folder: the model has no weights"),
            ("model_type is missing", "model_type is missing"),
        ] {
            assert_eq!(without_folders(given, Path::new("model")), expected);
        }
    }

    #[test]
    fn a_cause_names_a_gguf_file_and_no_folders() {
        let folder = tempfile::Builder::new().prefix("jo smith").tempdir().expect("a temporary folder");
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, b"GGUF").expect("it can be written");
        let there = folder.path().display();
        for (given, expected) in [
            (format!("{there}/m.gguf: tensor a is unknown"), "m.gguf: tensor a is unknown"),
            (
                format!("{there}/m.gguf/config.json: model_type is missing"),
                "config.json: model_type is missing",
            ),
            (format!("{there}/m-00002-of-00002.gguf: is missing"), "m-00002-of-00002.gguf: is missing"),
        ] {
            assert_eq!(without_folders(&given, &path), expected);
        }
    }
}
