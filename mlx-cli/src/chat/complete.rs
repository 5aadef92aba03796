//! Tab completion in a chat: commands, their arguments, models and paths. Invariant: reads folders and changes nothing.

use std::path::Path;

use mlx_hub::has_gguf_extension;

use super::command::COMMANDS;
use super::params::names;
use crate::completion::local_models;
use crate::input::expanded;

/// Returns the completions for the end of `line`, and the offset where the completed word begins.
pub(super) fn candidates(line: &str) -> (usize, Vec<String>) {
    let (start, word) = last_word(line);
    if let Some(path) = word.strip_prefix('@') {
        return (start + 1, paths(path));
    }
    let Some((command, rest)) = line.split_once(' ').filter(|_| line.starts_with('/')) else {
        let commands =
            if start == 0 && line.starts_with('/') { matching(COMMANDS, line) } else { Vec::new() };
        return (0, commands);
    };
    let start_of_rest = line.len() - rest.len();
    match command {
        "/save" | "/save!" | "/load" => (start_of_rest, paths(rest)),
        "/model" => {
            let models = local_models();
            let mut found = matching(&models.iter().map(String::as_str).collect::<Vec<_>>(), rest);
            let is_model = |path: &String| path.ends_with('/') || has_gguf_extension(path.as_ref());
            found.extend(paths(rest).into_iter().filter(is_model));
            (start_of_rest, found)
        }
        "/copy" => (start_of_rest, matching(&["code"], rest)),
        "/think" => (start_of_rest, matching(&["on", "off", "auto"], rest)),
        "/params" => {
            let named = matching(&names(), word);
            (start, named.into_iter().map(|name| name + "=").collect())
        }
        _ => (line.len(), Vec::new()),
    }
}

/// Returns the last word of a line and its offset.
fn last_word(line: &str) -> (usize, &str) {
    let start = line
        .rfind(char::is_whitespace)
        .map_or(0, |at| at + line[at..].chars().next().map_or(1, char::len_utf8));
    (start, &line[start..])
}

fn matching(words: &[&str], start: &str) -> Vec<String> {
    words.iter().filter(|word| word.starts_with(start)).map(|word| (*word).to_owned()).collect()
}

/// Returns the paths with this prefix; folders end with `/`. Hidden files are included if the name begins with a dot.
fn paths(start: &str) -> Vec<String> {
    let parent = start.rfind('/').map_or("", |at| &start[..=at]);
    let name = &start[parent.len()..];
    let folder = if parent.is_empty() { Path::new(".").to_path_buf() } else { expanded(parent) };
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let is_match = file.starts_with(name) && (name.starts_with('.') || !file.starts_with('.'));
            let end = if entry.path().is_dir() { "/" } else { "" };
            is_match.then(|| format!("{parent}{file}{end}"))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_words_are_completed() {
        assert_eq!(candidates("/sa"), (0, vec!["/save".to_owned(), "/save!".to_owned()]));
        assert_eq!(candidates("/think o"), (7, vec!["on".to_owned(), "off".to_owned()]));
        assert_eq!(candidates("/params seed=1 top_"), (15, vec!["top_k=".to_owned(), "top_p=".to_owned()]));
        assert!(candidates("/model gui").1.contains(&"guide".to_owned()));
        assert_eq!(candidates("say /sa").1, Vec::<String>::new(), "in the middle of a message");
        assert_eq!(candidates("").1, Vec::<String>::new());
    }

    #[test]
    fn paths_are_completed_behind_an_at_and_for_files() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("notes.md"), "").expect("it can be written");
        std::fs::create_dir(folder.path().join("novels")).expect("it can be made");
        std::fs::write(folder.path().join(".hidden"), "").expect("it can be written");
        let dir = folder.path().display();
        let both = vec![format!("{dir}/notes.md"), format!("{dir}/novels/")];
        assert_eq!(candidates(&format!("what is in @{dir}/no")), (12, both.clone()));
        assert_eq!(candidates(&format!("/load {dir}/")), (6, both));
        assert_eq!(candidates(&format!("@{dir}/.h")).1, [format!("{dir}/.hidden")]);
        assert!(candidates("@~/nothing-of-this-name").1.is_empty());
    }
}
