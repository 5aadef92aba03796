//! The log-mel features of Whisper (Radford et al., 2022, arXiv:2212.04356), computed while a file is decoded. Only the features of the whole
//! file are in memory, 115 MB per hour with 80 bins.

use std::cell::Cell;

use crate::decode::Limits;
use crate::error::Error;
use crate::samples::decode_resampled;
use crate::spectrogram::{HOP, SILENCE, Spectrogram, scaled};

/// Frames of features per second.
pub const FRAMES_PER_SECOND: usize = 100;
/// The frames that a model reads at once: 30 seconds.
pub const WINDOW_FRAMES: usize = 3000;

/// The features of a file.
pub struct LogMel {
    bins: usize,
    frames: usize,
    /// Logarithms, frame by frame, from frame `first`. There may be a few frames after the end, whose windows contain the last samples.
    values: Vec<f32>,
    /// The number of released frames.
    first: usize,
    loudest: f32,
}

impl LogMel {
    /// Decodes a file and computes its features with this many mel bins. Calls `check` regularly with the bytes that the features take so far.
    /// It may end the work by an error.
    pub fn of_file(
        file: impl AsRef<[u8]> + Send + Sync,
        bins: usize,
        limits: &Limits,
        check: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut builder = Builder::new(bins);
        let bytes = Cell::new(0);
        decode_resampled(file, limits, &mut || check(bytes.get()), &mut |samples| {
            builder.push(samples);
            bytes.set(builder.bytes());
        })?;
        Ok(builder.finish())
    }

    /// Computes the features of samples at 16 kHz.
    pub fn of_samples(samples: &[f32], bins: usize) -> Self {
        let mut builder = Builder::new(bins);
        builder.push(samples);
        builder.finish()
    }

    /// Returns the number of mel bins.
    pub fn bins(&self) -> usize {
        self.bins
    }

    /// Returns the number of frames, 100 per second.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Returns the duration in seconds.
    pub fn seconds(&self) -> f64 {
        self.frames as f64 / FRAMES_PER_SECOND as f64
    }

    /// Returns the bytes that the features take.
    pub fn bytes(&self) -> usize {
        size_of::<f32>() * self.values.capacity()
    }

    /// Frees the memory of frames before `frame`, of which no window is needed anymore. Small amounts are freed later.
    pub fn release_before(&mut self, frame: usize) {
        let released = frame.saturating_sub(self.first).min(self.values.len() / self.bins);
        if released * self.bins >= self.values.len() / 4 {
            self.values.drain(..released * self.bins);
            self.values.shrink_to_fit();
            self.first += released;
        }
    }

    /// Returns 30 seconds of features from frame `first`, frame by frame. A file of less than 30 seconds continues with silence until then.
    /// All features after that, and after the end of a longer file, are zero. So the model's reference implementation computes them.
    pub fn window(&self, first: usize) -> Vec<f32> {
        let is_short = self.frames <= WINDOW_FRAMES;
        let end = if is_short { self.first + self.values.len() / self.bins } else { self.frames };
        let end = end.min(first + WINDOW_FRAMES).saturating_sub(self.first);
        let begin = first.saturating_sub(self.first);
        let values = self.values.get(begin * self.bins..end * self.bins).unwrap_or_default();
        let mut window: Vec<f32> = values.iter().map(|value| scaled(*value, self.loudest)).collect();
        if is_short {
            window.resize(WINDOW_FRAMES.saturating_sub(first) * self.bins, scaled(SILENCE, self.loudest));
        }
        window.resize(WINDOW_FRAMES * self.bins, 0.0);
        window
    }
}

/// Features while samples arrive.
struct Builder {
    spectrogram: Spectrogram,
    bins: usize,
    values: Vec<f32>,
    samples: usize,
}

impl Builder {
    fn new(bins: usize) -> Self {
        Self { spectrogram: Spectrogram::new(bins), bins, values: Vec::new(), samples: 0 }
    }

    fn bytes(&self) -> usize {
        size_of::<f32>() * self.values.capacity()
    }

    fn push(&mut self, samples: &[f32]) {
        self.samples += samples.len();
        // A vector would double its memory.
        let more = (samples.len() / HOP + 2) * self.bins;
        if self.values.capacity() - self.values.len() < more {
            self.values.reserve_exact(more.max(self.values.len() / 8));
        }
        self.spectrogram.push(samples, &mut self.values);
    }

    fn finish(mut self) -> LogMel {
        self.spectrogram.finish(&mut self.values);
        self.values.shrink_to_fit();
        let loudest = self.values.iter().copied().fold(SILENCE, f32::max);
        LogMel { bins: self.bins, frames: self.samples / HOP, values: self.values, first: 0, loudest }
    }
}
