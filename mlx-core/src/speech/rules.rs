//! The rules for the tokens of a window, as the reference implementation applies them to logits.

use super::tokens::SpeechTokens;

/// The rules for the text of windows of a model.
pub(crate) struct DecodingRules<'a>(pub(crate) &'a SpeechTokens);

impl DecodingRules<'_> {
    /// Suppresses the tokens that cannot follow `generated`. Without `timestamps`, only text follows.
    pub(crate) fn apply(&self, generated: &[u32], timestamps: bool, logits: &mut [f32]) {
        let tokens = self.0;
        if generated.is_empty() {
            suppress(&tokens.first_suppressed, logits);
        }
        suppress(&tokens.suppressed, logits);
        if timestamps {
            self.apply_to_timestamps(generated, logits);
        }
    }

    /// Timestamps come in pairs, except before the end; they never decrease, and the first token is one near the start.
    fn apply_to_timestamps(&self, generated: &[u32], logits: &mut [f32]) {
        let tokens = self.0;
        let (end, first) = (tokens.end as usize, tokens.first_timestamp as usize);
        suppress(&[tokens.no_timestamps], logits);
        let is_timestamp = |token: &u32| *token >= tokens.first_timestamp;
        let last_is = generated.last().is_some_and(is_timestamp);
        let one_before_is = generated.len() < 2 || is_timestamp(&generated[generated.len() - 2]);
        if last_is && one_before_is {
            suppress_range(first..logits.len(), logits);
        } else if last_is {
            suppress_range(0..end, logits);
        }
        if let Some(last) = generated.iter().rev().find(|token| is_timestamp(token)) {
            // The second timestamp of a pair may equal the first.
            let least = if last_is && !one_before_is { *last } else { last + 1 };
            suppress_range(first..least as usize, logits);
        }
        if generated.is_empty() {
            suppress_range(0..first, logits);
            if let Some(latest) = tokens.max_initial_timestamp {
                suppress_range(first + latest + 1..logits.len(), logits);
            }
        }
        // If timestamps together are likelier than any other token, one of them follows.
        let (texts, timestamps) = logits.split_at(first.min(logits.len()));
        let likeliest = texts.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if log_sum(timestamps) > f64::from(likeliest) {
            suppress_range(0..first, logits);
        }
    }
}

/// Returns the log-probability of a token.
pub(crate) fn log_probability(logits: &[f32], token: u32) -> f64 {
    logits.get(token as usize).map_or(f64::NEG_INFINITY, |logit| f64::from(*logit) - log_sum(logits))
}

/// Returns the probability of a token.
pub(crate) fn probability(logits: &[f32], token: u32) -> f32 {
    log_probability(logits, token).exp() as f32
}

/// Returns the logarithm of the sum of exponentials.
fn log_sum(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return f64::NEG_INFINITY;
    }
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

fn suppress(tokens: &[u32], logits: &mut [f32]) {
    for token in tokens {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

fn suppress_range(range: std::ops::Range<usize>, logits: &mut [f32]) {
    let end = range.end.min(logits.len());
    if range.start < end {
        logits[range.start..end].fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0 to 9 are text, 10 is the end, 15 the first of ten timestamps.
    fn tokens() -> SpeechTokens {
        SpeechTokens {
            start: 11,
            end: 10,
            previous: Some(12),
            transcribe: 13,
            translate: 13,
            no_speech: Some(13),
            no_timestamps: 14,
            first_timestamp: 15,
            languages: Vec::new(),
            suppressed: vec![3],
            first_suppressed: vec![10],
            max_initial_timestamp: Some(4),
        }
    }

    fn allowed(generated: &[u32], timestamps: bool, likely: &[u32]) -> Vec<usize> {
        let mut logits = vec![0.0; 25];
        for token in likely {
            logits[*token as usize] = 20.0;
        }
        DecodingRules(&tokens()).apply(generated, timestamps, &mut logits);
        (0..25).filter(|token| logits[*token] > f32::NEG_INFINITY).collect()
    }

    #[test]
    fn a_window_begins_with_an_early_timestamp() {
        assert_eq!(allowed(&[], true, &[]), [15, 16, 17, 18, 19]);
        assert_eq!(
            allowed(&[], false, &[]),
            [0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24]
        );
    }

    #[test]
    fn timestamps_come_in_pairs_and_do_not_decrease() {
        let text_or_end = [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
        assert_eq!(allowed(&[16], true, &[]), text_or_end, "text follows the first timestamp");
        assert_eq!(
            allowed(&[16, 1, 20], true, &[10]),
            [10, 11, 12, 13, 20, 21, 22, 23, 24],
            "its pair, or the end"
        );
        assert_eq!(allowed(&[16, 1, 20, 20], true, &[]), text_or_end, "text follows a pair");
        let later: Vec<usize> = text_or_end.into_iter().chain(17..25).collect();
        assert_eq!(allowed(&[16, 1], true, &[1]), later, "a timestamp after text is later");
    }

    #[test]
    fn likely_timestamps_exclude_text() {
        assert_eq!(
            allowed(&[16, 1], true, &[]),
            [17, 18, 19, 20, 21, 22, 23, 24],
            "eight of them are likelier than one text"
        );
    }

    #[test]
    fn probabilities_sum_to_one() {
        let logits = [1.0, f32::NEG_INFINITY, 3.0, 2.0];
        let sum: f32 = (0..4).map(|token| probability(&logits, token)).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert!(log_probability(&logits, 9) == f64::NEG_INFINITY);
    }
}
