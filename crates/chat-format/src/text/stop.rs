//! Stop strings: finds the first one in streamed text, and holds back text that may become one.

/// Searches streamed text for stop strings.
///
/// The stop string that is completed first wins. If several end at the same character, the longest wins, and
/// of equal ones the first in the list. The result therefore depends only on the text, not on its chunks.
///
/// Invariant: the emitted text contains neither a stop string nor any part of the one that was found.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    held: String,
    matched: Option<usize>,
}

/// The result of [`StopMatcher::push`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that is certainly not part of a stop string.
    pub emit: String,
    /// The index of the stop string that ends the text, in the list given to [`StopMatcher::new`].
    pub matched: Option<usize>,
}

impl StopMatcher {
    /// Returns a matcher for `stops`. Empty strings match nothing.
    pub fn new(stops: &[String]) -> Self {
        let patterns = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .map(|(index, stop)| Pattern::new(index, stop))
            .collect();
        Self { patterns, held: String::new(), matched: None }
    }

    /// Returns true if there are no stop strings.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Adds the next chunk of text. After a match, all text is dropped.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.matched.is_some() {
            return StopOutput { emit: String::new(), matched: self.matched };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            let Some((index, length)) = self.step(byte) else { continue };
            self.matched = Some(index);
            let mut emit = std::mem::take(&mut self.held);
            emit.truncate(before + offset + 1 - length);
            return StopOutput { emit, matched: self.matched };
        }
        // A partial match starts with a stop string's first byte, which is always a character boundary.
        let keep = self.patterns.iter().map(|pattern| pattern.state).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopOutput { emit: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// Returns the text that was held back, after a stream that ended without a stop string.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        for pattern in &mut self.patterns {
            pattern.state = 0;
        }
        rest
    }

    /// Discards all text.
    pub fn reset(&mut self) {
        self.finish();
        self.matched = None;
    }

    /// Advances every pattern by one byte. Returns the index and length of the pattern that is now complete.
    fn step(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut found: Option<(usize, usize)> = None;
        for pattern in &mut self.patterns {
            let longer = found.is_none_or(|(_, length)| pattern.bytes.len() > length);
            if pattern.step(byte) && longer {
                found = Some((pattern.index, pattern.bytes.len()));
            }
        }
        found
    }
}

/// A stop string with its Knuth-Morris-Pratt table. Matching takes amortized constant work per byte, even for
/// self-overlapping strings.
#[derive(Debug, Clone)]
struct Pattern {
    index: usize,
    bytes: Vec<u8>,
    /// `fallback[n]` is the length of the longest proper prefix that is also a suffix of the first `n + 1`
    /// bytes.
    fallback: Vec<usize>,
    /// The length of the longest prefix of the pattern that the text ends with.
    state: usize,
}

impl Pattern {
    fn new(index: usize, stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for position in 1..bytes.len() {
            while length > 0 && bytes[position] != bytes[length] {
                length = fallback[length - 1];
            }
            length += usize::from(bytes[position] == bytes[length]);
            fallback[position] = length;
        }
        Self { index, bytes, fallback, state: 0 }
    }

    /// Adds a byte. Returns true if the pattern is complete. The caller then stops, so the state never
    /// exceeds the pattern.
    fn step(&mut self, byte: u8) -> bool {
        while self.state > 0 && self.bytes[self.state] != byte {
            self.state = self.fallback[self.state - 1];
        }
        self.state += usize::from(self.bytes[self.state] == byte);
        self.state == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(&stops.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    fn run(matcher: &mut StopMatcher, pieces: &[String]) -> (String, Option<usize>) {
        let mut text = String::new();
        for piece in pieces {
            let output = matcher.push(piece);
            text.push_str(&output.emit);
            if output.matched.is_some() {
                return (text, output.matched);
            }
        }
        text.push_str(&matcher.finish());
        (text, None)
    }

    /// The reference: checks every prefix of the whole text, shortest first.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
            let longest = stops
                .iter()
                .enumerate()
                .filter(|(_, stop)| !stop.is_empty() && text[..end].ends_with(stop.as_str()))
                .max_by_key(|(index, stop)| (stop.len(), usize::MAX - index));
            if let Some((index, stop)) = longest {
                return (text[..end - stop.len()].to_string(), Some(index));
            }
        }
        (text.to_string(), None)
    }

    #[test]
    fn holds_back_what_may_become_a_stop_string() {
        let mut stops = matcher(&["", "\n\nUser:", "END"]);
        assert_eq!(stops.push("hello\n").emit, "hello");
        assert_eq!(stops.push("\n").emit, "");
        assert_eq!(stops.push("\nUse").emit, "\n");
        let output = stops.push("r: more");
        assert_eq!((output.emit.as_str(), output.matched), ("", Some(1)));
        assert_eq!(stops.push("END"), StopOutput { emit: String::new(), matched: Some(1) });
        stops.reset();
        assert_eq!(stops.push("E").emit, "");
        assert_eq!(stops.finish(), "E");
        assert_eq!(stops.push("ND"), StopOutput { emit: "ND".into(), matched: None });
    }

    #[test]
    fn the_first_complete_stop_string_wins_and_then_the_longest() {
        assert_eq!(run(&mut matcher(&["abc", "b"]), &["xabc".into()]), ("xa".into(), Some(1)));
        assert_eq!(run(&mut matcher(&["bc", "abc"]), &["xa".into(), "bc".into()]), ("x".into(), Some(1)));
        assert_eq!(run(&mut matcher(&["é", "é"]), &["xé".into()]), ("x".into(), Some(0)));
    }

    proptest! {
        #[test]
        fn agrees_with_a_search_of_the_whole_text(
            stops in prop::collection::vec("[abé🙂]{0,4}", 0..4),
            pieces in prop::collection::vec("[abé🙂]{0,5}", 0..12),
        ) {
            let mut matcher = StopMatcher::new(&stops);
            let expected = naive(&stops, &pieces.concat());
            prop_assert_eq!(run(&mut matcher, &pieces), expected.clone());
            matcher.reset();
            prop_assert_eq!(run(&mut matcher, &pieces), expected);
        }
    }
}
