//! Compares a repeated answer with the original. Invariant: pure.

use chat_format::text::Tokenizer;
use mlx_core::engine::{RequestOptions, TokenOutput};
use mlx_core::sampling::TokenLogprob;

/// Returns true if answers with these options should be the same each time.
pub(crate) fn is_repeatable(options: &RequestOptions) -> bool {
    options.sampling.seed.is_some() || options.sampling.temperature == Some(0.0)
}

/// The result of comparing two answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Tokens and log probabilities are bit-identical.
    Identical,
    /// The tokens are equal. Log probabilities differ from this token on; `None` if one of the answers has none.
    Tokens(Option<usize>),
    /// The tokens differ from this index on.
    Differ(usize),
}

/// Compares the answers token by token.
pub(crate) fn compare(before: &[TokenOutput], now: &[TokenOutput]) -> Comparison {
    let same = before.iter().zip(now).take_while(|(before, now)| before.id == now.id).count();
    if same < before.len().max(now.len()) {
        return Comparison::Differ(same);
    }
    let mut pairs =
        before.iter().zip(now).map(|pair| (bits(pair.0.logprob.as_ref()), bits(pair.1.logprob.as_ref())));
    if pairs.clone().any(|(before, now)| before.is_none() || now.is_none()) {
        return Comparison::Tokens(None);
    }
    match pairs.position(|(before, now)| before != now) {
        Some(at) => Comparison::Tokens(Some(at)),
        None => Comparison::Identical,
    }
}

fn bits(logprob: Option<&TokenLogprob>) -> Option<Vec<(u32, u32)>> {
    let TokenLogprob { logprob, top } = logprob?;
    let top = top.iter().map(|(id, logprob)| (*id, logprob.to_bits()));
    Some(std::iter::once((0, logprob.to_bits())).chain(top).collect())
}

/// Describes the comparison in words.
pub(crate) fn verdict(before: &[TokenOutput], now: &[TokenOutput], tokenizer: &Tokenizer) -> String {
    let count = now.len();
    let name = |tokens: &[TokenOutput], at: usize| match tokens.get(at) {
        Some(token) => format!("{:?}", String::from_utf8_lossy(&tokenizer.token_bytes(token.id))),
        None => "its end".to_owned(),
    };
    match compare(before, now) {
        Comparison::Identical => format!("✓ identical: {count} tokens, bit for bit"),
        Comparison::Tokens(None) => {
            format!("✓ identical: {count} tokens (without log-probabilities to compare)")
        }
        Comparison::Tokens(Some(at)) => format!(
            "the same {count} tokens, but log-probabilities differ from token {} on; --exact makes them bit-identical",
            at + 1
        ),
        Comparison::Differ(at) => {
            format!("✗ differs from token {} on: {} before, {} now", at + 1, name(before, at), name(now, at))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, logprob: Option<f32>) -> TokenOutput {
        let logprob = logprob.map(|logprob| TokenLogprob { logprob, top: vec![(id, logprob)] });
        TokenOutput { id, text: String::new(), delta: String::new(), logprob }
    }

    #[test]
    fn answers_are_compared_to_the_bit() {
        let answer = [token(1, Some(-0.5)), token(2, Some(-1.0))];
        assert_eq!(compare(&answer, &answer), Comparison::Identical);
        let near = [token(1, Some(-0.5)), token(2, Some(-1.000_000_1))];
        assert_eq!(compare(&answer, &near), Comparison::Tokens(Some(1)));
        assert_eq!(compare(&answer, &[token(1, None), token(2, None)]), Comparison::Tokens(None));
        assert_eq!(compare(&answer, &answer[..1]), Comparison::Differ(1));
        assert_eq!(compare(&answer, &[token(1, Some(-0.5)), token(3, Some(-1.0))]), Comparison::Differ(1));
    }
}
