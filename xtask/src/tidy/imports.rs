//! Reads the paths in a Rust file: use declarations, and paths in code that begin with `crate`, `super`, `self` or a module.

use super::code::is_word;

/// The segments of a path as written.
pub(super) type Path = Vec<String>;

/// A leaf of a use declaration: its path and its name in the file. A glob has no name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Path,
    pub(super) name: Option<String>,
}

/// Returns the leaves of all use declarations, and all other paths of at least two segments. `code` has no comments, strings and tests.
pub(super) fn read(code: &str) -> (Vec<Import>, Vec<Path>) {
    let (mut imports, mut paths) = (Vec::new(), Vec::new());
    let tokens = tokens(code);
    let mut at = 0;
    while let Some(&token) = tokens.get(at) {
        if token == "in" && tokens[..at].ends_with(&["pub", "("]) {
            // The scope of a visibility is not an import.
            at += tokens[at..].iter().position(|next| *next == ")").unwrap_or(1);
        } else if token == "use" {
            at = tree(&tokens, at + 1, &Vec::new(), &mut imports);
        } else if is_name(token) {
            let mut path = vec![token.to_owned()];
            while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|next| is_name(next)) {
                path.push(tokens[at + 2].to_owned());
                at += 2;
            }
            if path.len() > 1 {
                paths.push(path);
            }
            at += 1;
        } else {
            at += 1;
        }
    }
    (imports, paths)
}

/// Reads the use tree at `at`, with a prefix; returns the position after it.
fn tree(tokens: &[&str], mut at: usize, prefix: &Path, imports: &mut Vec<Import>) -> usize {
    let mut path = prefix.clone();
    let mut name = None;
    while let Some(&token) = tokens.get(at) {
        match token {
            "::" => {}
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|next| *next != "}") {
                    at = tree(tokens, at, &path, imports);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            "as" => {
                name = tokens.get(at + 1).map(|&alias| alias.to_owned());
                at += 1;
            }
            "*" => {
                imports.push(Import { path, name: None });
                return at + 1;
            }
            token if is_name(token) => path.push(token.to_owned()),
            _ => break,
        }
        at += 1;
    }
    // `self` in braces is the module itself.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = name.or_else(|| path.last().cloned());
    imports.push(Import { path, name });
    at
}

/// Removes the items that are only compiled for tests. Also returns the names of test modules in separate files.
pub(super) fn without_tests(code: &str) -> (String, Vec<String>) {
    const MARK: &str = "#[cfg(test)]";
    let (mut kept, mut modules) = (String::with_capacity(code.len()), Vec::new());
    let mut rest = code;
    while let Some(begin) = rest.find(MARK) {
        kept.push_str(&rest[..begin]);
        let item = &rest[begin + MARK.len()..];
        let end = item_length(item);
        let words = tokens(&item[..end]);
        if let Some(place) = words.iter().position(|word| *word == "mod")
            && words.last() == Some(&";")
        {
            modules.extend(words.get(place + 1).map(|&name| name.to_owned()));
        }
        rest = &item[end..];
    }
    kept.push_str(rest);
    (kept, modules)
}

/// Returns the length up to the first semicolon outside of brackets, or to the end of the first block in braces.
fn item_length(item: &str) -> usize {
    let mut depth = 0_usize;
    for (at, symbol) in item.char_indices() {
        match symbol {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && symbol == '}' {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

fn is_name(token: &str) -> bool {
    token.starts_with(is_word) && !token.starts_with(|first: char| first.is_numeric())
}

/// Splits code into names, `::`, and single symbols.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_word(first) {
            rest.find(|symbol| !is_word(symbol)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(code: &str) -> Vec<String> {
        let leaf = |it: Import| format!("{} as {}", it.path.join("::"), it.name.unwrap_or("*".to_owned()));
        read(code).0.into_iter().map(leaf).collect()
    }

    #[test]
    fn use_trees_are_opened() {
        assert_eq!(leaves("use a::b;"), ["a::b as b"]);
        assert_eq!(
            leaves("pub(crate) use crate::{a::{self, B as C}, d::*};\nuse super::e;"),
            ["crate::a as a", "crate::a::B as C", "crate::d as *", "super::e as e"]
        );
    }

    #[test]
    fn paths_in_code_are_found() {
        let (imports, paths) = read("pub(in crate::z) fn f(x: crate::a::B) -> super::C<u8> { c::d(x.y, 1) }");
        assert!(imports.is_empty());
        let paths: Vec<String> = paths.into_iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["crate::a::B", "super::C", "c::d"]);
    }

    #[test]
    fn tests_are_left_out() {
        let code =
            "use a::b;\n#[cfg(test)]\nmod tests { use c::d; fn f() {} }\n#[cfg(test)]\nmod far;\nuse e::f;";
        let (kept, modules) = without_tests(code);
        assert_eq!(leaves(&kept), ["a::b as b", "e::f as f"]);
        assert_eq!(modules, ["far"]);
    }
}
