//! A decoded recording, which is read in chunks that end at quiet points.

use std::cell::Cell;

use crate::decode::Limits;
use crate::error::Error;
use crate::rate::SAMPLE_RATE;
use crate::samples::decode_resampled;

/// The samples of a block, over which loudness is summed: 10 ms.
const BLOCK: usize = SAMPLE_RATE as usize / 100;
/// The blocks of the shortest pause.
const PAUSE_BLOCKS: usize = 10;
/// A quiet point is searched in this many samples at the end of a chunk: 10 seconds.
const SEARCHED: usize = 10 * SAMPLE_RATE as usize;

/// The samples of a file at 16 kHz, and a position in them.
pub struct Recording {
    /// The samples from `first` on.
    samples: Vec<f32>,
    /// The number of released samples.
    first: usize,
    /// The index of the next sample.
    position: usize,
}

impl Recording {
    /// Decodes a file. Calls `check` regularly with the bytes that the samples take so far. It may end the work by an error.
    ///
    /// # Errors
    /// Fails like [`decode`](crate::decode).
    pub fn of_file(
        file: impl AsRef<[u8]> + Send + Sync,
        limits: &Limits,
        check: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let (mut all, bytes) = (Vec::<f32>::new(), Cell::new(0));
        decode_resampled(file, limits, &mut || check(bytes.get()), &mut |samples| {
            // A vector would double its memory.
            if all.capacity() - all.len() < samples.len() {
                all.reserve_exact(samples.len().max(all.len() / 8));
            }
            all.extend_from_slice(samples);
            bytes.set(size_of::<f32>() * all.capacity());
        })?;
        all.shrink_to_fit();
        Ok(Self::of_samples(all))
    }

    /// Returns the recording of samples at 16 kHz.
    pub fn of_samples(samples: Vec<f32>) -> Self {
        Self { samples, first: 0, position: 0 }
    }

    /// Returns the duration in seconds.
    pub fn seconds(&self) -> f64 {
        in_seconds(self.first + self.samples.len())
    }

    /// Returns the position in seconds.
    pub fn position(&self) -> f64 {
        in_seconds(self.position)
    }

    /// Returns the bytes that the samples take.
    pub fn bytes(&self) -> usize {
        size_of::<f32>() * self.samples.capacity()
    }

    /// Returns the next chunk: at most `seconds` from the position on. A chunk before the end of the file ends at a quiet point. Empty at the end.
    pub fn chunk(&self, seconds: u32) -> &[f32] {
        let ahead = &self.samples[self.position - self.first..];
        let most = (seconds as usize * SAMPLE_RATE as usize).max(1);
        match ahead.get(..most) {
            Some(longest) if ahead.len() > most => &longest[..quiet_point(longest)],
            _ => ahead,
        }
    }

    /// Moves by this many samples. Frees the memory of samples before the position; small amounts are freed later.
    pub fn advance(&mut self, samples: usize) {
        self.position = (self.position + samples).min(self.first + self.samples.len());
        let passed = self.position - self.first;
        if passed >= self.samples.len() / 4 {
            self.samples.drain(..passed);
            self.samples.shrink_to_fit();
            self.first = self.position;
        }
    }
}

fn in_seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(SAMPLE_RATE)
}

/// Returns the middle of the quietest 100 ms near the end of a chunk; on a tie, of the last. A chunk shorter than a pause is not cut.
fn quiet_point(chunk: &[f32]) -> usize {
    let start = chunk.len() - SEARCHED.min(chunk.len() / 2);
    let loudness = |block: &[f32]| block.iter().map(|sample| sample.abs()).sum::<f32>();
    let blocks: Vec<f32> = chunk[start..].chunks_exact(BLOCK).map(loudness).collect();
    let pauses = blocks.windows(PAUSE_BLOCKS).map(|blocks| blocks.iter().sum::<f32>()).enumerate();
    let quietest = pauses.min_by(|(one, loud), (other, louder)| loud.total_cmp(louder).then(other.cmp(one)));
    quietest.map_or(chunk.len(), |(block, _)| start + (block + PAUSE_BLOCKS / 2) * BLOCK)
}
