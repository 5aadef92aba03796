//! Names under which a model calls the tools. Models and APIs allow letters, digits, `_` and `-`, at most 64 of them; servers allow any text,
//! and two servers may use one name.

use std::collections::HashSet;

/// The maximum length of a name.
const MAX_LEN: usize = 64;

/// Returns a unique name for each tool, given as its server and its name. A name that is valid and unique stays; others get the server as a
/// prefix. No name is one of `taken`.
pub fn offered(tools: &[(&str, &str)], taken: &[String]) -> Vec<String> {
    let is_unique = |name: &str| tools.iter().filter(|(_, other)| *other == name).count() == 1;
    let mut used: HashSet<String> = taken.iter().cloned().collect();
    // A prefixed name must not take the name that another tool keeps.
    let keeps =
        |name: &str, used: &HashSet<String>| valid(name) == name && is_unique(name) && !used.contains(name);
    let kept: Vec<bool> = tools.iter().map(|(_, name)| keeps(name, &used)).collect();
    used.extend(tools.iter().zip(&kept).filter(|(_, kept)| **kept).map(|((_, name), _)| (*name).to_owned()));
    let mut names = Vec::new();
    for ((server, name), kept) in tools.iter().zip(kept) {
        if kept {
            names.push((*name).to_owned());
            continue;
        }
        let wanted = if is_unique(name) && !taken.iter().any(|taken| taken == name) {
            valid(name)
        } else {
            qualified(server, name)
        };
        let mut candidate = wanted.clone();
        for number in 2.. {
            if used.insert(candidate.clone()) {
                break;
            }
            let suffix = format!("_{number}");
            candidate = format!("{}{suffix}", &wanted[..wanted.len().min(MAX_LEN - suffix.len())]);
        }
        names.push(candidate);
    }
    names
}

/// Returns the name of a tool with its server as a prefix.
pub(crate) fn qualified(server: &str, name: &str) -> String {
    valid(&(prefix(server) + &valid(name)))
}

/// Returns the prefix of a server.
pub(crate) fn prefix(server: &str) -> String {
    valid(server) + "__"
}

/// Returns a name of allowed characters.
fn valid(name: &str) -> String {
    let plain = |ch: char| if ch.is_ascii_alphanumeric() || "_-".contains(ch) { ch } else { '_' };
    let name: String = name.chars().map(plain).take(MAX_LEN).collect();
    if name.is_empty() { "tool".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_valid() {
        let long = "x".repeat(100);
        let tools = [
            ("files", "read"),
            ("web", "read"),
            ("web", "get page"),
            ("web", "tide"),
            ("a.b", "read"),
            ("a", long.as_str()),
            ("b", long.as_str()),
            ("c", ""),
            ("d", "files__read"),
        ];
        let names = offered(&tools, &["tide".to_owned()]);
        assert_eq!(names[..5], ["files__read_2", "web__read", "get_page", "web__tide", "a_b__read"]);
        assert_eq!(names[7..], ["tool", "files__read"]);
        let all: HashSet<&String> = names.iter().collect();
        assert_eq!(all.len(), names.len());
        assert!(names.iter().all(|name| name.len() <= MAX_LEN && valid(name) == *name), "{names:?}");
    }
}
