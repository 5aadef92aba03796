//! The name of a model on the hub: `ORG/NAME`, perhaps with `@REVISION`. Invariant: whatever parses is safe as a part of a path and of an address.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The hub's own limit.
const LONGEST: usize = 96;

/// The revision that is meant when none is named.
const MAIN: &str = "main";

/// A model on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    /// `ORG/NAME`; some old ones have no organization.
    pub repo: String,
    /// A branch, a tag or a commit, if one is named.
    pub revision: Option<String>,
}

impl ModelName {
    /// The revision to look for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(MAIN)
    }

    /// Whether a revision was named.
    pub fn has_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// The same model at this revision.
    pub fn at(self, revision: &str) -> Result<Self, Error> {
        if !is_revision(revision) {
            return Err(Error::request(
                "--revision",
                format!("{revision:?} is no branch, tag or commit of a model"),
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
        let good = parts.len() <= 2 && parts.iter().all(|part| is_part(part)) && repo.len() <= LONGEST;
        if good && revision.is_none_or(is_revision) {
            return Ok(Self { repo: repo.to_owned(), revision: revision.map(str::to_owned) });
        }
        Err(Error::request(
            "NAME",
            format!("{text:?} is not the name of a model, as in ORG/NAME or ORG/NAME@REVISION"),
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

/// The hub's own rules; they make `models--ORG--NAME` unambiguous.
fn is_part(part: &str) -> bool {
    let edge = |symbol: char| matches!(symbol, '-' | '.');
    !part.is_empty()
        && !part.starts_with(edge)
        && !part.ends_with(edge)
        && !part.contains("--")
        && !part.contains("..")
        && part.chars().all(|symbol| symbol.is_ascii_alphanumeric() || "-_.".contains(symbol))
}

/// A branch may have slashes in it, as in `refs/pr/1`.
fn is_revision(revision: &str) -> bool {
    let good = |part: &str| !part.is_empty() && !part.starts_with('.');
    let plain = |symbol: char| symbol.is_ascii_alphanumeric() || "-_.+/".contains(symbol);
    revision.split('/').all(good) && revision.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
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
    fn what_could_leave_the_cache_is_no_name() {
        let long = "a/".to_owned() + &"b".repeat(95);
        for text in [
            "", "/", "a/", "/a", "a/b/c", "..", "a/..", "../a", "a--b/c", "a/b c", "~/a", "a\\b", "-a", "a.",
            "a@", "a@..", "a@b/../c", "a@/b", "a@b//c", "a?b", "a%2fb", &long,
        ] {
            assert!(text.parse::<ModelName>().is_err(), "{text:?}");
        }
    }
}
