//! Rewrites operators that make texts and lists grow, so that every result is counted: `a ~ b` becomes `(a ~ b)|__made`, and `a * b`,
//! whose result may be large at once, becomes `(a)|__product(b)`.

use super::budget::{MADE, PRODUCT};
use super::edit::Edit;
use super::token::{Token, is_unary};

/// The operators by precedence: sums, concatenations, products.
const LEVELS: [[&str; 3]; 3] = [["+", "-", "+"], ["~", "~", "~"], ["*", "/", "%"]];

/// Keywords that end an operand.
const WORDS: [&str; 6] = ["and", "else", "if", "in", "or", "recursive"];

/// Brackets the operators of a tag; `tokens` are the tokens after its name, if it has one.
pub(super) fn bracket(source: &str, tokens: &[Token], edits: &mut Vec<Edit>) {
    let text = |token: &Token| &source[token.range.clone()];
    // The operand or sum being read, for every open bracket.
    let mut open: Vec<Vec<usize>> = vec![Vec::new()];
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map_or("", |before| text(&tokens[before]));
        let ends = match text(token) {
            ")" | "]" | "}" if open.len() > 1 => {
                let inside = open.pop().unwrap_or_default();
                Sum { source, tokens, edits }.bracket(&inside, 0);
                false
            }
            "not" => before != "is",
            word => {
                matches!(word, "," | ":" | "=" | "<" | ">" | "!") || before != "." && WORDS.contains(&word)
            }
        };
        let Some(run) = open.last_mut() else { return };
        if ends {
            let run = std::mem::take(run);
            Sum { source, tokens, edits }.bracket(&run, 0);
        } else {
            run.push(index);
        }
        if matches!(text(token), "(" | "[" | "{") {
            open.push(Vec::new());
        }
    }
    for run in open {
        Sum { source, tokens, edits }.bracket(&run, 0);
    }
}

/// The brackets of one expression.
struct Sum<'a> {
    source: &'a str,
    tokens: &'a [Token],
    edits: &'a mut Vec<Edit>,
}

impl Sum<'_> {
    /// Brackets the tokens with the indices in `run` from the left: `a + b + c` becomes `(a + b) + c`.
    fn bracket(&mut self, run: &[usize], level: usize) {
        let Some(operators) = LEVELS.get(level) else { return };
        let found: Vec<usize> =
            (1..run.len()).filter(|place| self.is_operator(run, *place, operators)).collect();
        let mut operands = Vec::new();
        let mut start = 0;
        for end in found.iter().copied().chain([run.len()]) {
            operands.push(&run[start..end]);
            start = end + 1;
        }
        let grows = found.iter().any(|place| matches!(self.text(run[*place]), "+" | "~" | "*"));
        let grows = grows && operands.iter().all(|operand| !operand.is_empty());
        if grows {
            let first = self.tokens[run[0]].range.start;
            self.edits.push((first..first, "(".repeat(found.len())));
        }
        for (index, operand) in operands.iter().enumerate() {
            self.bracket(operand, level + 1);
            if let Some(place) = index.checked_sub(1).map(|before| run[found[before]]).filter(|_| grows) {
                let end = operand.last().map_or(0, |last| self.tokens[*last].range.end);
                let closing = match self.text(place) {
                    "+" | "~" => format!(")|{MADE}"),
                    _ => ")".to_owned(),
                };
                if self.text(place) == "*" {
                    self.edits.push((self.tokens[place].range.clone(), format!(")|{PRODUCT}(")));
                }
                self.edits.push((end..end, closing));
            }
        }
    }

    fn text(&self, index: usize) -> &str {
        &self.source[self.tokens[index].range.clone()]
    }

    fn is_operator(&self, run: &[usize], place: usize, operators: &[&str]) -> bool {
        let is_twice = |one: usize, other: usize| {
            self.text(one) == self.text(other) && self.tokens[one].range.end == self.tokens[other].range.start
        };
        // `**` gives numbers only; `//` is recognized at its first slash, since the second one looks like a sign.
        let is_power = self.text(run[place]) == "*"
            && run.get(place + 1).is_some_and(|next| is_twice(run[place], *next));
        operators.contains(&self.text(run[place]))
            && !is_power
            && !is_unary(self.source, self.tokens.get(run[place - 1]))
    }
}
