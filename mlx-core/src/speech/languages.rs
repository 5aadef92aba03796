//! The languages of Whisper models.

/// The code and the name of each language, in the order of their tokens.
const LANGUAGES: [(&str, &str); 100] = [
    ("en", "english"),
    ("zh", "chinese"),
    ("de", "german"),
    ("es", "spanish"),
    ("ru", "russian"),
    ("ko", "korean"),
    ("fr", "french"),
    ("ja", "japanese"),
    ("pt", "portuguese"),
    ("tr", "turkish"),
    ("pl", "polish"),
    ("ca", "catalan"),
    ("nl", "dutch"),
    ("ar", "arabic"),
    ("sv", "swedish"),
    ("it", "italian"),
    ("id", "indonesian"),
    ("hi", "hindi"),
    ("fi", "finnish"),
    ("vi", "vietnamese"),
    ("he", "hebrew"),
    ("uk", "ukrainian"),
    ("el", "greek"),
    ("ms", "malay"),
    ("cs", "czech"),
    ("ro", "romanian"),
    ("da", "danish"),
    ("hu", "hungarian"),
    ("ta", "tamil"),
    ("no", "norwegian"),
    ("th", "thai"),
    ("ur", "urdu"),
    ("hr", "croatian"),
    ("bg", "bulgarian"),
    ("lt", "lithuanian"),
    ("la", "latin"),
    ("mi", "maori"),
    ("ml", "malayalam"),
    ("cy", "welsh"),
    ("sk", "slovak"),
    ("te", "telugu"),
    ("fa", "persian"),
    ("lv", "latvian"),
    ("bn", "bengali"),
    ("sr", "serbian"),
    ("az", "azerbaijani"),
    ("sl", "slovenian"),
    ("kn", "kannada"),
    ("et", "estonian"),
    ("mk", "macedonian"),
    ("br", "breton"),
    ("eu", "basque"),
    ("is", "icelandic"),
    ("hy", "armenian"),
    ("ne", "nepali"),
    ("mn", "mongolian"),
    ("bs", "bosnian"),
    ("kk", "kazakh"),
    ("sq", "albanian"),
    ("sw", "swahili"),
    ("gl", "galician"),
    ("mr", "marathi"),
    ("pa", "punjabi"),
    ("si", "sinhala"),
    ("km", "khmer"),
    ("sn", "shona"),
    ("yo", "yoruba"),
    ("so", "somali"),
    ("af", "afrikaans"),
    ("oc", "occitan"),
    ("ka", "georgian"),
    ("be", "belarusian"),
    ("tg", "tajik"),
    ("sd", "sindhi"),
    ("gu", "gujarati"),
    ("am", "amharic"),
    ("yi", "yiddish"),
    ("lo", "lao"),
    ("uz", "uzbek"),
    ("fo", "faroese"),
    ("ht", "haitian creole"),
    ("ps", "pashto"),
    ("tk", "turkmen"),
    ("nn", "nynorsk"),
    ("mt", "maltese"),
    ("sa", "sanskrit"),
    ("lb", "luxembourgish"),
    ("my", "myanmar"),
    ("bo", "tibetan"),
    ("tl", "tagalog"),
    ("mg", "malagasy"),
    ("as", "assamese"),
    ("tt", "tatar"),
    ("haw", "hawaiian"),
    ("ln", "lingala"),
    ("ha", "hausa"),
    ("ba", "bashkir"),
    ("jw", "javanese"),
    ("su", "sundanese"),
    ("yue", "cantonese"),
];

/// Other names.
const ALIASES: [(&str, &str); 17] = [
    ("burmese", "my"),
    ("valencian", "ca"),
    ("flemish", "nl"),
    ("haitian", "ht"),
    ("letzeburgesch", "lb"),
    ("pushto", "ps"),
    ("panjabi", "pa"),
    ("moldavian", "ro"),
    ("moldovan", "ro"),
    ("sinhalese", "si"),
    ("castilian", "es"),
    ("mandarin", "zh"),
    ("iw", "he"),
    ("jv", "jw"),
    ("nb", "no"),
    ("filipino", "tl"),
    ("fil", "tl"),
];

/// Returns true for the code of a known language.
pub(super) fn is_language(code: &str) -> bool {
    LANGUAGES.iter().any(|(known, _)| *known == code)
}

/// Returns the name of a language, such as `german`, by its code.
pub fn language_name(code: &str) -> Option<&'static str> {
    LANGUAGES.iter().find(|(known, _)| *known == code).map(|(_, name)| *name)
}

/// Returns the code of a language from its code or its English name, in any case. A code may have a region, such as `pt-BR`.
pub fn language_code(text: &str) -> Option<&'static str> {
    let text = text.trim().to_lowercase();
    let main = text.split(['-', '_']).next().unwrap_or_default();
    let by_name = || LANGUAGES.iter().find(|(_, name)| *name == text).map(|(code, _)| *code);
    let by_alias = || ALIASES.iter().find(|(name, _)| *name == text || *name == main).map(|(_, code)| *code);
    let by_code = LANGUAGES.iter().find(|(code, _)| *code == main).map(|(code, _)| *code);
    by_code.or_else(by_name).or_else(by_alias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_have_codes_and_names() {
        for text in ["de", "German", "GERMAN ", "de-AT"] {
            assert_eq!(language_code(text), Some("de"), "{text}");
        }
        assert_eq!(language_code("castilian"), Some("es"));
        assert_eq!(language_code("nb-NO"), Some("no"));
        assert_eq!(language_code("klingon"), None);
        assert_eq!(language_name("yue"), Some("cantonese"));
    }
}
