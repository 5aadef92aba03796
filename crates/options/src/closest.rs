//! Suggestions for mistyped names.

use strsim::damerau_levenshtein;

/// Returns the known name that is most similar to `word`. `None` if all differ in more than a third of their letters.
pub fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let distance = |name: &str| damerau_levenshtein(&word, &name.to_lowercase());
    let close = |name: &&str| distance(name) <= (name.chars().count().max(word.chars().count()) / 3).max(1);
    known.into_iter().filter(close).min_by_key(|name| distance(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["temperature", "top-p", "top-k", "stop"];
        for (word, expected) in [
            ("temprature", Some("temperature")),
            ("top_p", Some("top-p")),
            ("TOP-K", Some("top-k")),
            ("sotp", Some("stop")),
            ("mood", None),
            ("", None),
        ] {
            assert_eq!(closest(word, known), expected, "{word}");
        }
        assert_eq!(closest("a", []), None);
    }
}
