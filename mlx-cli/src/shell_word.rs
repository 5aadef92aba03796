//! Quoting for POSIX shells.

/// Quotes a text as one shell word.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |ch: char| ch.is_ascii_alphanumeric() || "_-./:=,+@%".contains(ch);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns a shell line of these words.
pub(crate) fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_shell_reads_what_was_meant() {
        let words = ["a", "", "it's", "$HOME", "a b", "*", "\"", "\\", "~", "x=y"].map(str::to_owned);
        let script = format!("printf '%s\\n' {}", line(&words));
        let output = Command::new("sh").args(["-c", &script]).output().expect("a shell");
        assert_eq!(String::from_utf8(output.stdout).expect("text"), words.join("\n") + "\n");
    }
}
