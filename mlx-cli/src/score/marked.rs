//! The scored text with its unlikely tokens colored or in brackets.

use super::scored::ScoredText;

/// The markers around tokens below a probability, the least likely first.
pub(super) struct Marks {
    steps: &'static [(f32, &'static str, &'static str)],
}

/// Markers for terminals.
pub(super) const COLORS: Marks = Marks {
    steps: &[
        (0.001, "\u{1b}[97;41m", "\u{1b}[0m"),
        (0.01, "\u{1b}[31m", "\u{1b}[0m"),
        (0.1, "\u{1b}[33m", "\u{1b}[0m"),
        (0.5, "\u{1b}[32m", "\u{1b}[0m"),
    ],
};

/// Markers for all other outputs.
pub(super) const BRACKETS: Marks = Marks { steps: &[(0.001, "[[", "]]"), (0.01, "[", "]")] };

/// Returns the whole text, the legend of the markers and the sums.
pub(super) fn page(scored: &ScoredText, marks: &Marks) -> String {
    let token = |token: &mlx_core::engine::PromptToken| match &token.logprob {
        Some(logprob) => highlighted(&token.text, logprob.logprob.exp(), marks),
        None => token.text.clone(),
    };
    let text: String = scored.tokens.iter().map(token).collect();
    let step =
        |(limit, before, after): &(f32, &str, &str)| format!("{before}below {} %{after}", limit * 100.0);
    let legend: Vec<String> = marks.steps.iter().map(step).collect();
    format!("{text}\n\n{}\n{}\n", legend.join("  "), scored.summary())
}

/// Marks a text line by line, so that no background reaches the edge of a terminal.
fn highlighted(text: &str, probability: f32, marks: &Marks) -> String {
    let Some((_, before, after)) = marks.steps.iter().find(|(limit, ..)| probability < *limit) else {
        return text.to_owned();
    };
    let line = |line: &str| if line.is_empty() { String::new() } else { format!("{before}{line}{after}") };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_less_likely_the_louder() {
        let bracketed = |text, probability| highlighted(text, probability, &BRACKETS);
        assert_eq!(bracketed("sea", 0.2), "sea");
        assert_eq!(bracketed("sea", 0.005), "[sea]");
        assert_eq!(bracketed("sea\n\nside", 0.0), "[[sea]]\n\n[[side]]");
        assert_eq!(highlighted("sea", 0.4, &COLORS), "\u{1b}[32msea\u{1b}[0m");
    }
}
