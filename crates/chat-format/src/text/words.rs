//! The pre-tokenizer of tokenizer.json, without copying the text. Words are produced one by one, so that tokenization
//! can stop after any of them.
//!
//! Invariant: the words are those of the tokenizers crate. Its patterns are matched in the same text, from the same
//! positions.

use std::ops::Range;

use onig::{MatchParam, Regex, Region, SearchOptions};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::split::SplitPattern;

use super::bytes::spelled_byte;
use super::encoded::Stop;
use crate::error::Error;

/// GPT-2's pattern, which byte-level tokenizers use unless they define their own.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The maximum number of positions to which a search can backtrack. Each takes about 40 bytes. A word with as many
/// letters is longer than any that is encoded.
const PLACES: u32 = 4 << 20;

/// The cost of trying a slow pattern at a position, as bytes of ordinary work.
const SLOW_PLACE: usize = 256;

/// A consumer of words.
pub(super) trait Sink {
    /// Receives the next word, which is never empty.
    fn word(&mut self, word: &str) -> Result<(), Stop>;

    /// Called during work that produces no word, with its cost in bytes.
    fn pause(&mut self, bytes: usize) -> Result<(), Stop>;
}

/// Splits text into words.
#[derive(Debug, Default)]
pub(super) struct Words {
    marks: Option<Metaspace>,
    stages: Vec<Stage>,
    /// The letter for each byte, if words are spelled in bytes.
    letters: Option<Vec<char>>,
}

/// A step that splits each part of the previous step.
#[derive(Debug)]
struct Stage {
    finder: Finder,
    rule: Rule,
}

/// The target of a search.
#[derive(Debug)]
enum Finder {
    Pattern(Regex),
    /// A pattern that can take long to fail at a position, so each position is tried separately.
    SlowPattern(Regex),
    Letter(char),
    Number,
    Numbers,
}

/// The handling of matches and of the texts between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Each match and each text between matches is a separate part.
    Isolated,
    /// Only matches are kept.
    KeepMatches,
    /// Only the texts between matches are kept.
    KeepOthers,
    /// A match is appended to the text before it.
    WithPrevious,
    /// A match is prepended to the text after it.
    WithNext,
}

impl Words {
    /// Returns `None` if the pre-tokenizer has an unsupported step.
    pub(super) fn new(pre_tokenizer: Option<&PreTokenizerWrapper>) -> Option<Self> {
        let mut words = Self::default();
        match pre_tokenizer {
            Some(PreTokenizerWrapper::Metaspace(marks)) => {
                if marks.split {
                    let finder = Finder::Letter(marks.get_replacement());
                    words.stages.push(Stage { finder, rule: Rule::WithNext });
                }
                words.marks = Some(marks.clone());
            }
            Some(other) => words.add(other)?,
            None => {}
        }
        Some(words)
    }

    /// Returns true if a word may depend on its position in the text.
    pub(super) fn looks_at_places(&self) -> bool {
        self.marks.is_some()
    }

    fn add(&mut self, pre_tokenizer: &PreTokenizerWrapper) -> Option<()> {
        // No supported step can follow the conversion to bytes.
        if self.letters.is_some() {
            return None;
        }
        match pre_tokenizer {
            PreTokenizerWrapper::Sequence(sequence) => {
                sequence.as_ref().iter().try_for_each(|it| self.add(it))?;
            }
            PreTokenizerWrapper::ByteLevel(bytes) if !bytes.add_prefix_space => {
                if bytes.use_regex {
                    let finder = Finder::Pattern(Regex::new(BYTE_LEVEL).ok()?);
                    self.stages.push(Stage { finder, rule: Rule::Isolated });
                }
                self.letters = Some(letters());
            }
            PreTokenizerWrapper::Digits(digits) => {
                let finder = if digits.individual_digits { Finder::Number } else { Finder::Numbers };
                self.stages.push(Stage { finder, rule: Rule::Isolated });
            }
            PreTokenizerWrapper::Split(split) => {
                let rule = match (split.behavior, split.invert) {
                    (SplitDelimiterBehavior::Isolated, _) => Rule::Isolated,
                    (SplitDelimiterBehavior::Removed, true) => Rule::KeepMatches,
                    (SplitDelimiterBehavior::Removed, false) => Rule::KeepOthers,
                    (SplitDelimiterBehavior::MergedWithPrevious, false) => Rule::WithPrevious,
                    (SplitDelimiterBehavior::MergedWithNext, false) => Rule::WithNext,
                    _ => return None,
                };
                self.stages.push(Stage { finder: Finder::new(&split.pattern)?, rule });
            }
            _ => return None,
        }
        Some(())
    }

    /// Passes the words of a text to `sink` in order. `is_start` is true if the text is the beginning of the input.
    pub(super) fn each(&self, text: &str, is_start: bool, sink: &mut impl Sink) -> Result<(), Stop> {
        match &self.marks {
            Some(marks) => self.split(&self.stages, &marked(marks, text, is_start), sink),
            None => self.split(&self.stages, text, sink),
        }
    }

    fn split(&self, stages: &[Stage], text: &str, sink: &mut impl Sink) -> Result<(), Stop> {
        let Some((stage, rest)) = stages.split_first() else {
            return match &self.letters {
                _ if text.is_empty() => Ok(()),
                Some(letters) => {
                    let spelled: String = text.bytes().map(|byte| letters[usize::from(byte)]).collect();
                    sink.word(&spelled)
                }
                None => sink.word(text),
            };
        };
        let mut matches = Matches::new(&stage.finder, text);
        // The end of the last match, and its start if it waits for the text after it.
        let (mut done, mut held) = (0, None);
        while let Some(found) = matches.next(sink)? {
            let (between, end) = (done..found.start, found.end);
            done = end;
            match stage.rule {
                Rule::Isolated => {
                    self.split(rest, &text[between], sink)?;
                    self.split(rest, &text[found], sink)?;
                }
                Rule::KeepMatches => self.split(rest, &text[found], sink)?,
                Rule::KeepOthers => self.split(rest, &text[between], sink)?,
                Rule::WithPrevious => self.split(rest, &text[between.start..end], sink)?,
                Rule::WithNext => {
                    let start = held.replace(found.start).unwrap_or(between.start);
                    self.split(rest, &text[start..between.end], sink)?;
                }
            }
        }
        match stage.rule {
            Rule::KeepMatches => Ok(()),
            Rule::Isolated | Rule::KeepOthers | Rule::WithPrevious => self.split(rest, &text[done..], sink),
            Rule::WithNext => self.split(rest, &text[held.unwrap_or(done)..], sink),
        }
    }
}

/// Returns the alphabet of byte-level words.
pub(super) fn letters() -> Vec<char> {
    let mut letters = vec!['\0'; 256];
    for letter in '\u{21}'..='\u{143}' {
        if let Some(byte) = spelled_byte(letter) {
            letters[usize::from(byte)] = letter;
        }
    }
    letters
}

/// Replaces spaces by marks.
fn marked(marks: &Metaspace, text: &str, is_start: bool) -> String {
    let mark = marks.get_replacement();
    let marked = text.replace(' ', mark.encode_utf8(&mut [0; 4]));
    let prepends = match marks.get_prepend_scheme() {
        PrependScheme::Always => true,
        PrependScheme::First => is_start,
        PrependScheme::Never => false,
    };
    if prepends && !marked.starts_with(mark) { format!("{mark}{marked}") } else { marked }
}

impl Finder {
    fn new(pattern: &SplitPattern) -> Option<Self> {
        match pattern {
            SplitPattern::String(text) => {
                let mut letters = text.chars();
                let (letter, None) = (letters.next()?, letters.next()) else { return None };
                Some(Self::Letter(letter))
            }
            SplitPattern::Regex(pattern) => {
                let regex = Regex::new(pattern).ok()?;
                Some(if pattern.contains('$') { Self::SlowPattern(regex) } else { Self::Pattern(regex) })
            }
        }
    }
}

/// An iterator over the matches in a text.
struct Matches<'a> {
    finder: &'a Finder,
    text: &'a str,
    from: usize,
    last_end: Option<usize>,
    region: Region,
}

impl<'a> Matches<'a> {
    fn new(finder: &'a Finder, text: &'a str) -> Self {
        Self { finder, text, from: 0, last_end: None, region: Region::new() }
    }

    fn next(&mut self, sink: &mut impl Sink) -> Result<Option<Range<usize>>, Stop> {
        let rest = self.text.get(self.from..).unwrap_or_default();
        let found = match self.finder {
            Finder::Pattern(regex) => {
                return self.next_match(|from, text, region| search(regex, text, from, region));
            }
            Finder::SlowPattern(regex) => {
                return self.next_match(|from, text, region| search_slowly(regex, text, from, region, sink));
            }
            Finder::Letter(letter) => {
                rest.match_indices(*letter).next().map(|(start, found)| start..start + found.len())
            }
            Finder::Number => {
                let found = rest.char_indices().find(|(_, letter)| letter.is_numeric());
                found.map(|(start, letter)| start..start + letter.len_utf8())
            }
            Finder::Numbers => rest.find(char::is_numeric).map(|start| {
                let end = rest[start..].find(|letter: char| !letter.is_numeric());
                start..end.map_or(rest.len(), |end| start + end)
            }),
        };
        let found = found.map(|found| self.from + found.start..self.from + found.end);
        self.from = found.as_ref().map_or(self.text.len(), |found| found.end);
        Ok(found)
    }

    /// Returns the next match of `search`. An empty match directly after another match is skipped.
    fn next_match(
        &mut self,
        mut search: impl FnMut(usize, &str, &mut Region) -> Result<bool, Stop>,
    ) -> Result<Option<Range<usize>>, Stop> {
        while self.from <= self.text.len() {
            self.region.clear();
            let is_found = search(self.from, self.text, &mut self.region)?;
            let Some((start, end)) = self.region.pos(0).filter(|_| is_found) else { break };
            if start == end && self.last_end == Some(end) {
                self.from += self.text[self.from..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            (self.from, self.last_end) = (end, Some(end));
            return Ok(Some(start..end));
        }
        Ok(None)
    }
}

/// Searches for the next match at or after `from`.
fn search(regex: &Regex, text: &str, from: usize, region: &mut Region) -> Result<bool, Stop> {
    let options = SearchOptions::SEARCH_OPTION_NONE;
    let found = regex.search_with_param(text, from, text.len(), options, Some(region), limits());
    found.map(|start| start.is_some()).map_err(|error| gives_up(&error))
}

/// Like [`search`], but tries one position at a time, with pauses.
fn search_slowly(
    regex: &Regex,
    text: &str,
    from: usize,
    region: &mut Region,
    sink: &mut impl Sink,
) -> Result<bool, Stop> {
    let ends = [text.len()];
    let places = text[from..].char_indices().map(|(place, _)| from + place).chain(ends);
    for place in places {
        let options = SearchOptions::SEARCH_OPTION_NONE;
        let found = regex.match_with_param(text, place, options, Some(&mut *region), limits());
        if found.map_err(|error| gives_up(&error))?.is_some() {
            return Ok(true);
        }
        sink.pause(SLOW_PLACE)?;
    }
    Ok(false)
}

fn limits() -> MatchParam {
    let mut limits = MatchParam::default();
    limits.set_match_stack_limit(PLACES);
    limits
}

fn gives_up(error: &onig::Error) -> Stop {
    let message = format!("the pre-tokenizer pattern failed: {}", error.description());
    Stop::Failed(Error::Tokenizer(message))
}
