//! The hidden states of a text's newest positions, for a head that drafts from them.

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::Result;
use crate::model::{Hidden, MTP_HISTORY};

/// States of consecutive positions, after the last norm.
#[derive(Default)]
pub(in crate::engine) struct HiddenRows {
    /// The position of the first row.
    start: usize,
    parts: VecDeque<Hidden>,
}

impl HiddenRows {
    /// Returns the range of stored positions.
    pub(in crate::engine) fn range(&self) -> Range<usize> {
        self.start..self.start + self.parts.iter().map(Hidden::len).sum::<usize>()
    }

    /// Adds the rows of the positions from `start` on. They replace stored rows from `start` on.
    pub(in crate::engine) fn add(&mut self, start: usize, part: Hidden) -> Result<()> {
        self.truncate(start)?;
        if self.range().end != start {
            self.parts.clear();
            self.start = start;
        }
        self.parts.push_back(part);
        while self.parts.len() > 1
            && self.range().len() - self.parts.front().map_or(0, Hidden::len) >= MTP_HISTORY
        {
            self.start += self.parts.pop_front().as_ref().map_or(0, Hidden::len);
        }
        Ok(())
    }

    /// Drops the positions from `end` on.
    pub(in crate::engine) fn truncate(&mut self, end: usize) -> Result<()> {
        while let Some(last) = self.parts.back().map(Hidden::len)
            && self.range().end > end
        {
            let Some(part) = self.parts.pop_back() else { break };
            let left = (self.range().end + last).min(end).saturating_sub(self.range().end);
            if left > 0 {
                self.parts.push_back(part.rows(0..left)?);
                break;
            }
        }
        Ok(())
    }

    /// Returns the rows of these positions, which must be stored.
    pub(in crate::engine) fn of(&self, positions: Range<usize>) -> Result<Hidden> {
        Hidden::joined(&self.parts)?.rows(positions.start - self.start..positions.end - self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::Rows;

    fn part(values: Range<u16>) -> Hidden {
        Hidden::of_numbers(&values.map(f32::from).collect::<Vec<_>>())
    }

    fn values(rows: &HiddenRows, positions: Range<usize>) -> Vec<f32> {
        let rows = rows.of(positions).map(Hidden::into_array).expect("it is here");
        Rows::new(&rows).and_then(|rows| Ok(rows.values()?.to_vec())).expect("rows")
    }

    #[test]
    fn rows_follow_the_text() {
        let mut rows = HiddenRows::default();
        rows.add(5, part(5..9)).expect("it fits");
        rows.add(9, part(9..12)).expect("it follows");
        assert_eq!((rows.range(), values(&rows, 8..11)), (5..12, vec![8.0, 9.0, 10.0]));
        // A draft was wrong.
        rows.add(10, part(20..22)).expect("it takes the place");
        assert_eq!((rows.range(), values(&rows, 9..12)), (5..12, vec![9.0, 20.0, 21.0]));
        rows.truncate(7).expect("it is cut");
        assert_eq!(rows.range(), 5..7);
        rows.truncate(2).expect("all of it is cut");
        rows.add(30, part(0..1)).expect("it begins anew");
        assert_eq!(rows.range(), 30..31);
        for position in 31..500 {
            rows.add(position, part(0..1)).expect("it follows");
        }
        assert_eq!(rows.range(), 500 - MTP_HISTORY..500);
    }
}
