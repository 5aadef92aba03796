//! Divides a text longer than the context into windows. Invariant: pure.

use std::ops::Range;

/// Returns the windows of a text of `length` tokens, in order. Each begins `stride` tokens after the previous one and has `context`
/// tokens; the last may have fewer. Together they cover the text. A token that is new in a window has at least `context - stride`
/// tokens before it.
pub(super) fn windows(length: usize, context: usize, stride: usize) -> Vec<Range<usize>> {
    let ends_before = |start: &usize| *start == 0 || start - stride + context < length;
    let starts = (0..length.max(1)).step_by(stride).take_while(ends_before);
    starts.map(|start| start..length.min(start + context)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_new_once_and_has_enough_before_it() {
        for (context, stride) in [(8, 4), (8, 1), (8, 7), (9, 5), (2, 1), (64, 32)] {
            for length in 1..200 {
                let mut known = 0;
                for window in windows(length, context, stride) {
                    assert!(window.len() <= context && window.start <= known && known < window.end);
                    assert!(
                        known == 0 || known - window.start >= context - stride,
                        "{context} {stride} {length}"
                    );
                    known = window.end;
                }
                assert_eq!(known, length);
            }
        }
    }

    #[test]
    fn what_fits_is_one_window() {
        assert_eq!(windows(8, 8, 4), vec![0..8; 1]);
        assert_eq!(windows(9, 8, 4), [0..8, 4..9]);
        assert_eq!(windows(0, 8, 4), vec![0..0; 1]);
    }
}
