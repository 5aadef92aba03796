//! Reads ranges of a tensor of the folder from stored blocks.

use super::{Tensor, row_elements};
use crate::error::Result;
use crate::placement::{ColumnOrder, RowOrder, Tiles};

/// Stored bytes that are read at once.
const BUFFER: usize = 1 << 20;

impl Tensor {
    /// Computes bytes of the tensor from byte `place` of it. Several threads may read at the same time.
    pub fn read_at(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        let end = place.checked_add(bytes.len() as u64).filter(|end| *end <= self.bytes());
        if end.is_none() {
            return Err(self.file.error(
                &self.stored,
                format!("gives {} bytes of {}; a read would end after them", self.bytes(), self.name),
            ));
        }
        match self.columns {
            _ if bytes.is_empty() => Ok(()),
            ColumnOrder::Same => self.read_rows(place, bytes),
            ColumnOrder::Tiled { heads } => self.read_tiled(place, bytes, heads),
        }
    }

    /// Like [`read_at`](Self::read_at), with the stored order of columns.
    fn read_rows(&self, place: u64, bytes: &mut [u8]) -> Result<()> {
        let (unit, end) = (self.unit(), place + bytes.len() as u64);
        let mut window = Window::new(self, end.div_ceil(unit as u64));
        let mut edge = vec![0; unit];
        let (mut block, mut skipped) = (place / unit as u64, (place % unit as u64) as usize);
        let mut rest = bytes;
        while !rest.is_empty() {
            let blocks = window.blocks(block)?;
            let stored = self.stored.kind.block_bytes();
            if skipped > 0 || rest.len() < unit {
                self.convert(&blocks[..stored], &mut edge);
                let count = rest.len().min(unit - skipped);
                let (out, after) = rest.split_at_mut(count);
                out.copy_from_slice(&edge[skipped..skipped + count]);
                (rest, skipped, block) = (after, 0, block + 1);
            } else {
                let count = (blocks.len() / stored).min(rest.len() / unit);
                let (out, after) = rest.split_at_mut(count * unit);
                self.convert(&blocks[..count * stored], out);
                (rest, block) = (after, block + count as u64);
            }
        }
        Ok(())
    }

    /// Reads whole rows, and copies the columns in the order of the folder.
    fn read_tiled(&self, place: u64, bytes: &mut [u8], heads: Tiles) -> Result<()> {
        let width = row_elements(&self.stored, self.rows);
        let row = width / self.stored.kind.block_elements() * self.unit();
        // Bytes of a head in a row.
        let size = row * heads.size / width;
        let (first, end) = (place / row as u64, place + bytes.len() as u64);
        let rows = (end.div_ceil(row as u64) - first) as usize;
        let (mut done, skipped) = (0, (place % row as u64) as usize);
        let mut buffer = Vec::new();
        let step = (BUFFER / row).max(1);
        for start in (0..rows).step_by(step) {
            buffer.resize(step.min(rows - start) * row, 0);
            self.read_rows((first + start as u64) * row as u64, &mut buffer)?;
            for stored in buffer.chunks_exact(row) {
                let mut from = if done == 0 { skipped } else { 0 };
                while from < row && done < bytes.len() {
                    let (head, inside) = (from / size, from % size);
                    let count = (size - inside).min(bytes.len() - done);
                    let source = heads.stored(head * heads.size) / heads.size * size + inside;
                    bytes[done..done + count].copy_from_slice(&stored[source..source + count]);
                    (from, done) = (from + count, done + count);
                }
            }
        }
        Ok(())
    }
}

/// Stored blocks in memory, at most [`BUFFER`] bytes.
struct Window<'a> {
    tensor: &'a Tensor,
    /// The block after the last that the reader needs, in the order of the folder.
    end: u64,
    /// Blocks of a row.
    row: u64,
    /// The number of rows that change places with each other, if they fit into the buffer together; otherwise 1.
    group: u64,
    /// The first block in memory, in stored order.
    start: u64,
    buffer: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(tensor: &'a Tensor, end: u64) -> Self {
        let width = row_elements(&tensor.stored, tensor.rows);
        let row = (width / tensor.stored.kind.block_elements()) as u64;
        let size = row * tensor.stored.kind.block_bytes() as u64;
        let group = match tensor.rows {
            RowOrder::Halves { head_dim } if size.saturating_mul(head_dim as u64) <= BUFFER as u64 => {
                head_dim as u64
            }
            _ => 1,
        };
        Self { tensor, end, row, group, start: 0, buffer: Vec::new() }
    }

    /// Returns stored blocks from `block` on that follow each other in the folder too. `block` counts in the order of the folder.
    fn blocks(&mut self, block: u64) -> Result<&[u8]> {
        let size = self.tensor.stored.kind.block_bytes() as u64;
        let (row, column) = (block / self.row, block % self.row);
        let of_row = |row: u64| self.tensor.rows.stored(row as usize) as u64;
        let first = of_row(row);
        let most = (BUFFER as u64 / (self.row * size)).max(1);
        // Rows that follow each other in the file too.
        let rows = match self.tensor.rows {
            RowOrder::Same => self.end.div_ceil(self.row) - row,
            _ => (1..most).find(|next| of_row(row + next) != first + next).unwrap_or(most),
        };
        let (stored, run) = (first * self.row + column, (rows * self.row - column).min(self.end - block));
        let held = self.buffer.len() as u64 / size;
        if stored < self.start || stored >= self.start + held {
            self.load(block, stored, run)?;
        }
        let begin = (stored - self.start) * size;
        let end = (begin + run * size).min(self.buffer.len() as u64);
        Ok(&self.buffer[begin as usize..end as usize])
    }

    /// Reads blocks into the buffer: as many groups of rows as fit, or a part of a row.
    fn load(&mut self, block: u64, stored: u64, run: u64) -> Result<()> {
        let size = self.tensor.stored.kind.block_bytes() as u64;
        let most = (BUFFER as u64 / size).max(1);
        let count = if self.group > 1 {
            let group = self.group * self.row;
            self.start = block / group * group;
            let needed = (self.end - self.start).div_ceil(group);
            needed.min(most / group) * group
        } else {
            self.start = stored;
            run.min(most)
        };
        self.buffer.resize((count * size) as usize, 0);
        let read = self.tensor.file.read(&self.tensor.stored, self.start * size, &mut self.buffer);
        if read.is_err() {
            self.buffer.clear();
        }
        read
    }
}
