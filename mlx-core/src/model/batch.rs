//! What one pass runs: spans of any sequences, their input, and their positions.

use std::ops::Range;

use mlx_rs::Array;
use mlx_rs::ops::{concatenate, zeros_dtype};
use serde::{Deserialize, Serialize};

use super::attention::Masks;
use super::positions::Positions;
use crate::array::from_tokens;
use crate::cache::Columns;
use crate::error::Result;

/// What the rows of a pass are made from.
pub enum Input {
    /// Token ids, `[T]`. They may still be on the device.
    Tokens(Array),
    /// Token ids, `[T]`, and the states `[T, hidden]` of the positions before them after the last norm, as heads read them that predict
    /// the token after the next one.
    Mtp {
        /// `[T]`
        tokens: Array,
        /// `[T, hidden]`
        hidden: Array,
    },
    /// Token ids, `[T]`, and rows of pictures at these places of the pass, which rise. The first `hidden` numbers of a row stand in for the
    /// embedding of its token; if there are more, each further `hidden` are added behind one of the first layers.
    Pictured {
        /// `[T]`
        tokens: Array,
        /// `[R, hidden * n]`
        rows: Array,
        /// `R` of them.
        places: Vec<usize>,
        /// Where each row of the pass is in time, height and width; empty where places are positions.
        positions: Vec<[i32; 3]>,
    },
    /// Hidden states before the first layer, `[T, hidden]`, as an image encoder gives them.
    Embeddings(Array),
}

/// The rows of a span whose logits are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogitRows {
    /// None: a chunk in the middle of a prompt.
    None,
    /// The last one: the end of a prompt.
    Last,
    /// All of them: a decode step, a draft to verify, a prompt to score.
    All,
}

/// Consecutive positions of one sequence. A span of 1 is a decode step, one of k + 1 verifies a draft of k tokens, one of n prefills.
/// Spans of the same state follow one another, in the order of their positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Which of the pass's states it extends.
    pub state: usize,
    /// The position of its first row.
    pub start: usize,
    /// The number of its rows; at least 1.
    pub len: usize,
    /// The rows whose logits are needed.
    pub logits: LogitRows,
}

impl Span {
    /// One row with logits.
    pub fn row(state: usize, position: usize) -> Self {
        Self { state, start: position, len: 1, logits: LogitRows::All }
    }

    fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The rows of a pass: those of each span after those of the one before, then padding.
pub struct Batch {
    input: Input,
    spans: Vec<Span>,
    positions: Positions,
    /// Those that are of pictures, rising.
    picture_rows: Vec<usize>,
    width: usize,
    per_span: bool,
    needs_hidden: bool,
    /// The positions that memory was promised for, by state.
    promised: Vec<usize>,
    masks: Masks,
    columns: Columns,
}

impl Batch {
    /// Spans of these rows. At least one span.
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

    /// A batch with these rows, whose hidden states nothing reads.
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

    /// Hidden states `[T, hidden]` of these rows and of padding, in the middle of a pass with these [axes](Self::axes) and
    /// [rows of pictures](Self::picture_rows) that [`per_span`](Self::per_span) was or was not called for.
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

    /// `tokens` as consecutive positions of state 0, with logits of the last one. Must not be empty.
    pub fn prompt(tokens: &[u32], start: usize) -> Self {
        let span = Span { state: 0, start, len: tokens.len(), logits: LogitRows::Last };
        Self::new(Input::Tokens(from_tokens(tokens)), vec![span])
    }

    /// A decode step: one token and its position for each state. Must not be empty.
    pub fn decode(rows: &[(u32, usize)]) -> Self {
        let tokens: Vec<u32> = rows.iter().map(|row| row.0).collect();
        let spans = rows.iter().enumerate().map(|(state, row)| Span::row(state, row.1)).collect();
        Self::new(Input::Tokens(from_tokens(&tokens)), spans)
    }

    /// The same with rows of padding up to `width` rows in all. They extend no state.
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

    /// The same with attention span by span, whatever the backend does otherwise: the bits of a row do not depend on other spans.
    #[must_use]
    pub fn per_span(self) -> Self {
        Self { per_span: true, ..self }
    }

    /// The same where the hidden states behind the last layer are read, whether or not logits are needed.
    #[must_use]
    pub(crate) fn with_hidden(self) -> Self {
        Self { needs_hidden: true, ..self }
    }

    /// Whether anything reads the hidden states behind the last layer.
    pub(crate) fn needs_hidden(&self) -> bool {
        self.needs_hidden
    }

    pub(super) fn input(&self) -> &Input {
        &self.input
    }

    /// In the order of their rows.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Where each row is in time, height and width; empty where places are positions.
    pub(crate) fn axes(&self) -> &[[i32; 3]] {
        match &self.input {
            Input::Pictured { positions, .. } => positions,
            _ => &[],
        }
    }

    /// The rows that are of pictures, rising.
    pub(crate) fn picture_rows(&self) -> &[usize] {
        &self.picture_rows
    }

    /// The parts of some rows in which rows of pictures follow one another, counted from the first of them.
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

    /// The same where the positions of each state are so far behind its places; those in height and width say it themselves.
    pub(super) fn shifted(&self, shifts: &[i32]) -> Result<Array> {
        if self.positions.have_axes() || shifts.iter().all(|shift| *shift == 0) {
            return self.positions.all();
        }
        let ranges = self.spans.iter().map(|span| (span.range(), shifts[span.state]));
        Positions::of_shifted(ranges, self.width).all()
    }

    /// The number of rows, with padding.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Whether attention has to go span by span.
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

    /// Stores the number of positions that memory was promised for, by state.
    pub(crate) fn promise(&mut self, promised: Vec<usize>) {
        self.promised = promised;
    }

    /// The positions that memory was promised for, by state.
    pub(super) fn promised(&self) -> &[usize] {
        &self.promised
    }

    /// The masks of the layers.
    pub(super) fn masks(&self) -> &Masks {
        &self.masks
    }

    /// The index arrays of the layers.
    pub(super) fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Whether every span is one row.
    pub(super) fn is_decode(&self) -> bool {
        self.spans.iter().all(|span| span.len == 1)
    }

    /// The places of the rows whose logits are needed; `None` for every row, with padding.
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
