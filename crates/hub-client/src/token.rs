//! The access token of the Hub.

use std::io::ErrorKind;
use std::path::Path;

use mlx_hub::path_in;
use mlx_hub::{Error, Result};

const NO_TOKEN: &str = "is not a token; a token is one word of printable ASCII characters";

/// Returns `HF_TOKEN`, or the token that the Hub's own tool saved at login.
pub(crate) fn from_env() -> Result<Option<String>> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(token) = variable(name) {
            return checked_token(token, || Error::environment(name, NO_TOKEN)).map(Some);
        }
    }
    match path_in("HF_TOKEN_PATH") {
        Some(path) => saved_token(&path, true),
        None => saved_token(&mlx_hub::home()?.join("token"), false),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Reads a token from a file. A missing file is an error only if `required` is true.
fn saved_token(path: &Path, required: bool) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => checked_token(text.trim().to_owned(), || Error::file(path, NO_TOKEN)).map(Some),
        Err(error) if error.kind() == ErrorKind::NotFound && !required => Ok(None),
        Err(error) => Err(Error::io(path, error)),
    }
}

fn checked_token(token: String, wrong: impl FnOnce() -> Error) -> Result<String> {
    if token.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(token) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_token_file_must_exist_and_hold_a_token() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("token");
        assert_eq!(saved_token(&path, false).expect("a missing file is no error"), None);
        let message = saved_token(&path, true).expect_err("it was named").to_string();
        assert!(message.contains("token: "), "{message}");
        std::fs::write(&path, "hf_abc\n").expect("writes");
        assert_eq!(saved_token(&path, true).expect("readable").as_deref(), Some("hf_abc"));
        std::fs::write(&path, "hf_abc\nhf_def").expect("writes");
        assert!(saved_token(&path, false).expect_err("two lines").to_string().contains("one word"));
    }
}
