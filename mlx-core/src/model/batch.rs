//! The rows of a pass: spans of any sequences, their input, and their positions.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, zeros_dtype};
use serde::{Deserialize, Serialize};

use super::attention::Masks;
use super::positions::Positions;
use crate::array::from_tokens;
use crate::cache::Columns;
use crate::error::Result;

/// The input of the rows of a pass.
pub enum Input {
    /// Token ids, `[T]`. They may still be on the device.
    Tokens(Array),
    /// Input of an MTP head: token ids, `[T]`, and the hidden states of the positions before them after the last norm, `[T, hidden]`.
    Mtp {
        /// `[T]`
        tokens: Array,
        /// `[T, hidden]`
        hidden: Array,
    },
    /// Token ids, `[T]`, and rows of pictures or audio at these ascending indices of the pass. The first `hidden` numbers of a row replace the embedding
    /// of its token. Each further `hidden` numbers are added after one of the first layers.
    Pictured {
        /// `[T]`
        tokens: Array,
        /// `[R, hidden * n]`
        rows: Array,
        /// The indices of the `R` rows.
        places: Vec<usize>,
        /// The position of each row of the pass in time, height and width. Empty if positions are consecutive.
        positions: Vec<[i32; 3]>,
    },
    /// Hidden states before the first layer, `[T, hidden]`, from an image encoder.
    Embeddings(Array),
}

/// The rows of a span whose logits are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogitRows {
    /// No row: a chunk inside a prompt.
    None,
    /// The last row: the end of a prompt.
    Last,
    /// All rows: a decode step, a draft to verify, a prompt to score.
    All,
}

/// Consecutive positions of one sequence. A span of one row is a decode step, one of k + 1 rows verifies a draft of k tokens, and a longer
/// one is prefill. Spans of one state are adjacent and in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The index of the state that it extends.
    pub state: usize,
    /// The position of its first row.
    pub start: usize,
    /// The number of its rows; at least 1.
    pub len: usize,
    /// The rows whose logits are needed.
    pub logits: LogitRows,
}

impl Span {
    /// Returns a span of one row with logits.
    pub fn row(state: usize, position: usize) -> Self {
        Self { state, start: position, len: 1, logits: LogitRows::All }
    }

    fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The rows of a pass: the rows of each span in order, then padding.
pub struct Batch {
    input: Input,
    spans: Vec<Span>,
    positions: Positions,
    /// The indices of picture rows, ascending.
    picture_rows: Vec<usize>,
    width: usize,
    per_span: bool,
    needs_hidden: bool,
    /// The number of positions with promised memory, per state.
    promised: Vec<usize>,
    masks: Masks,
    columns: Columns,
}

impl Batch {
    /// Creates a batch of these spans. There must be at least one.
    pub fn new(input: Input, spans: Vec<Span>) -> Self {
        let width = spans.iter().map(|span| span.len).sum();
        let positions = match &input {
            Input::Pictured { positions, .. } if !positions.is_empty() => Positions::of_grid(positions),
            _ => Positions::of_text(spans.iter().map(Span::range), width),
        };
        let picture_rows = match &input {
            Input::Pictured { places, .. } => places.clone(),
            _ => Vec::new(),
        };
        let needs_hidden = spans.iter().any(|span| span.logits != LogitRows::None);
        Self { needs_hidden, ..Self::of(input, spans, positions, picture_rows, width) }
    }

    /// Creates a batch for which no hidden states are returned.
    fn of(
        input: Input,
        spans: Vec<Span>,
        positions: Positions,
        picture_rows: Vec<usize>,
        width: usize,
    ) -> Self {
        Self {
            input,
            spans,
            positions,
            picture_rows,
            width,
            per_span: false,
            needs_hidden: false,
            promised: Vec::new(),
            masks: Masks::default(),
            columns: Columns::default(),
        }
    }

    /// Resumes a pass between two layers from the hidden states of its rows and padding, `[T, hidden]`. `axes`, `picture_rows` and `per_span`
    /// are those of the batch that began the pass.
    pub(crate) fn resumed(
        hidden: Array,
        spans: Vec<Span>,
        axes: &[[i32; 3]],
        picture_rows: Vec<usize>,
        per_span: bool,
    ) -> Self {
        let width = hidden.dim(0) as usize;
        let positions = if axes.is_empty() {
            Positions::of_text(spans.iter().map(Span::range), width)
        } else {
            Positions::of_grid(axes)
        };
        let input = Input::Embeddings(hidden);
        let batch = Self::of(input, spans, positions, picture_rows, width);
        Self { per_span, needs_hidden: true, ..batch }
    }

    /// Creates a batch with `tokens` at consecutive positions of state 0, with logits of the last one. `tokens` must not be empty.
    pub fn prompt(tokens: &[u32], start: usize) -> Self {
        let span = Span { state: 0, start, len: tokens.len(), logits: LogitRows::Last };
        Self::new(Input::Tokens(from_tokens(tokens)), vec![span])
    }

    /// Creates a decode step with a token and its position for each state. `rows` must not be empty.
    pub fn decode(rows: &[(u32, usize)]) -> Self {
        let tokens: Vec<u32> = rows.iter().map(|row| row.0).collect();
        let spans = rows.iter().enumerate().map(|(state, row)| Span::row(state, row.1)).collect();
        Self::new(Input::Tokens(from_tokens(&tokens)), spans)
    }

    /// Adds rows of padding up to `width` rows. They extend no state.
    pub fn padded(self, width: usize) -> Result<Self> {
        let missing = width.saturating_sub(self.width) as i32;
        if missing == 0 {
            return Ok(self);
        }
        let pad = |rows: &Array| {
            let mut shape = rows.shape().to_vec();
            shape[0] = missing;
            concatenate(&[rows, &zeros_dtype(&shape, rows.dtype())?], 0)
        };
        let input = match &self.input {
            Input::Tokens(tokens) => Input::Tokens(pad(tokens)?),
            Input::Mtp { tokens, hidden } => Input::Mtp { tokens: pad(tokens)?, hidden: pad(hidden)? },
            Input::Pictured { tokens, rows, places, positions } => Input::Pictured {
                tokens: pad(tokens)?,
                rows: rows.clone(),
                places: places.clone(),
                positions: positions.clone(),
            },
            Input::Embeddings(rows) => Input::Embeddings(pad(rows)?),
        };
        let positions = Positions::of_text(self.spans.iter().map(Span::range), width);
        Ok(Self { input, positions, width, ..self })
    }

    /// Computes attention span by span on any backend, so the bits of a row do not depend on other spans.
    #[must_use]
    pub fn per_span(self) -> Self {
        Self { per_span: true, ..self }
    }

    /// Marks these ascending rows with features as audio. Unlike rows of a picture, they attend like text in all models.
    #[must_use]
    pub(crate) fn with_audio(mut self, rows: &[usize]) -> Self {
        self.picture_rows.retain(|row| rows.binary_search(row).is_err());
        self
    }

    /// Returns hidden states after the last layer even if no logits are needed.
    #[must_use]
    pub(crate) fn with_hidden(self) -> Self {
        Self { needs_hidden: true, ..self }
    }

    /// Returns true if the hidden states after the last layer are needed.
    pub(crate) fn needs_hidden(&self) -> bool {
        self.needs_hidden
    }

    pub(super) fn input(&self) -> &Input {
        &self.input
    }

    /// Returns the spans in the order of their rows.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the position of each row in time, height and width. Empty if positions are consecutive.
    pub(crate) fn axes(&self) -> &[[i32; 3]] {
        match &self.input {
            Input::Pictured { positions, .. } => positions,
            _ => &[],
        }
    }

    /// Returns the indices of picture rows, ascending.
    pub(crate) fn picture_rows(&self) -> &[usize] {
        &self.picture_rows
    }

    /// Returns the ranges of consecutive picture rows within `rows`, relative to its start.
    pub(super) fn pictures_in(&self, rows: &Range<usize>) -> Vec<Range<i32>> {
        let places = &self.picture_rows;
        let before = |row: usize| places.partition_point(|place| *place < row);
        let within = &places[before(rows.start)..before(rows.end)];
        let place = |place: usize| (place - rows.start) as i32;
        let parts = within.chunk_by(|one, next| one + 1 == *next);
        parts.map(|part| place(part[0])..place(part[part.len() - 1]) + 1).collect()
    }

    pub(super) fn positions(&self) -> &Positions {
        &self.positions
    }

    /// Returns the positions, with each state's shift added. Positions in height and width already include it.
    pub(super) fn shifted(&self, shifts: &[i32]) -> Result<Array> {
        if self.positions.have_axes() || shifts.iter().all(|shift| *shift == 0) {
            return self.positions.all();
        }
        let ranges = self.spans.iter().map(|span| (span.range(), shifts[span.state]));
        Positions::of_shifted(ranges, self.width).all()
    }

    /// Returns the number of rows, with padding.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Returns true if attention must be computed span by span.
    pub(crate) fn is_per_span(&self) -> bool {
        self.per_span
    }

    /// Returns the state of each row if the pass is a decode step of several sequences, with or without drafts, that need not run span by
    /// span.
    pub(super) fn states_of_step(&self) -> Option<Vec<usize>> {
        let is_step = self.spans.iter().all(|span| span.logits == LogitRows::All);
        let states: Vec<usize> =
            self.spans.iter().flat_map(|span| std::iter::repeat_n(span.state, span.len)).collect();
        let several = states.iter().any(|&state| state != states[0]);
        (is_step && several && !self.per_span && states.len() == self.width).then_some(states)
    }

    /// Sets the number of positions with promised memory, per state.
    pub(crate) fn promise(&mut self, promised: Vec<usize>) {
        self.promised = promised;
    }

    /// Returns the number of positions with promised memory, per state.
    pub(super) fn promised(&self) -> &[usize] {
        &self.promised
    }

    /// Returns the masks shared by the layers.
    pub(super) fn masks(&self) -> &Masks {
        &self.masks
    }

    /// Returns the index arrays shared by the layers.
    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Returns true if every span has one row.
    pub(super) fn is_decode(&self) -> bool {
        self.spans.iter().all(|span| span.len == 1)
    }

    /// Returns the indices of the rows that need logits. `None` means every row, with padding.
    pub(super) fn logit_rows(&self) -> Option<Vec<i32>> {
        if self.spans.iter().all(|span| span.logits == LogitRows::All) {
            return None;
        }
        let mut end = 0;
        let rows = self.spans.iter().flat_map(|span| {
            end += span.len as i32;
            let first = match span.logits {
                LogitRows::None => end,
                LogitRows::Last => end - 1,
                LogitRows::All => end - span.len as i32,
            };
            first..end
        });
        Some(rows.collect())
    }
}
