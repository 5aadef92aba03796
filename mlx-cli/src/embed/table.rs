//! Formats the similarities of texts as a table. Invariant: pure.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Embedded;

/// The width of a column of similarities.
const COLUMN: usize = 7;

/// The largest width of a text.
const MAX_TEXT: usize = 32;

/// Returns the cosine similarity of each pair of texts. If the table is wider than `columns`, returns the most similar other text of each.
pub(super) fn similarities(texts: &[Embedded], columns: Option<usize>) -> String {
    let labels: Vec<String> = texts.iter().map(|text| shortened(&text.text)).collect();
    let width = labels.iter().map(|label| label.width()).max().unwrap_or_default();
    let number = texts.len().to_string().len();
    let head = |index: usize| format!("{:>number$}  {}", index + 1, padded(&labels[index], width));
    if columns.is_some_and(|columns| number + 2 + width + COLUMN * texts.len() > columns) {
        let line = |(index, text): (usize, &Embedded)| {
            let others = texts.iter().enumerate().filter(|(other, _)| *other != index);
            let scored = others.map(|(other, it)| (other, cosine(&text.vector, &it.vector)));
            let best = scored.max_by(|one, other| one.1.total_cmp(&other.1));
            let nearest = best.map_or_else(String::new, |(other, similarity)| {
                format!("  {similarity:.3}  {}  {}", other + 1, labels[other])
            });
            format!("{}{nearest}\n", head(index))
        };
        return texts.iter().enumerate().map(line).collect();
    }
    let numbers: Vec<String> = (1..=texts.len()).map(|index| format!("{index:>COLUMN$}")).collect();
    let heading = format!("{:indent$}{}\n", "", numbers.concat(), indent = number + 2 + width);
    let row = |(index, text): (usize, &Embedded)| {
        let cell = |other: &Embedded| format!("{:>COLUMN$.3}", cosine(&text.vector, &other.vector));
        let cells: Vec<String> = texts.iter().map(cell).collect();
        format!("{}{}\n", head(index), cells.concat())
    };
    [heading].into_iter().chain(texts.iter().enumerate().map(row)).collect()
}

/// Returns the cosine of the angle between two vectors; 0 if one of them is zero.
fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let product = |one: &[f32], other: &[f32]| -> f64 {
        one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other)).sum()
    };
    let lengths = (product(one, one) * product(other, other)).sqrt();
    if lengths > 0.0 { product(one, other) / lengths } else { 0.0 }
}

/// Returns the start of a text in one line.
fn shortened(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.width() <= MAX_TEXT {
        return line;
    }
    let mut width = 0;
    let fits = |ch: &char| {
        width += ch.width().unwrap_or(0);
        width < MAX_TEXT
    };
    line.chars().take_while(fits).chain(['…']).collect()
}

fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(vectors: &[(&str, [f32; 2])]) -> Vec<Embedded> {
        let one = |(text, vector): &(&str, [f32; 2])| Embedded {
            text: (*text).to_owned(),
            vector: vector.to_vec(),
            tokens: 1,
            is_cut: false,
        };
        vectors.iter().map(one).collect()
    }

    #[test]
    fn a_table_has_each_pair_and_a_narrow_terminal_the_nearest_text() {
        let texts = texts(&[("a cat", [1.0, 0.0]), ("猫", [3.0, 0.0]), ("rates\nrise", [0.0, 2.0])]);
        let expected = [
            "                   1      2      3",
            "1  a cat       1.000  1.000  0.000",
            "2  猫          1.000  1.000  0.000",
            "3  rates rise  0.000  0.000  1.000",
            "",
        ];
        assert_eq!(similarities(&texts, Some(80)), expected.join("\n"));
        assert_eq!(similarities(&texts, None), expected.join("\n"));
        let narrow = similarities(&texts, Some(24));
        assert!(narrow.starts_with("1  a cat       1.000  2  猫\n"), "{narrow}");
    }

    #[test]
    fn long_texts_are_cut_and_zeros_are_similar_to_nothing() {
        assert_eq!(shortened(&"waves ".repeat(20)).width(), MAX_TEXT);
        assert!(cosine(&[0.0, 0.0], &[1.0, 0.0]).abs() < 1e-9);
    }
}
