//! The languages that Qwen3-ASR recognizes, and which of them put spaces between sentences.

use super::languages::language_name;

/// The codes of the languages.
const CODES: [&str; 30] = [
    "zh", "en", "yue", "ar", "de", "fr", "es", "pt", "id", "it", "ko", "ru", "th", "vi", "ja", "tr", "hi",
    "ms", "nl", "sv", "da", "fi", "pl", "cs", "tl", "fa", "el", "ro", "hu", "mk",
];

/// Returns the model's name of a language, such as `German`, by its code.
///
/// # Errors
/// Returns the names of all languages if the model does not know this one.
pub(crate) fn recognized_language(code: &str) -> Result<String, String> {
    if CODES.contains(&code) {
        return Ok(name(code));
    }
    let mut names: Vec<String> = CODES.iter().map(|code| name(code)).collect();
    names.sort_unstable();
    Err(names.join(", "))
}

fn name(code: &str) -> String {
    // The model's name of Tagalog.
    let name = if code == "tl" { "filipino" } else { language_name(code).unwrap_or(code) };
    name[..1].to_uppercase() + &name[1..]
}

/// Returns true if two texts need a space between them, given the last character of the first and the first character of the second. Chinese,
/// Japanese and Thai use no spaces.
pub(crate) fn needs_space(before: char, after: char) -> bool {
    let is_unspaced = |letter: char| {
        matches!(u32::from(letter),
            0x0e00..=0x0eff | 0x3000..=0x30ff | 0x31f0..=0x31ff | 0x3400..=0x9fff | 0xf900..=0xfaff | 0xff00..=0xffef | 0x20000..=0x323af)
    };
    !is_unspaced(before) && !is_unspaced(after) && !before.is_whitespace() && !after.is_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::language_code;

    #[test]
    fn languages_have_the_names_of_the_model() {
        let of = |text: &str| recognized_language(language_code(text).expect("a language"));
        for (text, name) in
            [("de", "German"), ("yue", "Cantonese"), ("pt-BR", "Portuguese"), ("Filipino", "Filipino")]
        {
            assert_eq!(of(text).as_deref(), Ok(name));
        }
        let known = of("welsh").expect_err("it is not one of them");
        assert!(known.starts_with("Arabic, Cantonese, ") && known.contains("Filipino"), "{known}");
        assert_eq!(known.split(", ").count(), 30);
    }

    #[test]
    fn spaces_separate_words_of_languages_that_have_them() {
        for (before, after, expected) in
            [('.', 'T', true), ('。', '我', false), ('好', 'A', false), ('я', 'и', true), ('ก', 'ข', false)]
        {
            assert_eq!(needs_space(before, after), expected, "{before}{after}");
        }
    }
}
