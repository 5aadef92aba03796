//! Prompt chunks as the rows of a pass: their tokens, and rows of pictures and audio that replace embeddings.

use super::device::Device;
use crate::array;
use crate::cache::SequenceState;
use crate::error::Result;
use crate::model::{Batch, Hidden, Input, LogitRows, Pass, Span};

/// A prompt chunk in a prefill pass.
pub(in crate::engine) struct PrefillChunk<'a> {
    pub(in crate::engine) tokens: &'a [u32],
    /// The position of its first token.
    pub(in crate::engine) start: usize,
    pub(in crate::engine) logits: LogitRows,
    /// True if its hidden states after the last layer are read in addition to the logits.
    pub(in crate::engine) needs_hidden: bool,
    /// Rows of pictures and audio, and their positions among these tokens.
    pub(in crate::engine) features: Vec<(Hidden, Vec<usize>)>,
    /// The positions of rows of audio.
    pub(in crate::engine) audio: Vec<usize>,
    /// The time, height and width of each token, if they differ.
    pub(in crate::engine) positions: Vec<[i32; 3]>,
    /// The offset between rope positions and token positions, if `positions` is empty.
    pub(in crate::engine) shift: i32,
}

impl<'a> PrefillChunk<'a> {
    /// Creates a chunk without features.
    pub(in crate::engine) fn of_text(tokens: &'a [u32], start: usize, logits: LogitRows) -> Self {
        let (features, audio, positions) = (Vec::new(), Vec::new(), Vec::new());
        Self { tokens, start, logits, needs_hidden: false, features, audio, positions, shift: 0 }
    }
}

impl Device {
    /// Begins a pass through an adapter over chunks of several prompts, one for each state. In a pass over a single chunk, the bits depend
    /// only on the chunk.
    pub(in crate::engine) fn begin_prefill(&self, adapter: usize, chunks: &[PrefillChunk]) -> Result<Pass> {
        let batch = Batch::new(input_of(chunks)?, spans_of(chunks)).with_audio(&audio_of(chunks));
        let needs_hidden = chunks.iter().any(|chunk| chunk.needs_hidden);
        self.model(adapter).begin(if needs_hidden { batch.with_hidden() } else { batch })
    }

    /// Runs a whole pass of a head over tokens and the hidden states `[T, hidden]` before them.
    pub(in crate::engine) fn forward_mtp(
        &self,
        chunks: &[PrefillChunk],
        hidden: Hidden,
        states: &mut [&mut SequenceState],
    ) -> Result<Pass> {
        let input =
            Input::Mtp { tokens: array::from_tokens(&tokens_of(chunks)), hidden: hidden.into_array() };
        let mut pass = self.model(0).begin(Batch::new(input, spans_of(chunks)))?;
        self.model(0).advance(&mut pass, self.layers(), states)?;
        Ok(pass)
    }

    /// Begins a pass over previously generated tokens of an exact sequence, with the same rows as in their steps.
    pub(in crate::engine) fn begin_replay(&self, adapter: usize, chunk: &PrefillChunk) -> Result<Pass> {
        let PrefillChunk { tokens, start, .. } = *chunk;
        let logits = if chunk.logits == LogitRows::None { LogitRows::None } else { LogitRows::All };
        let row = |position| Span { logits, ..Span::row(0, position) };
        let spans = (start..start + tokens.len()).map(row).collect();
        let batch = Batch::new(Input::Tokens(array::from_tokens(tokens)), spans);
        let batch = if chunk.needs_hidden { batch.with_hidden() } else { batch };
        self.model(adapter).begin(self.step(adapter, batch, tokens.len(), true)?)
    }
}

/// Returns the input of a pass over these chunks.
pub(super) fn input_of(chunks: &[PrefillChunk]) -> Result<Input> {
    let tokens = array::from_tokens(&tokens_of(chunks));
    let (mut rows, mut places, mut start) = (Vec::new(), Vec::new(), 0);
    for chunk in chunks {
        for (features, within) in &chunk.features {
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

/// Returns the rows of audio of a pass over these chunks.
fn audio_of(chunks: &[PrefillChunk]) -> Vec<usize> {
    let starts = chunks.iter().scan(0, |end, chunk| {
        let start = *end;
        *end += chunk.tokens.len();
        Some(start)
    });
    chunks
        .iter()
        .zip(starts)
        .flat_map(|(chunk, start)| chunk.audio.iter().map(move |row| start + row))
        .collect()
}

fn positions_of(chunk: &PrefillChunk) -> Vec<[i32; 3]> {
    if !chunk.positions.is_empty() {
        return chunk.positions.clone();
    }
    let first = chunk.start as i32 + chunk.shift;
    (first..first + chunk.tokens.len() as i32).map(|position| [position; 3]).collect()
}

/// Returns the spans of a pass over these chunks, one state for each chunk.
pub(super) fn spans_of(chunks: &[PrefillChunk]) -> Vec<Span> {
    let span = |(state, chunk): (usize, &PrefillChunk)| Span {
        state,
        start: chunk.start,
        len: chunk.tokens.len(),
        logits: chunk.logits,
    };
    chunks.iter().enumerate().map(span).collect()
}

/// Returns the tokens of these chunks.
pub(super) fn tokens_of(chunks: &[PrefillChunk]) -> Vec<u32> {
    chunks.iter().flat_map(|chunk| chunk.tokens).copied().collect()
}
