//! The normalizer of tokenizer.json in bounded memory: texts are normalized in blocks.
//!
//! Invariant: the result equals that of normalizing the whole text. A block only ends where no step depends on the text
//! on both sides: before a character that never composes with the one before it.

use std::borrow::Cow;

use tokenizers::NormalizedString;
use tokenizers::normalizers::NormalizerWrapper;

use super::encoded::Stop;
use crate::error::Error;

/// The approximate size of a block in bytes.
const BLOCK: usize = 64 << 10;
/// The maximum size of a block in bytes. Normalization takes about a hundred times its memory.
const LONGEST_BLOCK: usize = 1 << 20;

/// The normalization of a text before it is split into words.
#[derive(Debug)]
pub(super) struct Normalization(Vec<Step>);

#[derive(Debug)]
enum Step {
    /// Prepends a text.
    Prepend(String),
    /// Replaces a character.
    Replace(char, String),
    /// Composes characters (NFC).
    Compose,
    /// Turns each character to lower case, whatever its neighbors are.
    Lowercase,
}

impl Normalization {
    /// Returns `None` if a step is not known to give the same result in blocks.
    pub(super) fn new(normalizer: Option<&NormalizerWrapper>) -> Option<Self> {
        let mut steps = Vec::new();
        if let Some(normalizer) = normalizer {
            add_steps(normalizer, &mut steps)?;
        }
        // A replacement could put a composing character at the start of a block.
        let replaces = |step: &Step| matches!(step, Step::Replace(..));
        let after_replacement = steps.iter().skip_while(|step| !replaces(step));
        let composes_late = after_replacement.into_iter().any(|step| matches!(step, Step::Compose));
        (!composes_late).then_some(Self(steps))
    }

    /// Returns true if all texts stay unchanged.
    pub(super) fn is_identity(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the normalized text. `pause` is called between blocks.
    pub(super) fn apply<'a>(
        &self,
        text: &'a str,
        mut pause: impl FnMut(usize) -> Result<(), Stop>,
    ) -> Result<Cow<'a, str>, Stop> {
        if self.is_identity() {
            return Ok(Cow::Borrowed(text));
        }
        let mut output = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let (block, after) = rest.split_at(self.block_end(rest)?);
            output.push_str(&self.apply_to_block(block, rest.len() == text.len()));
            pause(block.len())?;
            rest = after;
        }
        Ok(Cow::Owned(output))
    }

    /// Returns the end of the first block of this text.
    fn block_end(&self, text: &str) -> Result<usize, Stop> {
        let start = text.ceil_char_boundary(BLOCK);
        if !self.0.iter().any(|step| matches!(step, Step::Compose)) {
            return Ok(start);
        }
        let end = text[start..].char_indices().find(|(_, letter)| never_composes_with_the_last(*letter));
        let end = end.map_or(text.len(), |(place, _)| start + place);
        if end > LONGEST_BLOCK {
            let message = format!("cannot be normalized: {end} bytes in a row may compose with each other");
            return Err(Stop::Failed(Error::Tokenizer(message)));
        }
        Ok(end)
    }

    /// Returns the normalized form of a short text.
    pub(super) fn apply_to_block(&self, block: &str, is_first: bool) -> String {
        let mut block = block.to_owned();
        for step in &self.0 {
            match step {
                Step::Prepend(text) if is_first && !block.is_empty() => block.insert_str(0, text),
                Step::Prepend(_) => {}
                Step::Replace(from, to) => block = block.replace(*from, to),
                Step::Lowercase => block = block.chars().flat_map(char::to_lowercase).collect(),
                Step::Compose if block.is_ascii() => {}
                Step::Compose => {
                    let mut composed = NormalizedString::from(block.as_str());
                    composed.nfc();
                    composed.get().clone_into(&mut block);
                }
            }
        }
        block
    }
}

fn add_steps(normalizer: &NormalizerWrapper, steps: &mut Vec<Step>) -> Option<()> {
    match normalizer {
        NormalizerWrapper::Sequence(sequence) => {
            sequence.as_ref().iter().try_for_each(|one| add_steps(one, steps))?;
        }
        NormalizerWrapper::NFC(_) => steps.push(Step::Compose),
        NormalizerWrapper::Lowercase(_) => steps.push(Step::Lowercase),
        NormalizerWrapper::Prepend(prepend) => steps.push(Step::Prepend(prepend.prepend.clone())),
        NormalizerWrapper::Replace(replace) => {
            let written = serde_json::to_value(replace).ok()?;
            let mut pattern = written["pattern"]["String"].as_str()?.chars();
            let (from, None) = (pattern.next()?, pattern.next()) else { return None };
            steps.push(Step::Replace(from, replace.content.clone()));
        }
        _ => return None,
    }
    Some(())
}

/// Returns true if NFC never composes this character with those before it. This is also true for other characters.
fn never_composes_with_the_last(letter: char) -> bool {
    letter.is_ascii()
        || matches!(letter, '\u{410}'..='\u{44F}' | '\u{4E00}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7A3}')
        || matches!(letter, '\u{1F300}'..='\u{1FAFF}' | '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}' | '\u{2581}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use tokenizers::Normalizer;

    use super::*;

    fn normalizers() -> Vec<NormalizerWrapper> {
        let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let all = [
            json!({"type": "NFC"}),
            space.clone(),
            json!({"type": "Sequence", "normalizers": [prepend, space]}),
            json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, prepend, space]}),
            json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFC"}]}),
        ];
        all.into_iter().map(|one| serde_json::from_value(one).expect("a normalizer")).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn blocks_give_the_whole(letters in prop::collection::vec(
            prop::sample::select(&["a", " ", "E\u{301}", "Σ", "İ", "각", "\u{1100}", "\u{1161}", "\u{11A8}", "가", "が", "\u{304B}\u{3099}", "й", "\u{438}\u{306}", "中", "▁", "🦀"][..]), 1..400)
        ) {
            let text = letters.concat().repeat(1 + (2 * BLOCK) / letters.len().max(1) / 3);
            for normalizer in normalizers() {
                let mut whole = NormalizedString::from(text.as_str());
                normalizer.normalize(&mut whole).expect("it normalizes");
                let ours = Normalization::new(Some(&normalizer)).expect("it is known");
                let ours = ours.apply(&text, |_| Ok(())).expect("it normalizes");
                prop_assert!(ours == whole.get(), "{normalizer:?}");
            }
        }
    }

    #[test]
    fn a_text_without_an_end_of_a_block_is_refused() {
        let normalization = Normalization::new(Some(&normalizers()[0])).expect("it is known");
        let text = "\u{301}".repeat(LONGEST_BLOCK);
        assert!(matches!(normalization.apply(&text, |_| Ok(())), Err(Stop::Failed(Error::Tokenizer(_)))));
    }
}
