//! Paths in environment variables, expanded like the other Hub tools expand them. No shell expands a value that is set
//! by a service manager, a container or a quoted assignment.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Returns the expanded path in an environment variable. An empty variable counts as unset.
pub fn path_in(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable).filter(|value| !value.is_empty())?;
    Some(expanded(Path::new(&value)))
}

/// Replaces a leading `~` by the home folder, then `$NAME` and `${NAME}` by the variables. References to unset
/// variables stay unchanged.
pub fn expanded(path: &Path) -> PathBuf {
    expand(path, std::env::home_dir(), |name| std::env::var_os(name))
}

fn expand(path: &Path, home: Option<PathBuf>, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let path = match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_path_buf(),
    };
    let (text, mut out) = (path.as_os_str().as_bytes(), Vec::new());
    let mut rest = text;
    while let Some(start) = rest.iter().position(|byte| *byte == b'$') {
        out.extend_from_slice(&rest[..start]);
        rest = &rest[start..];
        let (name, length) = reference(rest);
        match std::str::from_utf8(name).ok().and_then(&variable) {
            Some(value) => out.extend_from_slice(value.as_bytes()),
            None => out.extend_from_slice(&rest[..length]),
        }
        rest = &rest[length..];
    }
    out.extend_from_slice(rest);
    PathBuf::from(OsString::from_vec(out))
}

/// Returns the variable's name and the length of the reference at the start of `text`, which begins with `$`.
fn reference(text: &[u8]) -> (&[u8], usize) {
    let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
    match text.iter().position(|byte| *byte == b'}') {
        Some(end) if text.get(1) == Some(&b'{') => (&text[2..end], end + 1),
        _ => {
            let length = 1 + text[1..].iter().take_while(is_word).count();
            (&text[1..length], length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of `os.path.expandvars(os.path.expanduser(path))` in Python.
    #[test]
    fn paths_are_expanded_as_python_expands_them() {
        let variable = |name: &str| match name {
            "HOME" => Some("/homes/me".into()),
            "DISK" => Some("/mnt/big $HOME".into()),
            "_1" => Some("x".into()),
            _ => None,
        };
        for (path, expected) in [
            ("$HOME/hf", "/homes/me/hf"),
            ("${HOME}/hf", "/homes/me/hf"),
            ("~/hf", "/homes/me/hf"),
            ("~", "/homes/me"),
            ("/data/$_1$_1", "/data/xx"),
            // A value is not expanded again.
            ("$DISK/hf", "/mnt/big $HOME/hf"),
            ("$NONE/${NONE}/hf", "$NONE/${NONE}/hf"),
            ("$HOMEhf", "$HOMEhf"),
            ("${HOME/hf", "${HOME/hf"),
            ("/a/~/b", "/a/~/b"),
            ("~other/hf", "~other/hf"),
            ("/costs/5$/${}/$", "/costs/5$/${}/$"),
            ("/plain/path", "/plain/path"),
        ] {
            let found = expand(Path::new(path), Some("/homes/me".into()), variable);
            assert_eq!(found, Path::new(expected), "{path}");
        }
        assert_eq!(expand(Path::new("~/hf"), None, variable), Path::new("~/hf"));
    }
}
