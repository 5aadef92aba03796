//! The file of named API keys.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

/// The maximum size of the file in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// A named key and its limits.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct NamedKey {
    pub(super) name: String,
    pub(super) key: String,
    pub(super) requests_per_minute: Option<u64>,
    pub(super) tokens_per_minute: Option<u64>,
    /// True if the key may run the tools of `--mcp`.
    #[serde(default)]
    pub(super) tools: bool,
}

/// Shows no key.
impl fmt::Debug for NamedKey {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("NamedKey").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<toml::Spanned<NamedKey>>,
}

/// Reads and checks the file. Errors name the file, the line and the name, and show no key.
pub(super) fn read(path: &Path, min_length: usize, unlimited: &[String]) -> Result<Vec<NamedKey>, String> {
    let about = |reason: &dyn fmt::Display| format!("{}: {reason}", path.display());
    let text = mlx_files::read_model_file(path, MAX_BYTES).map_err(|error| about(&error))?;
    let text = text.ok_or_else(|| about(&"does not exist"))?;
    let text = String::from_utf8(text).map_err(|_| about(&"is not UTF-8"))?;
    let line = |at: usize| 1 + text.get(..at).unwrap_or_default().matches('\n').count();
    let file: KeyFile = toml::from_str(&text).map_err(|error| {
        let place = error.span().map_or_else(String::new, |span| format!("line {}: ", line(span.start)));
        about(&format_args!("{place}{}", without_values(error.message())))
    })?;
    let mut keys: Vec<NamedKey> = Vec::new();
    for spanned in file.key {
        let place = line(spanned.span().start);
        let key = spanned.into_inner();
        if let Some(reason) = fault(&key, &keys, min_length) {
            return Err(about(&format_args!("line {place}: {reason}")));
        }
        if unlimited.contains(&key.key) {
            let reason = format!("the key of {:?} is also one of --api-key, which has no limits", key.name);
            return Err(about(&format_args!("line {place}: {reason}")));
        }
        keys.push(key);
    }
    if keys.is_empty() {
        return Err(about(&"has no [[key]] with a name and a key"));
    }
    Ok(keys)
}

/// Returns a message of the parser. Messages about wrong types quote the value, which may be a key, and are replaced.
fn without_values(message: &str) -> &str {
    if message.starts_with("invalid type") || message.starts_with("invalid value") {
        return "a value has the wrong type: write [[key]] tables with texts for name and key, whole numbers for limits";
    }
    message
}

fn fault(key: &NamedKey, others: &[NamedKey], min_length: usize) -> Option<String> {
    let NamedKey { name, key: secret, requests_per_minute, tokens_per_minute, .. } = key;
    if name.trim().is_empty() {
        return Some("name is empty; give the key a name".to_owned());
    }
    if others.iter().any(|other| other.name == *name) {
        return Some(format!("name {name:?} is there twice"));
    }
    if others.iter().any(|other| other.key == *secret) {
        return Some(format!("the key of {name:?} is there twice"));
    }
    if secret.chars().count() < min_length {
        return Some(format!("the key of {name:?} is too short; give at least {min_length} characters"));
    }
    if secret.trim() != secret || secret.chars().any(|letter| letter.is_control() || !letter.is_ascii()) {
        return Some(format!("the key of {name:?} has spaces at its ends or letters that are not ASCII"));
    }
    for (field, limit) in
        [("requests-per-minute", requests_per_minute), ("tokens-per-minute", tokens_per_minute)]
    {
        if *limit == Some(0) {
            return Some(format!("{field} of {name:?} is 0; give at least 1, or leave it out for no limit"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<NamedKey>, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("keys.toml");
        std::fs::write(&path, text).expect("it can be written");
        let short =
            |error: String| error.rsplit_once("keys.toml: ").map_or(error.clone(), |it| it.1.to_owned());
        read(&path, 16, &["an unlimited key".to_owned()]).map_err(short)
    }

    #[test]
    fn keys_have_names_and_limits() {
        let keys = of("[[key]]\nname = 'a'\nkey = '0123456789abcdef'\nrequests-per-minute = 5\n\
            [[key]]\nname = 'b'\nkey = 'fedcba9876543210'\ntokens-per-minute = 7\ntools = true\n")
        .expect("valid");
        assert_eq!((keys[0].requests_per_minute, keys[0].tokens_per_minute), (Some(5), None));
        assert_eq!((keys[1].name.as_str(), keys[1].tokens_per_minute), ("b", Some(7)));
        assert_eq!((keys[0].tools, keys[1].tools), (false, true));
        assert!(!format!("{keys:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn mistakes_are_named_with_their_line_and_without_a_key() {
        let good = "[[key]]\nname = 'a'\nkey = '0123456789abcdef'\n";
        for (text, expected) in [
            ("", "has no [[key]]"),
            ("[[key]]\nname = 'a'\nkey = 'short'\n", "line 1: the key of \"a\" is too short"),
            ("[[key]]\nname = ' '\nkey = '0123456789abcdef'\n", "line 1: name is empty"),
            ("[[key]]\nname = 'a'\nkey = '0123456789abcdef'\nmood = 1\n", "mood"),
            (
                "[[key]]\nname = 'a'\nkey = '0123456789abcdef'\nrequests-per-minute = 0\n",
                "requests-per-minute",
            ),
            ("[[key]]\nname = 'a'\nkey = '0123456789abcdef'\nrequests-per-minute = -1\n", "line 4"),
            ("[[key]]\nname = 'a'\nkey = '0123456789abcdef", "line 3"),
            ("[[key]]\nname = 'a'\nkey = 0123456789123456\n", "line 3"),
            ("[[key]]\nname = 'a'\nkey = 1234567890123456\n", "wrong type"),
            ("key = ['0123456789abcdef']\n", "line 1: a value has the wrong type"),
            ("[[key]]\nname = 'a'\nkey = 'an unlimited key'\n", "also one of --api-key"),
            (&[good, good].concat(), "line 4: name \"a\" is there twice"),
            (&[good, &good.replace("'a'", "'b'")].concat(), "line 4: the key of \"b\" is there twice"),
        ] {
            let error = of(text).expect_err(expected);
            assert!(
                error.contains(expected) && !error.contains("0123456789") && !error.contains("1234567890"),
                "{error}"
            );
        }
    }
}
