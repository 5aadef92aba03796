//! Cuts the tokens of a window into segments at pairs of timestamps.

use mlx_audio::FRAMES_PER_SECOND;

use super::tokens::TIMESTAMPS_PER_SECOND;

/// A segment with its times in seconds from the start of the window.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) tokens: Vec<u32>,
}

/// The segments of a window.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cut {
    pub(crate) parts: Vec<Part>,
    /// The frames to the start of the next window.
    pub(crate) frames: usize,
    /// True if the text ends with a single timestamp, after which there is no speech.
    pub(crate) is_complete: bool,
}

impl Cut {
    /// Returns the text tokens of all segments. Those from `end` on are no text.
    pub(crate) fn text(&self, end: u32) -> impl Iterator<Item = u32> {
        self.parts.iter().flat_map(|part| part.tokens.iter().copied()).filter(move |token| *token < end)
    }
}

/// Cuts the tokens of a window of `frames` frames. Text after the last pair of timestamps is dropped, since the next window begins there.
pub(crate) fn cut(tokens: &[u32], first_timestamp: u32, frames: usize) -> Cut {
    let is_timestamp = |token: &u32| *token >= first_timestamp;
    let seconds =
        |token: u32| f64::from(token.saturating_sub(first_timestamp)) / TIMESTAMPS_PER_SECOND as f64;
    let pairs = tokens.windows(2).enumerate().filter(|(_, pair)| pair.iter().all(is_timestamp));
    let mut ends: Vec<usize> = pairs.map(|(place, _)| place + 1).collect();
    let is_complete = matches!(tokens, [.., before, last] if !is_timestamp(before) && is_timestamp(last));
    if ends.is_empty() {
        let window = frames as f64 / FRAMES_PER_SECOND as f64;
        let last = tokens.iter().copied().rev().find(is_timestamp).filter(|last| *last != first_timestamp);
        let part = Part { start: 0.0, end: last.map_or(window, seconds), tokens: tokens.to_vec() };
        return Cut { parts: vec![part], frames, is_complete };
    }
    if is_complete {
        ends.push(tokens.len());
    }
    let (mut parts, mut start) = (Vec::new(), 0);
    for end in ends {
        if let [first, .., last] = tokens[start..end] {
            parts.push(Part {
                start: seconds(first),
                end: seconds(last),
                tokens: tokens[start..end].to_vec(),
            });
        }
        start = end;
    }
    if is_complete {
        return Cut { parts, frames, is_complete };
    }
    let last = tokens[start - 1].saturating_sub(first_timestamp) as usize;
    let next = last * FRAMES_PER_SECOND / TIMESTAMPS_PER_SECOND;
    Cut { parts, frames: next.clamp(1, frames), is_complete }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens from 100 on are timestamps.
    fn of(tokens: &[u32]) -> (Vec<(f64, f64, Vec<u32>)>, usize) {
        let Cut { parts, frames, .. } = cut(tokens, 100, 3000);
        (parts.into_iter().map(|part| (part.start, part.end, part.tokens)).collect(), frames)
    }

    #[test]
    fn pairs_of_timestamps_separate_segments() {
        let (parts, frames) = of(&[100, 1, 2, 150, 150, 3, 200, 200, 4]);
        assert_eq!(parts, [(0.0, 1.0, vec![100, 1, 2, 150]), (1.0, 2.0, vec![150, 3, 200])]);
        assert_eq!(frames, 200, "the next window begins after two seconds");
    }

    #[test]
    fn a_single_timestamp_at_the_end_completes_the_window() {
        let (parts, frames) = of(&[100, 1, 150, 150, 2, 300]);
        assert_eq!(parts, [(0.0, 1.0, vec![100, 1, 150]), (1.0, 4.0, vec![150, 2, 300])]);
        assert_eq!(frames, 3000);
        assert_eq!(of(&[100, 1, 150]), (vec![(0.0, 1.0, vec![100, 1, 150])], 3000));
    }

    #[test]
    fn text_without_pairs_is_one_segment() {
        assert_eq!(of(&[100, 1, 2]), (vec![(0.0, 30.0, vec![100, 1, 2])], 3000));
        assert_eq!(of(&[]), (vec![(0.0, 30.0, vec![])], 3000));
        assert_eq!(of(&[1, 150, 2]), (vec![(0.0, 1.0, vec![1, 150, 2])], 3000));
    }
}
