//! A decode pass that runs on the device.

use crate::array::Rows;
use crate::engine::drafters::hidden_rows::HiddenRows;
use crate::engine::sequence::Sequences;
use crate::model::{Hidden, Issued};

/// One decode pass. Each sequence has one row, followed by a row for each draft token to verify. Ids are in ascending order.
pub(in crate::engine) struct DecodePass {
    pub(in crate::engine) ids: Vec<u64>,
    /// The number of rows of each sequence.
    pub(in crate::engine) rows: Vec<usize>,
    pub(in crate::engine) logits: Rows,
    /// The hidden states of the rows after the last norm, with padding, if a head drafts from them.
    pub(in crate::engine) hidden: Option<Hidden>,
    /// The first layers, if they were issued separately.
    pub(in crate::engine) front: Option<Issued>,
}

impl DecodePass {
    /// Returns the sequences, each with the index of its first row.
    pub(in crate::engine) fn first_rows(&self) -> Vec<(u64, usize)> {
        let mut end = 0;
        let firsts = self.rows.iter().map(|rows| {
            end += rows;
            end - rows
        });
        self.ids.iter().copied().zip(firsts).collect()
    }

    /// Stores the hidden states of the pass for heads that draft. Those of rejected drafts are replaced after the next pass.
    pub(in crate::engine) fn store_hidden(&self, sequences: &mut Sequences) {
        let Some(hidden) = &self.hidden else { return };
        for ((id, first), rows) in self.first_rows().into_iter().zip(&self.rows) {
            // The sequence may have ended during the pass.
            let Some(sequence) = sequences.find_mut(id) else { continue };
            if sequence.is_drafted_by_head() {
                let newest = sequence.history.len() - 1;
                let stored = &mut sequence.running().hidden;
                let rows = hidden.rows(first..first + rows);
                // Without hidden states, the next steps have no drafts.
                if rows.and_then(|rows| stored.add(newest, rows)).is_err() {
                    *stored = HiddenRows::default();
                }
            }
        }
    }
}
