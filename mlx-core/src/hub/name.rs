//! The name of a model on the Hub: `ORG/NAME` with an optional `@REVISION`. Invariant: every parsed name is safe in a path and in a URL.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The Hub's own limit on the length of a name.
const MAX_LENGTH: usize = 96;

/// The revision of a name without `@REVISION`.
const DEFAULT_REVISION: &str = "main";

/// A model on the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    /// `ORG/NAME`; some old models have no organization.
    pub repo: String,
    /// A branch, tag or commit, if given.
    pub revision: Option<String>,
}

impl ModelName {
    /// The given revision, or `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// Whether a revision was given.
    pub fn has_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// The same model at this revision.
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
        let (repo, revision) =
            text.split_once('@').map_or((text, None), |(repo, revision)| (repo, Some(revision)));
        let parts: Vec<&str> = repo.split('/').collect();
        let good = parts.len() <= 2 && parts.iter().all(|part| is_part(part)) && repo.len() <= MAX_LENGTH;
        if good && revision.is_none_or(is_revision) {
            return Ok(Self { repo: repo.to_owned(), revision: revision.map(str::to_owned) });
        }
        Err(Error::option(
            "name",
            format!("is {text:?}, which is not a model name; use ORG/NAME or ORG/NAME@REVISION"),
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

/// The Hub's own rules for each part of a name; they make `models--ORG--NAME` unambiguous.
fn is_part(part: &str) -> bool {
    let edge = |symbol: char| matches!(symbol, '-' | '.');
    !part.is_empty()
        && !part.starts_with(edge)
        && !part.ends_with(edge)
        && !part.contains("--")
        && !part.contains("..")
        && part.chars().all(|symbol| symbol.is_ascii_alphanumeric() || "-_.".contains(symbol))
}

/// Branch names may contain slashes, as in `refs/pr/1`.
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
