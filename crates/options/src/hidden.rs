//! Invisible characters: direction marks, joiners, variation selectors, tags and fillers, and the positions where scripts and emoji need
//! them. The ranges are Unicode's `Default_Ignorable_Code_Point` and the line separators.

/// Zero-width non-joiner, joiner and space.
const ZWNJ: char = '\u{200c}';
const ZWJ: char = '\u{200d}';
const ZWSP: char = '\u{200b}';
/// The first character of a regional flag. At most six tags with the region's name follow, then a final tag.
const BLACK_FLAG: char = '🏴';
const END_OF_FLAG: char = '\u{e007f}';
const LONGEST_FLAG: usize = 7;

/// The last visible character, and the hidden characters after it.
#[derive(Debug, Default)]
pub(crate) struct Place {
    letter: Option<char>,
    has_selector: bool,
    tags: usize,
}

impl Place {
    /// Records a visible character.
    pub(crate) fn pass(&mut self, letter: char) {
        *self = Self { letter: Some(letter), ..Self::default() };
    }

    /// Records the end of a text without hidden characters.
    pub(crate) fn follow(&mut self, text: &str) {
        if let Some(letter) = text.chars().next_back() {
            self.pass(letter);
        }
    }

    /// Returns true if this character may join the last letter with the next one.
    pub(crate) fn may_join(&self, joiner: char) -> bool {
        self.letter.is_some_and(|letter| joins(letter, joiner))
    }

    /// Returns true if this character joins the last letter with `after`.
    pub(crate) fn joins(&self, joiner: char, after: char) -> bool {
        let is_alike = |letter: char| is_pictograph(letter) == is_pictograph(after);
        self.letter.is_some_and(|letter| joins(letter, joiner) && joins(after, joiner) && is_alike(letter))
    }
}

/// Returns true for an invisible character.
pub(crate) fn is_hidden(letter: char) -> bool {
    matches!(letter, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Returns true for a selector or tag that changes the appearance of the character before it. Each character takes one
/// selector.
pub(crate) fn is_kept(place: &mut Place, hidden: char) -> bool {
    let Some(letter) = place.letter else { return false };
    if letter == BLACK_FLAG {
        place.tags += 1;
        let is_tag = matches!(hidden, '\u{e0030}'..='\u{e0039}' | '\u{e0061}'..='\u{e007a}' | END_OF_FLAG);
        let fits = is_tag && place.tags <= LONGEST_FLAG;
        if hidden == END_OF_FLAG {
            place.tags = LONGEST_FLAG;
        }
        return fits;
    }
    let fits = match hidden {
        '\u{fe0e}'..='\u{fe0f}' => is_pictograph(letter) || matches!(letter, '0'..='9' | '#' | '*'),
        '\u{fe00}'..='\u{fe02}' => {
            is_ideograph(letter) || matches!(letter, '\u{2200}'..='\u{22ff}' | '\u{2a00}'..='\u{2aff}')
        }
        '\u{180b}'..='\u{180f}' => matches!(letter, '\u{1800}'..='\u{18af}'),
        '\u{e0100}'..='\u{e01ef}' => is_ideograph(letter),
        _ => false,
    };
    fits && !std::mem::replace(&mut place.has_selector, true)
}

/// Returns true if the script of this letter, or an emoji, uses this joiner.
fn joins(letter: char, joiner: char) -> bool {
    match joiner {
        ZWJ => is_pictograph(letter) || is_joined(letter),
        ZWNJ => is_joined(letter),
        ZWSP => is_spaceless(letter),
        _ => false,
    }
}

/// Returns true for scripts whose letters change shape next to others: Arabic to N'Ko, Indic scripts to Myanmar, Khmer,
/// Mongolian, and Indonesian scripts.
fn is_joined(letter: char) -> bool {
    matches!(letter, '\u{600}'..='\u{7ff}' | '\u{840}'..='\u{dff}' | '\u{f00}'..='\u{109f}' | '\u{1780}'..='\u{18af}'
        | '\u{1a20}'..='\u{1b7f}' | '\u{a840}'..='\u{a8ff}' | '\u{a980}'..='\u{aaff}' | '\u{fb50}'..='\u{fdff}'
        | '\u{fe70}'..='\u{fefc}' | '\u{10a00}'..='\u{11fff}')
}

/// Returns true for scripts without spaces between words: Thai, Lao, Tibetan, Myanmar, Khmer.
fn is_spaceless(letter: char) -> bool {
    matches!(letter, '\u{e00}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{19e0}'..='\u{1aaf}' | '\u{aa60}'..='\u{aa7f}')
}

/// Returns true for emoji and other symbols that occur in emoji sequences.
fn is_pictograph(letter: char) -> bool {
    matches!(letter, '©' | '®' | '‼' | '⁉' | '\u{20e3}' | '\u{2100}'..='\u{214f}' | '\u{2190}'..='\u{21ff}'
        | '\u{2300}'..='\u{23ff}' | 'Ⓜ' | '\u{25a0}'..='\u{27bf}' | '\u{2900}'..='\u{297f}' | '\u{2b00}'..='\u{2bff}'
        | '〰' | '〽' | '㊗' | '㊙' | '\u{1f000}'..='\u{1faff}')
}

fn is_ideograph(letter: char) -> bool {
    matches!(letter, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}
