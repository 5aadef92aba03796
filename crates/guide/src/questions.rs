//! The questions that the guide was trained on, and a search for those nearest to a user's question.

use std::collections::{HashMap, HashSet};

/// One line per question, with its phrasings separated by " | ". `questions.py` writes the file from the corpus.
const QUESTIONS: &str = include_str!("../questions.txt");

const SEPARATOR: &str = " | ";

/// The minimum similarity. Below it, two questions share only frequent words.
const LEAST_SIMILARITY: f64 = 0.25;

/// Returns at most `count` questions that the guide can answer, nearest first, each in its nearest phrasing. Returns
/// none if no question is similar.
pub fn nearest(question: &str, count: usize) -> Vec<&'static str> {
    Questions::new().nearest(question, count)
}

/// A phrasing of a question.
struct Phrasing {
    /// The index of the question.
    line: usize,
    text: &'static str,
    /// The sum of the weights of its features.
    weight: f64,
}

/// A feature of phrasings: its weight, which grows with its rarity, and the phrasings that have it.
#[derive(Default)]
struct Found {
    weight: f64,
    phrasings: Vec<usize>,
}

/// The phrasings of all questions. The similarity of two texts is the overlap of their words and trigrams, weighted by
/// the rarity of these among all phrasings.
struct Questions {
    phrasings: Vec<Phrasing>,
    features: HashMap<Feature, Found>,
}

impl Questions {
    fn new() -> Self {
        let of_line = |(line, text): (usize, &'static str)| {
            text.split(SEPARATOR).map(move |text| Phrasing { line, text, weight: 0.0 })
        };
        let mut phrasings: Vec<Phrasing> = QUESTIONS.lines().enumerate().flat_map(of_line).collect();
        let mut known: HashMap<Feature, Found> = HashMap::new();
        for (index, phrasing) in phrasings.iter().enumerate() {
            for feature in features(phrasing.text) {
                known.entry(feature).or_default().phrasings.push(index);
            }
        }
        for found in known.values_mut() {
            found.weight = (phrasings.len() as f64 / found.phrasings.len() as f64).ln();
            for index in &found.phrasings {
                phrasings[*index].weight += found.weight;
            }
        }
        Self { phrasings, features: known }
    }

    fn nearest(&self, question: &str, count: usize) -> Vec<&'static str> {
        let asked: Vec<&Found> = features(question).iter().filter_map(|it| self.features.get(it)).collect();
        let weight: f64 = asked.iter().map(|found| found.weight).sum();
        let mut common = vec![0.0; self.phrasings.len()];
        for found in asked {
            found.phrasings.iter().for_each(|index| common[*index] += found.weight);
        }
        // The best phrasing of each question.
        let mut best: HashMap<usize, (f64, &'static str)> = HashMap::new();
        for (phrasing, common) in self.phrasings.iter().zip(common) {
            let similarity = common / (weight * phrasing.weight).sqrt();
            if similarity > best.get(&phrasing.line).map_or(LEAST_SIMILARITY, |(before, _)| *before) {
                best.insert(phrasing.line, (similarity, phrasing.text));
            }
        }
        let mut best: Vec<(usize, (f64, &'static str))> = best.into_iter().collect();
        best.sort_by(|(line, (similarity, _)), (next, (other, _))| {
            other.total_cmp(similarity).then(line.cmp(next))
        });
        best.into_iter().take(count).map(|(_, (_, text))| text).collect()
    }
}

/// The hash of a word or a trigram.
type Feature = u64;

fn features(text: &str) -> HashSet<Feature> {
    let lower = text.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric() && !"-_/".contains(letter));
    let mut features = HashSet::new();
    for word in words.filter(|word| !word.is_empty()) {
        let padded: Vec<char> = format!(" {word} ").chars().collect();
        let parts = padded.windows(3).map(|three| three.iter().collect::<String>());
        features.extend(
            parts.chain([format!(" {word} ")]).map(|part| xxhash_rust::xxh3::xxh3_64(part.as_bytes())),
        );
    }
    features
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the phrasings of each corpus block that has a line in `questions.txt`: those for training, and those
    /// held out.
    fn corpus() -> Vec<[Vec<String>; 2]> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let entries = folder.read_dir().expect("the corpus").map(|entry| entry.expect("a file").path());
        let left_out = ["elsewhere.txt", "smalltalk.txt", "slots.txt"].map(|name| folder.join(name));
        let mut files: Vec<_> = entries.filter(|path| !left_out.contains(path)).collect();
        files.sort();
        let texts = files.iter().map(|path| std::fs::read_to_string(path).expect("a text"));
        let blocks = texts.flat_map(|text| text.split("\n\n").map(phrasings).collect::<Vec<_>>());
        blocks.filter(|[trained, _]| !trained.is_empty()).collect()
    }

    fn phrasings(block: &str) -> [Vec<String>; 2] {
        // Follow-up questions have no meaning without the first question.
        if block.lines().any(|line| line.starts_with("after: ") || line.starts_with("K: ")) {
            return Default::default();
        }
        ["Q: ", "H: "].map(|name| {
            let lines = block.lines().filter_map(|line| line.strip_prefix(name));
            let all = lines
                .flat_map(|line| line.split(SEPARATOR))
                .filter(|phrasing| !phrasing.contains('{') && !phrasing.starts_with('?'));
            all.map(|phrasing| phrasing.trim().to_owned()).collect()
        })
    }

    #[test]
    fn the_questions_are_those_of_the_corpus() {
        let expected: Vec<String> = corpus().iter().map(|[trained, _]| trained.join(SEPARATOR)).collect();
        let found: Vec<&str> = QUESTIONS.lines().collect();
        assert_eq!(found, expected, "run crates/guide/questions.py");
    }

    #[test]
    fn nine_of_ten_unknown_phrasings_are_near_their_question() {
        let (known, mut asked, mut found) = (Questions::new(), 0, 0);
        for [trained, held_out] in corpus() {
            for question in held_out {
                asked += 1;
                found += usize::from(
                    known.nearest(&question, 2).iter().any(|it| trained.iter().any(|own| own == it)),
                );
            }
        }
        assert!(asked > 800 && 10 * found >= 9 * asked, "{found} of {asked}");
    }

    #[test]
    fn the_bound_of_doubt_is_the_one_that_was_evaluated() {
        let report = Path::new(env!("CARGO_MANIFEST_DIR")).join("evaluation.json");
        let report = std::fs::read_to_string(report).expect("the evaluation");
        for name in ["threshold", "fitted"] {
            let expected = format!("\"{name}\": {}", crate::CONFIDENCE_THRESHOLD);
            assert!(
                report.contains(&expected),
                "{name}: fit it again with crates/guide/train.py --evaluate-only"
            );
        }
        assert!(
            crate::is_uncertain([-0.01, -0.4].into_iter()) && !crate::is_uncertain([-0.01, -0.1].into_iter())
        );
    }

    #[test]
    fn what_resembles_nothing_has_no_near_question() {
        assert!(nearest("", 2).is_empty());
        assert!(nearest("żółć 東京", 2).is_empty());
    }
}
