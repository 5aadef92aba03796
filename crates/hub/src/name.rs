//! The name of a model on the Hub: `ORG/NAME` with an optional `@REVISION`, or the URL of its page. Invariant: every
//! parsed name is safe in a path and in a URL.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The Hub's own limit on the length of a name.
const MAX_LENGTH: usize = 96;

/// The revision of a name without `@REVISION`.
const DEFAULT_REVISION: &str = "main";

/// Beginnings of Hub URLs that were copied without a scheme.
const HOSTS: [&str; 2] = ["huggingface.co/", "hf.co/"];

/// A model on the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    /// `ORG/NAME`, or only `NAME` for some old models.
    pub repo: String,
    /// A branch, tag or commit, if given.
    pub revision: Option<String>,
}

impl ModelName {
    /// Returns the given revision, or `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// Returns true if a revision was given.
    pub fn has_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// Returns the same model at another revision.
    pub fn at(self, revision: &str) -> Result<Self, Error> {
        if !is_revision(revision) {
            return Err(Error::option(
                "revision",
                format!("is {revision:?}, which is not a valid branch, tag or commit"),
            ));
        }
        Ok(Self { revision: Some(revision.to_owned()), ..self })
    }
}

impl FromStr for ModelName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let of_page = name_on_page(text);
        let name = of_page.as_deref().unwrap_or(text);
        let (repo, revision) =
            name.split_once('@').map_or((name, None), |(repo, revision)| (repo, Some(revision)));
        let parts: Vec<&str> = repo.split('/').collect();
        let good = parts.len() <= 2 && parts.iter().all(|part| is_part(part)) && repo.len() <= MAX_LENGTH;
        if good && revision.is_none_or(is_revision) {
            return Ok(Self { repo: repo.to_owned(), revision: revision.map(str::to_owned) });
        }
        Err(Error::option(
            "name",
            format!(
                "is {text:?}, which is not a model name; use ORG/NAME, ORG/NAME@REVISION or, for a GGUF file, ORG/NAME:QUANTIZATION"
            ),
        ))
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.revision {
            Some(revision) => write!(out, "{}@{revision}", self.repo),
            None => write!(out, "{}", self.repo),
        }
    }
}

/// Returns the name in the URL of a Hub page that was copied from a browser: the page of a model, or of one of its
/// revisions or files.
fn name_on_page(address: &str) -> Option<String> {
    let place = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    let place = place.or_else(|| HOSTS.iter().any(|host| address.starts_with(host)).then_some(address))?;
    let (_, path) = place.split_once('/')?;
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    match parts.as_slice() {
        [organization, name, "tree" | "blob" | "resolve", revision, ..] => {
            Some(format!("{organization}/{name}@{revision}"))
        }
        [organization, name, ..] => Some(format!("{organization}/{name}")),
        _ => None,
    }
}

/// Returns true for a valid organization or model name under the Hub's own rules, which make `models--ORG--NAME`
/// unambiguous.
fn is_part(part: &str) -> bool {
    let edge = |symbol: char| matches!(symbol, '-' | '.');
    !part.is_empty()
        && !part.starts_with(edge)
        && !part.ends_with(edge)
        && !part.contains("--")
        && !part.contains("..")
        && part.chars().all(|symbol| symbol.is_ascii_alphanumeric() || "-_.".contains(symbol))
}

/// Returns true for a valid revision. Branch names may contain slashes, as in `refs/pr/1`.
fn is_revision(revision: &str) -> bool {
    let good = |part: &str| !part.is_empty() && !part.starts_with('.');
    let plain = |symbol: char| symbol.is_ascii_alphanumeric() || "-_.+/".contains(symbol);
    revision.split('/').all(good) && revision.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for (text, repo, revision) in [
            ("org/Model-7B_v0.1", "org/Model-7B_v0.1", None),
            ("gpt2", "gpt2", None),
            ("org/name@main", "org/name", Some("main")),
            ("org/name@refs/pr/1", "org/name", Some("refs/pr/1")),
        ] {
            let name: ModelName = text.parse().expect(text);
            assert_eq!((name.repo.as_str(), name.revision.as_deref()), (repo, revision));
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn the_address_of_a_page_is_a_name() {
        for (address, name) in [
            ("https://huggingface.co/org/name", "org/name"),
            ("https://huggingface.co/org/name/", "org/name"),
            ("http://127.0.0.1:8000/org/name?library=mlx#files", "org/name"),
            ("huggingface.co/org/name/tree/main", "org/name@main"),
            ("hf.co/org/name", "org/name"),
            ("https://huggingface.co/org/name/blob/v1.0/config.json", "org/name@v1.0"),
        ] {
            assert_eq!(address.parse::<ModelName>().expect(address).to_string(), name);
        }
        for wrong in ["https://huggingface.co/", "https://huggingface.co/org", "https://a/b/..", "https://"] {
            assert!(wrong.parse::<ModelName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_name_that_could_leave_the_cache_is_refused() {
        let long = "a/".to_owned() + &"b".repeat(95);
        for text in [
            "", "/", "a/", "/a", "a/b/c", "..", "a/..", "../a", "a--b/c", "a/b c", "~/a", "a\\b", "-a", "a.",
            "a@", "a@..", "a@b/../c", "a@/b", "a@b//c", "a?b", "a%2fb", &long,
        ] {
            assert!(text.parse::<ModelName>().is_err(), "{text:?}");
        }
    }
}
