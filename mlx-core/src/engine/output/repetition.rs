//! Detects an answer that ends in a loop. Invariant: pure; it reports repetition and changes no token.

/// The length of the longest detected loop, in tokens.
const LONGEST_PERIOD: usize = 512;
/// The minimum number of copies after the first.
const FEWEST_COPIES: usize = 3;
/// The minimum number of repeated tokens. Lists, rules and tables have fewer.
const FEWEST_TOKENS: usize = 128;

/// Returns the number of tokens at the end that repeat the tokens before them, or 0 if the text does not end in a loop. Usually it compares
/// one token per period.
pub(super) fn repeated(tokens: &[u32]) -> usize {
    let loops = (1..=LONGEST_PERIOD.min(tokens.len())).map(|period| (period, run(tokens, period)));
    let is_loop = |&(period, run): &(usize, usize)| run >= FEWEST_TOKENS.max(FEWEST_COPIES * period);
    loops.filter(is_loop).map(|(_, run)| run).next().unwrap_or(0)
}

/// Returns the number of tokens at the end that equal the token one period before them.
fn run(tokens: &[u32], period: usize) -> usize {
    let (late, early) = (tokens[period..].iter().rev(), tokens[..tokens.len() - period].iter().rev());
    late.zip(early).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_counted_and_other_texts_are_none() {
        let start: Vec<u32> = (1000..1100).collect();
        let cycle = |period: u32, count: usize| -> Vec<u32> {
            start.iter().copied().chain((0..period).cycle().take(count)).collect()
        };
        for (period, count, expected) in
            [(1, 129, 128), (1, 128, 0), (20, 200, 180), (20, 147, 0), (500, 2000, 1500), (500, 1999, 0)]
        {
            assert_eq!(repeated(&cycle(period, count)), expected, "{count} tokens of period {period}");
        }
        assert_eq!(repeated(&cycle(600, 6000)), 0, "longer than the longest period");
        let ended = [cycle(20, 400), vec![7777]].concat();
        assert_eq!((repeated(&ended), repeated(&start), repeated(&[])), (0, 0, 0));
    }
}
