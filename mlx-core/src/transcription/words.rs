//! The times of the words of a window. Words near pauses and ends of sentences are often too long, so their times are corrected as Whisper's
//! reference implementation does. Invariant: pure.

use crate::speech::{Part, TIMESTAMPS_PER_SECOND, TimedWord, WordTokens, merge_punctuation};

/// The longest typical duration of a word, in seconds.
const TYPICAL: f64 = 0.7;

/// The seconds by which the times of a segment may differ from those of its words.
const TOLERANCE: f64 = 0.5;

/// A spoken word.
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    /// The word with its punctuation. It usually begins with a space.
    pub text: String,
    /// The start in seconds.
    pub start: f64,
    /// The end in seconds.
    pub end: f64,
}

/// The durations in seconds that words of a window have.
#[derive(Clone, Copy)]
struct Durations {
    typical: f64,
    longest: f64,
}

/// Returns the words of each segment, and corrects the times of segments by their words. `starts` has the starts of all text tokens and of the
/// end. `offset` is the start of the window in seconds; `spoken` is the end of the last word before it, and afterwards of the last one in it.
pub(super) fn words_of(
    parts: &mut [Part],
    tokens: Vec<WordTokens>,
    starts: &[u32],
    text_end: u32,
    (offset, spoken): (f64, &mut f64),
) -> Vec<Vec<Word>> {
    let mut timed = timed(tokens, starts);
    let durations = Durations::of(&timed);
    shorten_ends_of_sentences(&mut timed, durations.longest);
    merge_punctuation(&mut timed);
    let (mut timed, mut all) = (timed.into_iter(), Vec::new());
    for part in parts {
        let expected = part.tokens.iter().filter(|token| **token < text_end).count();
        let (mut found, mut words) = (0, Vec::new());
        while found < expected {
            let Some(word) = timed.next() else { break };
            found += word.tokens;
            if !word.text.is_empty() {
                let (start, end) = (rounded(offset + word.start), rounded(offset + word.end));
                words.push(Word { text: word.text, start, end });
            }
        }
        correct(part, &mut words, durations, (offset, spoken));
        all.push(words);
    }
    all
}

/// Gives each word the starts of its first token and of the next word.
fn timed(words: Vec<WordTokens>, starts: &[u32]) -> Vec<TimedWord> {
    let seconds = |token: usize| {
        let start = starts.get(token).or(starts.last()).copied().unwrap_or_default();
        f64::from(start) / TIMESTAMPS_PER_SECOND as f64
    };
    let mut first = 0;
    let word = |WordTokens { text, tokens }| {
        let start = seconds(first);
        first += tokens;
        TimedWord { text, tokens, start, end: seconds(first) }
    };
    words.into_iter().map(word).collect()
}

impl Durations {
    fn of(words: &[TimedWord]) -> Self {
        let mut all: Vec<f64> = words.iter().map(TimedWord::duration).filter(|it| *it > 0.0).collect();
        all.sort_unstable_by(f64::total_cmp);
        let half = all.len() / 2;
        let median = match all.get(half) {
            Some(upper) if all.len().is_multiple_of(2) => f64::midpoint(all[half - 1], *upper),
            upper => upper.copied().unwrap_or_default(),
        };
        let typical = median.min(TYPICAL);
        Self { typical, longest: 2.0 * typical }
    }
}

/// Shortens long words at the ends of sentences, which contain a pause.
fn shorten_ends_of_sentences(words: &mut [TimedWord], longest: f64) {
    if words.iter().all(|word| word.duration() <= 0.0) {
        return;
    }
    for place in 1..words.len() {
        if words[place].duration() <= longest {
            continue;
        }
        if words[place].ends_sentence() {
            words[place].end = words[place].start + longest;
        } else if words[place - 1].ends_sentence() {
            words[place].start = words[place].end - longest;
        }
    }
}

/// Corrects the first and the last word of a segment, or else the segment.
fn correct(part: &mut Part, words: &mut [Word], durations: Durations, (offset, spoken): (f64, &mut f64)) {
    let typical = durations.typical;
    shorten_after_pause(words, durations, *spoken);
    let (segment_start, segment_end) = (offset + part.start, offset + part.end);
    let Some(first) = words.first_mut() else { return };
    if segment_start < first.end && segment_start - TOLERANCE > first.start {
        first.start = (first.end - typical).min(segment_start).max(0.0);
    } else {
        part.start = first.start - offset;
    }
    let Some(last) = words.last_mut() else { return };
    if segment_end > last.start && segment_end + TOLERANCE < last.end {
        last.end = (last.start + typical).max(segment_end);
    } else {
        part.end = last.end - offset;
    }
    *spoken = offset + part.end;
}

/// Shortens the first two words after a pause.
fn shorten_after_pause(words: &mut [Word], Durations { typical, longest }: Durations, spoken: f64) {
    let (first, second) = match words {
        [first, second, ..] => (first, Some(second)),
        [first] => (first, None),
        [] => return,
    };
    let both_are_long = second.as_ref().is_some_and(|second| second.end - first.start > 2.0 * longest);
    if first.end - spoken <= 4.0 * typical || !(first.end - first.start > longest || both_are_long) {
        return;
    }
    if let Some(second) = second.filter(|second| second.end - second.start > longest) {
        let boundary = (second.end / 2.0).max(second.end - longest);
        (first.end, second.start) = (boundary, boundary);
    }
    first.start = (first.end - longest).max(0.0);
}

/// Rounds to hundredths of a second.
fn rounded(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
