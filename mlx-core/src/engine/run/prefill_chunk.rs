//! Chunks of prompts as the rows of a pass: their tokens, and rows of pictures that stand in for embeddings.

use crate::array;
use crate::error::Result;
use crate::model::{Hidden, Input, LogitRows, Span};

/// A chunk of a prompt in a prefill pass.
pub(in crate::engine) struct PrefillChunk<'a> {
    pub(in crate::engine) tokens: &'a [u32],
    /// The position of its first token.
    pub(in crate::engine) start: usize,
    pub(in crate::engine) logits: LogitRows,
    /// Rows of pictures, and their places among these tokens.
    pub(in crate::engine) pictures: Vec<(Hidden, Vec<usize>)>,
    /// Where each token is in time, height and width, if that is not the same.
    pub(in crate::engine) positions: Vec<[i32; 3]>,
    /// How far positions are from places where they are.
    pub(in crate::engine) shift: i32,
}

impl<'a> PrefillChunk<'a> {
    /// A chunk without pictures.
    pub(in crate::engine) fn of_text(tokens: &'a [u32], start: usize, logits: LogitRows) -> Self {
        Self { tokens, start, logits, pictures: Vec::new(), positions: Vec::new(), shift: 0 }
    }
}

/// What the rows of a pass over some chunks are made from.
pub(super) fn input_of(chunks: &[PrefillChunk]) -> Result<Input> {
    let tokens = array::from_tokens(&tokens_of(chunks));
    let (mut rows, mut places, mut start) = (Vec::new(), Vec::new(), 0);
    for chunk in chunks {
        for (features, within) in &chunk.pictures {
            rows.push(features);
            places.extend(within.iter().map(|place| start + place));
        }
        start += chunk.tokens.len();
    }
    if rows.is_empty() {
        return Ok(Input::Tokens(tokens));
    }
    let has_grids = chunks.iter().any(|chunk| !chunk.positions.is_empty());
    let positions = if has_grids { chunks.iter().flat_map(positions_of).collect() } else { Vec::new() };
    Ok(Input::Pictured { tokens, rows: Hidden::joined(rows)?.into_array(), places, positions })
}

fn positions_of(chunk: &PrefillChunk) -> Vec<[i32; 3]> {
    if !chunk.positions.is_empty() {
        return chunk.positions.clone();
    }
    let first = chunk.start as i32 + chunk.shift;
    (first..first + chunk.tokens.len() as i32).map(|position| [position; 3]).collect()
}

/// The spans of the same pass, a state for each chunk.
pub(super) fn spans_of(chunks: &[PrefillChunk]) -> Vec<Span> {
    let span = |(state, chunk): (usize, &PrefillChunk)| Span {
        state,
        start: chunk.start,
        len: chunk.tokens.len(),
        logits: chunk.logits,
    };
    chunks.iter().enumerate().map(span).collect()
}

/// Their tokens.
pub(super) fn tokens_of(chunks: &[PrefillChunk]) -> Vec<u32> {
    chunks.iter().flat_map(|chunk| chunk.tokens).copied().collect()
}
